"""Time and allocations of planning, from Google Benchmark."""

import json
import subprocess

from common import BUILD, BenchError, Result

# Suffixes of the benchmarks' names, descriptions, and targets: microseconds, allocations.
CASES = [("64x8", "64 destinations x 8 rails, 1 MiB chunks, 4 GiB", 100.0, 0.0),
         ("128x8", "128 exchanges x 8 rails, one flow each, 8 GiB", 30.0, 0.0),
         ("128x8_unequal_rails", "128 exchanges x 8 rails of two speeds, one flow each, 8 GiB", 30.0, 0.0),
         ("1024x8", "1,024 destinations x 8 rails, 64 GiB", 2000.0, None)]
UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def measure(options):
    program = BUILD / "bench/planner/bench_planner"
    run = subprocess.run([program, "--benchmark_format=json", f"--benchmark_repetitions={options.repeat or 10}",
                          "--benchmark_report_aggregates_only=true"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        raise BenchError(f"{program.name} ended with {run.returncode}: {run.stderr.strip()}")
    medians = [case for case in json.loads(run.stdout)["benchmarks"] if case.get("aggregate_name") == "median"]
    results = []
    for label, what, microseconds, allocations in CASES:
        case = next((case for case in medians if case["run_name"].endswith(f"/{label}")), None)
        if case is None:
            raise BenchError(f"{program.name} has no case {label}: {[case['run_name'] for case in medians]}")
        how = f"{what}; median of {case['repetitions']} repetitions, {case['run_name']}"
        results.append(Result(f"planner.{label}.time", case["real_time"] * UNITS[case["time_unit"]], "us", microseconds,
                              how))
        if allocations is not None:
            results.append(Result(f"planner.{label}.allocations", case.get("allocations", float("nan")),
                                  "per plan", allocations, "operator new in the steady state, counted"))
    return results
