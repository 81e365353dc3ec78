#!/usr/bin/env python3
"""Four daemons on this machine carry the exchanges of a small model with experts while it is trained, beside Gloo.

`./dev demo moe` calls this. Arguments go to client/python/examples/moe_train.py, whose --help names them.
"""

import os
import subprocess
import sys

from cluster import ROOT, Cluster, ClusterError, Settings, exit_on_signals

NODES, RAILS, SPEED = 4, 4, "10gbit"  # the speed is for the planner; loopback itself has none
BUILD = ROOT / "build/release"


def main():
    exit_on_signals()
    example = ["/usr/bin/python3", str(ROOT / "client/python/examples/moe_train.py"), *sys.argv[1:]]
    library = {"PYTHONPATH": str(ROOT / "client/python"), "RAILS_LIBRARY": str(BUILD / "client/c/librails.so")}
    if "--help" in sys.argv:
        return subprocess.call(example, env={**os.environ, **library})
    try:
        print(f"starting {NODES} daemons with {RAILS} rails each", file=sys.stderr)
        with Cluster(Settings(NODES, RAILS, SPEED), build=BUILD) as cluster:
            return subprocess.call([*example, *(str(node.sockets) for node in cluster.nodes)], env={**os.environ, **library})
    except ClusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
