"""The output format of all benchmarks: one object per target, one table for people."""

import dataclasses
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/release"


class BenchError(Exception):
    """A benchmark that could not be run."""


@dataclasses.dataclass
class Result:
    """One measured value and its target (None: for information only)."""

    name: str
    value: float
    unit: str
    target: float
    how: str
    at_least: bool = False  # the target is a minimum, not a maximum

    @property
    def met(self):
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def json(self):
        return {"name": self.name, "value": self.value, "unit": self.unit, "target": self.target, "met": self.met,
                "how": self.how}


class Helper:
    """A Python program in its own process, which reads lines and answers with lines. A context manager.

    `prefix`: words before the command line, such as those for a network namespace. `arguments`: of the program.
    """

    def __init__(self, prefix, program, *arguments):
        self._process = subprocess.Popen([*prefix, sys.executable, "-c", program, *map(str, arguments)],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def say(self, text):
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("a helping process ended")
        return line.strip()


def progress(text):
    """Prints progress for people, to standard error because standard output holds results."""
    print(f"  {text}", file=sys.stderr, flush=True)


def median(values):
    return statistics.median(values)


def rounded(value):
    """Rounds to four significant digits, the precision of a measurement on a shared machine."""
    return float(f"{value:.4g}")


def table(results):
    """A table of all results for people."""
    rows = [("what", "value", "target", "", "how")]
    for result in results:
        sign = "" if result.target is None else ("at least " if result.at_least else "at most ")
        rows.append((result.name, f"{result.value:g} {result.unit}".strip(),
                     "-" if result.target is None else f"{sign}{result.target:g}",
                     {True: "met", False: "NOT MET", None: ""}[result.met], result.how))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row[:4], widths)) + "  " + row[4]
                     for row in rows)


def print_results(results, as_json):
    for result in results:
        result.value = rounded(result.value)
    if as_json:
        for result in results:
            print(json.dumps(result.json()), flush=True)
    else:
        print(table(results), flush=True)
