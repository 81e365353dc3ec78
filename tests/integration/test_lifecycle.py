#!/usr/bin/env python3
"""The daemon's lifecycle: bad configurations, drain, restarts, the death of a peer, and its external interfaces."""

import re
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness
from harness import MIB, clusters, join


class Configuration(unittest.TestCase):
    """`railsd` refuses a wrong configuration with the file, the line and the reason, and exit status 3."""

    GOOD = 'node: n0\nsocket_dir: {folder}\nrails:\n  - {{name: rail0, address: "127.0.0.1", speed: 200mbit}}\n'

    def railsd(self, text, *arguments):
        with tempfile.TemporaryDirectory(prefix="railsd-config-") as folder:
            path = Path(folder) / "railsd.yaml"
            path.write_text(text.format(folder=folder))
            return subprocess.run([harness.BUILD / "daemon/railsd", "--config", path, *arguments], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)

    def test_good(self):
        self.assertEqual(self.railsd(self.GOOD, "--check-config").returncode, 0)
        printed = self.railsd(self.GOOD, "--print-config")
        self.assertEqual(printed.returncode, 0)
        for word in ("node:", "rails:", "rail0", "timeouts:"):
            self.assertIn(word, printed.stdout)

    def test_listen(self):
        both = self.GOOD + "control: {{listen: \"0.0.0.0:7471\"}}\ntls: {{mode: plain_text}}\n"
        printed = self.railsd(both, "--print-config", "--listen", "fd00::7").stdout
        self.assertIn('listen: "[fd00::7]:7471"', printed)
        self.assertRegex(printed, r'metrics:\n  listen: ""', "it is off")
        run = self.railsd(both, "--print-config", "--listen", "10.0.0.0/40")
        self.assertEqual(run.returncode, 3)
        self.assertIn("--listen: '10.0.0.0/40': for control.listen: not a network", run.stderr)
        run = self.railsd(both + 'metrics: {{listen: "0.0.0.0:9471"}}\n', "--check-config", "--listen", "::1")
        self.assertEqual(run.returncode, 3)
        self.assertIn("--listen: '::1': for metrics.listen: the HTTP library has no IPv6; give an IPv4 address", run.stderr)
        printed = self.railsd(both, "--print-config", "--listen", "[fd00::7]").stdout
        self.assertIn('listen: "[fd00::7]:7471"', printed)
        run = self.railsd(both, "--print-config", "--listen", "[fd00::7]:7000")
        self.assertEqual(run.returncode, 3)
        self.assertIn("--listen: '[fd00::7]:7000': give the host without a port, as in fd00::7;", run.stderr)

    def test_bad(self):
        for arguments in (["--check-config"], []):
            run = self.railsd(self.GOOD + "plan: {{policy: fastest}}\n", *arguments)
            self.assertEqual(run.returncode, 3, run.stderr)
            self.assertRegex(run.stderr, r"railsd\.yaml:5\b.*policy.*fastest")

    def test_no_file(self):
        run = subprocess.run([harness.BUILD / "daemon/railsd", "--config", "/nonexistent/railsd.yaml"], text=True,
                             stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(run.returncode, 3)
        self.assertIn("/nonexistent/railsd.yaml", run.stderr)

    def test_version(self):
        run = subprocess.run([harness.BUILD / "daemon/railsd", "--version"], text=True, stdout=subprocess.PIPE,
                             timeout=60, check=False)
        self.assertEqual(run.returncode, 0)
        self.assertRegex(run.stdout, r"\d+\.\d+\.\d+")


class Outside(harness.ClusterTest):
    """The external interfaces of a daemon."""

    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit")

    def test_metrics_follow_the_bytes(self):
        before = self.scrape(0)
        report = self.cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "4MiB", "--steps", 1,
                                     "--warmup", 0)
        after = self.scrape(0)
        for ours, theirs in (("tx_bytes", "tx"), ("rx_bytes", "rx")):
            moved = sum(rail[ours] for rail in report["rails"] if rail["node"] == "n0")
            name = "railsd_rail_payload_bytes_total"
            grown = (self.sample(after, name, direction=theirs) - self.sample(before, name, direction=theirs))
            self.assertEqual(grown, moved)
        for name in re.findall(r"^# TYPE (\S+) \w+$", after, re.MULTILINE):
            self.assertIn(f"# HELP {name} ", after)
        for line in after.splitlines():
            self.assertNotRegex(line.lower(), r" -?nan$")

    def test_one_log_line_a_job(self):
        node = self.cluster.nodes[0]
        self.cluster.replay("--workload", "uniform", "--bytes-per-rank", "1MiB", "--steps", 3, "--warmup", 0,
                            "--ranks-per-node", 2)
        group = re.findall(r"info job_done group=(\S+)", node.log.read_text())[-1]
        pattern = (
            rf"info job_done group={re.escape(group)} epoch=[0-9a-f]{{16}}\.\d+ seq=(\d+) tag=\d+ ranks=0,1 "
            r"bytes_sent=(\d+) bytes_received=\d+ elapsed_seconds=\d+\.\d+ waiting_for_ranks_seconds=\S+ "
            r"waiting_for_peers_seconds=\S+ sending_seconds=\S+ receiving_seconds=\S+ bound_seconds=0\.\d+ "
            r"ratio_to_bound=\d+\.\d+\n")

        def all_told():
            found = re.findall(pattern, node.log.read_text())
            return found if len(found) >= 6 else None
        lines = harness.eventually(all_told, "a line for each of 6 jobs: dispatch and combine, all ranks in one")
        self.assertEqual([int(seq) for seq, _ in lines], list(range(1, 7)))
        self.assertTrue(all(int(sent) > 0 for _, sent in lines))

    def test_health_and_reflection(self):
        for name, service in (("client.sock", "rails.v1.JobService"), ("operator.sock", "rails.v1.OperatorService")):
            run = subprocess.run([harness.BUILD / "tests/integration/rails_grpc_probe",
                                  f"unix:{self.cluster.nodes[0].sockets / name}"], text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, timeout=60, check=False)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("health 1\n", run.stdout)
            self.assertIn(f"service {service}\nhealth {service} 1\n", run.stdout)

    def test_railsctl_shows_the_node(self):
        node = self.cluster.nodes[0]
        self.assertEqual(self.cluster.ctl_json(node, "status")["node"], "n0")
        self.assertEqual(len(self.cluster.ctl_json(node, "rails")["rails"]), 4)
        self.assertEqual([peer["node"] for peer in self.cluster.ctl_json(node, "peers")["peers"]], ["n1"])
        self.assertIn("finished", self.cluster.ctl_json(node, "jobs"))
        for command in ("status", "rails", "peers", "jobs"):
            run = self.cluster.ctl(node, command)
            self.assertEqual((run.returncode, run.stderr), (0, ""), command)
            self.assertTrue(run.stdout.strip())

    def test_railsctl_exit_codes(self):
        node = self.cluster.nodes[0]
        self.assertEqual(self.cluster.ctl(node, "status", "--no-such-flag").returncode, 2)
        run = subprocess.run([self.cluster.railsctl, "status", "--socket-dir", "/nonexistent"], text=True,
                             stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(run.returncode, 3)
        self.assertIn("/nonexistent", run.stderr)
        trace = self.cluster.folder / "no.csv"
        trace.write_text("this,is,no\ntrace,at,all\n")
        run = subprocess.run(self.cluster.replay_command(trace), text=True, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(run.returncode, 5)
        self.assertIn("no.csv", run.stderr)


class LogLevel(harness.ClusterTest):
    """The level of the log changes while the daemon runs."""

    def lines(self, node, pattern):
        return re.findall(rf"(?m)^\S+ {pattern}", node.log.read_text())

    def reconnect(self):
        """Restarts n1, which n0 logs; only the line of the control link has level debug."""
        self.cluster.stop_node(self.cluster.nodes[1])
        self.cluster.start_node(self.cluster.nodes[1])
        self.cluster.wait_ready()

    def test_debug_lines_come_and_go(self):
        node = self.cluster.nodes[0]
        self.assertEqual(self.cluster.ctl_json(node, "log-level"), {"level": "info", "level_before": "info"})
        self.assertEqual(self.lines(node, "debug"), [])
        run = self.cluster.ctl(node, "log-level", "debug")
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "debug (it was info)\n", ""))
        self.assertEqual(len(self.lines(node, "warning log_level_set level=debug before=info")), 1)
        self.reconnect()
        self.assertEqual(len(self.lines(node, "debug control_link_up node=n1")), 1)
        self.assertEqual(self.cluster.ctl_json(node, "log-level", "warn"),
                         {"level": "warning", "level_before": "debug"})
        ups = len(self.lines(node, "info peer_up"))
        self.reconnect()
        self.assertEqual(len(self.lines(node, "debug control_link_up node=n1")), 1)
        self.assertEqual(len(self.lines(node, "info peer_up")), ups)
        self.assertEqual(self.cluster.ctl(node, "log-level", "info").returncode, 0)

    def test_levels_that_there_are_not(self):
        node = self.cluster.nodes[0]
        run = self.cluster.ctl(node, "log-level", "loud")
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertIn("unknown log level 'loud'; give one of trace, debug, info, warning, error, off", run.stderr)
        self.assertEqual(self.cluster.ctl(node, "log-level").stdout, "info\n")


class Death(unittest.TestCase):
    """Daemons that stop, die and restart."""

    def setUp(self):
        settings = clusters.Settings(nodes=3, rails=2, speed="1gbit",
                                     sections={"timeouts": {"peer_lost": "2s", "heartbeat": "200ms"}})
        self.cluster = clusters.Cluster(settings, build=harness.BUILD)
        self.cluster.__enter__()
        self.addCleanup(self.cluster.stop)

    def pair(self, group, first=0, second=1):
        trainers = [harness.Trainer(self.cluster.nodes[first]), harness.Trainer(self.cluster.nodes[second])]
        for trainer in trainers:
            self.addCleanup(trainer.kill)
            trainer.segment("s", MIB, seed=1)
            trainer.segment("r", MIB)
        for answer in join(trainers, group):
            self.assertTrue(answer["ok"], answer)
        return trainers

    def exchange(self, group, trainers, job):
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group=group, job=job, sends={other: [["s", 0, MIB]]},
                         receives={other: [["r", 0, MIB]]})
        for trainer in trainers:
            self.assertEqual(trainer.must(do="wait", job=job)["code"], "OK")

    def test_a_dead_daemon_fails_its_peers_jobs_and_no_others(self):
        # A node tells that a daemon is dead where it has once reached it. Right after the start only n1 may have dialled.
        self.cluster.ctl(self.cluster.nodes[0], "redial", "n1")
        a, _ = self.pair("with-n1")
        others = self.pair("without-n1", 0, 2)
        a.must(do="submit", group="with-n1", job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        self.cluster.stop_node(self.cluster.nodes[1], signal.SIGKILL)
        report = a.must(do="wait", job="j")
        self.assertTrue(report["terminal"])
        self.assertEqual(report["code"], "UNAVAILABLE", report)
        self.assertRegex(report["message"], "the daemon of node n1 is dead: .* refuses connections")
        # The log line of a job is written when its last part has ended.
        line = 'warning job_failed group=with-n1 .* rank=0 code=UNAVAILABLE why=".*n1 is dead'
        harness.eventually(lambda: re.search(line, self.cluster.nodes[0].log.read_text()), "the log says that, too")
        self.exchange("without-n1", others, "j")

    def test_a_frozen_daemon_is_told_from_a_dead_one(self):
        a, b = self.pair("with-n1")
        others = self.pair("without-n1", 0, 2)
        a.must(do="submit", group="with-n1", job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        frozen = self.cluster.nodes[1].process
        frozen.send_signal(signal.SIGSTOP)
        self.addCleanup(frozen.send_signal, signal.SIGCONT)
        report = a.must(do="wait", job="j")
        self.assertEqual(report["code"], "UNAVAILABLE", report)
        self.assertRegex(report["message"], "node n1 .*its daemon is stopped or gets no processor time")
        self.exchange("without-n1", others, "j")
        # The frozen daemon goes on. Its ranks' errors name its own pause, and the next group works.
        frozen.send_signal(signal.SIGCONT)
        answer = b.do(do="submit", group="with-n1", job="j", sends={}, receives={"0": [["r", 0, MIB]]})
        if answer["ok"]:  # accepted before the daemon knew that its peers had given it up
            answer = b.must(do="wait", job="j")
        self.assertRegex(answer["message"], "node n0 is lost: the daemon of n1 itself had not run for .*s|said n0")
        self.cluster.wait_ready()
        self.exchange("again", self.pair("again"), "j")

    def test_restart_and_join_again(self):
        a, b = self.pair("g")
        self.exchange("g", (a, b), "before")
        node = self.cluster.nodes[1]
        self.cluster.stop_node(node, signal.SIGKILL)
        harness.eventually(lambda: not b.must(do="connected")["connected"], "the client sees that its daemon is gone")
        self.cluster.start_node(node)
        self.cluster.wait_ready()
        b.must(do="reconnect")
        for answer in join((a, b), "g2"):
            self.assertTrue(answer["ok"], answer)
        self.exchange("g2", (a, b), "after")
        self.assertEqual(a.wrong_bytes("r", 0, MIB, seed=1), 0)

    def test_a_daemon_that_dies_fails_its_own_clients(self):
        a, _ = self.pair("g")
        a.must(do="submit", group="g", job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        pid = self.cluster.nodes[0].pid
        self.cluster.stop_node(self.cluster.nodes[0], signal.SIGKILL)
        answer = a.do(do="wait", job="j")
        self.assertEqual((answer["ok"], answer["code"]), (False, "ABORTED"), answer)
        self.assertIn(f"the railsd process {pid} of node n0 has ended", answer["message"])

    def test_sigterm_drains(self):
        a, b = self.pair("g")
        node = self.cluster.nodes[0]
        a.must(do="submit", group="g", job="j", sends={"1": [["s", 0, MIB]]}, receives={"1": [["r", 0, MIB]]})
        node.process.send_signal(signal.SIGTERM)
        with harness.Trainer() as late:
            def refused():
                answer = late.do(do="connect", socket_dir=str(node.sockets), timeout=0.5)
                return not answer["ok"] or not late.do(do="join", group="late", world=1, rank=0, timeout=1)["ok"]
            harness.eventually(refused, "a draining daemon refuses what is new")
        # The other end now submits its part of the accepted job, and the job completes.
        b.must(do="submit", group="g", job="j", sends={"0": [["s", 0, MIB]]}, receives={"0": [["r", 0, MIB]]})
        self.assertEqual(b.must(do="wait", job="j")["code"], "OK")
        self.assertEqual(node.process.wait(timeout=60), 0)

    def test_sigterm_with_a_job_that_never_ends(self):
        a, _ = self.pair("g")
        a.must(do="submit", group="g", job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        node = self.cluster.nodes[0]
        node.process.send_signal(signal.SIGTERM)
        status = node.process.wait(timeout=60)  # the drain's limit is 10 s
        self.assertIn(status, (0, 1), self.cluster.logs([node]))
        self.assertFalse((node.sockets / "client.sock").exists())


if __name__ == "__main__":
    harness.main()
