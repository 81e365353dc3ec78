#!/usr/bin/env python3
"""Four daemons on this machine replay a routing trace. Prints the balance beside that of pinned rails.

`./dev demo` calls this. It stops all its processes, also when it is interrupted.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from cluster import ROOT, Cluster, ClusterError, Settings, exit_on_signals, running

NODES, RAILS = 4, 4
SPEED = "10gbit"  # for the planner; loopback itself has no speed


def say(text=""):
    print(text, file=sys.stderr, flush=True)


def workload(options):
    """Arguments that give replay and plan the same exchanges."""
    source = [options.trace] if options.trace else ["--workload", "mixtral"]
    return [*source, "--ranks-per-node", options.ranks_per_node, "--bytes-per-rank", options.bytes_per_rank,
            "--steps", options.steps, "--seed", options.seed, "--spread", "skewed"]


def plan(cluster, options):
    """The planned balance of each policy: {policy: its part of the report}."""
    command = [cluster.railsctl, "plan", *workload(options), "--nodes", NODES, "--rails", RAILS, "--speed", SPEED, "--json"]
    run = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         check=False)
    if run.returncode != 0:
        raise ClusterError(f"railsctl plan ended with {run.returncode}: {run.stderr.strip()}")
    return {policy["policy"]: policy for policy in json.loads(run.stdout)["policies"]}


def bars(report):
    """Draws the bytes that each rail sent and received."""
    largest = max((max(rail["tx_bytes"], rail["rx_bytes"]) for rail in report["rails"]), default=1) or 1
    lines = []
    for rail in report["rails"]:
        drawn = ["#" * round(24 * rail[key] / largest) for key in ("tx_bytes", "rx_bytes")]
        lines.append(f"  {rail['node']} {rail['name']:<6} sent {rail['tx_bytes'] / 1e6:8.1f} MB {drawn[0]:<24}  "
                     f"received {rail['rx_bytes'] / 1e6:8.1f} MB {drawn[1]}")
    return "\n".join(lines)


def show(report, policies):
    print(f"\nReplayed {report['steps']} steps, {report['bytes'] / 1e6:.1f} MB between nodes in "
          f"{report['seconds']:.2f} s; every byte verified: {'yes' if report['verified'] else 'NO'}\n")
    print(bars(report))
    print("\nBusiest rail over the mean (1.00 is perfect):              sent  received")
    measured = report["balance"]
    print(f"  measured, lpt                                       {measured['tx_max_over_mean']:9.3f}"
          f" {measured['rx_max_over_mean']:9.3f}")
    for name in ("lpt", "pinned"):
        planned = policies[name]
        print(f"  planned, {name:<42} {planned['tx_max_over_mean']:9.3f} {planned['rx_max_over_mean']:9.3f}"
              f"   {planned['completion_over_bound']:.2f} x the least possible time")


def how_to_look(cluster):
    node = cluster.nodes[0]
    ctl = cluster.railsctl
    lines = [f"The daemons go on; their files are in {cluster.folder}", "Look at them:"]
    lines += [f"  {ctl} {what} --socket-dir {node.sockets}" for what in ("status", "rails", "peers", "jobs", "explain", "top")]
    lines += [f"  curl http://{cluster.addresses.metrics(0)}/metrics; in a browser: http://{cluster.addresses.metrics(0)}/",
              "  " + " ".join(map(str, cluster.replay_command("--workload", "zipf", "--verify"))),
              "Stop them, and remove their files:",
              "  kill " + " ".join(str(each.pid) for each in cluster.nodes), f"  rm -r {cluster.folder}"]
    return "\n".join(lines)


def replay(cluster, options):
    """Runs the replay. Its progress goes to standard error."""
    command = cluster.replay_command(*workload(options), "--verify", "--json")
    with running(command, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate()
    if process.returncode != 0:
        raise ClusterError(f"replay ended with {process.returncode}\n{cluster.logs()}")
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description="Four daemons replay a routing trace.")
    parser.add_argument("trace", nargs="?", help="routing trace or traffic matrix; without one, generated like Mixtral's")
    parser.add_argument("--keep", action="store_true", help="leave the daemons up and say how to look at them")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--steps", type=int, default=4, help="steps that are replayed (%(default)s)")
    parser.add_argument("--ranks-per-node", type=int, default=2, help="training processes on each node (%(default)s)")
    parser.add_argument("--bytes-per-rank", default="16MiB",
                        help="bytes that a rank sends on average in the largest step (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the traffic and of the payload (%(default)s)")
    parser.add_argument("--build", default=str(ROOT / "build/release"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace and not Path(options.trace).is_file():
        parser.error(f"no file {options.trace}")
    exit_on_signals()
    try:
        say(f"starting {NODES} daemons with {RAILS} rails each")
        with Cluster(Settings(NODES, RAILS, SPEED), build=options.build, keep=options.keep) as cluster:
            say("replaying")
            report = replay(cluster, options)
            policies = plan(cluster, options)
            if options.json:
                result = {"replay": report, "plan": policies}
                if options.keep:
                    result["daemons"] = [{"node": node.name, "pid": node.pid, "socket_dir": str(node.sockets),
                                          "metrics": cluster.addresses.metrics(node.index)} for node in cluster.nodes]
                print(json.dumps(result, indent=2))
            else:
                show(report, policies)
            if options.keep:
                say("\n" + how_to_look(cluster))
        return 0 if report["verified"] else 1
    except ClusterError as error:
        say(f"demo: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
