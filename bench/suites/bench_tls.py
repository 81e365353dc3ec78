"""The cost of mutual TLS on the control plane: system calls and instructions per chunk, and instructions per job."""

import re
import signal
import subprocess
import tempfile
from pathlib import Path

from cluster import Cluster, Loopback, Settings
from common import BenchError, Result, median, progress

NODES, RAILS = 2, 2
# Bytes per rank of a step. The number of jobs is the same; only the chunks grow in number.
SIZES = (4 << 20, 256 << 20)
STEPS = 8
REPEAT = 3
# Steps of two runs. The difference of their instructions excludes start, sessions and end.
FEW, MANY = 5, 45
PER_RANK = 64 << 20
LARGER = 4 * PER_RANK  # the same number of jobs, with more chunks
# A copy of a 1 MiB chunk takes 32,768 loads and as many stores of 32 bytes. Two runs differ only by some hundreds.
NO_COPY = 10_000


def settings(tls, speed="10gbit"):
    # Emulation is fifty times slower. Longer timeouts, so that no peer counts as lost. A longer heartbeat, so that
    # periodic heartbeats and acknowledgements do not add fifty times as much to a job.
    slow = {"peer_lost": "60s", "heartbeat": "10s", "drain": "60s", "stuck": "10m", "job": "10m", "join": "10m"}
    sections = {"timeouts": slow}
    if tls:
        sections["tls"] = {"refresh": "10s"}  # the default
    return Settings(NODES, RAILS, speed, patience=300.0, tls=tls, sections=sections)


def chunks(cluster):
    rails = cluster.overview(cluster.nodes[0])["rails"]
    return sum(int(rail["counters"][key]) for rail in rails for key in ("tx_chunks", "rx_chunks"))


def replay(cluster, size, steps):
    return cluster.replay("--workload", "uniform", "--bytes-per-rank", size, "--steps", steps, "--warmup", 0, "--seed", 1)


def other_threads(pid):
    """strace's options for all threads except those of rails, which use no TLS and whose calls vary with the load."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir()
             if not (task / "comm").read_text().startswith("rail")]
    return [word for task in tasks for word in ("-p", task.name)]


def counted(cluster, size):
    """System calls of the first daemon's threads, except those of rails, during a replay, and the chunks that it sent
    and received."""
    with tempfile.NamedTemporaryFile("r") as table:
        threads = other_threads(cluster.nodes[0].pid)
        tracer = subprocess.Popen(["strace", "-c", "-U", "calls,name", "-o", table.name,
                                   *threads], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
        try:
            for _ in range(len(threads) // 2):
                if "attached" not in (line := tracer.stderr.readline()):
                    raise BenchError(f"strace: {line.strip() or 'no word'}; it needs root or the right to trace")
            before = chunks(cluster)
            replay(cluster, size, STEPS)
            moved = chunks(cluster) - before
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()
        rows = re.findall(r"^\s*(\d+) +(\w+)$", table.read(), re.MULTILINE)
    calls = {name: int(count) for count, name in rows if name != "total"}
    if not calls or not moved:
        raise BenchError("strace counted nothing, or nothing moved")
    return sum(calls.values()), moved


def system_calls(repeat):
    """Medians of system calls and chunks, for each mode and size."""
    out = {}
    clusters = {"plain": Cluster(settings(False)), "tls": Cluster(settings(True))}
    with clusters["plain"], clusters["tls"]:
        for cluster in clusters.values():
            replay(cluster, SIZES[0], 1)
        runs = {(mode, size): [] for mode in clusters for size in SIZES}
        for number in range(repeat):
            for (mode, size), list_ in runs.items():
                list_.append(counted(clusters[mode], size))
                progress(f"run {number + 1} of {repeat}, {mode}, {size >> 20} MiB: {list_[-1][0]} system calls, "
                         f"{list_[-1][1]} chunks")
        for key, list_ in runs.items():
            out[key] = median([calls for calls, _ in list_]), median([moved for _, moved in list_])
    return out


class UnderCallgrind(Loopback):
    """Runs the first daemon under callgrind, which counts instructions in user space."""

    def __init__(self, counts):
        super().__init__()
        self._counts = counts

    def command(self, node):
        return ["valgrind", "--tool=callgrind", f"--callgrind-out-file={self._counts}"] if node == 0 else []


def jobs_done(cluster):
    return int(cluster.overview(cluster.nodes[0])["status"]["jobs_done"])


def since_last(cluster, counts, number):
    """Instructions since the start or the last call. `number`: of this call, from 1."""
    pid = str(cluster.nodes[0].pid)
    run = subprocess.run(["callgrind_control", "--dump", pid], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False)
    part = Path(f"{counts}.{number}")
    total = re.search(r"^(?:summary|totals): (\d+)", part.read_text(), re.MULTILINE) if part.exists() else None
    if run.returncode != 0 or not total:
        raise BenchError(f"callgrind_control ended with {run.returncode}: {run.stdout.strip()}")
    return int(total.group(1))


def instructions(tls, repeat):
    """Instructions of the first daemon for a job and for a chunk: the difference of two replays, divided by the
    difference of their jobs or chunks."""
    values = []
    for number in range(repeat):
        with tempfile.TemporaryDirectory(prefix="railsd-callgrind-") as folder:
            counts = Path(folder) / "counts"
            with Cluster(settings(tls), addresses=UnderCallgrind(counts)) as cluster:
                replay(cluster, PER_RANK, 1)
                since_last(cluster, counts, 1)
                runs = []
                for size, steps in ((PER_RANK, FEW), (PER_RANK, MANY), (LARGER, FEW)):
                    before = jobs_done(cluster), chunks(cluster)
                    replay(cluster, size, steps)
                    runs.append((since_last(cluster, counts, len(runs) + 2), jobs_done(cluster) - before[0],
                                 chunks(cluster) - before[1]))
        few, many, larger = runs
        values.append(((many[0] - few[0]) / (many[1] - few[1]), (larger[0] - few[0]) / (larger[2] - few[2])))
        progress(f"run {number + 1} of {repeat}, {'tls' if tls else 'plain'}: {values[-1][0]:.0f} instructions a job, "
                 f"{values[-1][1]:.0f} a chunk")
    return [median(list(of_all)) for of_all in zip(*values)]


def measure(options):
    repeat = options.repeat or REPEAT
    calls = system_calls(repeat)
    small, large = SIZES
    grown = calls["tls", large][1] - calls["tls", small][1]
    more = {size: calls["tls", size][0] - calls["plain", size][0] for size in SIZES}
    (plain, plain_chunk), (tls, tls_chunk) = instructions(False, repeat), instructions(True, repeat)
    how = (f"all threads of one daemon but those of rails, under strace; {2 * STEPS} jobs of {small >> 20} and of "
           f"{large >> 20} MiB a rank, {grown:.0f} chunks apart; median of {repeat} runs each")
    return [
        Result("tls.additional_system_calls_by_chunk", (more[large] - more[small]) / grown, "", 0.1, how),
        *[Result(f"tls.system_calls.{mode}.{size >> 20}MiB", count, "", None, f"in all, {moved:.0f} chunks")
          for (mode, size), (count, moved) in calls.items()],
        Result("tls.instructions_over_plain", tls / plain, "", 1.05,
               f"one daemon in user space under callgrind, a job of {PER_RANK >> 20} MiB a rank; difference of replays of "
               f"{2 * MANY} and {2 * FEW} jobs, median of {repeat}"),
        Result("tls.additional_instructions_by_chunk", tls_chunk - plain_chunk, "", NO_COPY,
               f"{tls_chunk:.0f} with TLS, {plain_chunk:.0f} in plain text; of jobs of {LARGER >> 20} and of {PER_RANK >> 20} "
               "MiB a rank; a copy of a chunk would be 65,536"),
        Result("tls.instructions", tls, "a job", None, "with mutual TLS on the control plane"),
        Result("tls.plain_instructions", plain, "a job", None, "in plain text"),
    ]
