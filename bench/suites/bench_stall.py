"""The cost of one tenant's large submissions for the other tenants of its node: turns of the engine thread, waiting
times of calls, and the time of a small job."""

import json
import subprocess

from common import BUILD, BenchError, Result, median, progress

SECONDS, RANGES, RUNS = 10, 1 << 20, 3


def measure(options):
    turn, floor, call, ratio = [], [], [], []
    for number in range(options.repeat or RUNS):
        program = BUILD / "bench/stall/bench_stall"
        run = subprocess.run([program, str(SECONDS), str(RANGES)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, check=False)
        if run.returncode != 0:
            raise BenchError(f"{program.name} ended with {run.returncode}: {run.stderr.strip()}")
        report = json.loads(run.stdout)
        beside = report["beside"]
        turn.append(beside["turns"]["turn"]["worst_ms"])
        floor.append(report["alone"]["turns"]["turn"]["worst_ms"])
        call.append(beside["call"]["p99_ms"])
        ratio.append(report["ratio"])
        progress(f"run {number + 1}: {beside['large_jobs']} large jobs, longest of {beside['turns']['turn']['samples']} "
                 f"turns {turn[-1]:.2f} ms, without large jobs {floor[-1]:.2f} ms, small job {ratio[-1]:.2f} x")
    how = (f"one tenant submits jobs of {RANGES} ranges in a loop for {SECONDS} s, on one node without gRPC; "
           f"median of {len(turn)} runs")
    return [
        Result("stall.longest_turn", median(turn), "ms", 2.0,
               f"most processor time of two neighbouring gaps between answers of the engine, which bounds one turn; "
               f"each answer asks the next question; {how}"),
        Result("stall.longest_turn_alone", median(floor), "ms", None,
               "the same while a thread that spins takes the place of the large jobs: what the machine adds to a turn"),
        Result("stall.small_job", median(ratio), "x", 1.5,
               "median time of another tenant's job between two ranks of the node, beside the large jobs over alone"),
        Result("stall.call_p99", median(call), "ms", None, "99 of 100 calls waited less for the engine meanwhile"),
    ]
