"""The tenants' shares of rails, on an emulated fabric of 4 nodes x 4 rails at 200 Mbit/s. Needs root."""

import contextlib
import sys
import time

from cluster import Cluster, Settings
from common import ROOT, BenchError, Result, median, progress
from lab import Lab

sys.path.insert(0, str(ROOT / "tests/integration"))
from harness import Trainer  # noqa: E402  (found by the line above)

NODES, RAILS, RATE = 4, 4, 200e6 / 8
TENANTS = [{"name": "three", "share": {"weight": 3}}, {"name": "one"}, {"name": "urgent", "share": {"priority": 1}}]
MIB = 1 << 20
PART = 63 * MIB  # per rank of the tenant with weight 1; divisible by three peers
BULK = 255 * MIB  # per rank, about 1 GiB in all
SMALL = 66 << 10  # per rank, 22 KiB to each of three peers
SHARES_RUNS, URGENT_JOBS, URGENT_RUNS = 3, 50, 5
TRAINER = ROOT / "build/release/tests/integration/rails_test_trainer"


class Ranks:
    """A rank of one tenant on each node. Each sends `size` bytes, in equal parts to all others. A context manager."""

    def __init__(self, cluster, tenant, size):
        self.tenant, self.size, self.number = tenant, size, 0
        self.trainers = [Trainer(command=[TRAINER]) for _ in cluster.nodes]
        for rank, (node, trainer) in enumerate(zip(cluster.nodes, self.trainers)):
            trainer.must(do="connect", socket_dir=str(node.sockets / "tenants" / tenant))
            trainer.segment("s", size, seed=self.seed(rank))
            trainer.segment("r", size)
        for rank, trainer in enumerate(self.trainers):
            trainer.send(do="join", group="g", world=NODES, rank=rank, key="")
        self.receive("join")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for trainer in self.trainers:
            trainer.kill()

    def seed(self, rank):
        return 1000 * len(self.tenant) + rank

    def receive(self, what):
        answers = [trainer.receive() for trainer in self.trainers]
        for answer in answers:
            if not answer["ok"] or answer.get("code", "OK") != "OK":
                raise BenchError(f"{what} of tenant {self.tenant}: {answer}")
        return answers

    def exchange(self, rank):
        """The flows of a rank: the k-th part of its memory is for, or from, the k-th of the other ranks."""
        part = self.size // (NODES - 1)
        others = [other for other in range(NODES) if other != rank]
        return {way: {str(other): [[name, k * part, part]] for k, other in enumerate(others)}
                for way, name in (("sends", "s"), ("receives", "r"))}

    def start(self):
        self.number += 1
        for rank, trainer in enumerate(self.trainers):
            trainer.send(do="submit", group="g", job=str(self.number), timeout=120, **self.exchange(rank))
        self.receive("submit")

    def ask(self, timeout):
        for trainer in self.trainers:
            trainer.send(do="wait", job=str(self.number), timeout=timeout)

    def running(self):
        self.ask(0)
        return not any(trainer.receive().get("terminal", False) for trainer in self.trainers)

    def finish(self):
        self.ask(120)
        self.receive("job")

    def repeat(self, count):
        """Runs `count` jobs one after the other. Returns for each the seconds of its slowest rank."""
        for rank, trainer in enumerate(self.trainers):
            trainer.send(do="exchange", group="g", count=count, clock=True, **self.exchange(rank))
        return [max(ranks) for ranks in zip(*(answer["seconds"] for answer in self.receive("jobs")))]

    def check(self):
        """Checks every received byte."""
        part = self.size // (NODES - 1)
        for rank, trainer in enumerate(self.trainers):
            for k, other in enumerate(other for other in range(NODES) if other != rank):
                place = rank - (rank > other)  # this rank's place among the sender's destinations
                wrong = trainer.must(do="check", name="r", offset=k * part, bytes=part, seed=self.seed(other),
                                     first=place * part)["wrong"]
                if wrong:
                    raise BenchError(f"{wrong} wrong bytes from rank {other} at rank {rank} of tenant {self.tenant}")


def sent(cluster):
    """Bytes sent so far, by node, then by tenant and rail."""
    out = []
    for node in cluster.nodes:
        tenants = cluster.ctl_json(node, "tenants")["tenants"]
        out.append({tenant["name"]: tenant["rail_sent_bytes"] or [0] * RAILS for tenant in tenants})
    return out


def shares(cluster, repeat):
    """Two tenants on saturated rails. Reads their bytes twice while both have work, from one snapshot of a daemon."""
    seconds = 4 * PART / (RAILS * RATE)
    ratios, worst, bounds = [], [], []
    with Ranks(cluster, "three", 3 * PART) as three, Ranks(cluster, "one", PART) as one:
        for _ in range(repeat):
            begin = time.monotonic()
            three.start()
            one.start()
            time.sleep(0.2 * seconds)
            first = sent(cluster)
            time.sleep(0.5 * seconds)
            if not (three.running() and one.running()):
                raise BenchError("a job ended before its share was read")
            second = sent(cluster)
            three.finish()
            one.finish()
            bounds.append((time.monotonic() - begin) / seconds)
            gained = [[[b - a for a, b in zip(before[name], after[name])] for name in ("three", "one")]
                      for before, after in zip(first, second)]
            ratios.append(sum(sum(node[0]) for node in gained) / sum(sum(node[1]) for node in gained))
            worst.append(max((node[0][r] / node[1][r] for node in gained for r in range(RAILS)),
                             key=lambda ratio: abs(ratio - 3)))
            progress(f"shares: {ratios[-1]:.3f} : 1 (furthest rail {worst[-1]:.3f}), {bounds[-1]:.3f} x bound of the sum")
        three.check()
        one.check()
    off = median([abs(ratio - 3) / 3 for ratio in ratios])
    how = (f"weights 3 and 1, {3 * PART // MIB} and {PART // MIB} MiB a rank at once on {NODES} nodes x {RAILS} rails; "
           f"median of {repeat} ({min(ratios):.3f} to {max(ratios):.3f} : 1), every byte verified")
    return [Result("shares.off", off, "of 3:1", 0.05, how),
            Result("shares.off_of_worst_rail", median([abs(ratio - 3) / 3 for ratio in worst]), "of 3:1", None,
                   "the same for the rail of a node that is furthest from 3:1"),
            Result("shares.sum", median(bounds), "x bound", 1.10, "both tenants' bytes over the raw line rate, to the end "
                   f"of the last job ({min(bounds):.3f} to {max(bounds):.3f})")]


def urgent(cluster, repeat):
    """A small job of a tenant with a higher priority, on idle rails and beside a large job."""
    idle, beside, alone, slowed = [], [], [], []
    with Ranks(cluster, "one", BULK) as bulk:
        for _ in range(2):
            begin = time.monotonic()
            bulk.start()
            bulk.finish()
            alone.append(time.monotonic() - begin)
        with Ranks(cluster, "urgent", SMALL) as small:
            small.repeat(5)
            for _ in range(repeat):
                idle += small.repeat(URGENT_JOBS)
                begin = time.monotonic()
                bulk.start()
                time.sleep(0.3)
                beside += small.repeat(URGENT_JOBS)
                if not bulk.running():
                    raise BenchError("the large job ended before the small ones")
                bulk.finish()
                slowed.append(time.monotonic() - begin)
                progress(f"urgent: idle {1e3 * median(idle):.1f} ms, beside 1 GiB {1e3 * median(beside):.1f} ms")
            small.check()
        bulk.check()
    worst = sorted(beside)[int(0.99 * len(beside))]
    return [Result("urgent.slower", median(beside) / median(idle), "x idle", 3.0,
                   f"{SMALL >> 10} KiB a rank beside {NODES * BULK // MIB} MiB in all, priority 1 over 0: median of "
                   f"{len(beside)} jobs {1e3 * median(beside):.1f} ms (p99 {1e3 * worst:.1f}), on idle rails "
                   f"{1e3 * median(idle):.1f} ms; every byte verified"),
            Result("urgent.large_job", median(slowed) / median(alone), "x alone", None,
                   f"the large job with {URGENT_JOBS} small ones beside it, over its time without anybody urgent")]


def measure(options):
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(Lab(NODES, RAILS, "200mbit", "400ms"))
        settings = Settings(NODES, RAILS, "200mbit", sections={"tenants": TENANTS})
        cluster = stack.enter_context(Cluster(settings, addresses=fabric))
        return shares(cluster, options.repeat or SHARES_RUNS) + urgent(cluster, options.repeat or URGENT_RUNS)
