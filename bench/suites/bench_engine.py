#!/usr/bin/env python3
"""The cost of one job on the engine's thread of a node: instructions, allocations and messages, and how they grow.

As a program it prints which functions the instructions and allocations of a job are in:

    bench/suites/bench_engine.py [--top N] [KEY=VALUE...]      (the words of bench_engine; nodes=32 by default)
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from common import BUILD, BenchError, Result, progress  # noqa: E402  (found by the line above)

PROGRAM = BUILD / "bench/engine/bench_engine"
COUNTED = "CountedTurn"  # all that the engine's thread does for a job is done below this function
NEW = "operator new(unsigned long)"
SITE = 3  # callers of operator new that name the place of an allocation
ALLOCATOR = re.compile(r"(_int_)?(malloc|free)|malloc_consolidate|sys(malloc|trim)|unlink_chunk|tcache_")
LINK = re.compile(r"railsd::BenchNode::Send")  # stands in for the link, whose work is not the engine's
HARNESS = re.compile(r"World::|BenchNode::|CountedTurn|EngineThread|^start_thread|^clone|functional_internal::|main|_main|0x")
NODES = [2, 4, 8, 16, 32]
MORE_NODES = [64, 128]  # the jobs have more ranges than the engine puts in order itself
PARTNERS = [1, 2, 4]  # instead of 8; only the number of flows varies, not that of nodes and bytes
PARTNERS_NODES = 16
EXCHANGE_BYTES = 128 << 10  # the default of the program; 8 chunks
LONGER = [4, 16]  # times as many bytes and chunks in the same flows; they use all rails, the other cases one
LONGER_NODES = 8
BROKEN_DOWN = 32
TOP = 10
LARGEST = MORE_NODES[-1]


class Profile:
    """Callgrind's file: instructions by function, without and with those of its callees, and allocations by place."""

    def __init__(self, path, counts):
        self.own, self.inclusive, self.allocations = (collections.Counter() for _ in range(3))
        names, function, callee, called = {}, "", "", False
        for line in path.read_text().splitlines():
            if match := re.match(r"(c?)fn=\((\d+)\)(?: (.*))?", line):
                called, number, name = match.groups()
                name = names.setdefault(number, name)
                function, callee = (function, name) if called else (name, callee)
            elif line.startswith("calls="):
                called = True
            elif re.match(r"[+\-*\d]", line):
                cost = int(line.split()[1]) / counts["jobs"]
                self._add(function, callee if called else None, cost)
                called = False
        # All calls of operator new take the same number of instructions, so the instructions by place divide the
        # counted allocations.
        of_all = sum(self.allocations.values()) or 1
        for place in self.allocations:
            self.allocations[place] *= counts["allocations"] / of_all

    def _add(self, function, callee, cost):
        name, _, callers = function.partition("'")
        if callee is None:
            self.own[name] += cost
            if name == NEW:
                self.allocations[callers] += cost
        if callee is None or callee.partition("'")[0] != name:  # recursion is counted once
            self.inclusive[name] += cost

    @staticmethod
    def short(name):
        name = re.sub(r"absl::debian\d+::|absl::lts_\d+::", "absl::", name).replace("std::__cxx11::", "std::")
        name = name.replace("basic_string<char, std::char_traits<char>, std::allocator<char> >", "string")
        name = name.replace("(anonymous namespace)::", "")
        return name if len(name) <= 150 else name[:147] + "..."

    def lines(self, top):
        inside = collections.Counter({name: count for name, count in self.inclusive.items() if not HARNESS.search(name)})
        for title, counter in (("instructions in the function", self.own),
                               ("instructions in it and in what it calls", inside),
                               ("allocations, by the callers of operator new", self.allocations)):
            yield title
            for name, count in counter.most_common(top):
                yield f"{count:12.1f}  " + " < ".join(map(self.short, name.split("'")))


def counted(words):
    """Counts of one job, and the profile of its instructions."""
    with tempfile.TemporaryDirectory(prefix="railsd-callgrind-") as folder:
        file = Path(folder) / "counts"
        run = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--toggle-collect={COUNTED}",
                              f"--separate-callers{SITE}={NEW}", f"--callgrind-out-file={file}", PROGRAM, *words],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if run.returncode != 0:
            raise BenchError(f"{PROGRAM.name} {' '.join(words)} ended with {run.returncode}: {run.stderr.strip()[-500:]}")
        counts = json.loads(run.stdout)
        profile = Profile(file, counts)
    link = sum(count for name, count in profile.inclusive.items() if LINK.match(name))
    counts["instructions"] = sum(profile.own.values()) - link
    counts["allocator"] = sum(count for name, count in profile.own.items() if ALLOCATOR.match(name))
    return counts, profile


def least_squares(rows, values):
    """Coefficients of the columns of `rows`, by the normal equations. Each row counts by its relative error."""
    rows = [[cell / value for cell in row] for row, value in zip(rows, values)]
    size = len(rows[0])
    system = [[sum(row[i] * row[j] for row in rows) for j in range(size)] + [sum(row[i] for row in rows)] for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda j, i=i: abs(system[j][i]))
        system[i], system[pivot] = system[pivot], system[i]
        system[i] = [cell / system[i][i] for cell in system[i]]
        for j in range(size):
            if j != i:
                system[j] = [cell - system[j][i] * own for cell, own in zip(system[j], system[i])]
    return [row[-1] for row in system]


def fitted(coefficients, row):
    return sum(coefficient * cell for coefficient, cell in zip(coefficients, row))


def fit(rows, values):
    """Coefficients, and the largest relative difference between a value and the fitted one."""
    coefficients = least_squares(rows, values)
    return coefficients, max(abs(fitted(coefficients, row) / value - 1) for row, value in zip(rows, values))


def row_of(counts):
    return [1, counts["nodes"] - 1, counts["flows"]]


def measure(options):
    del options  # counts do not vary: nothing is repeated
    cases = {f"nodes={nodes}": [f"nodes={nodes}"] for nodes in NODES + MORE_NODES}
    cases |= {f"partners={count}": [f"nodes={PARTNERS_NODES}", f"partners={count}"] for count in PARTNERS}
    cases |= {f"bytes x {times}": [f"nodes={LONGER_NODES}", f"exchange_bytes={times * EXCHANGE_BYTES}"] for times in LONGER}
    # The largest worlds begin first, because they take most of the time under callgrind.
    longest = sorted(cases, key=lambda name: "nodes=128" not in cases[name] and "nodes=64" not in cases[name])
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        runs = {name: pool.submit(counted, cases[name]) for name in longest}
        alone = pool.submit(counted, [f"nodes={BROKEN_DOWN}", "single=1"])
        measured = {name: runs[name].result()[0] for name in cases}
        profile, alone = runs[f"nodes={BROKEN_DOWN}"].result()[1], alone.result()[0]
    by_nodes = [measured[f"nodes={nodes}"] for nodes in NODES + MORE_NODES]
    more = by_nodes[len(NODES):]
    counts = [each for name, each in measured.items() if not name.startswith("bytes x") and each not in more]
    (a, b, c), residual = fit([row_of(each) for each in counts], [each["instructions"] for each in counts])
    by_more_flows = (more[1]["instructions"] - more[0]["instructions"] - b * (more[1]["nodes"] - more[0]["nodes"])) / (
        more[1]["flows"] - more[0]["flows"])
    (x, y), allocation_residual = fit([[1, each["nodes"] - 1] for each in by_nodes], [each["allocations"] for each in by_nodes])
    progress("case            flows  chunks  instructions     fitted  allocations     fitted  messages out, in")
    for name, each in measured.items():
        progress(f"{name:14} {each['flows']:6} {each['chunks']:7.0f} {each['instructions']:13.0f} "
                 f"{fitted((a, b, c), row_of(each)):10.0f} {each['allocations']:12.1f} {x + y * (each['nodes'] - 1):10.1f} "
                 f"{each['messages_out']:9.1f}, {each['messages_in']:.1f}")
    progress(f"a job among {BROKEN_DOWN} nodes:")
    for line in profile.lines(TOP):
        progress(line)
    large = measured[f"nodes={LARGEST}"]
    most = max(max(each["messages_out"], each["messages_in"]) / (each["nodes"] - 1) for each in measured.values())
    room = 4 + 2 * (LARGEST - 1)
    how = (f"fit to {len(counts)} cases of 8 ranks on each of {NODES[0]} to {NODES[-1]} nodes, under callgrind, of what the engine's "
           f"thread does for one job, without the queue that stands in for the link; largest difference {100 * residual:.1f} %")
    # Leaves out the allocator, whose search for free memory depends on the chunks that rails have in the same heap.
    (short, _), (long, chunks), (longest, most_chunks) = [
        (each["instructions"] - each["allocator"], each["chunks"]) for each in (
            measured[name] for name in (f"nodes={LONGER_NODES}", *(f"bytes x {times}" for times in LONGER)))]
    by_chunk = abs(longest - long) / (most_chunks - chunks)
    return [
        Result("engine.by_chunk", by_chunk, "instructions", 1, f"{' and '.join(map(str, LONGER))} times the bytes among "
               f"{LONGER_NODES} nodes, for each further chunk, without malloc and free; less than 1 is 0, because addresses "
               "differ"),
        Result("engine.by_peer", b, "instructions", 6000, f"{how}; exchanges that go over one rail: engine.by_rails is more"),
        Result("engine.by_rails", (long - short) / (LONGER_NODES - 1), "instructions", None,
               f"more for each peer, among {LONGER_NODES} nodes, whose exchange is long enough for all rails instead of one"),
        Result("engine.by_flow", c, "instructions", 250, "the same; for a flow that is sent and one that is received"),
        Result("engine.by_flow.more", by_more_flows, "instructions", 250,
               f"among {MORE_NODES[0]} and {MORE_NODES[1]} nodes, where other threads put the ranges in order, without those of the peers"),
        Result("engine.fixed", a, "instructions", None, "the same"),
        Result("engine.residual", 100 * residual, "%", None, "largest difference between the fit and a case"),
        Result(f"engine.allocations.{LARGEST}", large["allocations"], "a job", room,
               f"among {LARGEST} nodes; fit over all: {x:.0f} and {y:.1f} for each peer, largest difference "
               f"{100 * allocation_residual:.1f} %"),
        Result("engine.allocations_by_peer", y, "a job", None, "the same fit"),
        Result("engine.messages", most, "", 1, "messages of a job, for each pair and direction; the most of any case"),
        Result("engine.by_turn", (alone["instructions"] - measured[f"nodes={BROKEN_DOWN}"]["instructions"]) / (BROKEN_DOWN - 1),
               "instructions", None, f"more for each READY that comes alone, among {BROKEN_DOWN} nodes"),
        *[Result(f"engine.instructions.{each['nodes']}", each["instructions"], "a job", None,
                 f"among so many nodes; {each['flows']} flows sent, {each['allocations']:.1f} allocations") for each in by_nodes],
    ]


def main():
    parser = argparse.ArgumentParser(description="Where the instructions and allocations of a job are.")
    parser.add_argument("--top", type=int, default=25, help="functions of each list")
    parser.add_argument("words", nargs="*", default=[f"nodes={BROKEN_DOWN}"], metavar="KEY=VALUE", help="as of bench_engine")
    options = parser.parse_args()
    try:
        counts, profile = counted(options.words)
    except BenchError as error:
        sys.exit(f"bench_engine: {error}")
    print(json.dumps(counts))
    print("\n".join(profile.lines(options.top)))


if __name__ == "__main__":
    main()
