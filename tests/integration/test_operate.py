#!/usr/bin/env python3
"""Operators of a running node: drain it, change its configuration, ask for its health. Also threads that hang."""

import signal
import subprocess
import threading
import urllib.error
import urllib.request

import harness
from harness import MIB, clusters, eventually, join


class OperateTest(harness.ClusterTest):
    def health(self, node, *arguments):
        """The health service's answer, and the exit code."""
        run = self.cluster.ctl(self.cluster.nodes[node], "health", *arguments)
        return run.stdout.strip(), run.returncode

    def all_health(self, node):
        """Health of the whole server (new work) and of `live`."""
        return [self.health(node, *service)[0] for service in ((), ("--service", "live"))]

    def readyz(self, node):
        try:
            with urllib.request.urlopen(f"http://{self.cluster.addresses.metrics(node)}/readyz", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def ctl(self, node, *arguments):
        return self.cluster.ctl(self.cluster.nodes[node], *arguments)

    def pair(self, group):
        trainers = [self.trainer(0), self.trainer(1)]
        for seed, trainer in enumerate(trainers):
            trainer.segment("s", MIB, seed=seed + 1)
            trainer.segment("r", MIB)
        join(trainers, group)
        return trainers

    def submit(self, trainers, rank, group, job):
        other = str(1 - rank)
        return trainers[rank].do(do="submit", group=group, job=job, sends={other: [["s", 0, MIB]]},
                                 receives={other: [["r", 0, MIB]]})


class Health(OperateTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit")

    def test_it_serves(self):
        self.assertEqual(self.all_health(0), ["SERVING"] * 2)
        self.assertEqual(self.health(0), ("SERVING", 0))
        page = self.cluster.addresses.metrics(0)
        self.assertEqual(self.health(1, "--address", page), ("SERVING", 0))
        self.assertEqual(self.health(1, "--address", page, "--service", "live"), ("SERVING", 0))
        run = self.ctl(0, "health", "--address", "127.0.0.1:1")
        self.assertEqual(run.returncode, 3)
        self.assertIn("127.0.0.1:1", run.stderr)
        run = self.ctl(0, "health", "--service", "no.such.Service")
        self.assertEqual(run.returncode, 1)
        self.assertIn("health service", run.stderr)
        run = subprocess.run([self.cluster.railsctl, "health", "--socket-dir", "/nonexistent"], text=True,
                             stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(run.returncode, 3, run.stderr)
        self.assertIn("/nonexistent/client.sock", run.stderr)


class Drain(OperateTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", sections={"timeouts": {"drain": "45s"}})

    def test_a_drained_node_ends_its_jobs_and_takes_nothing_new(self):
        trainers = self.pair("drained")
        # One rank has submitted the job: the other may still submit it, but the next job is refused.
        self.assertTrue(self.submit(trainers, 0, "drained", "j1")["ok"])
        answers = []
        drain = threading.Thread(target=lambda: answers.append(self.ctl(0, "drain", "--node", "--timeout", "50s")))
        drain.start()
        eventually(lambda: self.status(0)["draining"], "n0 drains")
        self.assertEqual(answers, [])
        self.assertEqual(self.all_health(0), ["NOT_SERVING", "SERVING"])
        self.assertEqual(self.health(0)[1], 1)
        self.assertEqual(self.readyz(0)[0], 503)
        self.assertEqual(self.health(1, "--address", self.cluster.addresses.metrics(0)), ("NOT_SERVING", 1))
        self.assertIn("drained by an operator", self.readyz(0)[1])
        refused = self.submit(trainers, 0, "drained", "j2")
        self.assertEqual((refused["ok"], refused["code"]), (False, "UNAVAILABLE"), refused)
        self.assertTrue(self.submit(trainers, 1, "drained", "j1")["ok"])
        for trainer in trainers:
            self.assertEqual(trainer.must(do="wait", job="j1")["code"], "OK")
        self.assertEqual(trainers[0].wrong_bytes("r", 0, MIB, seed=2), 0)
        self.assertEqual(trainers[1].wrong_bytes("r", 0, MIB, seed=1), 0)
        drain.join(60)
        self.assertEqual(answers[0].returncode, 0, answers[0].stderr)
        self.assertIn("The node is drained", answers[0].stdout)
        with self.assertRaises(AssertionError) as refusal:
            self.trainer(0)
        self.assertIn("drain", str(refusal.exception))

        self.assertEqual(self.ctl(0, "undrain", "--node").returncode, 0)
        self.assertEqual(self.all_health(0), ["SERVING"] * 2)
        self.assertEqual(self.readyz(0)[0], 200)
        self.assertFalse(self.status(0)["draining"])
        self.assertTrue(self.submit(trainers, 0, "drained", "j2")["ok"])
        self.assertTrue(self.submit(trainers, 1, "drained", "j2")["ok"])
        for trainer in trainers:
            self.assertEqual(trainer.must(do="wait", job="j2")["code"], "OK")

    def drains(self, node):
        return self.cluster.nodes[node].log.read_text().count(" draining active_jobs=")

    def test_jobs_that_do_not_end_are_told(self):
        trainers = self.pair("stays")
        self.assertTrue(self.submit(trainers, 0, "stays", "j")["ok"])
        run = self.ctl(0, "drain", "--node", "--timeout", "100ms")
        self.assertEqual(run.returncode, 1)
        self.assertIn("1 jobs were still active", run.stderr)
        self.assertTrue(self.status(0)["draining"])
        waiting = []
        drains = self.drains(0)
        drain = threading.Thread(target=lambda: waiting.append(self.ctl(0, "drain", "--node")))
        drain.start()
        eventually(lambda: self.drains(0) > drains, "it waits again")
        self.assertEqual(self.ctl(0, "undrain", "--node").returncode, 0)
        drain.join(60)
        self.assertEqual(waiting[0].returncode, 1)
        self.assertIn("the drain was undone", waiting[0].stderr)
        self.assertTrue(self.submit(trainers, 1, "stays", "j")["ok"])
        for trainer in trainers:
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")


class Reload(OperateTest):
    settings = clusters.Settings(nodes=3, rails=2, speed="1gbit")

    def rewrite(self, node, **sections):
        """Changes a node's file: merges `sections` into its sections."""
        config = self.cluster.config(node)
        for key, value in sections.items():
            if isinstance(value, dict):
                config.setdefault(key, {}).update(value)
            else:
                config[key] = value
        node.config.write_text(clusters.yaml_text(config))

    def up(self, node):
        return sorted(peer["node"] for peer in self.cluster.overview(self.cluster.nodes[node])["peers"]
                      if peer["up"])

    def test_reload(self):
        node = self.cluster.nodes[0]
        before = self.status(0)["config_hash"]
        self.rewrite(node, limits={"max_groups": 1, "max_world_size": 8}, log={"level": "debug"})
        report = self.cluster.ctl_json(node, "reload")
        self.assertEqual([(c["key"], c["before"], c["after"]) for c in report["applied"]],
                         [("limits.max_groups", "64", "1"), ("log.level", "info", "debug")])
        self.assertEqual([c["key"] for c in report["needs_restart"]], ["limits.max_world_size"])
        self.assertNotEqual(report["config_hash"], before)
        self.assertEqual(self.status(0)["config_hash"], report["config_hash"])
        self.assertIn(f'hash="{report["config_hash"]}"', self.scrape(0))
        self.assertEqual(self.ctl(0, "log-level").stdout, "debug\n")
        text = self.ctl(0, "reload").stdout
        self.assertRegex(text, r"limits\.max_world_size +4096 +8 +NEEDS A RESTART")

        # The new limit applies.
        self.pair("one")
        others = [self.trainer(0), self.trainer(1)]
        answers = [trainer.do(do="join", group="two", world=2, rank=rank, key="") for rank, trainer in
                   enumerate(others[:1])]
        self.assertEqual(answers[0]["code"], "RESOURCE_EXHAUSTED", answers)
        self.assertIn("limits.max_groups", answers[0]["message"])

        # A wrong file changes nothing and is explained.
        good = node.config.read_text()
        node.config.write_text(good + "colour: red\n")
        run = self.ctl(0, "reload")
        self.assertEqual(run.returncode, 5)
        self.assertIn("colour", run.stderr)
        self.assertEqual(self.status(0)["config_hash"], report["config_hash"])

        # SIGHUP does the same.
        self.rewrite(node, limits={"max_groups": 7, "max_world_size": 8})
        node.process.send_signal(signal.SIGHUP)
        eventually(lambda: "config_changed key=limits.max_groups before=1 after=7" in node.log.read_text(), "it reloads")
        self.assertTrue(node.running())

    def test_peers_come_and_go(self):
        node = self.cluster.nodes[1]
        mine = self.cluster.config(node)["peers"]["static"]
        self.assertEqual(self.up(1), ["n0", "n2"])
        self.rewrite(node, peers={"static": [peer for peer in mine if peer["name"] != "n2"]})
        self.cluster.ctl_json(node, "reload")
        self.assertEqual(self.up(1), ["n0", "n2"])  # the existing link stays
        self.cluster.stop_node(self.cluster.nodes[2])
        eventually(lambda: self.up(1) == ["n0"], "n2 is gone")
        self.rewrite(node, peers={"static": mine})
        self.assertEqual([change["key"] for change in self.cluster.ctl_json(node, "reload")["applied"]],
                         ["peers.static.n2"])
        self.cluster.start_node(self.cluster.nodes[2])
        eventually(lambda: self.up(1) == ["n0", "n2"], "n2 is back")


class Hanging(OperateTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", sections={"timeouts": {"stuck": "2s"}})

    def test_a_thread_that_hangs_is_told_and_an_idle_one_is_not(self):
        node = self.cluster.nodes[0]
        for name in ("rail-1", "engine", "copy-0"):
            with self.subTest(thread=name):
                with harness.thread_stopped(node.pid, name):
                    eventually(lambda name=name: f"threads_hang names={name} " in node.log.read_text(), "it is told")
                    eventually(lambda: self.all_health(0) == ["NOT_SERVING"] * 2, "it does not say that it works")
                    self.assertEqual(self.readyz(0), (503, f"these threads hang: {name}\n"))
                eventually(lambda: self.all_health(0) == ["SERVING"] * 2, "it goes on")
        # Idle threads were not reported.
        self.assertNotIn("threads_hang", self.cluster.nodes[1].log.read_text())


if __name__ == "__main__":
    harness.main()
