"""Teams of trainers that exchange and compare, group after group, and judge how their jobs end."""

import collections
import contextlib
import os
import random
import re
import select
import signal
import threading
import time

import harness
from faults import DAEMON

FLOW = 1 << 20  # bytes of a flow, at most
TWIN_FLOW = 64 << 10  # of a team's second group
PATIENCE = 300  # seconds until an answer that does not come is a hang; no limit of a daemon is longer
BEFORE = 15  # seconds for which a fault that is over may still end jobs: silence is noticed late, groups form slowly
POISON, STALE = 4_000_000_007, 4_000_000_009  # seeds of what must not be there

# How a job may end that does not end well: code, what the text says, and the faults that it needs ({} none).
CUT = {"partition", "daemon stopped", "pair cut"}
PROMISES = [
    ("UNAVAILABLE", r"the daemon of node n\d is dead: .* refuses connections", {"daemon killed"}),
    ("UNAVAILABLE", r"node n\d has restarted|it restarted", {"daemon killed"}),
    ("UNAVAILABLE", r"its daemon is stopped or gets no processor time", {"daemon stopped"}),
    ("UNAVAILABLE", r"it is down, or cut off from this node", {"partition", "daemon killed", "pair cut"}),
    ("UNAVAILABLE", r"nothing was heard of node n\d for", set(DAEMON)),
    ("UNAVAILABLE", r"node n\d counted this node as lost", set(DAEMON)),
    ("UNAVAILABLE", r"no rail of n\d has reached n\d", CUT),
    ("UNAVAILABLE", r"rail \d to n\d failed in the middle of job", CUT),
    ("UNAVAILABLE", r"rank \d on n\d is gone", {"trainer killed", "daemon killed"}),
    ("UNAVAILABLE", r"session \d+ on n\d is gone", {"trainer killed", "daemon killed"}),
    ("UNAVAILABLE", r"runs but does not answer|does not answer on the descriptor socket|has not released",
     {"daemon stopped"}),
    ("UNAVAILABLE", r"is not known after", {"daemon stopped", "daemon killed"}),
    ("UNAVAILABLE", r"railsd at .*sock|cannot connect to|closed the (descriptor socket|session)|is railsd running|"
                    r"railsd is not (running|accepting)|Reconnect\(\)|reconnect and join again|"
                    r"belong to different daemons",
     {"daemon killed", "daemon stopped"}),
    ("ABORTED", r"Reconnect\(\)|reconnect and join again", {"daemon killed"}),
    ("ABORTED", r"closed its zones for job \d+ early and did not say why", set(DAEMON)),
    ("ABORTED", r"rank \d on n\d left group|was committed on n\d without all ranks|gave up joining", set(DAEMON) |
     {"trainer killed"}),
    ("ABORTED", r"session \d+ ended", {"trainer killed", "daemon killed"}),
    ("CANCELLED", r"was cancelled by rank \d on n\d", set()),
    ("DEADLINE_EXCEEDED", r"ranks have joined|has not committed it|Deadline Exceeded", {*DAEMON, "trainer killed"}),
    ("NOT_FOUND", r"is no group of this node|is not open", {"daemon killed"}),
    ("ALREADY_EXISTS", r"is joining on n\d already|is held by session", {*DAEMON, "trainer killed"}),
    ("FAILED_PRECONDITION", r"is broken: ", set()),
]


class Hang(Exception):
    """Somebody does not answer."""


class PatientServer(harness.TrainerServer):
    """Trainers whose silence is noticed."""

    def connect(self):
        connection = super().connect()
        connection.settimeout(PATIENCE)
        return connection


class Rank:
    """One trainer, which may be killed at any moment by another thread."""

    def __init__(self, server, node):
        self.trainer = harness.Trainer(None, server)
        self.node, self.killed = node, False
        self._lock, self.handle = threading.Lock(), os.pidfd_open(self.trainer.pid)

    def send(self, **command):
        with contextlib.suppress(OSError):  # its answer will tell
            self.trainer.send(**command)

    def receive(self, what):
        try:
            return self.trainer.receive()
        except TimeoutError as error:
            raise Hang(f"a trainer on n{self.node} does not answer for {PATIENCE} s: {what}") from error
        except (AssertionError, OSError, ValueError):
            return {"ok": False, "code": "KILLED" if self.killed else "CRASHED", "message": "the trainer is gone"}

    def ask(self, **command):
        self.send(**command)
        return self.receive(command)

    def kill(self):
        """Any thread."""
        with self._lock:
            if self.handle is None:
                return
            self.killed = True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            select.select([self.handle], [], [])  # gone

    def close(self):
        self.kill()
        with self._lock:
            os.close(self.handle)
            self.handle = None
        for stream in (self.trainer.input, self.trainer.output):
            with contextlib.suppress(OSError):  # what was not sent
                stream.close()


class Record:
    """Counts of jobs, bytes and groups, of all teams."""

    def __init__(self, chronicle):
        self._lock, self._chronicle = threading.Lock(), chronicle
        self.jobs, self.bytes, self.groups, self.wrong_bytes = 0, 0, 0, 0
        self.outcomes = collections.Counter()  # of ranks, by code
        self.busy = 0  # daemons that were silent though nobody had stopped them: the machine was busy
        self.refused = collections.Counter()  # before a job: connecting, joining, submitting
        self.complaints = []

    def complain(self, text):
        with self._lock:
            self.complaints.append(text)

    def count(self, field, number=1):
        with self._lock:
            setattr(self, field, getattr(self, field) + number)

    def judge(self, where, answer, since, counter):
        """Counts how something ended; what was never promised is a complaint."""
        code, message = answer.get("code", "OK"), answer.get("message", "")
        with self._lock:
            counter[code] += 1
        if code in ("OK", "KILLED"):
            return
        there = {fault.kind for fault in self._chronicle.since(since - BEFORE)}
        for promised, pattern, needs in PROMISES:
            if code != promised or not re.search(pattern, message):
                continue
            if not needs or needs & there:
                return
            busy = ("stopped or gets no processor time", "nothing was heard", "counted this node as lost")
            if any(text in message for text in busy):
                return self.count("busy")
        self.complain(f"{where}: {code}: {message} (faults: {', '.join(sorted(there)) or 'none'})")


class Work:
    """One of a team's groups, and its present job."""

    def __init__(self, group, sends, receives, flow):
        self.group, self.sends, self.receives, self.flow = group, sends, receives, flow

    def begin(self, number, lengths, seeds):
        self.number, self.job, self.lengths, self.seeds = number, f"{self.sends}{number}", lengths, seeds

    def seed(self, source, destination):
        return (self.seeds + self.number) * 100 + source * 10 + destination + 1

    def submission(self, rank):
        def flows(lengths, name):
            return {str(peer): [[name, peer * self.flow, length]] for peer, length in enumerate(lengths) if length}
        return {"do": "submit", "group": self.group, "job": self.job, "tag": self.number,
                "sends": flows(self.lengths[rank], self.sends),
                "receives": flows([row[rank] for row in self.lengths], self.receives)}


class Team:
    """A thread that makes one group after the other."""

    def __init__(self, name, cluster, server, record, seed):
        self.name, self.cluster, self.server, self.record = name, cluster, server, record
        self.draws = random.Random(f"{name} {seed}")
        self.ranks, self._lock = [], threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self.number, self.doing = 0, "nothing"

    def start(self):
        self._thread.start()

    def stop(self):
        self._end.set()

    def join(self, patience):
        self._thread.join(patience)
        return not self._thread.is_alive()

    def victim(self, draws):
        """A trainer to kill, or none."""
        with self._lock:
            living = [rank for rank in self.ranks if not rank.killed]
            return draws.choice(living) if living else None

    def _run(self):
        while not self._end.is_set():
            self.number += 1
            try:
                self._life()
            except Hang as error:
                self.record.complain(f"{self.name}: hang: {error}")
                return
            except Exception as error:  # of the soak itself
                self.record.complain(f"{self.name}: {type(error).__name__}: {error}")
                return
            finally:
                with self._lock:
                    ranks, self.ranks = self.ranks, []
                for rank in ranks:
                    rank.close()

    def _life(self):
        """Two groups of the same ranks, from the trainers' birth to their end."""
        self.since = time.monotonic()
        name = f"{self.name}-{self.number}"
        works = [Work(name, "s", "r", FLOW), Work(f"{name}-twin", "s2", "r2", TWIN_FLOW)]
        world = self.draws.randrange(2, 5)
        nodes = [self.draws.randrange(len(self.cluster.nodes)) for _ in range(world)]
        if len(set(nodes)) == 1:
            nodes[0] = (nodes[0] + 1) % len(self.cluster.nodes)
        recovery = self.draws.choice(["fail", "fail", "degrade"])
        ranks = [Rank(self.server, node) for node in nodes]
        with self._lock:
            self.ranks = ranks
        if not self._meet(works, ranks, recovery):
            time.sleep(0.2)
            return
        self.record.count("groups", len(works))
        for number in range(self.draws.randrange(2, 12)):
            if self._end.is_set() or not self._jobs(works, ranks, number):
                break
        if self.draws.random() < 0.5:
            for work in works:
                self._all(ranks, lambda _, work=work: {"do": "leave", "group": work.group})

    def _all(self, ranks, command):
        """Gives every rank its command at once; returns the answers."""
        self.doing = command(0)
        for number, rank in enumerate(ranks):
            rank.send(**command(number))
        return [rank.receive(command(number)) for number, rank in enumerate(ranks)]

    def _meet(self, works, ranks, recovery):
        commands = [lambda n: {"do": "connect", "socket_dir": str(self.cluster.nodes[ranks[n].node].sockets),
                               "timeout": 5}]
        for work in works:
            for name in (work.sends, work.receives):
                commands.append(lambda _, name=name, work=work: {"do": "segment", "name": name,
                                                                 "bytes": len(ranks) * work.flow})
        for work in works:
            commands.append(lambda n, work=work: {"do": "join", "group": work.group, "world": len(ranks), "rank": n,
                                                  "timeout": 15, "recovery": recovery})
        for command in commands:
            answers = self._all(ranks, command)
            for answer in answers:
                self.record.judge(f"{works[0].group}: {command(0)['do']}", answer, self.since, self.record.refused)
            if not all(answer["ok"] for answer in answers):
                return False
        return True

    def _lengths(self, world, flow):
        def draw():
            chance = self.draws.random()
            return 0 if chance < 0.15 else 1 if chance < 0.2 else self.draws.randrange(flow)
        return [[draw() for _ in range(world)] for _ in range(world)]

    def _jobs(self, works, ranks, number):
        """An exchange of each group, at once. Returns whether both groups are as good as before."""
        for which, work in enumerate(works):
            work.begin(number, self._lengths(len(ranks), work.flow), (2 * self.number + which) * 1000)
            self._fill(work, ranks)
        submitted = self._submit(works, ranks)
        if self.draws.random() < 0.03:
            self.draws.choice(ranks).ask(do="cancel", job=works[0].job)
        # Both are judged, whatever becomes of the first.
        return all([self._judge(work, ranks, answers) for work, answers in zip(works, submitted)])

    def _fill(self, work, ranks):
        lengths, flow = work.lengths, work.flow
        for other in range(len(ranks)):
            self._all(ranks, lambda n, other=other: {"do": "fill", "name": work.sends, "offset": other * flow,
                                                     "bytes": lengths[n][other], "seed": work.seed(n, other)})
            self._all(ranks, lambda n, other=other: {"do": "fill", "name": work.receives, "offset": other * flow,
                                                     "bytes": lengths[other][n], "seed": STALE})
            self._all(ranks, lambda n, other=other: {
                "do": "fill", "name": work.receives, "offset": other * flow + lengths[other][n],
                "bytes": flow - lengths[other][n], "seed": POISON})

    def _submit(self, works, ranks):
        """The ranks of every second node submit the jobs in the other order. Returns the answers, by job and rank."""
        orders = [works if rank.node % 2 == 0 else works[::-1] for rank in ranks]
        for turn in range(len(works)):
            self.doing = orders[0][turn].submission(0)
            for number, rank in enumerate(ranks):
                rank.send(**orders[number][turn].submission(number))
        answers = {}
        for number, rank in enumerate(ranks):
            for work in orders[number]:
                answers[work.group, number] = rank.receive(work.submission(number))
        return [[answers[work.group, number] for number in range(len(ranks))] for work in works]

    def _judge(self, work, ranks, submitted):
        for answer in submitted:
            self.record.judge(f"{work.group} {work.job}: submit", answer, self.since, self.record.refused)
        taken = [rank for rank, answer in zip(ranks, submitted) if answer["ok"]]
        reports = dict(zip(taken, self._all(taken, lambda _: {"do": "wait", "job": work.job, "timeout": PATIENCE / 2})))
        self.record.count("jobs")
        good = len(taken) == len(ranks)
        for rank, report in reports.items():
            number = ranks.index(rank)
            where = f"{work.group} {work.job}: rank {number} on n{rank.node}"
            if report["ok"] and not report["terminal"]:
                raise Hang(f"{where} is not over after {PATIENCE / 2:.0f} s: {report}")
            self.record.judge(where, report, self.since, self.record.outcomes)
            good = good and report["code"] == "OK"
            if report["code"] == "OK":
                self._compare(where, rank, number, work, report["lost_ranks"])
        if not good:
            self._expect_nothing_late(work, ranks, reports)
        return good

    def _compare(self, where, rank, number, work, lost):
        """Bytes from ranks that a group goes on without may be anything, but not outside its ranges."""
        for other, row in enumerate(work.lengths):
            at, length = other * work.flow, row[number]
            pieces = [(at, 0 if other in lost else length, work.seed(other, number)),
                      (at + length, work.flow - length, POISON)]
            for offset, count, expected in pieces:
                wrong = rank.ask(do="check", name=work.receives, offset=offset, bytes=count,
                                 seed=expected).get("wrong", 0)
                if wrong:
                    self.record.count("wrong_bytes", wrong)
                    self.record.complain(f"{where}: {wrong} wrong bytes of {count} at {offset}")
            self.record.count("bytes", pieces[0][1])

    def _expect_nothing_late(self, work, ranks, reports):
        """The buffers of a job that has ended are the trainers' own: nothing comes into them any more."""
        over = [rank for rank, report in reports.items()
                if not rank.killed and (report.get("terminal") or report["code"] == "ABORTED")]
        whole = {"name": work.receives, "offset": 0, "bytes": len(ranks) * work.flow, "seed": POISON}
        self._all(over, lambda _: {"do": "fill", **whole})
        time.sleep(self.draws.random())
        for rank, answer in zip(over, self._all(over, lambda _: {"do": "check", **whole})):
            if answer.get("wrong"):
                self.record.count("wrong_bytes", answer["wrong"])
                self.record.complain(f"{work.group}: {answer['wrong']} bytes came to rank {ranks.index(rank)} on "
                                     f"n{rank.node} after its job had ended")
        # A broken group is never used again.
        for rank in over:
            if not re.search("is lost|is gone", reports[rank].get("message", "")):
                continue
            answer = rank.ask(do="submit", group=work.group, job="late", sends={}, receives={})
            self.record.judge(f"{work.group}: submit to a broken group", answer, self.since, self.record.refused)
            if answer["ok"]:
                self.record.complain(f"{work.group}: rank {ranks.index(rank)} may submit to a broken group: "
                                     f"{reports[rank]}")
