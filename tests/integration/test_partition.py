#!/usr/bin/env python3
"""A node is cut off from all others, on the control network and on every rail, in the middle of jobs. Needs root.

Both sides learn which node is lost and that the network is the cause. No more bytes arrive in their buffers, and jobs
of other nodes go on. After the repair, groups can be joined again.
"""

import random
import time

import harness
from harness import MIB, clusters, eventually, join

import lab as labs

NODES, RAILS = 3, 4
LENGTH = 48 * MIB  # takes two seconds, so that the cut comes during the job
POISON = 9


class Partition(harness.FabricTest):
    settings = clusters.Settings(nodes=NODES, rails=RAILS, speed="50mbit", sections={"timeouts": {"peer_lost": "5s"}})

    def ports(self, node):
        """The switch's side of every link of a node, and its bridge."""
        return [(f"p{node}m", "br-mgmt")] + [(f"p{node}r{rail}", f"br{rail}") for rail in range(RAILS)]

    def cut(self, node, how):
        """Cuts a node off. `how`: nomaster, which keeps the carrier, or down."""
        for port, _ in self.ports(node):
            labs.run("ip", "-n", self.lab.switch, "link", "set", port, how)

    def heal(self, node):
        for port, bridge in self.ports(node):
            labs.run("ip", "-n", self.lab.switch, "link", "set", port, "master", bridge, "up")
        self.cluster.wait_ready(120)

    def pair(self, group, nodes):
        trainers = [self.trainer(node) for node in nodes]
        for rank, trainer in enumerate(trainers):
            trainer.segment("s", LENGTH, seed=rank)
            trainer.segment("r", LENGTH)
        for answer in join(trainers, group):
            self.assertTrue(answer["ok"], answer)
        return trainers

    def submit(self, group, trainers, job, length):
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group=group, job=job, sends={other: [["s", 0, length]]},
                         receives={other: [["r", 0, length]]})

    def exchange(self, group, trainers, job, length=MIB):
        self.submit(group, trainers, job, length)
        for rank, trainer in enumerate(trainers):
            self.assertEqual(trainer.must(do="wait", job=job)["code"], "OK")
            self.assertEqual(trainer.wrong_bytes("r", 0, length, seed=1 - rank), 0)

    def received(self, node):
        return sum(rail["counters"]["rx_payload_bytes"]
                   for rail in self.cluster.overview(self.cluster.nodes[node])["rails"])

    def cut_in_a_job(self, how):
        ours, theirs = f"cut-{how}", f"whole-{how}"
        apart, together = self.pair(ours, (0, 2)), self.pair(theirs, (0, 1))
        before = self.received(2)
        self.submit(ours, apart, "j", LENGTH)
        eventually(lambda: self.received(2) > before + MIB, "bytes come to n2")
        self.cut(2, how)
        self.addCleanup(self.heal, 2)
        for trainer, lost in zip(apart, ("n2", "n0")):
            report = trainer.must(do="wait", job="j")
            self.assertEqual((report["terminal"], report["code"]), (True, "UNAVAILABLE"), report)
            self.assertRegex(report["message"], f"node {lost} .*does not answer either: it is down, or cut off")
            # The trainer may use the buffer again.
            trainer.must(do="fill", name="r", offset=0, bytes=LENGTH, seed=POISON)
        for job in range(3):
            self.exchange(theirs, together, f"j{job}")
        refused = apart[0].do(do="submit", group=ours, job="late", sends={}, receives={})
        self.assertEqual(refused["code"], "FAILED_PRECONDITION", refused)
        self.heal(2)
        time.sleep(random.Random(harness.SEED).random())  # time for late bytes to arrive
        for trainer in apart:
            self.assertEqual(trainer.wrong_bytes("r", 0, LENGTH, seed=POISON), 0)
        for answer in join(apart, ours):
            self.assertTrue(answer["ok"], answer)
        self.exchange(ours, apart, "again")
        self.exchange(theirs, together, "after")
        for trainer in apart + together:
            trainer.kill()
        self.wait_idle()

    def test_cut_off_without_a_sign(self):
        self.cut_in_a_job("nomaster")

    def test_every_carrier_lost(self):
        self.cut_in_a_job("down")


if __name__ == "__main__":
    harness.main()
