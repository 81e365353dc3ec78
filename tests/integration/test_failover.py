#!/usr/bin/env python3
"""The kernel destroys rails' connections in the middle of jobs: the jobs go on, and no byte is wrong."""

import os
import random
import shutil
import subprocess
import time
import unittest

import harness
from harness import clusters


def can_destroy():
    """Why sockets cannot be destroyed here; empty if they can."""
    if shutil.which("ss") is None:
        return "ss (iproute2) is not installed"
    return "" if os.geteuid() == 0 else "destroying sockets of others needs root"


@unittest.skipIf(can_destroy(), can_destroy())
class Failover(harness.ClusterTest):
    # A high limit, so that a busy machine does not reach it: the test is about bytes lost or written twice.
    settings = clusters.Settings(nodes=3, rails=4, speed="1gbit", sections={"timeouts": {"peer_lost": "30s"}})

    def setUp(self):
        self.random = random.Random(harness.SEED)

    def cut(self, node, rail):
        """Destroys every connection that has an end on the rail, in both directions."""
        address = self.cluster.addresses.rail(node, rail)
        for end in ("src", "dst"):
            subprocess.run(["ss", "-K", end, address], check=True, capture_output=True)

    def counter(self, name):
        """The sum of a metric over all nodes."""
        return sum(self.sample(self.scrape(node), name) for node in range(len(self.cluster.nodes)))

    def replay_under(self, rails):
        self.cuts = 0

        def cut():
            time.sleep(0.05 + 0.2 * self.random.random())
            self.cut(self.random.randrange(3), self.random.choice(rails))
            self.cuts += 1
        with harness.meanwhile(cut):
            report = self.cluster.replay("--verify", "--bytes-per-rank", "8MiB", "--steps", 20, "--workload", "zipf",
                                         "--ranks-per-node", 2, "--seed", harness.SEED)
        self.check_replay(report)
        self.assertEqual(report["steps"], 20)
        self.assertGreater(self.cuts, 0)
        self.wait_idle()

    def test_one_rail_is_cut_again_and_again(self):
        self.replay_under([1])

    def test_every_rail_is_cut_again_and_again(self):
        before = self.counter("railsd_returned_chunks_total")
        for _ in range(10):  # a single cut may come between two chunks
            self.replay_under([0, 1, 2, 3])
            if self.counter("railsd_returned_chunks_total") > before:
                return
        self.fail("no cut ever met a chunk that was under way")


if __name__ == "__main__":
    harness.main()
