"""Jobs on device memory beside the two things that staging overlaps, on one GPU: rails alone, between buffers of the host,
and copies alone. Two daemons with two TCP rails over loopback; needs a GPU."""

import json
import subprocess

from cluster import Cluster, Settings
from common import BUILD, BenchError, Result, median, progress

MIB = 256
ROUNDS = 7
NO_DEVICE = 3  # exit status of rails_cuda_ranks


def measure(options):
    rounds = options.repeat or ROUNDS
    with Cluster(Settings(2, 2, "400gbit")) as cluster:
        command = [BUILD / "bench/cuda/rails_cuda_ranks", "--bytes", MIB << 20, "--turns", 2, "--rounds", rounds,
                   *[node.sockets for node in cluster.nodes]]
        run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             check=False, timeout=600)
    if run.returncode == NO_DEVICE:
        progress(f"skipped: no GPU: {run.stderr.strip().splitlines()[0]}")
        return []
    if run.returncode != 0:
        raise BenchError(f"rails_cuda_ranks ended with {run.returncode}: {run.stderr.strip()}")
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    times = [line for line in lines if "staged_seconds" in line]
    rails, copies, staged = (median([line[f"{way}_seconds"] for line in times]) for way in ("rails", "copies", "staged"))
    ratio = median([line["staged_seconds"] / max(line["rails_seconds"], line["copies_seconds"]) for line in times])
    how = f"{lines[0]['device']}, 2 ranks, {MIB} MiB each way, median of {rounds} interleaved rounds"
    return [
        Result("cuda.staged_over_slower", ratio, "ratio", 1.10, f"over the slower of rails alone and copies alone; {how}"),
        Result("cuda.staged", staged * 1e3, "ms", None, "device to device"),
        Result("cuda.rails", rails * 1e3, "ms", None, "host to host, the same bytes"),
        Result("cuda.copies", copies * 1e3, "ms", None, "out of the device and into it, at the same time"),
    ]
