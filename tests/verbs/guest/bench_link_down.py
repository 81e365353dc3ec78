#!/usr/bin/env python3
"""What `./dev bench verbs_faults` measures inside the guest; prints JSON, which bench/suites/bench_verbs_faults.py
judges."""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import harness
import rdma
from harness import clusters, eventually

sys.path.insert(0, str(harness.ROOT / "bench/suites"))

from bench_faults import FORGETFUL, JOB, Pair, cost_of_a_rail  # noqa: E402  (found by the line above)

OUT = Path("/run/out/bench.json")
RATES = ["50mbit"] * rdma.RAILS
UNDISTURBED = 5
RAIL = 1


def wait_up(cluster):
    def up():
        peers = [cluster.ctl_json(node, "peers")["peers"][0] for node in cluster.nodes]
        return all(peer["rail_states"] == ["up"] * rdma.RAILS for peer in peers)
    eventually(up, cluster.logs)


def rehomings(cluster):
    return sum(node.log.read_text(errors="replace").count("rehoming job=") for node in cluster.nodes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    harness.BUILD = options.build
    repeat = int(OUT.with_name("repeat").read_text())
    settings = rdma.settings(data={"window": "1MiB"}, health=FORGETFUL["health"])
    with rdma.Shaped(RATES), clusters.Cluster(settings, options.build, addresses=rdma.pair(RATES)) as cluster:
        pair = Pair(cluster)
        pair.job()  # everything has been touched once
        undisturbed = [pair.job() for _ in range(UNDISTURBED)]
        four, added, rehomed = statistics.median(undisturbed), [], 0
        print(f"undisturbed: {undisturbed}", flush=True)
        for i in range(repeat):
            before = rehomings(cluster)
            added.append(cost_of_a_rail(pair, four, 0.1 + 0.6 * i / repeat, lambda: rdma.link(f"n0r{RAIL}", "down")))
            rehomed += rehomings(cluster) > before
            print(f"{time.monotonic():.1f}: added {added[-1]:.3f} s", flush=True)
            rdma.link(f"n0r{RAIL}", "up")
            wait_up(cluster)
        pair.close()
    OUT.write_text(json.dumps({"bytes": JOB, "undisturbed": four, "spread": max(undisturbed) - min(undisturbed),
                               "added": added, "rehomed": rehomed}))
    print("bench ... ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
