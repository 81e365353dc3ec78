#!/usr/bin/env python3
"""Jobs of trainers over verbs: many, beside a writing process, with a trainer that is killed."""

import random

import harness
import rdma
from harness import MIB, footprint, join

JOBS = 300
KILLS = 50
MOMENTS = ["segment", "joined", "submitted", "running", "done"]


class JobTest(rdma.VerbsTest):
    def setUp(self):
        self.random = random.Random(harness.SEED)
        self.server = self.enterContext(harness.TrainerServer())

    def exchange(self, length):
        return self.enterContext(rdma.Exchange(self.cluster, self.server, length))

    def held(self):
        """Counts of what both daemons hold, and the kernel for them."""
        return [{**footprint(node.pid), "rdma": rdma.resources(node.index)} for node in self.cluster.nodes]


class Jobs(JobTest):
    def test_jobs_back_to_back(self):
        exchange = self.exchange(256 << 10)
        before, moves = [self.totals(key) for key in ("tx_fences", "endpoint_errors")], self.late_moves()
        exchange.run(count=JOBS)
        fences = self.totals("tx_fences") - before[0]
        self.assertGreaterEqual(fences, 2 * JOBS)
        self.assertLessEqual(fences, 2 * JOBS * rdma.RAILS + self.late_moves() - moves)
        self.assertEqual(self.totals("tx_fences"), self.totals("rx_fences"))
        self.assertEqual(self.totals("endpoint_errors"), before[1])

    def test_odd_lengths(self):
        exchange = self.exchange(3 * MIB)
        for length in (0, 1, 63, 64, 65, 4095, 4097, 8 * 1024 - 1, MIB + 1, 3 * MIB - 5):
            with self.subTest(length=length):
                exchange.run(length)

    def test_a_segment_that_another_process_writes(self):
        exchange = self.exchange(4 * MIB)
        writer = exchange.trainers[0]
        writer.must(do="import", name="w", bytes=4 * MIB)  # registered while it is written
        # What arrives now is a mixture; that it arrives is what counts.
        exchange.begin(count=3, sources=("w", "s"))
        exchange.finish(count=3, check=False)
        writer.must(do="settle", name="w", seed=1)
        exchange.begin(sources=("w", "s"))
        exchange.finish()


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
        for held in before:
            for kind in ("qp", "cq", "pd"):
                self.assertGreaterEqual(held["rdma"][kind], rdma.RAILS, held)
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
