#!/usr/bin/env python3
"""Jobs of trainers: right, wrong, cancelled and late ones. A wrong one changes nothing."""

import harness
from harness import MIB, clusters, join


class JobTest(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit")
    counter = 0

    def pair(self, length=MIB, key=""):
        """Two trainers, one on each node, in their own group, with a filled segment `s` and an empty segment `r`."""
        JobTest.counter += 1
        group = f"group{JobTest.counter}"
        trainers = [self.trainer(0), self.trainer(1)]
        for seed, trainer in enumerate(trainers):
            trainer.segment("s", length, seed=seed + 1)
            trainer.segment("r", length)
        for answer in join(trainers, group, key):
            self.assertEqual(answer.get("members"), ["n0", "n1"], answer)
        return group, trainers

    def exchange(self, group, trainers, length, job="j", **more):
        """Submits the same exchange at both and returns both reports."""
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group=group, job=job, sends={other: [["s", 0, length]]},
                         receives={other: [["r", 0, length]]}, **more)
        return [trainer.must(do="wait", job=job) for trainer in trainers]

    def assert_done(self, reports, length):
        for report in reports:
            self.assertEqual((report["terminal"], report["code"]), (True, "OK"), report)
            self.assertEqual((report["sent"], report["received"]), (length, length))

    def assert_refused(self, answer, code, *words):
        self.assertFalse(answer["ok"], answer)
        self.assertEqual(answer["code"], code, answer)
        for word in words:
            self.assertIn(word, answer["message"])


class GoodJobs(JobTest):
    def test_bytes_arrive_where_they_belong(self):
        group, trainers = self.pair()
        self.assert_done(self.exchange(group, trainers, MIB), MIB)
        self.assertEqual(trainers[0].wrong_bytes("r", 0, MIB, seed=2), 0)
        self.assertEqual(trainers[1].wrong_bytes("r", 0, MIB, seed=1), 0)

    def test_ends_cut_a_flow_differently(self):
        group, (a, b) = self.pair()
        cuts = [["s", 0, 1], ["s", 1, 4095], ["s", 4096, MIB - 4096]]
        a.must(do="submit", group=group, job="j", sends={"1": cuts}, receives={"1": [["r", 0, 100]]})
        b.must(do="submit", group=group, job="j", sends={"0": [["s", 0, 50], ["s", 50, 50]]},
               receives={"0": [["r", 0, MIB // 2], ["r", MIB // 2, MIB // 2]]})
        for trainer in (a, b):
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")
        self.assertEqual(b.wrong_bytes("r", 0, MIB, seed=1), 0)
        self.assertEqual(a.wrong_bytes("r", 0, 100, seed=2), 0)

    def test_ranges_land_out_of_order(self):
        group, (a, b) = self.pair()
        half = MIB // 2
        a.must(do="submit", group=group, job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        b.must(do="submit", group=group, job="j", sends={}, receives={"0": [["r", half, half], ["r", 0, half]]})
        for trainer in (a, b):
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")
        self.assertEqual(b.wrong_bytes("r", half, half, seed=1), 0)

    def test_nothing_at_all(self):
        group, trainers = self.pair()
        for vote, trainer in enumerate(trainers):
            trainer.must(do="submit", group=group, job="j", sends={}, receives={}, vote=vote)
        reports = [trainer.must(do="wait", job="j") for trainer in trainers]
        self.assert_done(reports, 0)
        self.assertEqual([report["highest_vote"] for report in reports], [1, 1])

    def test_zero_and_one_byte(self):
        group, trainers = self.pair()
        self.assert_done(self.exchange(group, trainers, 0, job="zero"), 0)
        self.assert_done(self.exchange(group, trainers, 1, job="one"), 1)

    def test_to_oneself_and_within_a_node(self):
        a, b = self.trainer(0), self.trainer(0)
        for seed, trainer in enumerate((a, b)):
            trainer.segment("s", MIB, seed=seed + 1)
            trainer.segment("r", 2 * MIB)
        for answer in join((a, b), "one-node"):
            self.assertEqual(answer["members"], ["n0", "n0"])
        for trainer in (a, b):
            trainer.must(do="submit", group="one-node", job="j",
                         sends={"0": [["s", 0, MIB]], "1": [["s", 0, MIB]]},
                         receives={"0": [["r", 0, MIB]], "1": [["r", MIB, MIB]]})
        for trainer in (a, b):
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")
            self.assertEqual(trainer.wrong_bytes("r", 0, MIB, seed=1), 0)
            self.assertEqual(trainer.wrong_bytes("r", MIB, MIB, seed=2), 0)

    def test_many_jobs_in_flight(self):
        group, trainers = self.pair(length=4 * MIB)
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            for job in range(16):
                at = job * MIB // 4
                trainer.must(do="submit", group=group, job=f"j{job}", tag=job, sends={other: [["s", at, MIB // 4]]},
                             receives={other: [["r", at, MIB // 4]]})
        for job in reversed(range(16)):
            for trainer in trainers:
                self.assertEqual(trainer.must(do="wait", job=f"j{job}")["code"], "OK")
        self.assertEqual(trainers[0].wrong_bytes("r", 0, 4 * MIB, seed=2), 0)

    def test_groups_do_not_wait_for_each_other(self):
        first, one = self.pair()
        second, two = self.pair()
        one[0].must(do="submit", group=first, job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        self.assert_done(self.exchange(second, two, MIB), MIB)
        one[1].must(do="submit", group=first, job="j", sends={}, receives={"0": [["r", 0, MIB]]})
        self.assertEqual(one[1].must(do="wait", job="j")["code"], "OK")

    def test_leave_and_join_again(self):
        group, trainers = self.pair()
        self.assert_done(self.exchange(group, trainers, MIB), MIB)
        for trainer in trainers:
            trainer.do(do="leave", group=group)
        for answer in join(trainers, group):
            self.assertTrue(answer["ok"], answer)
        self.assert_done(self.exchange(group, trainers, MIB, job="again"), MIB)


class BadJobs(JobTest):
    def test_overlapping_receives(self):
        group, (a, _) = self.pair()
        answer = a.do(do="submit", group=group, job="bad", receives={"1": [["r", 0, 100], ["r", 99, 10]]})
        self.assert_refused(answer, "INVALID_ARGUMENT", "overlap", "99")

    def test_a_refused_submission_takes_no_number(self):
        group, trainers = self.pair()
        answer = trainers[0].do(do="submit", group=group, job="bad", sends={"1": [["s", 0, MIB + 1]]})
        self.assert_refused(answer, "INVALID_ARGUMENT")
        self.assert_done(self.exchange(group, trainers, MIB), MIB)

    def test_a_broken_group_refuses(self):
        group, (a, b) = self.pair()
        b.kill()
        report = harness.eventually(
            lambda: a.do(do="submit", group=group, job="late", sends={"1": [["s", 0, 1]]}),
            "an answer")
        if report["ok"]:  # the daemon did not know yet; then the job fails
            self.assertNotEqual(a.must(do="wait", job="late")["code"], "OK")
        answer = a.do(do="submit", group=group, job="later", sends={"1": [["s", 0, 1]]})
        self.assert_refused(answer, "FAILED_PRECONDITION", "rank 1")


class Endings(JobTest):
    def test_cancel(self):
        group, (a, b) = self.pair()
        a.must(do="submit", group=group, job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        a.must(do="cancel", job="j")
        self.assertEqual(a.must(do="wait", job="j")["code"], "CANCELLED")
        # The other rank's submission of the same number finds the cancelled job.
        answer = b.do(do="submit", group=group, job="j", sends={}, receives={"0": [["r", 0, MIB]]})
        code = b.must(do="wait", job="j")["code"] if answer["ok"] else answer["code"]
        self.assertIn(code, ("CANCELLED", "FAILED_PRECONDITION"))

    def test_cancel_of_a_finished_job_changes_nothing(self):
        group, trainers = self.pair()
        self.assert_done(self.exchange(group, trainers, MIB), MIB)
        trainers[0].must(do="cancel", job="j")
        self.assertEqual(trainers[0].must(do="wait", job="j")["code"], "OK")
        self.assert_done(self.exchange(group, trainers, MIB, job="next"), MIB)

    def test_cancel_in_the_middle(self):
        length = 64 * MIB
        group, trainers = self.pair(length)
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group=group, job="j", sends={other: [["s", 0, length]]},
                         receives={other: [["r", 0, length]]})
        trainers[1].must(do="cancel", job="j")
        codes = {trainer.must(do="wait", job="j")["code"] for trainer in trainers}
        self.assertLessEqual(codes, {"OK", "CANCELLED"})

    def test_deadline(self):
        group, (a, _) = self.pair()
        a.must(do="submit", group=group, job="j", sends={"1": [["s", 0, MIB]]}, receives={}, timeout=0.2)
        report = a.must(do="wait", job="j")
        self.assertEqual(report["code"], "DEADLINE_EXCEEDED", report)

    def test_a_dead_trainer_fails_its_peers_jobs_by_name(self):
        group, (a, b) = self.pair()
        a.must(do="submit", group=group, job="j", sends={"1": [["s", 0, MIB]]}, receives={})
        b.kill()
        report = a.must(do="wait", job="j")
        self.assertNotEqual(report["code"], "OK")
        self.assertIn("rank 1", report["message"])


class Joins(JobTest):
    def test_a_rank_twice_on_two_nodes(self):
        a, b, c = self.trainer(0), self.trainer(1), self.trainer(1)
        for trainer in (a, b):
            trainer.send(do="join", group="two", world=2, rank=0, timeout=3)
        c.send(do="join", group="two", world=2, rank=1, timeout=3)
        answers = {trainer: trainer.receive() for trainer in (a, b)}
        c.receive()
        # Both can commit at the same moment. The group of a rank that was not refused at once is soon broken.
        joined = [trainer for trainer, answer in answers.items() if answer["ok"]]
        if len(joined) == 2:
            def refused():
                for number, trainer in enumerate(joined):
                    answer = trainer.do(do="submit", group="two", job=f"j{number}", sends={}, receives={})
                    if not answer["ok"] or trainer.do(do="wait", job=f"j{number}", timeout=0.1)["code"] != "OK":
                        return True
                return False
            harness.eventually(refused, "one of the two is told")
        else:
            codes = {answer["code"] for answer in answers.values() if not answer["ok"]}
            # DEADLINE_EXCEEDED if the other group was complete before this one began: its rank 1 does not join again.
            self.assertLessEqual(codes, {"ALREADY_EXISTS", "ABORTED", "DEADLINE_EXCEEDED"}, answers)

    def test_missing_ranks_are_named(self):
        answer = self.trainer(0).do(do="join", group="alone", world=3, rank=1, timeout=0.3)
        self.assert_refused(answer, "DEADLINE_EXCEEDED", "0", "2")

    def test_keys_keep_groups_apart(self):
        strangers = self.trainer(0), self.trainer(1)
        strangers[0].send(do="join", group="same", world=2, rank=0, key="one", timeout=0.3)
        strangers[1].send(do="join", group="same", world=2, rank=1, key="two", timeout=0.3)
        for trainer in strangers:
            self.assert_refused(trainer.receive(), "DEADLINE_EXCEEDED")


if __name__ == "__main__":
    harness.main()
