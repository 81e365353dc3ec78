#!/usr/bin/env python3
"""Jobs of trainers over verbs: many, beside a writing process, through a dead link, with a trainer that is killed."""

import random

import harness
import rdma
from harness import MIB, footprint, join

KILLS = 200
MOMENTS = ["segment", "joined", "submitted", "running", "done"]


class JobTest(rdma.VerbsTest):
    counter = 0

    def setUp(self):
        self.random = random.Random(harness.SEED)
        self.server = self.enterContext(harness.TrainerServer())

    def trainer(self, node):
        trainer = harness.Trainer(self.cluster.nodes[node], self.server)
        self.addCleanup(trainer.kill)
        return trainer

    def pair(self, length):
        """Two trainers, one a node, in a group of their own, with a filled segment `s` and an empty one `r`."""
        JobTest.counter += 1
        group, trainers = f"group{JobTest.counter}", [self.trainer(0), self.trainer(1)]
        for seed, trainer in enumerate(trainers):
            trainer.segment("s", length, seed=seed + 1)
            trainer.segment("r", length)
        for answer in join(trainers, group):
            self.assertTrue(answer["ok"], answer)
        return group, trainers

    @staticmethod
    def begin(group, trainers, length, count=1, send="s"):
        """Both exchange `length` bytes, `count` times."""
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.send(do="exchange", group=group, count=count, sends={other: [[send, 0, length]]},
                         receives={other: [["r", 0, length]]})

    def finish(self, trainers, length, count=1):
        for rank, trainer in enumerate(trainers):
            answer = trainer.receive()
            self.assertEqual((answer["ok"], answer["done"]), (True, count), answer)
            self.assertEqual(trainer.wrong_bytes("r", 0, length, seed=2 - rank), 0)

    def held(self):
        """What both daemons and the kernel hold for them."""
        return [{**footprint(node.pid), "rdma": rdma.resources(node.pid)} for node in self.cluster.nodes]


class Jobs(JobTest):
    def test_a_thousand_jobs_back_to_back(self):
        group, trainers = self.pair(256 << 10)
        before = self.totals("tx_fences"), self.totals("endpoint_errors")
        self.begin(group, trainers, 256 << 10, count=1000)
        self.finish(trainers, 256 << 10, count=1000)
        fences = self.totals("tx_fences") - before[0]
        self.assertGreaterEqual(fences, 2 * 1000)
        self.assertLessEqual(fences, 2 * 1000 * rdma.RAILS)
        self.assertEqual(self.totals("tx_fences"), self.totals("rx_fences"))
        self.assertEqual(self.totals("endpoint_errors"), before[1])

    def test_odd_lengths(self):
        group, trainers = self.pair(3 * MIB)
        for length in (0, 1, 63, 64, 65, 4095, 4097, 8 * 1024 - 1, MIB + 1, 3 * MIB - 5):
            with self.subTest(length=length):
                self.begin(group, trainers, length)
                self.finish(trainers, length)

    def test_a_segment_that_another_process_writes(self):
        group, trainers = self.pair(4 * MIB)
        trainers[0].must(do="import", name="w", bytes=4 * MIB)  # registered while it is written
        for trainer in trainers:  # what arrives is a mixture; that it arrives is what counts
            trainer.segment("x", 4 * MIB)
        trainers[0].send(do="exchange", group=group, count=3, sends={"1": [["w", 0, 4 * MIB]]}, receives={})
        trainers[1].send(do="exchange", group=group, count=3, sends={}, receives={"0": [["x", 0, 4 * MIB]]})
        for trainer in trainers:
            answer = trainer.receive()
            self.assertTrue(answer["ok"], answer)
        trainers[0].must(do="settle", name="w", seed=1)
        self.begin(group, trainers[:1], 4 * MIB, send="w")
        self.begin_second(group, trainers[1], 4 * MIB)
        self.finish(trainers, 4 * MIB)

    @staticmethod
    def begin_second(group, trainer, length):
        trainer.send(do="exchange", group=group, count=1, sends={"0": [["s", 0, length]]},
                     receives={"0": [["r", 0, length]]})

    def test_a_link_fails_while_jobs_run(self):
        group, trainers = self.pair(4 * MIB)
        self.begin(group, trainers, 4 * MIB, count=12)
        rdma.wait(1)
        rdma.link("n1r2", "down")
        try:
            self.finish(trainers, 4 * MIB, count=12)
            # While it is down, jobs use the other three.
            harness.eventually(lambda: rdma.devices(self.cluster, 1)[2]["state"] != "active", "the port is seen down")
            self.begin(group, trainers, MIB)
            self.finish(trainers, MIB)
        finally:
            rdma.link("n1r2", "up")
        self.cluster.wait_ready(timeout=120)
        self.begin(group, trainers, MIB, count=3)
        self.finish(trainers, MIB, count=3)


class Kills(JobTest):
    def life(self, number, moment):
        """Two trainers; the first is killed at `moment`, the second must be told so, and then ends as well."""
        group, length = f"kill{number}", 4 * MIB if moment == "running" else 64 << 10
        with harness.Trainer(self.cluster.nodes[0], self.server) as victim, \
                harness.Trainer(self.cluster.nodes[1], self.server) as other:
            for trainer in (victim, other):
                trainer.segment("s", length)
                trainer.segment("r", length)
            if moment == "segment":
                return victim.kill()
            for answer in join([victim, other], group):
                self.assertTrue(answer["ok"], answer)
            if moment == "joined":
                return victim.kill()
            victim.must(do="submit", group=group, job="j", sends={"1": [["s", 0, length]]},
                        receives={"1": [["r", 0, length]]})
            if moment == "submitted":
                victim.kill()
            answer = other.do(do="submit", group=group, job="j", sends={"0": [["s", 0, length]]},
                              receives={"0": [["r", 0, length]]})
            if moment == "running":
                rdma.wait(self.random.random() * 0.1)
                victim.kill()
            if moment == "done":
                self.assertEqual(victim.must(do="wait", job="j")["code"], "OK")
                victim.kill()
            if answer["ok"]:
                report = other.must(do="wait", job="j", timeout=120)
                self.assertTrue(report["terminal"], report)

    def test_kills_leave_nothing_behind(self):
        for number, moment in enumerate(MOMENTS):
            self.life(f"warm{number}", moment)
        self.settle()
        before = self.held()
        moments = [MOMENTS[number % len(MOMENTS)] for number in range(KILLS)]
        self.random.shuffle(moments)
        for number, moment in enumerate(moments):
            with self.subTest(number=number, moment=moment, seed=harness.SEED):
                self.life(number, moment)
        self.settle()
        harness.eventually(lambda: self.no_more_than(self.held(), before),
                           lambda: f"before {before}\nafter {self.held()}")
        self.check_replay(self.cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "1MiB",
                                              "--steps", 1))

    def settle(self):
        self.wait_idle()
        for node in self.cluster.nodes:
            harness.eventually(lambda node=node: footprint(node.pid)["mapped"] == 0, "segments unmapped")
        self.cluster.wait_ready(timeout=120)

    @staticmethod
    def no_more_than(now, before):
        return all(new["mapped"] == 0 and new["threads"] == old["threads"] and new["rdma"] == old["rdma"] and
                   all(count <= old["descriptors"].get(kind, 0) for kind, count in new["descriptors"].items())
                   for new, old in zip(now, before))


if __name__ == "__main__":
    harness.main()
