#!/usr/bin/env python3
"""Replays of every workload, every policy, and several at once. The receiving ranks check every byte."""

import json
import subprocess
import unittest
from pathlib import Path

import harness
from harness import clusters

WORKLOADS = ["mixtral", "uniform", "zipf", "sparse", "permutation", "incast"]
POLICIES = ["lpt", "pinned", "aligned", "ecmp", "round_robin", "lpt_flow"]


class ReplayTest(harness.ClusterTest):
    """Checks of every replay."""

    def replay(self, *arguments):
        report = self.check_replay(self.cluster.replay("--verify", "--bytes-per-rank", "2MiB", "--steps", 2, *arguments))
        self.assertGreater(report["ratio_to_bound"], 0)
        return report


class TwoNodes(ReplayTest):
    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit")

    def test_prepared_exchanges(self):
        # Small ones ride in READY.
        for arguments in (("--ranks-per-node", 2, "--ranges-per-flow", 5), ("--bytes-per-rank", "3KiB")):
            with self.subTest(arguments=arguments):
                self.replay("--workload", "mixtral", "--prepared", "--seed", harness.SEED, *arguments)
        self.wait_idle()
        for node in range(2):
            calls = self.scrape(node)
            self.assertRegex(calls, r'railsd_ring_calls_total{method="JobService/SubmitPrepared",code="ok"} [1-9]')
            self.assertNotRegex(calls, r'_calls_total{method="JobService/(SubmitPrepared|ReleasePrepared)",code="[^o]')


class Balance(ReplayTest):
    # No late binding: on a busy machine loopback rails lag for tens of milliseconds, and late binding rightly reacts.
    settings = clusters.Settings(nodes=4, rails=4, speed="1gbit", sections={"plan": {"late_binding": False}})

    def test_lpt_balances_the_rails(self):
        report = self.replay("--workload", "mixtral", "--bytes-per-rank", "16MiB")
        self.assertLess(report["balance"]["tx_max_over_mean"], 1.01)
        self.assertLess(report["balance"]["rx_max_over_mean"], 1.01)


class Explain(ReplayTest):
    settings = clusters.Settings(nodes=2, rails=3, speed="1gbit")

    def explain(self, node, *arguments):
        run = subprocess.run([self.cluster.railsctl, "--socket-dir", node.sockets, "explain", *arguments],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        return run.returncode, run.stdout, run.stderr

    def test_every_byte_of_a_job_is_accounted_for(self):
        self.replay("--workload", "uniform", "--ranks-per-node", 2, "--seed", harness.SEED)
        self.wait_idle()
        for node, other in zip(self.cluster.nodes, reversed(self.cluster.nodes)):
            trace = Path(self.cluster.folder) / f"{node.name}.trace.json"
            code, out, errors = self.explain(node, "--json", "--trace", str(trace))
            self.assertEqual(code, 0, errors)
            job = json.loads(out)
            self.assertEqual((job["node"], job["report"]["state"]), (node.name, "done"))
            self.assertEqual([exchange["node"] for exchange in job["exchanges"]], [other.name])
            sent = sum(exchange["out_bytes"] for exchange in job["exchanges"])
            self.assertEqual(sum(rail["tx_bytes"] for rail in job["rails"]), sent)
            self.assertEqual(sum(rail["planned_bytes"] for rail in job["rails"]), sent)
            self.assertEqual(sum(chunk["length_bytes"] for chunk in job["chunks"]), sent)
            self.assertEqual(len(job["ranks"]), 2)
            spans = [event for event in json.loads(trace.read_text())["traceEvents"]
                     if "source_rank" in event.get("args", {})]
            self.assertEqual(sum(span["args"]["bytes"] for span in spans), sent)
            code, out, _ = self.explain(node, str(job["report"]["seq"]))
            self.assertEqual(code, 0)
            self.assertIn("why\n", out)

    def test_other_jobs_are_refused_with_words(self):
        code, _, errors = self.explain(self.cluster.nodes[0], "4711")
        self.assertEqual(code, 1)
        self.assertIn("no job 4711", errors)
        code, _, errors = self.explain(self.cluster.nodes[0], "soon")
        self.assertEqual(code, 2)
        self.assertIn("'soon'", errors)


class FourNodes(ReplayTest):
    settings = clusters.Settings(nodes=4, rails=4, speed="1gbit")

    def test_every_workload(self):
        for workload in WORKLOADS:
            for ranks in (1, 3):
                with self.subTest(workload=workload, ranks_per_node=ranks):
                    self.replay("--workload", workload, "--ranks-per-node", ranks, "--seed", harness.SEED)
        self.wait_idle()
        for node in range(4):  # trainers that connect and disconnect cause no errors
            self.assertNotRegex(self.scrape(node), r'railsd_grpc_calls_total{.*code="(unauthenticated|unimplemented)"')

    def test_bytes_that_no_rail_carried_are_counted(self):
        report = self.cluster.replay("--workload", "uniform", "--bytes-per-rank", "8KiB", "--steps", 2, "--verify")
        self.check_replay(report)
        self.assertEqual(report["eager"], {"tx_bytes": report["bytes"], "rx_bytes": report["bytes"]})
        self.assertEqual(report["rails_from"], "counters")

    def test_trace_file(self):
        trace = self.cluster.folder / "trace.csv"
        rows = ["rank,model,layer,iter,tokens"]
        rows += [f"{rank},tiny,{layer},0,{(rank * 7 + layer * 3) % 11 + 1}" for layer in range(2) for rank in range(32)]
        trace.write_text("\n".join(rows) + "\n")
        report = self.replay(trace)
        self.assertEqual(report["steps"], 2)

    def test_replays_at_once(self):
        commands = [self.cluster.replay_command("--verify", "--workload", workload, "--bytes-per-rank", "4MiB",
                                                "--steps", 2, "--json") for workload in ("uniform", "zipf", "incast")]
        outputs = []
        with clusters.running(commands[0], stdout=-1, text=True) as first, \
                clusters.running(commands[1], stdout=-1, text=True) as second, \
                clusters.running(commands[2], stdout=-1, text=True) as third:
            for process in (first, second, third):
                outputs.append(process.communicate(timeout=300)[0])
                self.assertEqual(process.returncode, 0, outputs[-1])
        for output in outputs:
            self.check_replay(harness.json.loads(output))
        self.wait_idle()


class Launched(ReplayTest):
    """Ranks that a launcher starts, as in containers."""

    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit")

    def launch(self, command):
        return self.cluster.replay_command("--workload", "uniform", "--bytes-per-rank", "1MiB", "--ranks-per-node", 2,
                                           "--json", "--launch", command)

    def test_every_rank_is_launched(self):
        folder = self.cluster.folder / "launched"
        folder.mkdir()
        launcher = folder / "launcher"
        launcher.write_text(f'#!/bin/sh\necho "$1" > "{folder}/rank$2"\nshift 3\nexec "{self.cluster.railsctl}" "$@"\n')
        launcher.chmod(0o755)
        run = subprocess.run(self.launch(f"{launcher} {{node}} {{rank}}"), text=True, stdout=subprocess.PIPE,
                             timeout=300, check=True)
        self.check_replay(json.loads(run.stdout))
        self.assertEqual([(folder / f"rank{rank}").read_text() for rank in range(4)], ["0\n", "0\n", "1\n", "1\n"])

    def test_a_launcher_that_fails_is_told(self):
        run = subprocess.run(self.launch("false"), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             timeout=300, check=False)
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("ended with exit code 1", run.stderr)


class OneRail(ReplayTest):
    settings = clusters.Settings(nodes=3, rails=1, speed="1gbit")

    def test_uniform(self):
        report = self.replay("--workload", "uniform")
        self.assertEqual(report["balance"]["tx_max_over_mean"], 1)


class Ipv6(ReplayTest):
    settings = clusters.Settings(nodes=2, rails=3, speed="1gbit")
    addresses = clusters.LoopbackV6

    @unittest.skipUnless(Path("/proc/net/if_inet6").exists() and "lo" in Path("/proc/net/if_inet6").read_text(),
                         "no IPv6 on the loopback interface")
    def test_uniform(self):
        self.replay("--workload", "uniform", "--ranks-per-node", 2)


class Policies(unittest.TestCase):
    """The daemons choose the policy: the same replay under each policy has that policy's balance."""

    def test_every_policy(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                settings = clusters.Settings(nodes=3, rails=4, speed="1gbit", sections={"plan": {"policy": policy}})
                with clusters.Cluster(settings, build=harness.BUILD) as cluster:
                    report = cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "6MiB",
                                            "--steps", 1)
                    self.assertIs(report["verified"], True)
                    used = [rail for rail in report["rails"] if rail["node"] == "n0" and rail["tx_bytes"] > 0]
                    if policy == "pinned":
                        self.assertEqual(len(used), 1, report["rails"])
                    if policy in ("lpt", "round_robin"):
                        self.assertEqual(len(used), 4, report["rails"])


class UnequalRails(unittest.TestCase):
    def test_speeds_that_differ(self):
        cluster = clusters.Cluster(clusters.Settings(nodes=2, rails=2), build=harness.BUILD)
        for node in cluster.nodes:
            config = cluster.config(node)
            config["rails"][0]["speed"], config["rails"][1]["speed"] = "3gbit", "1gbit"
            node.config.write_text(clusters.yaml_text(config))
        with cluster:
            report = cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "32MiB", "--steps", 1)
            self.assertIs(report["verified"], True)
            speeds = {rail["name"]: int(rail["speed_bytes_per_second"])
                      for rail in cluster.overview(cluster.nodes[0])["rails"]}
            self.assertEqual(speeds, {"rail0": 375_000_000, "rail1": 125_000_000})


if __name__ == "__main__":
    harness.main()
