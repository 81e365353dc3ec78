#!/usr/bin/env python3
"""The measurements of `./dev bench verbs_faults` inside the guest; prints JSON, which
bench/suites/bench_verbs_faults.py judges."""

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path

import harness
import rdma
from harness import clusters, eventually

sys.path.insert(0, str(harness.ROOT / "bench/suites"))

import bench_faults  # noqa: E402  (found by the line above)
from bench_faults import FORGETFUL, Pair, cost_of_a_rail  # noqa: E402

OUT = Path("/run/out/bench.json")
# Jobs must wait for rails this slow, even on a busy machine, and not for the two emulated processors.
RATES = ["12mbit"] * rdma.RAILS
JOB = 8 << 20
UNDISTURBED = 3
RAIL = 1


def wait_up(cluster):
    def up():
        peers = [cluster.overview(node)["peers"][0] for node in cluster.nodes]
        return all(peer["rail_states"] == ["up"] * rdma.RAILS for peer in peers)
    eventually(up, cluster.logs)


def rehomings(cluster):
    return sum(node.log.read_text(errors="replace").count("rehoming peer=") for node in cluster.nodes)


def seconds_to_act(cluster):
    """From the device's report that a port is down to the moment at which the engine knows, each time."""
    seconds = []
    for node in cluster.nodes:
        reported = None
        for line in node.log.read_text(errors="replace").splitlines():
            stamp = re.match(r"\S+T(\d+):(\d+):(\d+\.\d+)Z ", line)
            if not stamp:
                continue
            now = 3600 * int(stamp[1]) + 60 * int(stamp[2]) + float(stamp[3])
            if "the device reports: port error: rail" in line:
                reported = now
            elif f"link_down rail={RAIL} " in line and reported is not None:
                seconds.append((now - reported) % 86400)
                reported = None
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    harness.BUILD = options.build
    bench_faults.JOB = JOB
    repeat = int(OUT.with_name("repeat").read_text())
    settings = rdma.settings(health=FORGETFUL["health"])
    with rdma.Shaped(RATES), clusters.Cluster(settings, options.build, addresses=rdma.pair(RATES)) as cluster:
        pair = Pair(cluster)
        pair.job()  # everything has been touched once
        undisturbed, added, rehomed = [pair.job() for _ in range(UNDISTURBED)], [], 0
        for i in range(repeat):
            undisturbed.append(pair.job())
            # The speed of a busy machine changes as time goes by.
            four = statistics.median(undisturbed[-UNDISTURBED:])
            before = rehomings(cluster)
            added.append(cost_of_a_rail(pair, four, 0.1 + 0.6 * i / repeat, lambda: rdma.link(f"n0r{RAIL}", "down")))
            rehomed += rehomings(cluster) > before
            print(f"{time.monotonic():.1f}: undisturbed {four:.3f} s, added {added[-1]:.3f} s", flush=True)
            rdma.link(f"n0r{RAIL}", "up")
            wait_up(cluster)
        pair.close()
        acted = seconds_to_act(cluster)
    print(f"seconds to act: {acted}", flush=True)
    OUT.write_text(json.dumps({"bytes": JOB, "undisturbed": statistics.median(undisturbed),
                               "spread": max(undisturbed) - min(undisturbed), "added": added, "rehomed": rehomed,
                               "acted": acted}))
    print("bench ... ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
