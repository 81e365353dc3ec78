#!/usr/bin/env python3
"""Checks the models of moving work off a broken rail, every state of them. `./dev test model` calls this.

Each model must hold as it is, and a broken variant of it must be found out: a check that finds nothing in the naive
version would find nothing at all. The models say what their variants mean.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Model, variant, and whether it holds.
CHECKS = [
    ("recount.pml", [], True),
    ("recount.pml", ["CANCEL"], True),
    ("recount.pml", ["NAIVE"], False),
    ("recount.pml", ["OPEN_END"], False),
    ("recount.pml", ["CANCEL", "SILENT"], False),
    ("rehome.pml", [], True),
    ("rehome.pml", ["WEAK"], True),
    ("rehome.pml", ["CANCEL"], True),
    ("rehome.pml", ["WEAK", "CANCEL"], True),
    ("rehome.pml", ["WEAK", "NAIVE"], False),
    ("rehome.pml", ["WEAK", "NO_ROUNDS"], False),
    ("rehome.pml", ["WEAK", "CANCEL", "TRUSTING"], False),
]
PATIENCE = 600  # seconds, for one check on a busy machine


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=PATIENCE, check=False)


def explore(model, variant, holds, folder):
    """Visits every state. Returns what the check came to, and how many states it saw."""
    made = run(["spin", *(f"-D{name}" for name in variant), "-a", HERE / model], folder)
    if made.returncode != 0:
        return f"spin: {made.stdout}", 0
    built = run(["gcc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=4000", "-o", "pan", "pan.c"],
                folder)
    if built.returncode != 0:
        return f"gcc: {built.stdout}", 0
    # A wrong variant may also get stuck; that it writes where it must not is what has to be found.
    ran = run(["./pan", "-m200000", *([] if holds else ["-E"])], folder)
    errors = re.search(r"errors: (\d+)", ran.stdout)
    states = re.search(r"(\S+) states, stored", ran.stdout)
    if errors is None or states is None or "max search depth too small" in ran.stdout or "out of memory" in ran.stdout:
        return f"the search did not end:\n{ran.stdout}", 0
    if holds and int(errors[1]) > 0:
        return run(["spin", *(f"-D{name}" for name in variant), "-t", "-p", HERE / model], folder).stdout[-8000:], 0
    if not holds and "assertion violated" not in ran.stdout:
        return "nothing wrong was found in a variant that is wrong", 0
    return "", int(float(states[1]))


def main():
    failed = 0
    for model, variant, holds in CHECKS:
        name = " ".join([model, *variant])
        with tempfile.TemporaryDirectory(prefix="railsd-model-") as folder:
            try:
                wrong, states = explore(model, variant, holds, folder)
            except subprocess.TimeoutExpired as error:
                wrong, states = f"no end after {error.timeout:.0f} s", 0
        if wrong:
            failed += 1
            print(f"FAIL: {name}\n{wrong}", flush=True)
        else:
            print(f"{name}: {'holds in' if holds else 'found out after'} {states} states ... ok", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
