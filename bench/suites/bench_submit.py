"""Time from submitting 15,000 small ranges to the first byte on a rail, with all other ranks ready; plain and prepared."""

import json
import subprocess

from cluster import Cluster, Settings
from common import BenchError, Result, median, progress

NODES, RAILS, RANGES = 4, 4, 15000
RUNS = 5


def run_once(cluster, extra):
    """The report of one run of railsctl bench."""
    command = [cluster.railsctl, "bench", "--mode", "submit", "--ranges", str(RANGES), "--json", *extra]
    for node in cluster.nodes:
        command += ["--daemon", node.sockets]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        raise BenchError(f"railsctl bench ended with {run.returncode}: {run.stderr.strip()}")
    report = json.loads(run.stdout)
    if not report["verified"]:
        raise BenchError("bytes arrived wrong")
    return report["submit"]


def results(name, runs):
    submit = runs[0]
    accepted, done = ([run[key]["p50"] * 1e3 for run in runs]
                      for key in ("submit_to_accepted_seconds", "submit_to_done_seconds"))
    first = [run["submit_to_first_chunk_seconds"]["p50"] * 1e3 for run in runs if run["submit_to_first_chunk_seconds"]]
    how = (f"rank 0 submits {submit['ranges']} ranges of 64 bytes, {NODES} nodes x {RAILS} rails, all others wait for it; "
           f"median of {len(runs)} runs of {submit['submit_to_done_seconds']['samples']} jobs; ")
    if len(first) == len(runs):
        value, how = median(first), how + "until a rail's thread has taken the first chunk"
    else:
        value, how = median(done), how + "until the last byte was acknowledged, so no less than to the first byte"
    return [
        Result(f"{name}.first_byte", value, "ms", 10.0 if name == "submit" else None, how),
        Result(f"{name}.accepted", median(accepted), "ms", None, "the part until the daemon has checked and accepted it"),
        Result(f"{name}.done", median(done), "ms", None, "until the job is complete"),
    ]


def measure(options):
    plain, prepared = [], []
    with Cluster(Settings(NODES, RAILS, "10gbit")) as cluster:
        repeat = options.repeat or RUNS
        for number in range(repeat):
            plain.append(run_once(cluster, []))
            prepared.append(run_once(cluster, ["--prepared"]))
            progress(f"run {number + 1} of {repeat}")
    return results("submit", plain) + results("submit_prepared", prepared)
