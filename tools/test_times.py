"""The cost of a run of `./dev test`: a table of every compiled target, suite and test program, longest first."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def compile_times(preset):
    """Wall and processor seconds, and compiler runs, of each target when it was last compiled in build/PRESET: wall time by
    ninja's log, processor time by cmake/compile."""
    folder = ROOT / "build" / preset
    log = folder / ".ninja_log"
    wall, cpu, runs = defaultdict(float), defaultdict(float), defaultdict(int)
    latest = {}
    for line in log.read_text().splitlines()[1:] if log.exists() else []:
        begin, end, _, output, _ = line.split("\t")
        latest[output] = (int(end) - int(begin)) / 1000
    for output, seconds in latest.items():
        target = re.search(r"CMakeFiles/([^/]+)\.dir/", output)
        if not target:
            continue
        wall[target[1]] += seconds
        times = folder / f"{output}.times"
        if times.exists():
            # The shell's `times` prints two lines, the second for its children; none if the compiler was killed.
            cpu[target[1]] += sum(60 * int(minutes) + float(rest) for minutes, rest in
                                  re.findall(r"(\d+)m([\d.]+)s", times.read_text().partition("\n")[2]))
            runs[target[1]] += 1
    return [(f"compile {preset} {name}", wall[name], cpu[name], f"{runs[name]} compiler runs") for name in wall]


def table(steps):
    """Rows as text: name, wall seconds, processor seconds, result."""
    rows = [(step.name, step.outcome.seconds, step.outcome.cpu_seconds,
             f"{step.outcome.passed} passed" + f", {step.outcome.failed} failed" * bool(step.outcome.failed))
            for step in steps if step.outcome.ran]
    for preset in ("release", "asan", "fuzz", "tsan"):
        if any(step.name.startswith(f"build {preset}") for step in steps):
            rows += compile_times(preset)
    rows.sort(key=lambda row: -row[1])
    return "\n".join([f"{'what':<52}{'wall s':>9}{'cpu s':>9}  result"] +
                     [f"{name:<52}{wall:>9.1f}{cpu:>9.1f}  {note}" for name, wall, cpu, note in rows])
