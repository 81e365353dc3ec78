#!/usr/bin/env python3
"""Runs the tests in this folder on one Docker engine. `./dev test docker` calls this after it has made the packages.

    tests/docker/run.py [--build DIR] [TEST...]      a TEST as in test_cluster.Cluster.test_discovery
"""

import argparse
import sys
import unittest
from pathlib import Path

import engine
import stack


def main():
    parser = argparse.ArgumentParser(description="Tests in containers.")
    parser.add_argument("--build", default=str(stack.harness.BUILD))
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    stack.harness.BUILD = Path(options.build).resolve()
    if engine.why_not():
        print(f"the Docker tests ... skipped {engine.why_not()!r}")
        return 0
    stack.clusters.exit_on_signals()
    loader = unittest.defaultTestLoader
    tests = (loader.loadTestsFromNames(options.tests) if options.tests else
             loader.discover(str(Path(__file__).resolve().parent)))
    with engine.Engine() as docker:
        stack.DOCKER = docker
        result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(tests)
    print("the machine's network is as it was before ... ok")  # or the engine has raised
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
