#!/usr/bin/env python3
"""Replays of every workload, every policy, and several at once. The receiving ranks check every byte."""

import contextlib
import json
import re
import os
import signal
import socket
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


    def test_a_workload_whose_name_is_no_utf8(self):
        file = Path(self.cluster.folder) / os.fsdecode(b"m\xff.txt")
        file.write_text("0 100\n100 0\n")
        report = self.cluster.replay(str(file), "--bytes-per-rank", "64KiB", "--steps", 1)
        self.assertIn("m\ufffd.txt", report["workload"])


class Balance(ReplayTest):
    # No late binding: on a busy machine loopback rails lag for tens of milliseconds, and late binding rightly reacts.
    settings = clusters.Settings(nodes=4, rails=4, speed="1gbit", sections={"plan": {"late_binding": False}})

    def test_lpt_balances_the_rails(self):
        report = self.replay("--workload", "mixtral", "--bytes-per-rank", "16MiB")
        self.assertLess(report["balance"]["tx_max_over_mean"], 1.01)
        self.assertLess(report["balance"]["rx_max_over_mean"], 1.01)


class Explain(ReplayTest):
    settings = clusters.Settings(nodes=2, rails=3, speed="1gbit")

    def explain(self, node, *arguments, stdin=""):
        run = subprocess.run([self.cluster.railsctl, "--socket-dir", node.sockets, "explain", *arguments], input=stdin,
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
            code, out, _ = self.explain(node, str(job["report"]["job"]["seq"]))
            self.assertEqual(code, 0)
            self.assertIn("why\n", out)

    def test_one_job_on_both_nodes(self):
        """One node's answer comes from a file, as from another machine, the other's from its socket."""
        self.replay("--workload", "uniform", "--ranks-per-node", 2, "--seed", harness.SEED)
        self.wait_idle()
        first, second = self.cluster.nodes
        file, trace = (Path(self.cluster.folder) / name for name in ("n0.json", "all.trace.json"))
        file.write_text(self.explain(first, "--json")[1])
        code, out, errors = self.explain(second, "--json", "--nodes", f"{file},{second.sockets}", "--trace", str(trace))
        self.assertEqual(code, 0, errors)
        nodes = json.loads(out)["nodes"]
        self.assertEqual([node["job"]["node"] for node in nodes], [first.name, second.name])
        for node in nodes:  # one machine has one clock, which a daemon that is not run for a while reads late
            self.assertTrue(node["clock_known"])
            self.assertLessEqual(abs(node["clock_ahead_seconds"]), node["clock_within_seconds"] + 0.05)
        events = json.loads(trace.read_text())["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, {1, 2})
        code, out, _ = self.explain(second, "--nodes", f"{file},{second.sockets}")
        self.assertRegex(out, r"ended last\. It says:\n")
        written = file.read_text()
        code, _, errors = self.explain(second, "4711", "--nodes", str(file))
        self.assertEqual(code, 5)
        self.assertIn("not about the job that was asked for", errors)
        code, _, errors = self.explain(second, "--nodes", f"{file}.missing")
        self.assertEqual(code, 5)
        code, _, errors = self.explain(second, "--nodes", "-,-", stdin=written)
        self.assertEqual(code, 5, "standard input ends once")
        code, out, errors = self.explain(second, "--nodes", f"-,{second.sockets}", stdin=written)
        self.assertEqual(code, 0, errors)
        code, out, errors = self.explain(second, "--nodes", f"{file},{self.cluster.folder}")
        self.assertEqual(code, 3)
        self.assertIn("left out", errors)
        self.assertIn(f"Not asked, and part of it: {second.name}.", out)
        file.write_text(re.sub(r'"counter": \d+', '"counter": 99', written))
        code, _, errors = self.explain(second, "--nodes", f"{second.sockets},{file}")
        self.assertEqual(code, 5, "another epoch's job")
        file.write_text(written.replace('"seq": ', '"seq": 9'))
        code, _, errors = self.explain(second, "--nodes", f"{second.sockets},{file}")
        self.assertEqual(code, 5)
        self.assertIn("is about job 9", errors)

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


class Apart(ReplayTest):
    """Ranks that are started one by one, as on machines of their own; each knows the daemon of its node only."""

    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit")
    world = 4

    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.host, self.port = self.cluster.addresses.rail(0, 200), 29400
        self.token = self.cluster.folder / "token"
        self.token.write_text("do not tell\n")
        self.token.chmod(0o600)

    def start(self, rank, *arguments, node=None, environment=None, prefix=()):
        """A process that is one rank. Later arguments replace earlier ones."""
        node = self.cluster.nodes[rank * 2 // self.world if node is None else node]
        place = [] if environment else ["--rank", rank, "--world", self.world, "--rendezvous", f"{self.host}:{self.port}"]
        command = [*prefix, self.cluster.railsctl, "replay", "--socket-dir", node.sockets, "--workload", "uniform", "--seed", 7,
                   "--bytes-per-rank", "1MiB", "--steps", 2, "--ranks-per-node", self.world // 2, "--token", self.token,
                   "--join-timeout", "60s", *place, *arguments]
        return self.stack.enter_context(clusters.running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                         text=True, env={**os.environ, **(environment or {})}))

    @staticmethod
    def end(process):
        """Exit code, standard output and standard error."""
        out, errors = process.communicate(timeout=120)
        return process.returncode, out, errors

    def start_twice(self, rank):
        """Two processes for one rank: the one that rank 0 takes, and how the other ended."""
        processes = [self.start(rank), self.start(rank)]
        refused = harness.eventually(lambda: next((p for p in processes if p.poll() is not None), None),
                                     f"one of two processes for rank {rank} is refused")
        processes.remove(refused)
        return processes[0], self.end(refused)

    def good_ends(self, processes):
        """Rank 0 reports, and the others say nothing."""
        code, out, errors = self.end(processes[0])
        self.assertEqual(code, 0, errors)
        for process in processes[1:]:
            self.assertEqual(self.end(process), (0, "", ""))
        return self.check_replay(json.loads(out))

    def wait_for(self, process, text):
        """Reads standard error until a line has the text."""
        for line in process.stderr:
            if text in line:
                return line
        self.fail(f"it never said {text}")

    def test_every_byte_is_right(self):
        for arguments in ((), ("--no-barrier", "--prepared"), ("--bytes-per-rank", "3KiB")):
            with self.subTest(arguments=arguments):
                # Rank 0 comes last; the others try again until it listens.
                processes = [self.start(rank, "--json", *arguments) for rank in (3, 2, 1, 0)]
                report = self.good_ends(processes[::-1])
                self.assertEqual((report["nodes"], report["ranks"], report["seed"]), (2, 4, 7))
                self.assertEqual({rail["node"] for rail in report["rails"]}, {"n0", "n1"})
                self.assertGreater(report["ratio_to_bound"], 0)
        self.wait_idle()

    def test_the_environment_names_the_places(self):
        def launched(rank):
            return {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": self.host, "MASTER_PORT": str(self.port)}
        self.good_ends([self.start(rank, "--json", environment=launched(rank)) for rank in range(4)])

        def slurm(rank):
            return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4"}
        self.good_ends([self.start(rank, "--json", "--rendezvous", f"{self.host}:{self.port}", environment=slurm(rank))
                        for rank in range(4)])

    def test_a_killed_rank_ends_all(self):
        # A rank that submits just then hears it from its daemon first: "rank 0 on n0 is gone".
        for victim, how, expected in ((0, signal.SIGKILL, "rank 0 (has ended, or its network has|on n0 is gone)"),
                                      (0, signal.SIGINT, "rank 0 (says: step|on n0 is gone)"),
                                      (2, signal.SIGKILL, "rank 2 on (node n1 has ended|n1 is gone)")):
            with self.subTest(victim=victim, how=how):
                processes = [self.start(rank, "--steps", 100_000, "--progress") for rank in range(4)]
                self.wait_for(processes[0], "step 1 of")
                processes[victim].send_signal(how)
                ends = [self.end(process) for process in processes]
                for rank, (code, out, errors) in enumerate(ends):
                    self.assertEqual(out, "")
                    if rank == victim:
                        self.assertEqual(code, -how, errors)
                        continue
                    self.assertEqual(code, 1, errors)
                    self.assertRegex(errors, expected)
        self.wait_idle()

    def test_signals_that_are_ignored_end_nothing(self):
        processes = [self.start(rank, "--json", "--steps", 100, "--progress", prefix=["nohup"] if rank == 0 else [])
                     for rank in range(4)]
        self.wait_for(processes[0], "step 1 of")
        processes[0].send_signal(signal.SIGHUP)
        self.good_ends(processes)

    def test_ranks_that_never_come_are_named(self):
        processes = [self.start(rank, "--join-timeout", "10s") for rank in (0, 2)]
        for process, expected in zip(processes, ("railsctl: ranks 1 and 3 did not come within 10s",
                                                 "railsctl: rank 0 says: ranks 1 and 3 did not come within 10s")):
            code, out, errors = self.end(process)
            self.assertEqual((code, out), (1, ""))
            self.assertIn(expected, errors)
        code, _, errors = self.end(self.start(1, "--join-timeout", "1s"))
        self.assertEqual(code, 1)
        self.assertIn(f"rank 0 does not answer at {self.host}:{self.port}: Connection refused", errors)

    def test_ranks_that_do_not_belong_are_refused_by_name(self):
        zero = self.start(0, "--json")
        one, (code, out, errors) = self.start_twice(1)
        self.assertEqual((code, out), (2, ""), errors)
        self.assertIn("railsctl: rank 0 says: rank 1 has already come; it was started twice", errors)
        self.token.with_name("other").write_text("told")
        self.token.with_name("other").chmod(0o600)
        for rank, arguments, expected in (
                (2, ["--seed", 8], "rank 2 was started with --seed 8, and rank 0 with --seed 7"),
                (2, ["--world", 6, "--ranks-per-node", 2], "rank 2 was started with --world 6, and rank 0 with --world 4"),
                (3, ["--no-verify"], "rank 3 was started with --verify false, and rank 0 with --verify (default)"),
                (3, ["--token", self.token.with_name("other")], "the token is not that of rank 0")):
            code, out, errors = self.end(self.start(rank, *arguments))
            self.assertEqual((code, out), (2, ""), errors)
            self.assertIn(f"railsctl: rank 0 says: {expected}", errors)
            self.wait_for(zero, f": {expected}")
        self.good_ends([zero, one] + [self.start(rank, "--json") for rank in (2, 3)])

    def test_noise_at_the_rendezvous_is_refused(self):
        zero = self.start(0, "--json")
        told = []
        ready = bytes([0x22, 0])  # Event.ready
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 200_000, b"\0\0\0\2hm", b"\0\0\0\2" + ready, b""):
            connection = harness.eventually(self.connect, "rank 0 listens")
            with connection, contextlib.suppress(OSError):  # refused before all was sent
                connection.sendall(noise)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1000):
                    pass
            told.append(self.wait_for(zero, "connection from"))
        for line, expected in zip(told, ("another version", "too long", "no hello", "'ready' instead", "ended before its hello")):
            self.assertIn(expected, line)
        waiting = self.stack.enter_context(self.connect())  # says nothing, and is not waited for
        self.good_ends([zero] + [self.start(rank, "--json") for rank in (1, 2, 3)])
        waiting.close()

    def connect(self):
        try:
            return socket.create_connection((self.host, self.port), timeout=30)
        except ConnectionRefusedError:
            return None

    def test_a_rank_that_ends_too_early_may_come_again(self):
        zero = self.start(0, "--json")
        early, (code, _, errors) = self.start_twice(3)
        self.assertEqual(code, 2, errors)
        early.send_signal(signal.SIGKILL)
        self.wait_for(zero, "rank 3 from")
        self.good_ends([zero] + [self.start(rank, "--json") for rank in (1, 2, 3)])

    def test_ranks_on_the_wrong_node_are_named(self):
        processes = [self.start(rank, node=0 if rank < 3 else 1) for rank in range(4)]
        for process in processes:
            code, out, errors = self.end(process)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("rank 2 is on node n0 and rank 0 on node n0; with --ranks-per-node 2 they must be on different",
                          errors)

    def test_a_rank_without_a_daemon_ends_all(self):
        processes = [self.start(rank, *(["--socket-dir", "/nowhere"] if rank == 2 else [])) for rank in range(4)]
        for rank, process in enumerate(processes):
            code, out, errors = self.end(process)
            self.assertEqual((code, out), (1 if rank == 2 else 3, ""), errors)
            self.assertIn("could not connect", errors)
            self.assertIn("/nowhere", errors)


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
