#!/usr/bin/env python3
"""What `./dev bench verbs` measures inside the guest; prints JSON, which bench/suites/bench_verbs.py judges."""

import argparse
import json
import sys
from pathlib import Path

import harness
import rdma
from harness import clusters

OUT = Path("/run/out/bench.json")
MEGABYTES = 32  # that each node sends in one run


def say(text):
    print(text, flush=True)


def bare(build, rails):
    """MB/s of the bare loop."""
    pairs = [argument for rail in range(rails) for argument in ("--rail", f"rxe_n0r{rail}:rxe_n1r{rail}")]
    report = rdma.json_of(build / "bench/bare/bench_bare_verbs", *pairs, "--megabytes", MEGABYTES)
    return report["bytes"] / report["seconds"] / 1e6


def daemons(build, rails):
    """MB/s of two daemons over so many rails, every byte verified; and what the devices counted for it."""
    settings = rdma.settings(data={"window": "4MiB"})
    settings.rails = rails
    with clusters.Cluster(settings, build, addresses=rdma.pair()) as cluster:
        before = counters(cluster)
        # Two ranks: what is not sent to the other node stays at home, half of it.
        report = cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", f"{2 * MEGABYTES}MiB",
                                "--steps", 1, "--warmup", 0)
        after = counters(cluster)
    return report["bytes"] / report["seconds"] / 1e6, {key: after[key] - before[key] for key in after}, report


def counters(cluster):
    total = {}
    for node in cluster.nodes:
        for rail in cluster.ctl_json(node, "rails")["rails"]:
            for key in ("tx_payload_bytes", "tx_chunks"):
                total[key] = total.get(key, 0) + int(rail[key])
            for key in ("work_requests", "completions", "tx_fences", "endpoint_errors"):
                total[key] = total.get(key, 0) + int(rail["device"][key])
    total["jobs"] = int(cluster.ctl_json(cluster.nodes[0], "status")["jobs_done"])
    return total


def shaped(build, repeat):
    """Ratios to the bound of a skewed workload over four rails at 50 Mbit/s, by step."""
    settings = rdma.settings()
    with rdma.Shaped(["50mbit"] * 4) as shaper, \
            clusters.Cluster(settings, build, addresses=rdma.pair(["50mbit"] * 4)) as cluster:
        report = cluster.replay("--verify", "--workload", "mixtral", "--bytes-per-rank", "64MiB", "--steps", repeat,
                                "--warmup", 1)
        return {"ratios": [step["ratio_to_bound"] for step in report["per_step"]], "balance": report["balance"],
                "drops": shaper.drops(), "counters": counters(cluster)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    repeat = int(OUT.with_name("repeat").read_text())
    result = {"bare": {1: [], 4: []}, "daemons": {1: [], 4: []}, "counters": None}
    for number in range(repeat):
        for rails in (1, 4):
            result["bare"][rails].append(bare(options.build, rails))
            speed, counted, _ = daemons(options.build, rails)
            result["daemons"][rails].append(speed)
            result["counters"] = counted
            say(f"run {number}: {rails} rails, bare {result['bare'][rails][-1]:.1f} MB/s, daemons {speed:.1f} MB/s")
    result["shaped"] = shaped(options.build, repeat)
    say(f"shaped: {result['shaped']}")
    OUT.write_text(json.dumps(result))
    say("bench ... ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
