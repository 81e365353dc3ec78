#!/usr/bin/env python3
"""Checks the models of what agents promise each other, every state of them. `./dev test model` calls this.

Each model must hold as it is, and a wrong variant of it must be found out: a check that finds nothing in a variant that
leaves a rule out would find nothing at all. checks.py names the checks, README.md explains models and variants.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import checks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMEOUT = 600  # seconds, for one check on a busy machine
# Programs in C++: the folder of their sources, and defines.
PROGRAMS = {
    "exchange": ("exchange", ["-DEXCHANGES=1"]),
    "exchange2": ("exchange", ["-DEXCHANGES=2"]),
    "ready": ("ready", []),
}


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=TIMEOUT, check=False)


def explore(model, variant, holds, folder):
    """Visits every state of a Promela model. Returns what is wrong, and how many states it saw."""
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


def check_spin(model, variant, holds):
    """Returns whether the check came out as it must."""
    name = " ".join([model, *variant])
    with tempfile.TemporaryDirectory(prefix="railsd-model-") as folder:
        try:
            wrong, states = explore(model, variant, holds, folder)
        except subprocess.TimeoutExpired as error:
            wrong, states = f"no end after {error.timeout:.0f} s", 0
    if wrong:
        print(f"FAIL: {name}\n{wrong}", flush=True)
    else:
        print(f"{name}: {'holds in' if holds else 'found out after'} {states} states ... ok", flush=True)
    return not wrong


def compile_program(name, folder):
    """Returns the path of the program."""
    sources, defines = PROGRAMS[name]
    program = Path(folder) / name
    built = run(["g++", "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", *defines, "-I", ROOT, "-o", program,
                 *sorted((HERE / sources).glob("*.cc"))], folder)
    if built.returncode != 0:
        raise RuntimeError(f"g++: {built.stdout}")
    return program


def check_program(name, program, arguments, expected):
    """Returns whether the check came out as it must: `expected` is how the first line begins."""
    try:
        output = run([program, *arguments.split()], HERE).stdout
    except subprocess.TimeoutExpired:
        output = f"no end after {TIMEOUT} s\n"
    first = output.partition("\n")[0]
    if first.startswith(expected):
        print(f"{name} {arguments}: {first} ... ok", flush=True)
        return True
    print(f"FAIL: {name} {arguments}: expected {expected}\n{output}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description="Checks the models of the protocol between agents.")
    models = [*PROGRAMS, "recount.pml", "rehome.pml"]
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(models)}; all by default")
    parser.add_argument("--large", action="store_true", help="larger sizes, too: half an hour, up to 4 GB")
    options = parser.parse_args()
    unknown = set(options.models) - set(models)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    for name, variant, _ in checks.SPIN:
        missing = [define for define in variant if define not in (HERE / name).read_text()]
        if missing:
            parser.error(f"checks.py: {name} has no {', '.join(missing)}")
    passed = [check_spin(*check) for check in checks.SPIN if not options.models or check[0] in options.models]
    chosen = checks.EXCHANGE + checks.READY + (checks.EXCHANGE_LARGE + checks.READY_LARGE if options.large else [])
    unknown = {check[0] for check in chosen} - set(PROGRAMS)
    if unknown:
        parser.error(f"checks.py: no such model: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="railsd-model-") as folder:
        for name in PROGRAMS:
            mine = [check for check in chosen if check[0] == name and (not options.models or name in options.models)]
            if mine:
                program = compile_program(name, folder)
                passed += [check_program(name, program, arguments, expected) for _, arguments, expected in mine]
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
