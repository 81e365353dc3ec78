"""`all_to_all_single` of torch.distributed through the backend rails beside Gloo: on an emulated fabric of 4 nodes x 4 rails
at 200 Mbit/s, which needs root, and by 4 ranks on one node. And the time that the Python package and torch add to a call."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile

from bench_peers import trace_of
from cluster import Cluster, Settings, die_with_parent
from common import BUILD, ROOT, BenchError, Result, median, progress
from lab import Lab
from peers import cells

PYTHON = "/usr/bin/python3"  # the only one that sees Debian's torch
HERE = ROOT / "bench/torch"
MIB = 16
TURNS, CALL_TURNS, CALLS = 7, 9, 2000
BYTES = 64  # of a call
PATIENCE = 600


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT / "client/python"), "RAILS_LIBRARY": str(BUILD / "client/c/librails.so")}


def exchanged(cluster, rows, turns, *words):
    """Seconds of the operations of all ranks, by way."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as matrix:
        for row in rows:
            print(",".join(map(str, row)), file=matrix)
        matrix.flush()
        sockets = [word for node in cluster.nodes for word in ("--sockets", node.sockets)]
        run = subprocess.run([str(word) for word in (PYTHON, HERE / "all_to_all.py", *sockets, "--turns", turns, *words,
                                                     matrix.name)],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE,
                             env=environment(), preexec_fn=die_with_parent)
    if run.returncode != 0:
        raise BenchError(f"all_to_all.py ended with {run.returncode}: {run.stderr.strip()[-500:]}")
    report = json.loads(run.stdout)
    if report["wrong_words"]:
        raise BenchError(f"{report['wrong_words']} words arrived wrong")
    return report["seconds"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def over_gloo(seconds, way):
    """How much faster than Gloo, the median of the turns."""
    return median([gloo / its for gloo, its in zip(seconds["gloo"], seconds[way])])


def on_fabric(workload, trace, turns):
    cell = cells.Cell("healthy", 1, MIB, workload)
    rows = cells.matrix(cell, trace)
    with Lab(cells.NODES, cells.RAILS, "200mbit") as fabric:
        with Cluster(Settings(cells.NODES, cells.RAILS, "200mbit"), addresses=fabric) as cluster:
            seconds = exchanged(cluster, rows, turns, "--prefix", fabric.prefix, "--store", "10.250.0.1:29500",
                                "--management", "mgmt", "--interface", "rail0")
    times = {way: median(values) for way, values in seconds.items()}
    bound = cells.bound(cell, rows)
    progress(f"{workload}: " + ", ".join(f"{way} {value:.3f} s" for way, value in times.items()) + f"; bound {bound:.3f} s")
    how = (f"{workload}, {MIB} MiB a rank, 1 rank on each of 4 nodes, 4 rails at 200 Mbit/s; median of {turns} turns, every "
           "word verified")
    out = []
    for way in ("shared", "ordinary"):
        out += [Result(f"torch.{workload}.{way}.over_gloo", over_gloo(seconds, way), "x faster", 3.5,
                       f"than Gloo on one interface: {how}, {way} tensors", at_least=True),
                Result(f"torch.{workload}.{way}.bound", times[way] / bound, "x bound", 1.08,
                       f"{how}, {way} tensors; payload over raw line rate")]
    return out


def on_one_node(turns):
    ranks, words = 4, MIB << 20
    rows = [[words // ranks] * ranks for _ in range(ranks)]
    with Cluster(Settings(1, 1, "10gbit")) as cluster:
        seconds = exchanged(cluster, rows, turns, "--ranks-per-node", ranks, "--store", f"127.0.0.1:{free_port()}")
    how = f"{ranks} ranks on one node, {MIB} MiB a rank; median of {turns} turns, every word verified"
    return [Result(f"torch.one_node.{way}.over_gloo", over_gloo(seconds, way), "x faster", 1,
                   f"than Gloo on loopback ({median(seconds['gloo']) * 1e3:.1f} ms): {how}, {way} tensors "
                   f"({median(seconds[way]) * 1e3:.1f} ms)", at_least=True) for way in ("shared", "ordinary")]


class Lines:
    """A program that reads lines and answers each with one. A context manager."""

    def __init__(self, *command):
        self._process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, env=environment(), preexec_fn=die_with_parent)

    def __enter__(self):
        self.answer()  # it is ready
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("a program that makes calls ended; its error is above")
        return line

    def ask(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.answer()


@contextlib.contextmanager
def one_processor():
    """Keeps what is started meanwhile on one processor. Otherwise the kernel wakes the daemon on another one as soon as its
    caller pauses, as Python does between two jobs, and the wake from idle outweighs what Python itself costs."""
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def calls(turns):
    times = {"cpp": [], "python": [], "torch": []}
    with one_processor(), Cluster(Settings(1, 1, "10gbit")) as cluster:
        sockets = cluster.nodes[0].sockets
        with Lines(BUILD / "bench/latency/bench_rank", "--sockets", sockets, "--world", 1, "--rank", 0) as cpp, \
             Lines(PYTHON, HERE / "calls.py", sockets) as python:
            for _ in range(turns):
                times["cpp"].append(json.loads(cpp.ask(f"{BYTES} {CALLS}"))["p50_us"])
                for way in ("python", "torch"):
                    times[way].append(float(python.ask(f"{way} {CALLS}")))
    progress("calls: " + ", ".join(f"{way} {median(values):.1f} us" for way, values in times.items()))
    how = f"a job of one rank with itself, {BYTES} bytes, all on one processor; median of {turns} turns of the difference of medians of {CALLS} calls"
    return [Result(f"torch.call.{over}_over_{under}", median([a - b for a, b in zip(times[over], times[under])]), "us", 20,
                   f"{how} ({median(times[over]):.1f} and {median(times[under]):.1f} us)")
            for over, under in (("python", "cpp"), ("torch", "python"))]


def measure(options):
    trace, _ = trace_of(options)
    turns = options.repeat or TURNS
    out = calls(options.repeat or CALL_TURNS) + on_one_node(turns)
    for workload in ("uniform", "mixtral"):
        out += on_fabric(workload, trace, turns)
    return out
