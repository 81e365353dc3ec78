#!/usr/bin/env python3
"""Trainers are killed at random moments, 200 times. The daemons hold nothing of them afterwards."""

import random

import harness
from harness import MIB, clusters, footprint

KILLS = 200
MOMENTS = ["connected", "segment", "joining", "joined", "submitted", "running", "done"]


class Kills(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit")

    def setUp(self):
        self.random = random.Random(harness.SEED)
        self.server = self.enterContext(harness.TrainerServer())

    def life(self, number, moment):
        """Starts two trainers and kills the first at `moment`. The second must learn it, and then ends as well."""
        group, length = f"kill{number}", 8 * MIB if moment == "running" else MIB
        with harness.Trainer(self.cluster.nodes[0], self.server) as victim, \
                harness.Trainer(self.cluster.nodes[1], self.server) as other:
            if moment == "connected":
                return victim.kill()
            for rank, trainer in enumerate((victim, other)):
                trainer.segment("s", length, seed=rank)
                trainer.segment("r", length)
            if moment == "segment":
                return victim.kill()
            victim.send(do="join", group=group, world=2, rank=0)
            if moment == "joining":
                return victim.kill()
            other.send(do="join", group=group, world=2, rank=1)
            for trainer in (victim, other):
                answer = trainer.receive()
                self.assertTrue(answer["ok"], answer)
            if moment == "joined":
                return victim.kill()
            flows = {"sends": {"1": [["s", 0, length]]}, "receives": {"1": [["r", 0, length]]}}
            victim.must(do="submit", group=group, job="j", **flows)
            if moment == "submitted":
                victim.kill()
            flows = {"sends": {"0": [["s", 0, length]]}, "receives": {"0": [["r", 0, length]]}}
            answer = other.do(do="submit", group=group, job="j", **flows)
            if moment == "running":
                # Kills at a random time between the first and the last byte.
                self.random.random() < 0.5 and other.do(do="wait", job="j", timeout=self.random.random() * 0.02)
                victim.kill()
            if moment == "done":
                self.assertEqual(victim.must(do="wait", job="j")["code"], "OK")
                victim.kill()
            if answer["ok"]:
                report = other.must(do="wait", job="j")
                self.assertTrue(report["terminal"], report)
                if report["code"] == "OK":  # the exchange ended before the daemon saw the death
                    self.assertEqual(other.wrong_bytes("r", 0, length, seed=0), 0)
                else:
                    self.assertIn("rank 0", report["message"])
            else:
                self.assertEqual(answer["code"], "FAILED_PRECONDITION", answer)
                self.assertIn("rank 0", answer["message"])

    def test_kills_leave_nothing_behind(self):
        for number, moment in enumerate(MOMENTS * 2):  # warm-up: creates threads and descriptors that are made lazily
            self.life(f"warm{number}", moment)
        self.wait_idle()
        for node in self.cluster.nodes:
            harness.eventually(lambda node=node: footprint(node.pid)["mapped"] == 0, "segments unmapped")
        before = [footprint(node.pid) for node in self.cluster.nodes]
        moments = [MOMENTS[number % len(MOMENTS)] for number in range(KILLS // 10 if harness.SLOW else KILLS)]
        self.random.shuffle(moments)
        for number, moment in enumerate(moments):
            with self.subTest(number=number, moment=moment, seed=harness.SEED):
                self.life(number, moment)
        self.wait_idle()
        for node, held in zip(self.cluster.nodes, before):
            harness.eventually(lambda node=node, held=held: self.no_more_than(footprint(node.pid), held),
                               lambda node=node, held=held: f"{node.name} holds {footprint(node.pid)}, before {held}")
        report = self.cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "1MiB", "--steps", 1)
        self.assertIs(report["verified"], True)

    @staticmethod
    def no_more_than(now, before):
        return (now["mapped"] == 0 and now["threads"] == before["threads"] and
                all(count <= before["descriptors"].get(kind, 0) for kind, count in now["descriptors"].items()))


if __name__ == "__main__":
    harness.main()
