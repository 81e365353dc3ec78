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
PATIENCE = 300  # seconds until an answer that does not come is a hang; no limit of a daemon is longer
BEFORE = 15  # seconds for which a fault that is over may still end jobs: silence is noticed late, groups form slowly
POISON, STALE = 4_000_000_007, 4_000_000_009  # seeds of what must not be there

# How a job may end that does not end well: code, what the text says, and the faults that it needs ({} none).
CUT = {"partition", "daemon stopped"}
PROMISES = [
    ("UNAVAILABLE", r"the daemon of node n\d is dead: .* refuses connections", {"daemon killed"}),
    ("UNAVAILABLE", r"node n\d has restarted|it restarted", {"daemon killed"}),
    ("UNAVAILABLE", r"its daemon is frozen or far too busy", {"daemon stopped"}),
    ("UNAVAILABLE", r"it is down, or cut off from this node", {"partition", "daemon killed"}),
    ("UNAVAILABLE", r"nothing was heard of node n\d for", set(DAEMON)),
    ("UNAVAILABLE", r"node n\d had lost this node", set(DAEMON)),
    ("UNAVAILABLE", r"no rail of n\d has reached n\d", CUT),
    ("UNAVAILABLE", r"rail \d to n\d failed in the middle of job", CUT),
    ("UNAVAILABLE", r"rank \d on n\d is gone", {"trainer killed", "daemon killed"}),
    ("UNAVAILABLE", r"session \d+ on n\d is gone", {"trainer killed", "daemon killed"}),
    ("UNAVAILABLE", r"lives but does not answer|does not answer on the descriptor socket|has not let go of",
     {"daemon stopped"}),
    ("UNAVAILABLE", r"is not known after", {"daemon stopped", "daemon killed"}),
    ("UNAVAILABLE", r"railsd at .*sock|cannot connect to|closed the (descriptor socket|session)|is railsd running|"
                    r"railsd is not (running|accepting)|Reconnect\(\)|belong to different daemons",
     {"daemon killed", "daemon stopped"}),
    ("ABORTED", r"the railsd process of node n\d has ended|Reconnect\(\)", {"daemon killed"}),
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
    """What has happened, of all teams."""

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
            if "frozen or far too busy" in message or "nothing was heard" in message or "had lost this node" in message:
                return self.count("busy")
        self.complain(f"{where}: {code}: {message} (faults: {', '.join(sorted(there)) or 'none'})")


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
        """One group, from its trainers' birth to their end."""
        self.since = time.monotonic()
        group = f"{self.name}-{self.number}"
        world = self.draws.randrange(2, 5)
        nodes = [self.draws.randrange(len(self.cluster.nodes)) for _ in range(world)]
        if len(set(nodes)) == 1:
            nodes[0] = (nodes[0] + 1) % len(self.cluster.nodes)
        ranks = [Rank(self.server, node) for node in nodes]
        with self._lock:
            self.ranks = ranks
        if not self._meet(group, ranks):
            time.sleep(0.2)
            return
        self.record.count("groups")
        for number in range(self.draws.randrange(2, 12)):
            if self._end.is_set() or not self._job(group, ranks, number):
                break
        if self.draws.random() < 0.5:
            self._all(ranks, lambda _: {"do": "leave", "group": group})

    def _all(self, ranks, command):
        """Gives every rank its command at once; returns the answers."""
        self.doing = command(0)
        for number, rank in enumerate(ranks):
            rank.send(**command(number))
        return [rank.receive(command(number)) for number, rank in enumerate(ranks)]

    def _meet(self, group, ranks):
        length = len(ranks) * FLOW
        for command in (lambda n: {"do": "connect", "socket_dir": str(self.cluster.nodes[ranks[n].node].sockets),
                                   "timeout": 5},
                        lambda _: {"do": "segment", "name": "s", "bytes": length},
                        lambda _: {"do": "segment", "name": "r", "bytes": length},
                        lambda n: {"do": "join", "group": group, "world": len(ranks), "rank": n, "timeout": 15}):
            answers = self._all(ranks, command)
            for answer in answers:
                self.record.judge(f"{group}: {command(0)['do']}", answer, self.since, self.record.refused)
            if not all(answer["ok"] for answer in answers):
                return False
        return True

    def _lengths(self, world):
        def draw():
            chance = self.draws.random()
            return 0 if chance < 0.15 else 1 if chance < 0.2 else self.draws.randrange(FLOW)
        return [[draw() for _ in range(world)] for _ in range(world)]

    def _job(self, group, ranks, number):
        """One exchange. Returns whether the group is as good as before."""
        world, job = len(ranks), f"j{number}"
        lengths = self._lengths(world)

        def seed(source, destination):
            return (self.number * 1000 + number) * 100 + source * 10 + destination + 1
        for other in range(world):
            self._all(ranks, lambda n, other=other: {"do": "fill", "name": "s", "offset": other * FLOW,
                                                     "bytes": lengths[n][other], "seed": seed(n, other)})
            self._all(ranks, lambda n, other=other: {"do": "fill", "name": "r", "offset": other * FLOW,
                                                     "bytes": lengths[other][n], "seed": STALE})
            self._all(ranks, lambda n, other=other: {"do": "fill", "name": "r", "offset": other * FLOW + lengths[other][n],
                                                     "bytes": FLOW - lengths[other][n], "seed": POISON})

        def flows(lengths, name):
            return {str(rank): [[name, rank * FLOW, length]] for rank, length in enumerate(lengths) if length}
        submitted = self._all(ranks, lambda n: {
            "do": "submit", "group": group, "job": job, "tag": number, "sends": flows(lengths[n], "s"),
            "receives": flows([row[n] for row in lengths], "r")})
        for answer in submitted:
            self.record.judge(f"{group} {job}: submit", answer, self.since, self.record.refused)
        if self.draws.random() < 0.03:
            self.draws.choice(ranks).ask(do="cancel", job=job)
        taken = [rank for rank, answer in zip(ranks, submitted) if answer["ok"]]
        reports = dict(zip(taken, self._all(taken, lambda _: {"do": "wait", "job": job, "timeout": PATIENCE / 2})))
        self.record.count("jobs")
        good = len(taken) == world
        for rank, report in reports.items():
            where = f"{group} {job}: rank {ranks.index(rank)} on n{rank.node}"
            if report["ok"] and not report["terminal"]:
                raise Hang(f"{where} is not over after {PATIENCE / 2:.0f} s: {report}")
            self.record.judge(where, report, self.since, self.record.outcomes)
            good = good and report["code"] == "OK"
            if report["code"] == "OK":
                self._compare(where, rank, [(other * FLOW, row[ranks.index(rank)], seed(other, ranks.index(rank)))
                                            for other, row in enumerate(lengths)])
        if not good:
            self._expect_nothing_late(group, ranks, reports)
        return good

    def _compare(self, where, rank, pieces):
        for at, length, seed in pieces:
            for offset, count, expected in ((at, length, seed), (at + length, FLOW - length, POISON)):
                wrong = rank.ask(do="check", name="r", offset=offset, bytes=count, seed=expected).get("wrong", 0)
                if wrong:
                    self.record.count("wrong_bytes", wrong)
                    self.record.complain(f"{where}: {wrong} wrong bytes of {count} at {offset}")
            self.record.count("bytes", length)

    def _expect_nothing_late(self, group, ranks, reports):
        """The buffers of a job that has ended are the trainers' own: nothing comes into them any more."""
        over = [rank for rank, report in reports.items()
                if not rank.killed and (report.get("terminal") or report["code"] == "ABORTED")]
        whole = {"name": "r", "offset": 0, "bytes": len(ranks) * FLOW, "seed": POISON}
        self._all(over, lambda _: {"do": "fill", **whole})
        time.sleep(self.draws.random())
        for rank, answer in zip(over, self._all(over, lambda _: {"do": "check", **whole})):
            if answer.get("wrong"):
                self.record.count("wrong_bytes", answer["wrong"])
                self.record.complain(f"{group}: {answer['wrong']} bytes came to rank {ranks.index(rank)} on n{rank.node} "
                                     "after its job had ended")
        # A broken group is never used again.
        for rank in over:
            if not re.search("is lost|is gone", reports[rank].get("message", "")):
                continue
            answer = rank.ask(do="submit", group=group, job="late", sends={}, receives={})
            self.record.judge(f"{group}: submit to a broken group", answer, self.since, self.record.refused)
            if answer["ok"]:
                self.record.complain(f"{group}: rank {ranks.index(rank)} may submit to a broken group: {reports[rank]}")
