#!/usr/bin/env python3
"""Checks the models of what agents promise each other, every state of them. `./dev test model` calls this.

Each model must hold as it is, and a wrong variant of it must be found out: a check that finds nothing in a variant that
leaves a rule out would find nothing at all. checks.py names the checks, README.md explains models and variants.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import checks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMEOUT = 600  # seconds, for one check on a busy machine
# The folder of their sources, and defines.
PROGRAMS = {
    "exchange": ("exchange", ["-DEXCHANGES=1"]),
    "exchange2": ("exchange", ["-DEXCHANGES=2"]),
    "ready": ("ready", []),
}


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=TIMEOUT, check=False)


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
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(PROGRAMS)}; all by default")
    parser.add_argument("--large", action="store_true", help="larger sizes, too: half an hour, up to 4 GB")
    options = parser.parse_args()
    unknown = set(options.models) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    passed = []
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
