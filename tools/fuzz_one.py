#!/usr/bin/env python3
"""Runs one fuzz program: first its stored corpus alone, then a search for new inputs.

    tools/fuzz_one.py build/asan/tests/fuzz/service/config/config_fuzzer tests/fuzz/service/config/corpus --seconds 5

Prints what was found, with the inputs, and ends with 1 when anything was.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def search(program, corpus, how, folder):
    """Returns the number of inputs that were run and a text, which is empty if nothing was found."""
    fresh = Path(folder) / "new"
    fresh.mkdir(exist_ok=True)
    run = subprocess.run(
        [program, *how, "-rss_limit_mb=2048", "-timeout=10", f"-artifact_prefix={folder}/", fresh, *corpus],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    done = re.search(r"^Done (\d+) runs", run.stdout, re.MULTILINE)
    if run.returncode == 0:
        return int(done[1]) if done else 0, ""
    inputs = [f"{path.name}: {path.read_bytes()[:512].hex()}" for path in Path(folder).glob("*-*") if path.is_file()]
    return 0, "\n".join([f"{how[0]} ended with {run.returncode}", run.stdout[-6000:], *inputs])


def main():
    parser = argparse.ArgumentParser(description="Runs one fuzz program.")
    parser.add_argument("program", type=Path)
    parser.add_argument("corpus", nargs="*", type=Path)
    parser.add_argument("--seconds", type=int, default=5, help="how long to search")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    name = options.program.name
    stored = sum(len(list(folder.iterdir())) for folder in options.corpus)
    if not stored:
        print(f"FAIL: {name} has no stored corpus under tests/fuzz")
        return 1
    executions = 0
    with tempfile.TemporaryDirectory(prefix="railsd-fuzz-") as folder:
        for how in (["-runs=0"], [f"-seed={options.seed}", f"-max_total_time={options.seconds}"]):
            executions, trouble = search(options.program, options.corpus, how, folder)
            if trouble:
                print(f"FAIL: {name} {trouble}")
                return 1
    print(f"{name}: {stored} stored inputs and {executions} new ones (seed {options.seed}), nothing found ... ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
