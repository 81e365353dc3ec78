#!/usr/bin/env python3
"""Network links that fail under running jobs, in network namespaces. Every byte is compared, and the states that
operators see are the links' states. Needs root.

Faults are set at bridges and interfaces of the emulated fabric (bench/lab.py). The tests check bytes, states and
counts; `./dev bench faults` measures the time to detect faults.
"""

import os
import random
import signal
import time

import harness
from harness import clusters, eventually

import lab as labs

NODES, RAILS = 3, 4


class Links(harness.FabricTest):
    settings = clusters.Settings(nodes=NODES, rails=RAILS, speed="200mbit", sections={
        "timeouts": {"peer_lost": "30s"}, "health": {"max_hold": "4s"}})

    def setUp(self):
        self.draws = random.Random(harness.SEED)
        self.wait_up()

    # State of the cluster.

    def rail(self, node, rail):
        return self.cluster.overview(self.cluster.nodes[node])["rails"][rail]

    def state(self, node, rail):
        return self.rail(node, rail)["health"]["state"]

    def total(self, counter):
        """A counter, summed over all rails of all nodes."""
        return sum(rail["counters"][counter] for node in self.cluster.nodes
                   for rail in self.cluster.overview(node)["rails"])

    def wait_state(self, node, rail, state):
        eventually(lambda: self.state(node, rail) == state, lambda: f"rail{rail} of n{node} is {state}: "
                   f"{self.rail(node, rail)['health']}")

    def wait_up(self):
        """Waits until every path of every node is in use again."""
        def up():
            peers = [peer for node in self.cluster.nodes for peer in self.cluster.overview(node)["peers"]]
            return len(peers) == NODES * (NODES - 1) and all(peer["rail_states"] == ["up"] * RAILS for peer in peers)
        eventually(up, lambda: "every path is up: " + str([self.cluster.overview(node)["peers"]
                                                          for node in self.cluster.nodes]), patience=120)

    def replays(self):
        return self.replaying("--bytes-per-rank", "2MiB" if harness.SLOW else "8MiB", "--steps", 4, "--workload", "zipf",
                              "--ranks-per-node", 2)

    def used_again(self, node, rail):
        before = self.rail(node, rail)["counters"]["tx_payload_bytes"]
        eventually(lambda: self.rail(node, rail)["counters"]["tx_payload_bytes"] > before, f"rail{rail} of n{node} carries bytes")

    # Faults.

    def link(self, node, rail, how):
        labs.run("ip", "-n", self.lab.namespace(node), "link", "set", f"rail{rail}", how)

    def port(self, node, rail, *how):
        """Sets the switch's side of a link."""
        labs.run("ip", "-n", self.lab.switch, "link", "set", f"p{node}r{rail}", *how)

    def drop(self, namespace, device):
        """Silently drops all packets that leave through this device."""
        labs.run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "pfifo", "limit", 0)

    def shape(self, node, rail, rate):
        self.lab.shape(node, rail, rate)

    # Tests.

    def fails_and_returns(self, node, rail, fail, mend, why=None):
        """One link fails during replays: it is shown as down, carries nothing, and is used again after its repair."""
        with self.replays() as ended:
            self.used_again(node, rail)
            flaps = self.rail(node, rail)["health"]["flaps"]
            fail()
            self.wait_state(node, rail, "down")
            if why:
                self.assertIn(why, self.rail(node, rail)["health"]["why"])
            # The link carries nothing now, so its counters stay at the bytes that had arrived.
            self.another(ended)
            self.assertEqual(self.state(node, rail), "down")
            mend()
            self.wait_state(node, rail, "up")
            self.assertGreater(self.rail(node, rail)["health"]["flaps"], flaps)
            self.used_again(node, rail)
        self.wait_idle()

    def test_link_down(self):
        self.fails_and_returns(0, 1, lambda: self.link(0, 1, "down"), lambda: self.link(0, 1, "up"),
                               "switched off or has no carrier")

    def test_no_carrier(self):
        self.fails_and_returns(1, 2, lambda: self.port(1, 2, "down"), lambda: self.port(1, 2, "up"),
                               "switched off or has no carrier")

    def test_address_removed(self):
        change = ["ip", "-n", self.lab.namespace(2), "addr"]
        address = [f"{self.lab.rail(2, 0)}/24", "dev", "rail0"]
        self.fails_and_returns(2, 0, lambda: labs.run(*change, "del", *address),
                               lambda: labs.run(*change, "add", *address), "no interface has its address")

    def test_black_hole(self):
        self.fails_and_returns(0, 3, lambda: self.port(0, 3, "nomaster"),
                               lambda: self.port(0, 3, "master", "br3"))

    def test_black_hole_in_one_direction(self):
        for namespace, device in ((self.lab.namespace(0), "rail2"), (self.lab.switch, "p0r2")):
            with self.subTest(device=device):
                self.fails_and_returns(0, 2, lambda: self.drop(namespace, device), lambda: self.shape(0, 2, "200mbit"))
                self.wait_up()

    def test_a_crawl(self):
        with self.replays() as ended:
            self.used_again(0, 0)
            self.shape(0, 0, "10mbit")
            self.another(ended)
            self.shape(0, 0, "200mbit")
            self.another(ended)
        self.wait_idle()

    def test_a_link_that_flaps(self):
        seen = []  # its health after each reconnect
        with self.replays() as ended:
            for _ in range(6):
                self.link(1, 1, "down")
                self.wait_state(1, 1, "down")
                time.sleep(0.5)
                self.link(1, 1, "up")
                eventually(lambda: self.rail(1, 1)["peers_up"] == NODES - 1, "rail1 of n1 is connected")
                seen.append(self.rail(1, 1)["health"])
                time.sleep(0.5)
            self.assertIn("probing", [health["state"] for health in seen], seen)
            self.assertGreater(max(health["held_seconds"] for health in seen), 1, seen)
            self.another(ended)
        self.wait_state(1, 1, "up")

    def test_a_daemon_that_sleeps_is_no_black_hole(self):
        with self.replays() as ended:
            self.used_again(2, 0)
            before = self.total("disconnects")
            os.kill(self.cluster.nodes[2].pid, signal.SIGSTOP)
            time.sleep(2)
            os.kill(self.cluster.nodes[2].pid, signal.SIGCONT)
            self.another(ended)
            self.assertEqual(self.total("disconnects"), before)

    def test_whatever_happens(self):
        def mend():
            for node in range(NODES):
                for rail in range(RAILS - 1):
                    self.link(node, rail, "up")
                    self.port(node, rail, "master", f"br{rail}", "up")
                    self.shape(node, rail, "200mbit")
        with self.replays() as ended:
            for _ in range(12):
                node, rail = self.draws.randrange(NODES), self.draws.randrange(RAILS - 1)
                self.draws.choice([
                    lambda: self.link(node, rail, "down"), lambda: self.port(node, rail, "down"),
                    lambda: self.port(node, rail, "nomaster"), lambda: self.drop(self.lab.namespace(node), f"rail{rail}"),
                    lambda: self.shape(node, rail, "5mbit"), mend])()
                time.sleep(0.5 * self.draws.random())
            mend()
            self.another(ended)
        self.wait_idle()


if __name__ == "__main__":
    harness.main()
