"""The same all-to-all matrices through the daemons, Open MPI, MPICH and Gloo on one emulated fabric. Needs root.

Writes a page with tables and a plot. All cells take about an hour; `--quick` takes a selection, `--cells` names some.
"""

import fnmatch
import json
import os
import platform
import re
import subprocess
import tempfile
import time
from pathlib import Path

from bench_cpu import softirq_seconds
from common import BUILD, ROOT, BenchError, Result, median, progress
from peers import cells as matrices
from peers.fabric import PeerLab
from peers.page import write_page
from peers.scores import Score, best_peer
from peers.ways import Task, all_ways

FIRST, OVER_BOUND, OVER_BROKEN = 1.03, 1.05, 1.10  # targets
UNDER_BARE = 1.15


def trace_of(options):
    """The routing matrix of a trace that is given or found beside the project, and a name for it."""
    found = [Path(options.trace)] if options.trace else sorted((ROOT.parent / "shared/workloads").glob("*.csv.gz"))
    if not found:
        return None, "drawn from Mixtral's statistics"
    trace = matrices.read_trace(found[0])
    if not matrices.total(trace):
        raise BenchError(f"{found[0]} has no rows of the layer that is taken from traces of Mixtral-8x7B")
    return trace, f"layer 16, iteration 5 of {found[0].name}"


def chosen(options):
    if options.cells:
        patterns = options.cells.split(",")
        selected = [cell for cell in matrices.full() if any(fnmatch.fnmatch(cell.name, pattern) for pattern in patterns)]
        if not selected:
            raise BenchError(f"no cell is named {options.cells}; among others there is {matrices.full()[0].name}")
        return selected
    return matrices.quick() if options.quick else matrices.full()


def batches(selected):
    order = {}
    for cell in selected:
        order.setdefault(cell.batch, []).append(cell)
    return order.values()


def one_batch(fabric, ways, tasks, options, scores):
    """Runs the cells of one batch in rounds, each through every way, and adds the outcomes to the scores."""
    state, ranks, mib = tasks[0].cell.batch
    rounds, steps, warmup = matrices.effort(tasks[0].cell, options.quick or bool(options.cells))
    rounds = options.repeat or rounds
    fabric.set_state(state, "400ms" if ranks > 1 else "100ms")
    daemons = ways[0]
    try:
        daemons.open(fabric, tasks[0].cell.batch)
        for number in range(rounds):
            for way in ways:
                left = [task for task in tasks if not scores[task.cell][way.name].stopped]
                begin, softirq, sent = time.monotonic(), softirq_seconds(), sent_bytes(fabric)
                outcomes = way.run(fabric, left, steps, warmup, daemons.pids())
                expected = (steps + warmup) * sum(matrices.total(task.rows) for task in left if outcomes[task.cell].seconds)
                if sent_bytes(fabric) - sent < expected:
                    raise BenchError(f"{way.label} has not sent all bytes over the rails of {tasks[0].cell.name}")
                softirq = softirq_seconds() - softirq
                for task in left:
                    scores[task.cell][way.name].add(task, outcomes[task.cell], warmup, softirq)
                progress(f"{state}, {ranks} x {mib} MiB, round {number + 1}/{rounds}, {time.monotonic() - begin:.0f} s, {way.name}: " + ", ".join(f"{task.cell.workload} {scores[task.cell][way.name].brief()}" for task in left))
    finally:
        daemons.close()


def sent_bytes(fabric):
    return sum(fabric.sent_bytes(node) for node in range(matrices.NODES))


def run_line(began, load, options, number):
    def first_line(*command):
        try:
            said = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
        except OSError:
            return "absent"
        return said.splitlines()[0] if said else "absent"

    versions = [
        "Open MPI " + first_line("mpirun.openmpi", "--version").split()[-1],
        "MPICH " + (re.sub(r".*Version:\s*", "", first_line("mpichversion")) or "absent"),
        "UCX " + first_line("ucx_info", "-v").split()[-1] if os.path.exists("/usr/bin/ucx_info") else "UCX of Debian",
        "torch " + first_line("/usr/bin/python3", "-c", "import torch; print(torch.__version__)"),
    ]
    kind = "a quick run" if options.quick else "chosen cells" if options.cells else "a full run"
    return (f"This was {kind} on {time.strftime('%Y-%m-%d', time.gmtime())}: {number} cells in {(time.time() - began) / 60:.0f} "
            f"minutes on {os.cpu_count()} processors, load {load[0]:.1f} before and {os.getloadavg()[1]:.1f} at the end,\n"
            f"kernel {platform.release()}, {', '.join(versions)}.")


def results(cell, ways, score):
    """Results of one cell."""
    ours, first = score["railsd"], best_peer(score)
    name = f"peers.{cell.name}"
    how = f"{cell.mib} MiB a rank, {cell.ranks} a node, {matrices.STATES[cell.state]}; every byte checked"
    if ours.stopped:
        return [Result(f"{name}.stopped", 1, "", 0, ours.stopped)]
    label = {way.name: way.label for way in ways}
    against = f"the first peer: {label[first]}, {score[first].value:.4g}" if first else "no peer got through"
    if cell.state == "unshaped":
        out = [Result(f"{name}.speed", ours.value, "GB/s", None, how),
               Result(f"{name}.processor", ours.per_gigabyte, "s/GB", None,
                      "daemons and ksoftirqd; `bench cpu` has the ratio to the bare loop")]
        if first:
            out.append(Result(f"{name}.over_first", ours.value / score[first].value, "x", 1, against, at_least=True))
        return out
    broken = cell.state != "healthy"
    target = OVER_BROKEN if broken else OVER_BOUND if cell.mib >= 16 else None
    out = [Result(name, ours.value, "x bound", target, how)]
    if cell.state == "dying" and ours.after is not None:
        out.append(Result(f"{name}.after", ours.after, "x bound", OVER_BROKEN, "the jobs behind the one that is struck"))
    if first:
        out.append(Result(f"{name}.over_first", ours.value / score[first].value, "x", FIRST, against))
    return out


def measure(options):
    selected, began, load = chosen(options), time.time(), os.getloadavg()
    trace, trace_name = trace_of(options)
    ways = all_ways(Path(options.build).resolve() if options.build else BUILD)
    folder = Path(options.page) if options.page else ROOT / ("build/peers" if options.quick or options.cells else "docs")
    with tempfile.TemporaryDirectory() as scratch:
        missing = [way.label for way in ways if not way.available()]
        if missing:
            progress(f"not installed: {', '.join(missing)} (./dev bench peers installs them)")
            ways = [way for way in ways if way.available()]
        for way in ways:
            way.build(Path(scratch))
        scores = {cell: {way.name: Score(cell) for way in ways} for cell in selected}
        with PeerLab(matrices.NODES, matrices.RAILS) as fabric:
            for batch in batches(selected):
                tasks = []
                for cell in batch:
                    rows = matrices.matrix(cell, trace)
                    path = Path(scratch) / f"{cell.name}.csv"
                    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n", encoding="ascii")
                    tasks.append(Task(cell, rows, path))
                one_batch(fabric, ways, tasks, options, scores)
                # After each batch, so that a run that is interrupted leaves what it has.
                done = {cell: row for cell, row in scores.items() if row["railsd"].measured}
                write_page(folder, ways, done, run_line(began, load, options, len(done)), trace_name)
    progress(f"wrote {folder / 'peers.md'} and {folder / 'peers.svg'}")
    dump = ROOT / "build/peers/scores.json"
    dump.parent.mkdir(parents=True, exist_ok=True)
    dump.write_text(json.dumps({cell.name: {way: score.json() for way, score in row.items()} for cell, row in scores.items()}))
    return [result for cell in selected for result in results(cell, ways, scores[cell])]
