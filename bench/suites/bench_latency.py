"""Time of small all-to-all jobs beside Open MPI over TCP and beside a bare chain of as many thread wakes and messages.

All run on loopback, unshaped, in turns. `--before BUILD` adds a build of another version of this project, which must have
`bench/latency/bench_rank`.
"""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster import Cluster, Settings, die_with_parent
from common import BUILD, ROOT, BenchError, Result, median, progress

RAILS, SPEED = 4, "10gbit"
KIB = 1 << 10
# Nodes and ranks a node.
CELLS = [(2, 1), (4, 1), (8, 1), (4, 4)]
SIZES = [0, 4 * KIB, 64 * KIB, 1024 * KIB]  # bytes that a rank sends to all others together
EAGER = 8 * KIB  # bytes between two nodes that ride in READY, as `data.eager` has it
ONE_RAIL = 64 * KIB  # bytes between two nodes for each rail that the chain uses
TURNS = 5
JOBS, WARM_UP = 200, 50
MPI = ["--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1", "--mca",
       "btl_tcp_if_include", "lo"]
# Targets: over the bare chain, and over Open MPI, by (nodes, ranks a node, bytes).
OVER_CHAIN = {(2, 1, 4 * KIB): 1.5, (2, 1, 64 * KIB): 1.5}
OVER_MPI = {(4, 1, 4 * KIB): 3, (8, 1, 4 * KIB): 3, (4, 4, 4 * KIB): 1}
UNDER_BEFORE = {(2, 1, 4 * KIB): 6, (2, 1, 64 * KIB): 4}


class Ranks:
    """The ranks of a cluster, one process each, which stay between turns. A context manager."""

    def __init__(self, cluster, build, ranks_per_node):
        world = len(cluster.nodes) * ranks_per_node
        self._processes = [subprocess.Popen(
            [build / "bench/latency/bench_rank", "--sockets", cluster.nodes[rank // ranks_per_node].sockets, "--world",
             str(world), "--rank", str(rank), "--max-bytes", str(max(SIZES))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent) for rank in range(world)]

    def __enter__(self):
        self._answers()  # each rank reports that it has joined
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def _answers(self):
        lines = [process.stdout.readline() for process in self._processes]
        if not all(lines):
            raise BenchError("a rank of bench_rank ended; its error is above")
        return [json.loads(line) for line in lines]

    def run(self, size):
        """Median microseconds of a job at the first rank."""
        for jobs in (WARM_UP, JOBS):
            for process in self._processes:
                process.stdin.write(f"{size} {jobs}\n")
                process.stdin.flush()
            answers = self._answers()
            if sum(answer["wrong_bytes"] for answer in answers) > 0:
                raise BenchError("bytes arrived wrong")
        return answers[0]["p50_us"]


def ran(command):
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                         timeout=120, preexec_fn=die_with_parent)
    if run.returncode != 0:
        raise BenchError(f"{' '.join(map(str, command))} ended with {run.returncode}: {run.stderr.strip()[-500:]}")
    return json.loads(run.stdout)


def chain(nodes, ranks, size):
    world = nodes * ranks
    pair = size // (world - 1)
    exchange = pair * ranks * ranks
    rails = 0 if exchange <= EAGER else min(RAILS, -(-exchange // ONE_RAIL))
    return ran([BUILD / "bench/latency/bench_chain", "--nodes", nodes, "--ranks", ranks, "--rails", rails,
                "--bytes-per-pair", pair, "--jobs", JOBS, "--warmup", WARM_UP])["p50_us"]


def open_mpi(program, nodes, ranks, size):
    world = nodes * ranks
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as matrix:
        # A matrix of ranks: each sends equal parts to all others, those of its node included.
        for rank in range(world):
            print(",".join(str(0 if rank == other else size // (world - 1)) for other in range(world)), file=matrix)
        matrix.flush()
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        report = ran(["mpirun.openmpi", *as_root, "--oversubscribe", "-n", world, *MPI, program, JOBS, WARM_UP,
                      "collective", "each", matrix.name])
    if report["wrong_words"]:
        raise BenchError("bytes arrived wrong through Open MPI")
    return median(report["seconds"]) * 1e6


def cell(nodes, ranks, builds, program, turns):
    """Median microseconds by size and way, and the medians of ratios of one turn."""
    times = {size: {} for size in SIZES}
    clusters, groups = [], {}
    try:
        for name, build in builds.items():
            clusters.append(Cluster(Settings(nodes, RAILS, SPEED), build=build))
            clusters[-1].__enter__()
            groups[name] = Ranks(clusters[-1], build, ranks)
            groups[name].__enter__()
        for size in SIZES:
            ways = {name: (lambda group=group: group.run(size)) for name, group in groups.items()}
            ways["chain"] = lambda: chain(nodes, ranks, size)
            if program:
                ways["open_mpi"] = lambda: open_mpi(program, nodes, ranks, size)
            for _ in range(turns):
                for name, way in ways.items():
                    times[size].setdefault(name, []).append(way())
            progress(f"{nodes} nodes x {ranks}, {size} bytes a rank: " + ", ".join(
                f"{name} {median(values):.0f} us" for name, values in times[size].items()))
    finally:
        for group in groups.values():
            group.__exit__()
        for cluster in clusters:
            cluster.__exit__(None, None, None)
    return times


def label(size):
    return "0" if size == 0 else f"{size // KIB}KiB"


def results(nodes, ranks, times):
    out = []
    for size, ways in times.items():
        key, name = (nodes, ranks, size), f"latency.{nodes}x{ranks}.{label(size)}"

        def ratio(over, under):
            return median([a / b for a, b in zip(ways[over], ways[under])])

        how = f"p50 of {JOBS} jobs back to back at rank 0, every byte checked; median of {len(ways['railsd'])} turns"
        out.append(Result(name, median(ways["railsd"]), "us", None, how))
        out.append(Result(f"{name}.over_chain", ratio("railsd", "chain"), "x", OVER_CHAIN.get(key),
                          f"the bare chain: {median(ways['chain']):.0f} us"))
        if "open_mpi" in ways:
            out.append(Result(f"{name}.over_open_mpi", ratio("railsd", "open_mpi"), "x", OVER_MPI.get(key),
                              f"MPI_Alltoallv, btl tcp, ranks spin and yield: {median(ways['open_mpi']):.0f} us"))
        if "before" in ways:
            out.append(Result(f"{name}.before_over_now", ratio("before", "railsd"), "x", UNDER_BEFORE.get(key),
                              f"the other build: {median(ways['before']):.0f} us", at_least=True))
    return out


def measure(options):
    builds = {"railsd": BUILD}
    if options.before:
        builds["before"] = Path(options.before).resolve()
    with tempfile.TemporaryDirectory() as folder:
        program = None
        if shutil.which("mpicc.openmpi"):
            program = Path(folder) / "alltoallv"
            subprocess.run(["mpicc.openmpi", "-O2", "-o", program, ROOT / "bench/peers/alltoallv.c"], check=True)
        else:
            progress("no mpicc.openmpi: without Open MPI (./dev bench latency installs it)")
        out = []
        for nodes, ranks in CELLS:
            out += results(nodes, ranks, cell(nodes, ranks, builds, program, options.repeat or TURNS))
    return out
