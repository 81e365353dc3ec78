"""What the large submissions of one tenant cost the others of its node: how long calls wait for the engine, and the time
of a small job."""

import json
import subprocess

from common import BUILD, BenchError, Result, median, progress

SECONDS, RANGES, RUNS = 10, 1 << 20, 3


def measure(options):
    worst, p99, ratio, alone = [], [], [], []
    for number in range(options.repeat or RUNS):
        program = BUILD / "bench/stall/bench_stall"
        run = subprocess.run([program, str(SECONDS), str(RANGES)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, check=False)
        if run.returncode != 0:
            raise BenchError(f"{program.name} ended with {run.returncode}: {run.stderr.strip()}")
        report = json.loads(run.stdout)
        beside = report["beside"]
        worst.append(beside["call"]["worst_ms"])
        p99.append(beside["call"]["p99_ms"])
        ratio.append(report["ratio"])
        alone.append(report["alone"]["call"]["worst_ms"])
        progress(f"run {number + 1}: {beside['large_jobs']} large jobs, longest call {worst[-1]:.2f} ms "
                 f"(alone {alone[-1]:.2f} ms), small job {ratio[-1]:.2f} x")
    how = (f"one tenant submits jobs of {RANGES} ranges in a loop for {SECONDS} s, on one node without gRPC; "
           f"median of {len(worst)} runs")
    return [
        Result("stall.longest_turn", median(worst), "ms", 2.0,
               f"the longest that a call waited for the engine, which is at least its longest turn; {how}"),
        Result("stall.longest_turn_alone", median(alone), "ms", None, "the same without the large jobs: the machine's noise"),
        Result("stall.call_p99", median(p99), "ms", None, "99 of 100 calls waited less, beside the large jobs"),
        Result("stall.small_job", median(ratio), "x", 1.5,
               "median time of another tenant's job between two ranks of the node, beside the large jobs over alone"),
    ]
