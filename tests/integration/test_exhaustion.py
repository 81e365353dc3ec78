#!/usr/bin/env python3
"""Daemons that run out of a resource: they refuse requests with the reason, and go on."""

import os
import unittest

import harness
from harness import MIB, clusters


class FewDescriptors(clusters.Loopback):
    """Limits the open files of node 0."""

    LIMIT = 90

    def command(self, node):
        return ["prlimit", f"--nofile={self.LIMIT}"] if node == 0 else []


class Exhaustion(unittest.TestCase):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit")

    def open_files(self, cluster):
        return len(os.listdir(f"/proc/{cluster.nodes[0].process.pid}/fd"))

    def exchange(self, cluster, trainers, group):
        for answer in harness.join(trainers, group):
            self.assertTrue(answer["ok"], answer)
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group=group, job="j", sends={other: [["s", 0, MIB]]},
                         receives={other: [["r", 0, MIB]]})
        for trainer in trainers:
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")
        self.assertEqual(trainers[0].wrong_bytes("r", 0, MIB, seed=2), 0)

    def test_no_descriptors_left(self):
        if harness.SLOW:
            self.skipTest("UBSan looks at memory through a pipe, and takes the lack of one for an object of a wrong type")
        with clusters.Cluster(self.settings, build=harness.BUILD, addresses=FewDescriptors()) as cluster:
            trainers = []
            for seed, node in enumerate(cluster.nodes):
                trainers.append(harness.Trainer(node))
                self.addCleanup(trainers[-1].kill)
                trainers[-1].segment("s", MIB, seed=seed + 1)
                trainers[-1].segment("r", MIB)
            before = self.open_files(cluster)
            with self.subTest("segments"), harness.Trainer(cluster.nodes[0]) as greedy:
                for number in range(FewDescriptors.LIMIT):
                    answer = greedy.do(do="segment", name=f"s{number}", bytes=4096)
                    if not answer["ok"]:
                        break
                self.assertEqual(answer["code"], "RESOURCE_EXHAUSTED", answer)
                self.assertRegex(answer["message"], "open no more files; .*LimitNOFILE")
                self.exchange(cluster, trainers, "meanwhile")
                # The session that was refused goes on with its segments.
                self.assertTrue(greedy.must(do="connected")["connected"])
            harness.eventually(lambda: self.open_files(cluster) <= before, cluster.logs)
            with self.subTest("sessions"):
                greedy = []
                for _ in range(FewDescriptors.LIMIT):
                    greedy.append(harness.Trainer())
                    self.addCleanup(greedy[-1].kill)
                    answer = greedy[-1].do(do="connect", socket_dir=str(cluster.nodes[0].sockets))
                    if not answer["ok"]:
                        break
                for trainer in greedy:
                    trainer.kill()
                # The last two codes: no descriptor is left even for the connection.
                self.assertIn(answer["code"], ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"), answer)
            harness.eventually(lambda: self.open_files(cluster) <= before, cluster.logs)
            self.exchange(cluster, trainers, "afterwards")

    def test_a_log_on_a_full_disk(self):
        settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", sections={"log": {"file": "/dev/full"}})
        with clusters.Cluster(settings, build=harness.BUILD) as cluster:
            report = cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "1MiB", "--steps", 2)
            self.assertIs(report["verified"], True)
            # Standard error reports lost lines of the log, with a count.
            self.assertRegex(cluster.nodes[0].log.read_text(), "LOG ERROR #[0-9]+ .*/dev/full: No space left on device")


if __name__ == "__main__":
    harness.main()
