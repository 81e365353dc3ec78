#!/usr/bin/env python3
"""Four daemons on this machine carry the exchanges of a small model with experts while it is trained, beside Gloo.

`./dev demo moe` calls this. Arguments but --build go to client/python/examples/moe_train.py, whose --help names them.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from cluster import ROOT, Cluster, ClusterError, Settings, exit_on_signals

NODES, RAILS, SPEED = 4, 4, "10gbit"  # the speed is for the planner; loopback itself has none


def main():
    exit_on_signals()
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    options, arguments = parser.parse_known_args()
    example = ["/usr/bin/python3", str(ROOT / "client/python/examples/moe_train.py"), *arguments]
    library = {"PYTHONPATH": str(ROOT / "client/python"), "RAILS_LIBRARY": str(options.build / "client/c/librails.so")}
    if "--help" in arguments:
        return subprocess.call(example, env={**os.environ, **library})
    try:
        print(f"starting {NODES} daemons with {RAILS} rails each", file=sys.stderr)
        with Cluster(Settings(NODES, RAILS, SPEED), build=options.build) as cluster:
            return subprocess.call([*example, *(str(node.sockets) for node in cluster.nodes)], env={**os.environ, **library})
    except ClusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
