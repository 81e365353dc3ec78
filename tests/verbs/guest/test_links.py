#!/usr/bin/env python3
"""Links and addresses that fail, and come back, while jobs run: work moves to the other rails, and every byte is right."""

import harness
import links
import rdma
from harness import MIB

ROUNDS = 20  # at most, until posted work was lost with a rail


class Links(links.LinksTest):
    # Rails that fail again and again are wanted back at once here.
    settings = rdma.settings(health={"first_hold": "20ms", "max_hold": "100ms"})

    def test_work_moves_off_links_that_fail(self):
        before = len(self.rehomed())
        for number in range(ROUNDS):
            with self.replaying():
                for rail in (3, 0, 2):  # one is enough
                    self.flows_on(rail)
                    self.down(rail)
                self.flows_on(1)
                for rail in (3, 0, 2):
                    self.up(rail)
                for rail in (3, 0, 2):
                    self.flows_on(rail)  # used again
            if len(self.rehomed()) > before:
                break
        log = self.cluster.nodes[1].log.read_text(errors="replace")
        for rail in (3, 0, 2):
            self.assertRegex(log, f'link_down rail={rail} why="its interface is switched off or has no carrier"')
            self.assertIn(f"link_up rail={rail}", log)
        print(f"rehomed, failed connections: {self.rehomed()[before:]} in {number + 1} rounds")
        self.assertGreater(len(self.rehomed()), before)

    def test_without_any_link_jobs_fail_or_wait(self):
        exchange = self.enterContext(rdma.Exchange(self.cluster, self.server, 4 * MIB))
        exchange.begin(count=30)
        self.flows_on(0)
        for rail in range(rdma.RAILS):
            self.down(rail)
        for rail in range(rdma.RAILS):
            self.up(rail)
        for rank, trainer in enumerate(exchange.trainers):
            answer = trainer.receive()
            if answer["ok"]:  # it was between two jobs
                self.assertEqual(trainer.wrong_bytes("r", 0, 4 * MIB, seed=2 - rank), 0)
            else:
                self.assertEqual(answer["code"], "UNAVAILABLE", answer)
                self.assertRegex(answer["message"], r"no rail of n\d has reached n\d for")
        self.cluster.wait_ready(timeout=120)
        self.enterContext(rdma.Exchange(self.cluster, self.server, MIB)).run(count=3)

    def test_an_address_that_goes_and_comes_back(self):
        address = ["10.0.1.2/24", "dev", links.interface(1)]
        before = self.totals("endpoint_errors")
        with self.replaying():
            self.flows_on(1)
            rdma.run("ip", "addr", "del", *address)
            try:
                harness.eventually(lambda: self.totals("endpoint_errors") > before, "the rail is given up")
                self.flows_on(2)
            finally:
                rdma.run("ip", "addr", "add", *address)
            self.flows_on(1)
        self.assertIn("GID table change", self.cluster.nodes[1].log.read_text())


if __name__ == "__main__":
    harness.main()
