#!/usr/bin/env python3
"""Tests on real RDMA verbs: Soft-RoCE in a virtual machine. `./dev test verbs` calls this.

One boot for all tests. Each is a program under guest/ that runs inside; what it prints is shown when it fails, and is
kept in build/verbs-vm/last. A test that gives no answer has failed.
"""

import argparse
import re
import shutil
import sys
import time
from pathlib import Path

import vm

HERE = Path(__file__).resolve().parent
# In the order of running: the test and how many seconds it may take inside, on a machine that is busy with other work.
TESTS = {
    "test_devices.sh": 200,
    "test_conformance.sh": 420,
    "test_replay.py": 400,
    "test_limits.py": 400,
    "test_jobs.py": 900,
    "test_links.py": 500,
    "test_faults.py": 600,
    "test_shaped.py": 300,
    "test_tls_data.py": 500,
}
BOOT_PATIENCE = 120  # seconds until the first line
# What a test prints for each of its cases: GoogleTest, Python's unittest, and the shell tests like the latter.
PASSED = re.compile(r"^\[       OK \] |\.\.\. ok$", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] .* \(\d+ ms\)$|^(?:FAIL|ERROR): ", re.MULTILINE)


class Outcome:
    """The result of one test."""

    def __init__(self, name):
        self.name, self.status, self.seconds = name, None, 0.0
        self.passed = self.failed = 0

    def read(self, out):
        """Counts the cases of its log. No status is a failure, whatever the log says."""
        log = out / f"{self.name}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        self.passed, self.failed = len(PASSED.findall(text)), len(FAILED.findall(text))
        if self.status != 0 and self.failed == 0:
            self.failed = 1
        if self.status == 0 and self.passed == 0:
            self.passed = 1
        return text

    @property
    def good(self):
        return self.status == 0 and self.failed == 0

    def why(self):
        if self.status is None:
            return "no answer from the guest"
        return {124: "took too long", 137: "took too long"}.get(self.status, f"status {self.status}")


def say(text):
    print(text, flush=True)


def follow(machine, outcomes):
    """Runs the machine to its end and tells of its progress; returns what went wrong with the machine itself."""
    began, trouble, console, ended = time.monotonic(), "", [], False
    patience = BOOT_PATIENCE + max(TESTS.values())
    for line in machine.lines(patience):
        console.append(line)
        if line.startswith("vm: "):
            trouble = trouble or line
            continue
        if vm.MARK not in line:
            continue
        ended = ended or line.startswith(f"{vm.MARK}done")
        word, _, rest = line.split(vm.MARK, 1)[1].partition(" ")
        if word == "vm":
            trouble = trouble or rest
        elif word == "end":
            name, status, seconds = rest.split()
            outcome = outcomes[name]
            outcome.status, outcome.seconds = int(status), float(seconds)
            outcome.read(machine.out)
            say(f"  {name:<28}{'ok' if outcome.good else 'FAILED':<8}{outcome.passed:>4} passed "
                f"{outcome.failed:>3} failed {outcome.seconds:>7.1f} s")
        elif word in ("boot", "rails"):
            say(f"  {word}: {rest} (after {time.monotonic() - began:.0f} s)")
    (machine.out / "console.log").write_text("\n".join(console) + "\n")
    return trouble or ("" if ended else "the guest ended too early")


def main():
    parser = argparse.ArgumentParser(prog="./dev test verbs", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", metavar="TEST", help=f"{', '.join(TESTS)}; all without a name")
    parser.add_argument("--build", default=str(vm.ROOT / "build/release"), help="the build that is tested")
    parser.add_argument("--out", default=str(vm.STORE / "last"), help="where logs go; emptied first")
    options = parser.parse_args()
    for name in options.tests:
        if not (HERE / "guest" / name).is_file():
            parser.error(f"no test '{name}': {', '.join(TESTS)}")
    outcomes = {name: Outcome(name) for name in options.tests or TESTS}
    out = Path(options.out).resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        machine = vm.Vm(out, {"BUILD": Path(options.build).resolve(),
                              "TESTS": " ".join(f"{name}:{TESTS.get(name, 300)}" for name in outcomes)})
        trouble = follow(machine, outcomes)
    except vm.VmError as error:
        trouble = str(error)
    for outcome in outcomes.values():
        text = outcome.read(out)
        if not outcome.good:
            say(f"--- {outcome.name}: {outcome.why()}\n{text[-8000:]}")
    if trouble:
        console = out / "console.log"
        tail = console.read_text(errors="replace").splitlines()[-20:] if console.exists() else []
        if (out / "rails.log").exists():
            tail += (out / "rails.log").read_text(errors="replace").splitlines()[-20:]
        say("\n".join([f"verbs: {trouble}", *tail]))
    failed = sum(outcome.failed for outcome in outcomes.values()) + bool(trouble)
    say(f"{sum(outcome.passed for outcome in outcomes.values())} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
