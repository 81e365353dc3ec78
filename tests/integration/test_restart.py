#!/usr/bin/env python3
"""Daemons are restarted under trainers whose group waits for them. Every job of every rank is done once, and every byte
is compared. If a daemon dies instead, jobs are replayed or end with a clean error, and no byte is wrong."""

import signal
import threading
import unittest

import harness
from harness import clusters, eventually

BYTES = 96 * 1024  # of one flow
IN_FLIGHT = 2  # submitted jobs of a rank that it has not waited for
SETTINGS = clusters.Settings(nodes=4, rails=2, speed="1gbit",
                             sections={"timeouts": {"peer_lost": "2s", "heartbeat": "200ms", "drain": "30s"}})


class Rank(threading.Thread):
    """A trainer that exchanges with all ranks, with different bytes in each round, until it is told the last round."""

    def __init__(self, trainer, rank, world, group):
        super().__init__()
        self.trainer, self.rank, self.world, self.group = trainer, rank, world, group
        self.peers = range(world)  # itself, too
        self.round, self.last, self.replays, self.end, self.died = 0, None, 0, None, None
        for name in ("s", "r"):
            trainer.segment(name, IN_FLIGHT * world * BYTES)

    def place(self, number, other):
        return (number % IN_FLIGHT * self.world + other) * BYTES

    def seed(self, number, source, destination):
        return (number * self.world + source) * self.world + destination

    def submit(self, number):
        for peer in self.peers:
            self.trainer.must(do="fill", name="s", offset=self.place(number, peer), bytes=BYTES,
                              seed=self.seed(number, self.rank, peer))
        return self.trainer.do(do="submit", group=self.group, job=str(number),
                               sends={str(o): [["s", self.place(number, o), BYTES]] for o in self.peers},
                               receives={str(o): [["r", self.place(number, o), BYTES]] for o in self.peers})

    def finish(self, number):
        """Waits for a job. False: the job has failed, and `end` holds its report."""
        report = self.trainer.do(do="wait", job=str(number), timeout=120)
        if not report["ok"] or report["code"] != "OK" or not report["terminal"]:
            self.end = report
            return False
        self.replays += report["replays"]
        for peer in self.peers:
            wrong = self.trainer.wrong_bytes("r", self.place(number, peer), BYTES,
                                             self.seed(number, peer, self.rank))
            if wrong:
                raise AssertionError(f"round {number}: {wrong} wrong bytes from rank {peer} at {self.rank}")
        return True

    def rounds(self):
        number = 0
        while True:
            if number >= IN_FLIGHT and not self.finish(number - IN_FLIGHT):
                return
            if self.last is not None and number > self.last:
                break
            answer = self.submit(number)
            if not answer["ok"]:
                self.end = answer
                return
            if answer["seq"] != number + 1:
                raise AssertionError(f"rank {self.rank}: round {number} became job {answer['seq']}")
            self.round = number
            number += 1
        for left in range(number - IN_FLIGHT + 1, number):
            if not self.finish(left):
                return

    def run(self):
        try:
            self.rounds()
        except BaseException as error:  # check() reports it to the test
            self.died = error


class Restart(harness.ClusterTest):
    settings = SETTINGS

    def start(self, group, world=4, **recovery):
        self.ranks = []
        for rank in range(world):
            self.ranks.append(Rank(self.trainer(rank % 4), rank, world, group))
        for rank in self.ranks:
            rank.trainer.send(do="join", group=group, world=world, rank=rank.rank, recovery="wait", wait_limit=60,
                              **recovery)
        for rank in self.ranks:
            answer = rank.trainer.receive()
            self.assertTrue(answer["ok"], answer)
        for rank in self.ranks:
            rank.start()
        self.go_on()

    def go_on(self, rounds=4):
        """Waits until all ranks have done more rounds."""
        target = max(rank.round for rank in self.ranks) + rounds
        eventually(lambda: all(rank.round >= target or not rank.is_alive() for rank in self.ranks),
                   lambda: f"all do round {target}: {[(r.round, r.end, r.died) for r in self.ranks]}", patience=120)
        self.assertTrue(all(rank.is_alive() for rank in self.ranks), [(r.round, r.end, r.died) for r in self.ranks])

    def stop(self):
        last = max(rank.round for rank in self.ranks) + 20  # no rank comes there before all are told
        for rank in self.ranks:
            rank.last = last
        for rank in self.ranks:
            rank.join(120)

    def check(self):
        self.stop()
        for rank in self.ranks:
            self.assertIsNone(rank.died, f"rank {rank.rank}")
            self.assertIsNone(rank.end, f"rank {rank.rank}")
            self.assertFalse(rank.is_alive())
        self.assertEqual({rank.round for rank in self.ranks}, {self.ranks[0].last})

    def leave(self):
        for rank in self.ranks:
            rank.trainer.kill()
        self.wait_idle()

    def restart(self, node, drain):
        process = self.cluster.nodes[node]
        if drain:
            drained = self.cluster.ctl(process, "drain", "--node")
            self.assertEqual(drained.returncode, 0, drained.stderr)
        self.assertEqual(self.cluster.stop_node(process, timeout=60), 0)
        self.cluster.start_node(process)
        self.cluster.wait_ready()

    def finished(self, node):
        """Finished jobs by result since the daemon's start."""
        text = self.scrape(node)
        return {result: self.sample(text, "railsd_jobs_finished_total", result=result)
                for result in ("ok", "replayable", "aborted", "unavailable", "internal", "failed_precondition")}

    def test_one_daemon_after_the_other(self):
        self.start("rolling")
        for drain in (True, False):  # an operator drains first; then SIGTERM alone
            for node in range(4):
                self.restart(node, drain)
                self.go_on()
        self.check()
        self.assertGreater(sum(rank.replays for rank in self.ranks), 0)
        for node in range(4):
            results = self.finished(node)
            self.assertGreater(results.pop("ok"), 0)
            results.pop("replayable")
            self.assertEqual(set(results.values()), {0}, results)
        self.leave()

    def test_two_in_a_row(self):
        """The second daemon stops before the first runs again; two ranks a node."""
        self.start("two", world=8)
        for first, second in ((0, 1), (3, 0)):
            for node in (first, second):
                self.assertEqual(self.cluster.stop_node(self.cluster.nodes[node], timeout=60), 0)
            for node in (first, second):
                self.cluster.start_node(self.cluster.nodes[node])
            self.cluster.wait_ready()
            self.go_on()
        self.check()
        self.leave()

    def test_a_drain_that_is_undone(self):
        self.start("undone")
        for node in (1, 0):
            drained = self.cluster.ctl(self.cluster.nodes[node], "drain", "--node")
            self.assertEqual(drained.returncode, 0, drained.stderr)
            undrained = self.cluster.ctl(self.cluster.nodes[node], "undrain", "--node")
            self.assertEqual(undrained.returncode, 0, undrained.stderr)
            self.go_on()
        self.check()
        self.assertEqual(sum(rank.replays for rank in self.ranks), 0)
        self.leave()

    def test_a_trainer_that_dies_meanwhile(self):
        self.start("dies", restart_limit=8)
        node = self.cluster.nodes[2]
        self.assertEqual(self.cluster.stop_node(node, timeout=60), 0)
        self.ranks[2].trainer.kill()
        self.cluster.start_node(node)
        self.cluster.wait_ready()
        for rank in self.ranks:
            rank.join(120)
        for rank in self.ranks:
            if rank.rank == 2:
                continue
            self.assertIsNone(rank.died)
            self.assertIn(rank.end["code"], ("ABORTED", "UNAVAILABLE"), rank.end)
            self.assertRegex(rank.end["message"], "missing: 2|restart_limit|rank 0's node has not committed")
        self.leave()

    def test_a_daemon_that_dies(self):
        """Ranks may then have finished different jobs. The group goes on, or all its ranks learn that it cannot."""
        went_on = told = 0
        for attempt in range(4):
            self.start(f"killed {attempt}", restart_limit=60)
            node = self.cluster.nodes[attempt]
            self.cluster.stop_node(node, signal.SIGKILL)
            self.cluster.start_node(node)
            self.cluster.wait_ready()
            self.stop()
            for rank in self.ranks:
                self.assertIsNone(rank.died, f"rank {rank.rank}")
            ends = [rank.end for rank in self.ranks if rank.end is not None]
            if not ends:
                went_on += 1
            else:
                told += 1
                self.assertEqual(len(ends), 4, ends)
                for end in ends:
                    self.assertRegex(end["message"], "has finished its jobs up to", end)
                    self.assertIn(end["code"], ("ABORTED", "FAILED_PRECONDITION"), end)
            self.leave()
        print(f"went on {went_on} times, told {told} times")


if __name__ == "__main__":
    harness.main()
