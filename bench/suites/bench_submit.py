"""Time from submitting 15,000 small ranges to the first byte on a rail, with all other ranks ready."""

import json
import subprocess

from cluster import Cluster, Settings
from common import BenchError, Result, median, progress

NODES, RAILS, RANGES = 4, 4, 15000
RUNS = 5


def measure(options):
    repeat = options.repeat or RUNS
    accepted, first, done = [], [], []
    with Cluster(Settings(NODES, RAILS, "10gbit")) as cluster:
        for number in range(repeat):
            command = [cluster.railsctl, "bench", "--mode", "submit", "--ranges", str(RANGES), "--json"]
            for node in cluster.nodes:
                command += ["--daemon", node.sockets]
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
            if run.returncode != 0:
                raise BenchError(f"railsctl bench ended with {run.returncode}: {run.stderr.strip()}")
            report = json.loads(run.stdout)
            if not report["verified"]:
                raise BenchError("bytes arrived wrong")
            submit = report["submit"]
            accepted.append(submit["submit_to_accepted_seconds"]["p50"] * 1e3)
            done.append(submit["submit_to_done_seconds"]["p50"] * 1e3)
            if submit["submit_to_first_chunk_seconds"]:
                first.append(submit["submit_to_first_chunk_seconds"]["p50"] * 1e3)
            progress(f"run {number + 1} of {repeat}: accepted {accepted[-1]:.2f} ms, done {done[-1]:.2f} ms")
    how = (f"rank 0 submits {submit['ranges']} ranges of 64 bytes, {NODES} nodes x {RAILS} rails, all others wait for it; "
           f"median of {repeat} runs of {submit['submit_to_done_seconds']['samples']} jobs; ")
    if len(first) == repeat:
        value, how = median(first), how + "until a rail's thread has taken the first chunk"
    else:
        value, how = median(done), how + "until the last byte was acknowledged, so no less than to the first byte"
    return [
        Result("submit.first_byte", value, "ms", 10.0, how),
        Result("submit.accepted", median(accepted), "ms", None, "of which until the daemon has checked and accepted it"),
        Result("submit.done", median(done), "ms", None, "until the job is complete"),
    ]
