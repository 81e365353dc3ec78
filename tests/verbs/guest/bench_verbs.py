#!/usr/bin/env python3
"""The measurements of `./dev bench verbs` inside the guest; prints JSON, which bench/suites/bench_verbs.py judges."""

import argparse
import json
import sys
from pathlib import Path

import harness
import rdma
from harness import clusters

OUT = Path("/run/out/bench.json")
MEGABYTES = 96  # that each node sends in one step: long against what a job begins and ends with
STEPS = 1
BUSY_POLLS = ("0s", "50us", "1ms")
SHAPED = {"shaped": ["50mbit"] * 4, "uneven": ["50mbit", "50mbit", "25mbit", "50mbit"]}


def say(text):
    print(text, flush=True)


def bare(build, rails):
    """MB/s of the bare loop."""
    pairs = [argument for rail in range(rails) for argument in ("--rail", f"rxe_n0r{rail}:rxe_n1r{rail}")]
    report = rdma.json_of(build / "bench/bare/bench_bare_verbs", *pairs, "--megabytes", MEGABYTES * STEPS)
    return report["bytes"] / report["seconds"] / 1e6


def daemons(build, rails, busy_poll="0s", window="4MiB"):
    """MB/s of two daemons over so many rails, every byte verified; and what was counted for it."""
    # As many bytes under way as in the bare loop.
    settings = rdma.settings(data={"window": window}, verbs={"busy_poll": busy_poll})
    settings.rails, settings.speed = rails, "4gbit"
    with clusters.Cluster(settings, build, addresses=rdma.pair()) as cluster:
        # Two ranks that send each other everything, as the ends of the bare loop do.
        arguments = ["--verify", "--workload", "permutation", "--bytes-per-rank", f"{MEGABYTES}MiB", "--warmup", 0]
        cluster.replay(*arguments, "--steps", 1)  # everything has been touched once
        before = counters(cluster)
        report = cluster.replay(*arguments, "--steps", STEPS)
        after = counters(cluster)
    counted = {key: after[key] - before[key] for key in after}
    return report["bytes"] / report["seconds"] / 1e6, {**counted, "seconds": report["seconds"]}


def counters(cluster):
    total = {"cpu_seconds": sum(sum(node.cpu_seconds()) for node in cluster.nodes)}
    for node in cluster.nodes:
        for rail in cluster.overview(node)["rails"]:
            for key in ("tx_payload_bytes", "tx_chunks", "tx_system_calls", "rx_system_calls", "work_requests",
                        "completions", "tx_fences", "endpoint_errors"):
                total[key] = total.get(key, 0) + rail["counters"][key]
    total["jobs"] = int(cluster.overview(cluster.nodes[0])["status"]["jobs_done"])
    return total


def shaped(build, repeat, rates):
    """Ratios to the bound of a skewed workload over shaped rails, by step."""
    # Two emulated processors may be away from a rail for 30 ms, so much more than that is under way.
    settings = rdma.settings(data={"window": "1MiB"})
    with rdma.Shaped(rates) as shaper, clusters.Cluster(settings, build, addresses=rdma.pair(rates)) as cluster:
        report = cluster.replay("--verify", "--workload", "mixtral", "--bytes-per-rank", "256MiB", "--steps", repeat,
                                "--warmup", 1)
        return {"ratios": [step["ratio_to_bound"] for step in report["per_step"]], "balance": report["balance"],
                "drops": shaper.drops(), "counters": counters(cluster)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    repeat = int(OUT.with_name("repeat").read_text())
    result = {"bare": {1: [], 4: []}, "daemons": {1: [], 4: []}, "busy": {busy: [] for busy in BUSY_POLLS}}
    for name, rates in SHAPED.items():
        result[name] = shaped(options.build, repeat, rates)
        say(f"{name}: {result[name]}")
    rdma.receive_where_it_is_sent()
    for number in range(repeat):
        for rails in (1, 4):
            result["bare"][rails] += [bare(options.build, rails) for _ in range(3)]
            speed, counted = daemons(options.build, rails)
            result["daemons"][rails].append(speed)
            if rails == 4:
                result["busy"]["0s"].append(counted)
            say(f"run {number}: {rails} rails, bare {result['bare'][rails][-1]:.1f} MB/s, daemons {speed:.1f} MB/s")
        for busy in BUSY_POLLS[1:]:
            result["busy"][busy].append(daemons(options.build, 4, busy)[1])
            say(f"busy_poll {busy}: {result['busy'][busy][-1]}")
    result["wide"] = daemons(options.build, 4, window="16MiB")[1]
    say(f"window 16MiB: {result['wide']}")
    OUT.write_text(json.dumps(result))
    say("bench ... ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
