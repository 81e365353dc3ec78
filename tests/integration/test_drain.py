#!/usr/bin/env python3
"""Operators drain rails in the middle of replays: no byte is lost, and a drained rail carries no more bytes."""

import random
import time
import unittest

import harness
from harness import clusters, eventually


WORKLOAD = ("--workload", "uniform", "--bytes-per-rank", "8MiB", "--ranks-per-node", 2)


class Drain(harness.ClusterTest):
    settings = clusters.Settings(nodes=3, rails=4, speed="1gbit", sections={"timeouts": {"peer_lost": "30s"}})

    def rail(self, node, rail):
        return self.cluster.overview(self.cluster.nodes[node])["rails"][rail]

    def drain(self, node, rail, how="drain"):
        answer = self.cluster.ctl_json(self.cluster.nodes[node], how, rail)
        self.assertEqual(answer["health"]["drained"], how == "drain")

    def replay(self, *arguments):
        self.check_replay(self.cluster.replay("--verify", "--seed", harness.SEED, *WORKLOAD, *arguments))

    def carried(self, node, rail):
        """Payload bytes sent and received at this end of the rail."""
        view = self.rail(node, rail)
        return view["counters"]["tx_payload_bytes"], view["counters"]["rx_payload_bytes"]

    def heard(self, rail, state):
        """Waits until the peers of n0 know whether its end of the rail is drained."""
        def all_heard():
            states = [peer["rail_states"][rail] for node in (1, 2)
                      for peer in self.cluster.overview(self.cluster.nodes[node])["peers"]
                      if peer["node"] == "n0"]
            return states == [state, state]
        eventually(all_heard, f"n1 and n2 take rail {rail} of n0 for {state}")

    def seen_by_peer(self):
        """Checks that n1 shows rail1 of n0 as drained by the peer everywhere, and not as a fault."""
        page = self.scrape(1)
        self.assertIn('railsd_peer_rail_state{peer="n0",rail="rail1",state="drained_by_peer"} 1\n', page)
        self.assertNotIn('railsd_peer_rail_state{peer="n0",rail="rail1",state="down"}', page)
        self.assertEqual(self.sample(page, "railsd_rail_state", rail="rail1", state="up"), 1, "n2 has not drained it")
        peers = self.cluster.ctl(self.cluster.nodes[1], "peers").stdout
        self.assertRegex(peers, r"(?m)^n0 +up +0:up 1:DRAINED BY PEER 2:up 3:up ")

    def test_a_drained_rail_stands_still(self):
        with self.replaying(*WORKLOAD, "--steps", 10) as ended:
            eventually(lambda: self.rail(0, 1)["counters"]["tx_payload_bytes"] > 1 << 20, "rail1 of n0 is in use")
            self.drain(0, "rail1")
            self.heard(1, "drained_by_peer")
            self.seen_by_peer()
            eventually(lambda: self.rail(0, 1)["in_flight_bytes"] + self.rail(0, 1)["queued_bytes"] == 0,
                       "what was under way over rail1 of n0 has ended")
            # Bytes that the peers had under way to it end with the present replay.
            self.another(ended, 1)
            before = self.carried(0, 1)
            others = self.carried(0, 2)
            self.another(ended)
            self.assertEqual(self.carried(0, 1), before)
            self.assertGreater(self.carried(0, 2), others)
            self.assertEqual(self.sample(self.scrape(0), "railsd_rail_state", rail="rail1", state="drained"), 1)
            self.assertEqual(self.sample(self.scrape(0), "railsd_rail_drains_total", rail="rail1"), 1)
            self.drain(0, "1", "undrain")
            self.heard(1, "up")
            eventually(lambda: self.carried(0, 1) > before, "rail1 of n0 is used again")
        self.assertEqual(self.sample(self.scrape(0), "railsd_rail_state", rail="rail1", state="drained"), 0)
        self.wait_idle()

    def test_drains_at_any_moment(self):
        draws = random.Random(harness.SEED)

        def operate():
            time.sleep(0.02 + 0.1 * draws.random())
            self.cluster.ctl(self.cluster.nodes[draws.randrange(3)], draws.choice(["drain", "undrain"]),
                             draws.choice(["rail0", "rail2", "3"]))
        with harness.meanwhile(operate):
            self.replay("--steps", 30)
        for node in range(3):
            for rail in range(4):
                self.drain(node, rail, "undrain")
        self.wait_idle()

    def test_what_cannot_be_drained(self):
        node = self.cluster.nodes[0]
        unknown = self.cluster.ctl(node, "drain", "eth9")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("n0 has no rail 'eth9'; it has rail0, rail1, rail2, rail3", unknown.stderr)
        for rail in range(3):
            self.drain(0, rail)
        last = self.cluster.ctl(node, "drain", "rail3")
        self.assertEqual(last.returncode, 1)
        self.assertIn("rail3 is the last rail of n0 that is not drained", last.stderr)
        self.replay("--steps", 1)
        for rail in range(3):
            self.drain(0, rail, "undrain")


if __name__ == "__main__":
    harness.main()
