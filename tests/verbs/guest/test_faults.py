#!/usr/bin/env python3
"""Faults in the middle of verified replays, at random moments: links, black holes, lost packets, daemons that are
killed, a port that flaps. Which rail, which node and when is drawn from the seed. Every byte is compared, and the bytes
by rail add up."""

import signal

import harness
import links
import rdma
from harness import MIB, join

FLAPS = 4
FAULTS = 6  # faults of the last test


class Faults(links.LinksTest):
    # Packets that are lost are missed after 0.27 s; after 1.9 s without any answer a rail is given up.
    settings = rdma.settings(verbs={"timeout": 16, "retry_count": 6},
                             health={"first_hold": "1s", "max_hold": "8s"})

    def setUp(self):
        super().setUp()
        self.wait_up()

    def tearDown(self):
        self.wait_idle()

    def replaying(self, size="8MiB", steps=2):
        return super().replaying(size, steps)

    def draw(self):
        """A rail and a node."""
        return self.draws.randrange(rdma.RAILS), self.draws.randrange(2)

    def test_a_link_goes_down(self):
        rail, node = self.draw()
        with self.replaying() as ended:
            self.flows_on(rail)
            self.pause(1)
            self.down(rail, node)
            for end in range(2):
                self.wait_state(rail, ["down"], end)
            self.another(ended)
            self.assertEqual(self.health(rail, node)["state"], "down")
            self.up(rail, node)
            self.flows_on(rail)
        self.wait_up()

    def test_a_black_hole(self):
        rail, node = self.draw()
        flaps = self.health(rail)["flaps"]
        with self.replaying() as ended:
            self.flows_on(rail)
            self.pause(1)
            self.lose(rail, node, "100%")
            harness.eventually(lambda: self.health(rail)["flaps"] > flaps, self.cluster.logs)
            self.another(ended)  # over the others
            self.assertGreater(self.lost(rail, node), 0)
            self.keep(rail, node)
            self.flows_on(rail)
        self.wait_up()

    def test_lost_packets_are_sent_again(self):
        ends = self.draws.sample([(rail, node) for rail in range(rdma.RAILS) for node in range(2)], 2)
        with self.replaying() as ended:
            self.pause(1)
            for rail, node in ends:
                self.lose(rail, node, "5%")
            self.another(ended)
            for rail, node in ends:
                self.assertGreater(self.lost(rail, node), 0)
                self.keep(rail, node)
        self.wait_up()

    def test_a_port_that_flaps(self):
        rail, node = self.draw()
        flaps, held = self.health(rail, node)["flaps"], self.held_seconds(rail, node)

        def wait_connected(peers):
            harness.eventually(lambda: self.rails(node)[rail]["peers_up"] == peers, self.cluster.logs)
        with self.replaying() as ended:
            for _ in range(FLAPS):
                self.down(rail, node)
                wait_connected(0)
                rdma.wait(0.5)
                self.up(rail, node)
                wait_connected(1)
                rdma.wait(0.5)
            self.assertGreaterEqual(self.health(rail, node)["flaps"], flaps + FLAPS)
            self.another(ended)
        self.wait_up()
        # A second for the first failure, twice as long for each further one.
        self.assertGreater(self.held_seconds(rail, node), held + 3)

    def held_seconds(self, rail, node):
        """How long a rail has been held back after failures, so far."""
        return self.sample(self.scrape(node), "railsd_rail_state_seconds_total", rail=f"rail{rail}", state="probing")

    def test_whatever_happens(self):
        def mend():
            for rail in range(rdma.RAILS - 1):
                for node in range(2):
                    self.up(rail, node)
                    self.keep(rail, node)
        with self.replaying() as ended:
            for _ in range(FAULTS):
                rail, node = self.draws.randrange(rdma.RAILS - 1), self.draws.randrange(2)
                fault = self.draws.choice([
                    lambda: rdma.link(links.interface(rail, node), "down"), lambda: self.lose(rail, node, "100%"),
                    lambda: self.lose(rail, node, "5%"), lambda: self.up(rail, node), lambda: self.keep(rail, node),
                    mend])
                fault()
                self.pause(2)
            mend()
            self.another(ended)
        self.wait_up()


class Kills(links.LinksTest):
    """A cluster of its own: Soft-RoCE needs 50 s to destroy a queue pair that an older window is bound to, as those of
    daemons are whose rails have failed before; so only one of the two is ever killed."""

    VICTIM, KILLS = 1, 1

    def test_a_daemon_is_killed_and_starts_again(self):
        exchange = self.enterContext(rdma.Exchange(self.cluster, self.server, 4 * MIB))
        survivor, dead = exchange.trainers
        node = self.cluster.nodes[self.VICTIM]
        for number in range(self.KILLS):
            exchange.begin(count=1000)
            self.flows_on(self.draws.randrange(rdma.RAILS))
            self.pause(1)
            self.cluster.stop_node(node, signal.SIGKILL)
            answer = survivor.receive()
            self.assertEqual(answer["code"], "UNAVAILABLE", answer)
            self.assertIn("the daemon of node n1 is dead", answer["message"])
            # ABORTED: its job was under way. UNAVAILABLE: it was about to submit the next one.
            self.assertIn(dead.receive()["code"], ("ABORTED", "UNAVAILABLE"))
            self.cluster.start_node(node)
            self.cluster.wait_ready(timeout=120)
            dead.must(do="reconnect")
            exchange.group = f"again{number}"
            for answer in join(exchange.trainers, exchange.group):
                self.assertTrue(answer["ok"], answer)
            for trainer in exchange.trainers:  # nothing of what is compared is there already
                trainer.must(do="fill", name="r", offset=0, bytes=exchange.length, seed=99 + number)
            exchange.run(count=2)
        for trainer in exchange.trainers:
            trainer.kill()
        with self.replaying("8MiB", 2):
            pass


if __name__ == "__main__":
    harness.main()
