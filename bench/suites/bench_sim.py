"""The simulator's completion times beside those of the daemons on an emulated fabric of 4 nodes x 4 rails. Needs root.

Both get the same matrices of bytes between ranks. The prediction is the time of `railsctl sim` in packet mode at the
speed that headers leave, minus the time of one burst of the shapers. All predictions are then multiplied by one factor:
measured over predicted time of the calibration case.
"""

import dataclasses
import fnmatch
import json
import random
import subprocess
import tempfile
from pathlib import Path

from cluster import Cluster, Settings
from common import BUILD, ROOT, BenchError, Result, median, progress
from lab import BURST, GOODPUT, MTU
from peers import cells as matrices
from peers.cells import BROKEN_NODE, BROKEN_RAIL, MIB, NODES, RAILS, RATE
from peers.fabric import PeerLab
from sim_plot import plot, table

RUNS = 5  # steps of a case
TARGET = 0.05  # largest allowed difference of prediction and measurement
WARM_UP, SLOW_WARM_UP = 2, 4  # steps that do not count; with a slow rail, plans use its measured speed after four steps
PACKET = MTU - 52  # payload of a packet behind the headers of TCP over IPv4 with time stamps
CALIBRATION = "permutation.lpt.4rank.16MiB"  # one sender for each receiver: what the emulation adds, without congestion
BURST_BYTES = int(BURST.removesuffix("kb")) * 1024
# Maps policies of the daemon to their names in the simulator, where `pinned` is NCCL's policy, which crosses rails.
POLICIES = {"lpt": "planner", "pinned": "own_rail"}
SPREAD = 0.5  # standard deviation of the logarithm of a rank's share of its node's bytes


@dataclasses.dataclass(frozen=True)
class Case(matrices.Cell):
    """A cell under one policy."""

    policy: str

    @property
    def name(self):
        return super().name.replace(self.workload, f"{self.workload}.{self.policy}")

    @property
    def batch(self):
        """Cases of one batch run one after the other through the same daemons."""
        return self.state, self.policy, self.ranks


def all_cases():
    cases = [Case("healthy", 4, 16, workload, policy) for policy in POLICIES
             for workload in ("uniform", "zipf", "sparse_50", "sparse_80", "permutation", "incast", "mixtral")]
    cases += [Case("healthy", 1, 64, workload, "lpt") for workload in ("uniform", "zipf", "mixtral")]
    return cases + [Case(state, 4, 16, workload, policy) for state in ("slow", "dead") for policy in POLICIES
                    for workload in ("uniform", "zipf", "mixtral")]


def quick_cases():
    """Cases of every kind, which take two minutes."""
    return [Case("healthy", 4, 16, "permutation", "lpt"), Case("healthy", 4, 16, "uniform", "lpt"), Case("healthy", 4, 16, "mixtral", "pinned"),
            Case("slow", 4, 16, "mixtral", "lpt"), Case("dead", 4, 16, "uniform", "pinned")]


def matrix_of(case, trace):
    """Bytes between ranks. Ranks of a node differ, as ranks with popular experts do, but not in `uniform`."""
    rows = matrices.matrix(case, trace)
    if case.workload == "uniform" or case.ranks == 1:
        return rows
    draw = random.Random(11)
    out, into = ([draw.lognormvariate(0, SPREAD) for _ in rows] for _ in range(2))
    weights = [[length * out[a] * into[b] for b, length in enumerate(row)] for a, row in enumerate(rows)]
    scale = matrices.total(rows) / matrices.total(weights)
    return [[round(weight * scale / matrices.BLOCK) * matrices.BLOCK for weight in row] for row in weights]


def latency_of(ranks):
    """Longest queue of the shapers, as a time. The shapers drop packets of many flows if it is short."""
    return "400ms" if ranks > 1 else "100ms"


def predicted(case, path, mode):
    """Seconds by the simulator in that mode."""
    rate = RATE * 8 * GOODPUT / 1e6
    speeds = [rate / 2 if case.state == "slow" and rail == BROKEN_RAIL else rate for rail in range(RAILS)]
    command = [BUILD / "sim/railsctl-sim", "--file", path, "--nodes", NODES, "--gpus", case.ranks, "--rails", RAILS,
               "--speed", ",".join(f"{speed:g}mbit" for speed in speeds), "--policy", POLICIES[case.policy], "--json"]
    if mode == "packet":
        queue = RATE * int(latency_of(case.ranks).removesuffix("ms")) // 1000
        command += ["--mode", "packet", "--packet", PACKET, "--queue", f"{queue:.0f}", "--full", "drop", "--acks-wait", "true"]
    if case.state == "dead":
        command += ["--changes", f"{BROKEN_RAIL}@{BROKEN_NODE}:0s:0"]
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        raise BenchError(f"railsctl-sim ended with {run.returncode}: {run.stderr.strip()}")
    return json.loads(run.stdout)["points"][0]["policies"][0]["seconds"] - BURST_BYTES / RATE


def write_files(case, rows, folder, steps):
    """The matrix for the simulator, and a routing trace of equal steps, which a replay runs in one session."""
    matrix, trace = folder / f"{case.name}.csv", folder / f"{case.name}.trace.csv"
    matrix.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n", encoding="ascii")
    lines = ["rank,model,layer,iter,tokens"]
    for step in range(steps):
        lines += [f"{len(rows) * a + b},matrix,0,{step},{length // matrices.BLOCK}"
                  for a, row in enumerate(rows) for b, length in enumerate(row)]
    trace.write_text("\n".join(lines) + "\n", encoding="ascii")
    return matrix, trace


def step_seconds(cluster, case, trace, steps, warmup):
    """Times of equal steps through the daemons, every byte verified."""
    report = cluster.replay(trace, "--no-combine", "--bytes-per-rank", 0, "--verify", "--ranks-per-node", case.ranks,
                            "--trace-ranks-per-node", NODES * case.ranks, "--bytes-per-token", matrices.BLOCK,
                            "--steps", steps, "--warmup", warmup)
    return [step["seconds"] for step in report["per_step"]]


def measure_batch(fabric, batch, files, repeat, done):
    """Runs the cases of a batch. `done(case, seconds of its steps)` is called after each."""
    state, policy, ranks = batch
    fabric.set_state(state, latency_of(ranks))
    settings = Settings(NODES, RAILS, fabric.rate, sections={"plan": {"policy": policy}},
                        rails_up=RAILS - 1 if state == "dead" else RAILS)
    with Cluster(settings, addresses=fabric) as cluster:
        for case, (_, trace) in files.items():
            done(case, step_seconds(cluster, case, trace, repeat, SLOW_WARM_UP if state == "slow" else WARM_UP))


def chosen(options):
    if options.cells:
        patterns = options.cells.split(",")
        cases = [case for case in all_cases()
                 if case.name == CALIBRATION or any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns)]
        if len(cases) == 1 and CALIBRATION not in patterns:
            raise BenchError(f"no case is named {options.cells}; among others there is {all_cases()[0].name}")
        return cases
    return quick_cases() if options.quick else all_cases()


def trace_of(options):
    found = [Path(options.trace)] if options.trace else sorted((ROOT.parent / "shared/workloads").glob("*.csv.gz"))
    return matrices.read_trace(found[0]) if found else None


def measure(options):
    cases, trace, points, batches = chosen(options), trace_of(options), [], {}
    repeat = options.repeat or RUNS
    with tempfile.TemporaryDirectory() as scratch, PeerLab(NODES, RAILS) as fabric:
        for case in cases:
            batches.setdefault(case.batch, {})[case] = write_files(case, matrix_of(case, trace), Path(scratch), repeat)

        def done(case, seconds):
            forecasts = [predicted(case, batches[case.batch][case][0], mode) for mode in ("packet", "fluid")]
            points.append((case.name, *forecasts, seconds))
            progress(f"{case.name}: packet {forecasts[0]:.4f} s, fluid {forecasts[1]:.4f} s, measured "
                     + " ".join(f"{s:.4f}" for s in seconds))

        for batch, files in batches.items():
            measure_batch(fabric, batch, files, repeat, done)
    factor = next(median(seconds) / packet for name, packet, _, seconds in points if name == CALIBRATION)
    progress(f"{CALIBRATION} took {factor:.4f} times what packet mode says: the factor of all predictions")
    points = [(name, factor * packet, packet, fluid, seconds) for name, packet, fluid, seconds in points]
    if options.plot:
        Path(options.plot).write_text(plot(points, TARGET), encoding="utf-8")
        progress(f"wrote {options.plot}")
    print(table(points, TARGET))
    return [Result(f"sim.{name}", abs(median(seconds) / forecast - 1), "", TARGET,
                   f"predicted {forecast:.4f} s, measured {median(seconds):.4f} s, the median of {len(seconds)} steps "
                   f"({min(seconds):.4f} to {max(seconds):.4f})") for name, forecast, _, _, seconds in points]
