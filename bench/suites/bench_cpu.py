"""Processor time of the daemons per byte, compared with a bare loop over the same sockets in the same run."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from cluster import Cluster, Loopback, Settings
from common import BUILD, BenchError, Result, median, progress

NODES, RAILS, PER_RANK = 4, 4, 64 << 20
STEPS = 64  # each is a dispatch and a combine; training runs many more on the same memory
TOKEN = 8192  # bytes
PER_PAIR = PER_RANK // NODES  # a rank sends itself nothing, which the bare loop does not do either


def softirq_seconds():
    """Processor seconds of the kernel's ksoftirqd threads so far. No process is charged for their packets, and the way
    of calling the kernel decides how many they carry. Without these seconds io_uring would look too good."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # the process has ended
        if name.startswith("ksoftirqd/"):
            total += sum(map(int, rest.split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def bare(network, *more):
    """Runs the bare loop once: processor seconds per GB, GB/s, system calls per GB."""
    softirq = softirq_seconds()
    run = subprocess.run([BUILD / "bench/bare/bench_bare", "--network", network, "--nodes", str(NODES), "--rails",
                          str(RAILS), "--bytes-per-pair", str(PER_PAIR), "--rounds", str(2 * STEPS), *more],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        raise BenchError(f"bench_bare ended with {run.returncode}: {run.stderr.strip()}")
    report = json.loads(run.stdout)
    gigabytes = report["bytes"] / 1e9
    softirq = softirq_seconds() - softirq
    return {"softirq": softirq / gigabytes, "user": report["user_seconds"] / gigabytes,
            "system": report["system_seconds"] / gigabytes, "speed": gigabytes / report["seconds"], "calls": report["system_calls"] / gigabytes}


def counters(cluster):
    """System calls of all daemons' rails so far."""
    rails = [rail for node in cluster.nodes for rail in cluster.overview(node)["rails"]]
    return sum(int(rail["counters"]["tx_system_calls"]) + int(rail["counters"]["rx_system_calls"]) for rail in rails)


def daemons(cluster):
    """Sends the same bytes through the daemons."""
    before, calls, softirq = [node.cpu_seconds() for node in cluster.nodes], counters(cluster), softirq_seconds()
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as trace:
        print("rank,model,layer,iter,tokens", file=trace)
        for step in range(STEPS):
            for a in range(NODES):
                for b in range(NODES):
                    print(f"{NODES * a + b},uniform,0,{step},{0 if a == b else PER_PAIR // TOKEN}", file=trace)
        trace.flush()
        report = cluster.replay(trace.name, "--trace-ranks-per-node", NODES, "--bytes-per-token", TOKEN, "--bytes-per-rank", 0,
                                "--steps", STEPS, "--warmup", 0, "--verify")
    after, calls = [node.cpu_seconds() for node in cluster.nodes], counters(cluster) - calls
    softirq = softirq_seconds() - softirq
    gigabytes = sum(rail["tx_bytes"] for rail in report["rails"]) / 1e9
    return {"softirq": softirq / gigabytes,
            "user": sum(b[0] - a[0] for a, b in zip(before, after)) / gigabytes,
            "system": sum(b[1] - a[1] for a, b in zip(before, after)) / gigabytes,
            "speed": gigabytes / report["seconds"], "calls": calls / gigabytes}


def measure(options):
    pairs = options.repeat or 10
    ours, theirs, ring = [], [], []
    # The bare loop has its own network, so that both fit into one run.
    network = Loopback()
    try:
        with Cluster(Settings(NODES, RAILS, "40gbit")) as cluster:
            daemons(cluster)  # warm-up
            for number in range(pairs):
                theirs.append(bare(f"127.{network.number}"))
                ring.append(bare(f"127.{network.number}", "--io-uring"))
                ours.append(daemons(cluster))
                progress(f"pair {number + 1} of {pairs}: daemons {ours[-1]['user'] + ours[-1]['system']:.3f} s/GB at "
                         f"{ours[-1]['speed']:.2f} GB/s, bare {theirs[-1]['user'] + theirs[-1]['system']:.3f} at "
                         f"{theirs[-1]['speed']:.2f}")
    finally:
        network.close()

    def of(runs, *keys):
        return median([sum(run[key] for key in keys) for run in runs])

    ratios = [(a["user"] + a["system"]) / (b["user"] + b["system"]) for a, b in zip(ours, theirs)]
    how = (f"user + system seconds per GB, {NODES} daemons x {RAILS} rails on loopback, {PER_PAIR >> 20} MiB a "
           f"pair, over a bare loop on as many sockets; median of {pairs} interleaved pairs")
    return [
        Result("cpu.ratio_to_bare_loop", median(ratios), "", 1.15, how),
        Result("cpu.daemons", of(ours, "user", "system"), "s/GB", None, "all daemons, /proc/PID/stat"),
        Result("cpu.daemons.user", of(ours, "user"), "s/GB", None, "the part in the daemons' own code"),
        Result("cpu.daemons.system", of(ours, "system"), "s/GB", None, "the part in the kernel"),
        Result("cpu.daemons.softirq", of(ours, "softirq"), "s/GB", None, "beside it, in the kernel's ksoftirqd threads"),
        Result("cpu.daemons.system_calls", of(ours, "calls"), "per GB", None, "send and receive calls of the rails"),
        Result("cpu.daemons.speed", of(ours, "speed"), "GB/s", None, "bytes over the time of the phases"),
        Result("cpu.bare", of(theirs, "user", "system"), "s/GB", None, "the bare loop"),
        Result("cpu.bare.softirq", of(theirs, "softirq"), "s/GB", None, "beside it, in the kernel's ksoftirqd threads"),
        Result("cpu.bare.system_calls", of(theirs, "calls"), "per GB", None, "send, receive and epoll calls"),
        Result("cpu.bare.speed", of(theirs, "speed"), "GB/s", None, "the bare loop"),
        Result("cpu.bare_io_uring", of(ring, "user", "system"), "s/GB", None,
               "the bare loop by io_uring instead of epoll: what the other choice would cost"),
        Result("cpu.bare_io_uring.softirq", of(ring, "softirq"), "s/GB", None,
               "beside it, in the kernel's ksoftirqd threads: add it before comparing"),
        Result("cpu.bare_io_uring.speed", of(ring, "speed"), "GB/s", None, "the same"),
    ]
