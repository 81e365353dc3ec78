#!/usr/bin/env python3
"""Runs the benchmarks and compares them with the project's targets. `./dev bench` calls this."""

import argparse
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "suites")]

import cluster  # noqa: E402  (found by the line above)
import common  # noqa: E402
import lab  # noqa: E402

NAMES = ["planner", "plan", "engine", "latency", "torch", "lab", "cpu", "submit", "stall", "links", "scrape", "dashboards",
         "tls", "cuda", "faults", "hostile", "shares", "peers", "sim", "verbs", "verbs_faults"]


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measures what the project has targets for.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES) + "; all without a name")
    parser.add_argument("--json", action="store_true", help="one object per target: name, value, unit, target, met, how")
    parser.add_argument("--trace", help="a routing trace (CSV, plain or gzip) for plan and lab")
    parser.add_argument("--repeat", type=int, help="runs of each measurement (default: what the target says)")
    parser.add_argument("--before", metavar="BUILD", help="a build of another version, for latency: runs beside this one")
    parser.add_argument("--quick", action="store_true", help="a selection of the cells of peers, in ten minutes, or of sim")
    parser.add_argument("--cells", metavar="NAME,...", help="cells of peers or sim by name or pattern, as 'uniform.1rank.*'")
    parser.add_argument("--build", metavar="BUILD", help="the build whose daemons peers measures (default: this one)")
    parser.add_argument("--page", metavar="FOLDER", help="where peers writes peers.md and peers.svg (default: docs for all cells, "
                        "build/peers for a selection)")
    parser.add_argument("--plot", metavar="FILE", help="where sim writes its plot, as docs/simulator-validation.svg")
    options = parser.parse_args()
    for name in options.names:
        if name not in NAMES:
            parser.error(f"no benchmark '{name}': {', '.join(NAMES)}")
    cluster.exit_on_signals()
    results, failed = [], False
    for name in options.names or NAMES:
        common.progress(f"{name}:")
        try:
            results += importlib.import_module(f"bench_{name}").measure(options)
        except (common.BenchError, cluster.ClusterError, lab.LabError) as error:
            print(f"bench {name}: {error}", file=sys.stderr)
            failed = True
    common.print_results(results, options.json)
    return 1 if failed or any(result.met is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
