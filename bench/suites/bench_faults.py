"""The cost of link faults, on an emulated fabric of 2 nodes x 4 rails at 200 Mbit/s. Needs root.

Two trainers exchange one job after the other, in both directions, and compare every received byte. Times are taken
around single jobs and faults, so that they include only the fault.
"""

import calendar
import re
import signal
import sys
import time
from pathlib import Path

from cluster import Cluster, Settings
from common import ROOT, BenchError, Result, median, progress
from lab import GOODPUT, Lab, run

sys.path.insert(0, str(ROOT / "tests/integration"))
from harness import Trainer, eventually  # noqa: E402  (found by the line above)

NODES, RAILS, RATE = 2, 4, 200e6 / 8
JOB = 32 << 20
RUNS, LINK_RUNS = 20, 100
# Failures are forgotten quickly, so that each fault counts as the first.
FORGETFUL = {"health": {"half_life": "50ms"}, "timeouts": {"peer_lost": "30s"}}


class Pair:
    """A rank on each node, and the times of their jobs."""

    def __init__(self, cluster):
        self.cluster, self.number = cluster, 0
        self.trainers = [Trainer(node) for node in cluster.nodes]
        for rank, trainer in enumerate(self.trainers):
            trainer.segment("s", JOB, seed=rank)
            trainer.segment("r", JOB)
        for rank, trainer in enumerate(self.trainers):
            trainer.send(do="join", group="g", world=2, rank=rank, key="")
        for trainer in self.trainers:
            if not trainer.receive()["ok"]:
                raise BenchError("the trainers could not join")

    def start(self):
        self.number += 1
        for rank, trainer in enumerate(self.trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group="g", job=str(self.number), sends={other: [["s", 0, JOB]]},
                         receives={other: [["r", 0, JOB]]})
        return time.monotonic()

    def finish(self):
        for trainer in self.trainers:
            trainer.send(do="wait", job=str(self.number))
        answers = [trainer.receive() for trainer in self.trainers]
        end = time.monotonic()
        for rank, (trainer, answer) in enumerate(zip(self.trainers, answers)):
            if answer.get("code") != "OK":
                raise BenchError(f"a job failed: {answer}\n{self.cluster.logs()}")
            if trainer.wrong_bytes("r", 0, JOB, 1 - rank):
                raise BenchError("wrong bytes arrived")
        return end

    def job(self):
        begin = self.start()
        return self.finish() - begin

    def fail(self, rank, reason):
        """Waits until the rank's job has failed with this reason. Returns the time of the failure."""
        answer = self.trainers[rank].do(do="wait", job=str(self.number))
        end = time.monotonic()
        if answer.get("code") != "UNAVAILABLE" or not re.search(reason, answer["message"]):
            raise BenchError(f"the job should have failed as '{reason}': {answer}\n{self.cluster.logs()}")
        return end

    def close(self):
        for trainer in self.trainers:
            trainer.kill()


class Fabric:
    """The fabric with its daemons and a pair of trainers. A context manager."""

    def __init__(self, sections=None):
        self.sections = sections or {}

    def __enter__(self):
        self.lab = Lab(NODES, RAILS, "200mbit", "400ms")
        self.lab.__enter__()
        try:
            self.cluster = Cluster(Settings(NODES, RAILS, "200mbit", sections=self.sections), addresses=self.lab)
            self.cluster.__enter__()
            self.pair = Pair(self.cluster)
            for _ in range(2):
                self.pair.job()
        except BaseException:
            self.lab.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *why):
        self.pair.close()
        self.cluster.__exit__(*why)
        self.lab.__exit__(*why)

    def link(self, how):
        run("ip", "-n", self.lab.namespace(0), "link", "set", "rail1", how)

    def wait_state(self, state):
        def states():
            peers = [self.cluster.overview(node)["peers"][0] for node in self.cluster.nodes]
            return all(peer["rail_states"][1] == state for peer in peers)
        eventually(states, f"rail1 is {state} at both ends")

    def logged(self, node, what, since):
        """The time (time.time()) when the daemon first logged a line with `what` after `since`."""
        def find():
            for line in Path(self.cluster.nodes[node].log).read_text(encoding="utf-8").splitlines():
                stamp = re.match(r"(\d+-\d+-\d+T\d+:\d+:\d+)\.(\d+)Z", line)
                if stamp and what in line:
                    when = calendar_seconds(stamp[1]) + float(f"0.{stamp[2]}")
                    if when >= since:
                        return when
            return None
        return eventually(find, f"n{node} logs '{what}'")


def calendar_seconds(text):
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def cost_of_a_rail(pair, four, part, fail):
    """The cost of a rail that fails in mid-job, in seconds. `four`: seconds of an undisturbed job over four rails. The
    rail fails after `part` of them. The cost is the time beyond that which the rest of the job needs over three
    rails."""
    begin = pair.start()
    time.sleep(four * part)
    fault = time.monotonic()
    fail()
    end = pair.finish()
    done = min(fault - begin, four)
    return end - begin - done - (four - done) * RAILS / (RAILS - 1)


def own_link_down(repeat):
    added = []
    with Fabric(FORGETFUL) as fabric:
        pair = fabric.pair
        undisturbed = [pair.job() for _ in range(5)]
        four = median(undisturbed)
        for i in range(repeat):
            added.append(cost_of_a_rail(pair, four, 0.1 + 0.6 * i / repeat, lambda: fabric.link("down")))
            fabric.link("up")
            fabric.wait_state("up")
    progress("own link down, added ms: " + " ".join(f"{1e3 * value:.0f}" for value in added))
    how = (f"{JOB >> 20} MiB each way between {NODES} nodes x {RAILS} rails at 200 Mbit/s ({four:.3f} s undisturbed), one "
           f"end's interface switched off in mid-job; over 3 rails from that moment; of {repeat}, every byte compared")
    return [Result("faults.link_down.added_p99", 1e3 * quantile(added, 0.99), "ms", 50, "p99: " + how),
            Result("faults.link_down.added_median", 1e3 * median(added), "ms", None, "median of the same")]


def black_hole(repeat):
    found, added = [], []
    with Fabric(FORGETFUL) as fabric:
        pair = fabric.pair
        four = median([pair.job() for _ in range(3)])
        for i in range(repeat):
            pair.start()
            time.sleep(four * (0.1 + 0.4 * i / repeat))
            fault = time.time()
            run("ip", "-n", fabric.lab.switch, "link", "set", "p0r1", "nomaster")
            # Each end detects the fault itself or learns it from the other end.
            found.append(min(fabric.logged(node, "rail_down rail=1", fault) for node in range(NODES)) - fault)
            added.append(max(fabric.logged(node, "rail_down rail=1", fault) for node in range(NODES)) - fault)
            pair.finish()
            run("ip", "-n", fabric.lab.switch, "link", "set", "p0r1", "master", "br1")
            fabric.wait_state("up")
    progress("black hole found after ms: " + " ".join(f"{1e3 * value:.0f}" for value in found))
    how = f"a rail's switch port is taken out of its bridge in mid-job, no carrier changes; of {repeat}"
    return [Result("faults.black_hole.found_max", 1e3 * max(found), "ms", 500, "by the first end, the longest: " + how),
            Result("faults.black_hole.found_median", 1e3 * median(found), "ms", None, "median of the same"),
            Result("faults.black_hole.both_ends_max", 1e3 * max(added), "ms", None, "until both ends knew, the longest")]


def after_a_flap(repeat):
    shares = []
    for _ in range(repeat):
        with Fabric() as fabric:  # a new fabric, so that each flap is the first
            pair = fabric.pair
            before = median([pair.job() for _ in range(5)])
            pair.start()
            fabric.link("down")
            pair.finish()
            fabric.link("up")
            back = time.monotonic()
            while time.monotonic() < back + 2:
                pair.job()
            shares.append(before / median([pair.job() for _ in range(5)]))
    progress("throughput after a first flap: " + " ".join(f"{share:.3f}" for share in shares))
    return [Result("faults.flap.throughput_after_2s", median(shares), "x", 0.99,
                   f"5 jobs from 2 s after the link's return over 5 jobs before the flap; median of {repeat}",
                   at_least=True)]


def half_speed(repeat):
    with Fabric() as fabric:
        fabric.lab.rail_rate(2, "100mbit")
        for _ in range(4):
            fabric.pair.job()
        bound = JOB / (RATE * (RAILS - 0.5))
        ratios = [fabric.pair.job() / bound for _ in range(repeat)]
    progress("one rail at half speed: " + " ".join(f"{ratio:.3f}" for ratio in ratios))
    return [Result("faults.half_speed", median(ratios), "x bound", 1.10,
                   f"one rail shaped to 100 Mbit/s, configured with 200, over the bound of 3.5 rails at line rate (TCP "
                   f"carries {100 * GOODPUT:.1f} % of it); median of {repeat} jobs")]


def daemon_killed(repeat):
    after = []
    with Fabric() as fabric:
        for i in range(repeat):
            begin = fabric.pair.start()
            time.sleep(0.3 * i / repeat)
            victim = fabric.cluster.nodes[1]
            victim.process.send_signal(signal.SIGKILL)
            fault = time.monotonic()
            after.append(fabric.pair.fail(0, "the daemon of node n1 is dead") - fault)
            victim.process.wait()
            fabric.pair.close()
            fabric.cluster.start_node(victim)
            fabric.cluster.wait_ready(60)
            fabric.pair = Pair(fabric.cluster)
            progress(f"daemon killed {fault - begin:.2f} s into a job, told after {after[-1]:.3f} s")
    how = f"a daemon is killed (SIGKILL) in mid-job, and until its peer's job has failed with the node named; of {repeat}"
    return [Result("faults.daemon_killed.told_max", max(after), "s", 2, "the longest: " + how),
            Result("faults.daemon_killed.told_median", median(after), "s", None, "median of the same")]


def measure(options):
    repeat = options.repeat or RUNS
    return (own_link_down(options.repeat or LINK_RUNS) + black_hole(repeat) + after_a_flap(max(1, repeat // 7)) +
            half_speed(repeat) + daemon_killed(repeat))
