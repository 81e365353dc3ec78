"""Helpers of the tests of links that fail: rails so slow that something is always on the wire, faults of a link, and
replays that go on meanwhile, every byte of which must be right."""

import random
import re

import harness
import rdma

RATE = "50mbit"


def interface(rail, node=1):
    return f"n{node}r{rail}"


class LinksTest(rdma.VerbsTest):
    """Tests that share one cluster, with trainers and links that are as they were at the end of each."""

    def setUp(self):
        self.draws = random.Random(f"{harness.SEED} {self.id()}")
        self.server = self.enterContext(harness.TrainerServer())
        self.shaper = self.enterContext(rdma.Shaped([RATE] * rdma.RAILS))
        # Whatever a test leaves down.
        for rail in range(rdma.RAILS):
            self.addCleanup(rdma.link, interface(rail), "up")

    # State that the tests look at.

    def rails(self, node=0):
        return self.cluster.overview(self.cluster.nodes[node])["rails"]

    def health(self, rail, node=0):
        return self.rails(node)[rail]["health"]

    def wait_state(self, rail, states, node=0):
        """Waits until a node takes a rail to be in one of these states."""
        harness.eventually(lambda: self.health(rail, node)["state"] in states,
                           lambda: f"rail{rail} of n{node} is {' or '.join(states)}: {self.health(rail, node)}")

    def wait_up(self):
        """Every path of both nodes is in use again."""
        def up():
            peers = [peer for node in self.cluster.nodes for peer in self.cluster.overview(node)["peers"]]
            return len(peers) == 2 and all(peer["rail_states"] == ["up"] * rdma.RAILS for peer in peers)
        harness.eventually(up, self.cluster.logs)

    def sent_on(self, rail):
        return int(self.rails()[rail]["counters"]["tx_payload_bytes"])

    def flows_on(self, rail):
        """Waits until bytes move on a rail."""
        before = self.sent_on(rail)
        harness.eventually(lambda: self.sent_on(rail) > before, f"bytes on rail {rail}")

    def rehomed(self):
        """Numbers of connections that work was moved off, one for each time that either node tells of it."""
        text = "".join(node.log.read_text(errors="replace") for node in self.cluster.nodes)
        return re.findall(r"rehoming peer=\S+ exchanges=\d+ failed_connections=([1-9]\d*)", text)

    def pause(self, seconds):
        """For a random time, up to so long; what is done next comes at a moment that nobody has chosen."""
        rdma.wait(seconds * self.draws.random())

    # Faults.

    def down(self, rail, node=1):
        rdma.link(interface(rail, node), "down")
        harness.eventually(lambda: rdma.devices(self.cluster, node)[rail]["state"] != "active", "the port is seen down")

    def up(self, rail, node=1):
        rdma.link(interface(rail, node), "up")

    def lose(self, rail, node, share):
        """Drops `share` of the packets that a rail of a node sends, silently; the rest goes at the usual rate."""
        rdma.run("tc", "qdisc", "replace", "dev", interface(rail, node), "root", "netem", "loss", share, "rate", RATE,
                 "limit", 1000)

    def lost(self, rail, node):
        """Packets that went that way since lose()."""
        return int(re.search(r"dropped (\d+)", rdma.run("tc", "-s", "qdisc", "show", "dev", interface(rail, node)))[1])

    def keep(self, rail, node):
        """Undoes lose()."""
        self.shaper.shape(rail, node)

    # Work.

    def replaying(self, size="32MiB", steps=5):
        return super().replaying("--workload", "uniform", "--bytes-per-rank", size, "--steps", steps, "--warmup", 0)
