#!/usr/bin/env python3
"""Groups whose node is lost wait for it, or go on without it. Every promised byte is compared. test_lifecycle.py tests
the default, that groups fail."""

import contextlib
import signal
import time
import unittest

import harness
from harness import clusters, eventually

import lab as labs

MIB = 1 << 20
BYTES = 24 * MIB  # of one flow
TIMEOUTS = {"timeouts": {"peer_lost": "2s", "heartbeat": "200ms"}}


class Recovery(unittest.TestCase):
    def start(self, nodes, addresses=None, speed="1gbit"):
        settings = clusters.Settings(nodes=nodes, rails=2, speed=speed, sections=TIMEOUTS)
        self.cluster = clusters.Cluster(settings, build=harness.BUILD, addresses=addresses)
        self.cluster.__enter__()
        self.addCleanup(self.cluster.stop)
        self.trainers = []
        for node in self.cluster.nodes:
            trainer = harness.Trainer(node)
            self.addCleanup(trainer.kill)
            trainer.segment("s", nodes * BYTES, seed=7)
            trainer.segment("r", nodes * BYTES)
            self.trainers.append(trainer)

    def join(self, trainers, group, **recovery):
        for rank, trainer in enumerate(trainers):
            trainer.send(do="join", group=group, world=len(trainers), rank=rank, **recovery)
        for trainer in trainers:
            answer = trainer.receive()
            self.assertTrue(answer["ok"], answer)

    def submit(self, trainers, group, job, ranks=None):
        """Every rank sends the bytes at its own place to all others, and receives the bytes of rank r at place r."""
        for rank in ranks if ranks is not None else range(len(trainers)):
            others = [other for other in range(len(trainers)) if other != rank]
            trainers[rank].must(do="submit", group=group, job=job,
                                sends={str(r): [["s", rank * BYTES, BYTES]] for r in others},
                                receives={str(r): [["r", r * BYTES, BYTES]] for r in others})

    def verify(self, trainer, ranks):
        """Checks that the bytes received from these ranks are the bytes that they sent, each at the rank's place."""
        for rank in ranks:
            answer = trainer.must(do="check", name="r", offset=rank * BYTES, bytes=BYTES, seed=7,
                                  first=rank * BYTES)
            self.assertEqual(answer["wrong"], 0, f"from rank {rank}")

    def status(self, node):
        return self.cluster.overview(self.cluster.nodes[node])["status"]["groups"]

    def freeze(self, node):
        process = self.cluster.nodes[node].process
        process.send_signal(signal.SIGSTOP)
        self.addCleanup(process.send_signal, signal.SIGCONT)
        return process

    def silent(self, node, other):
        peers = self.cluster.overview(self.cluster.nodes[node])["peers"]
        return [peer["why"] for peer in peers if peer["node"] == other and "nothing was heard" in peer["why"]]


class Waits(Recovery):
    def test_a_frozen_daemon_wakes_and_the_job_goes_on(self):
        self.start(2)
        self.join(self.trainers, "g", recovery="wait", wait_limit=60)
        for job in ("first", "second"):
            self.submit(self.trainers, "g", job)
            process = self.freeze(1)
            eventually(lambda: self.silent(0, "n1"), "n0 hears nothing of n1")
            # Longer than a silent peer is kept without a waiting group.
            time.sleep(2)
            self.assertFalse(self.status(0)[0]["broken"], self.status(0))
            process.send_signal(signal.SIGCONT)
            for rank, trainer in enumerate(self.trainers):
                report = trainer.must(do="wait", job=job)
                self.assertEqual((report["terminal"], report["code"]), (True, "OK"), report)
                self.verify(trainer, [1 - rank])
        group = self.status(0)[0]
        self.assertEqual((group["recovery"], group["wait_limit_milliseconds"]), ("wait", 60_000))

    def test_its_limit_is_a_limit(self):
        self.start(2)
        self.join(self.trainers, "g", recovery="wait", wait_limit=4)
        self.submit(self.trainers, "g", "j", ranks=[0])
        self.freeze(1)
        report = self.trainers[0].must(do="wait", job="j")
        self.assertEqual((report["terminal"], report["code"]), (True, "UNAVAILABLE"), report)
        self.assertRegex(report["message"], "node n1 is lost: .*the groups that waited for it gave up")

    def test_nobody_waits_for_a_daemon_that_is_dead(self):
        """Groups that want to wait for restarts: test_restart.py."""
        self.start(2)
        self.join(self.trainers, "g", recovery="wait", wait_limit=60, restart_limit=0)
        self.submit(self.trainers, "g", "j", ranks=[0])
        self.cluster.stop_node(self.cluster.nodes[1], signal.SIGKILL)
        report = self.trainers[0].must(do="wait", job="j")
        self.assertEqual((report["terminal"], report["code"]), (True, "UNAVAILABLE"), report)
        self.assertIn("the daemon of node n1 is dead", report["message"])

    def test_a_network_that_was_cut_heals_and_the_job_goes_on(self):
        try:
            fabric = contextlib.ExitStack()
            self.addCleanup(fabric.close)
            lab = fabric.enter_context(labs.Lab(nodes=2, rails=2, rate="200mbit"))
        except labs.LabError as error:
            self.skipTest(str(error))
        self.start(2, addresses=lab, speed="200mbit")
        self.join(self.trainers, "g", recovery="wait", wait_limit=60)
        for job in ("first", "second"):
            self.submit(self.trainers, "g", job)
            ports = ["p1m", "p1r0", "p1r1"]  # ports of n1 at the switches
            for port in ports:
                labs.run("ip", "-n", lab.switch, "link", "set", port, "nomaster")
            for node, other in ((0, "n1"), (1, "n0")):
                eventually(lambda n=node, o=other: self.silent(n, o), "both hear nothing of each other")
            time.sleep(2)
            for port, bridge in zip(ports, ["br-mgmt", "br0", "br1"]):
                labs.run("ip", "-n", lab.switch, "link", "set", port, "master", bridge)
            for rank, trainer in enumerate(self.trainers):
                report = trainer.must(do="wait", job=job, timeout=120)
                self.assertEqual((report["terminal"], report["code"]), (True, "OK"), report)
                self.verify(trainer, [1 - rank])


class GoesOnWithout(Recovery):
    def test_the_others_go_on_and_say_who_is_lost(self):
        self.start(3)
        self.join(self.trainers, "g", recovery="degrade")
        self.submit(self.trainers, "g", "hit")
        self.cluster.stop_node(self.cluster.nodes[2], signal.SIGKILL)
        left = self.trainers[:2]
        for rank, trainer in enumerate(left):
            report = trainer.must(do="wait", job="hit")
            self.assertEqual((report["terminal"], report["code"]), (True, "OK"), report)
            self.verify(trainer, [1 - rank])
            if report["received"] < 2 * BYTES or report["sent"] < 2 * BYTES:
                self.assertEqual(report["lost_ranks"], [2])
        eventually(lambda: all(self.status(node)[0]["lost_nodes"] == ["n2"] for node in (0, 1)), "n2 is left out")
        self.submit(self.trainers, "g", "next", ranks=[0, 1])
        for rank, trainer in enumerate(left):
            report = trainer.must(do="wait", job="next")
            self.assertEqual((report["code"], report["lost_ranks"], report["received"]), ("OK", [2], BYTES), report)
            self.verify(trainer, [1 - rank])
        shown = self.cluster.ctl(self.cluster.nodes[0], "status").stdout
        self.assertIn("WITHOUT n2", shown)
        # The node restarts, and is a member of the next group.
        self.cluster.start_node(self.cluster.nodes[2])
        self.cluster.wait_ready()
        eventually(lambda: not self.trainers[2].must(do="connected")["connected"], "the client sees it")
        self.trainers[2].must(do="reconnect")
        for trainer in left:
            trainer.must(do="leave", group="g")
        self.join(self.trainers, "whole", recovery="degrade")
        self.submit(self.trainers, "whole", "again")
        for rank, trainer in enumerate(self.trainers):
            report = trainer.must(do="wait", job="again")
            self.assertEqual((report["code"], report["lost_ranks"], report["received"]), ("OK", [], 2 * BYTES), report)
            self.verify(trainer, [other for other in range(3) if other != rank])


if __name__ == "__main__":
    harness.main()
