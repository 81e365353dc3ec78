"""Helpers of the tests inside the guest: clusters on Soft-RoCE rails, and what the kernel holds for them."""

import collections
import json
import re
import subprocess
import time
from pathlib import Path

import harness  # of tests/integration
from harness import clusters

harness.PATIENCE = 180.0  # the guest is slow, and slower on a busy machine
RAILS = 4
# Two emulated processors can be away for longer than the usual 0.07 s, and nothing must be sent again for that (see
# rails.sh): four seconds until a peer is taken for dead.
PATIENT = {"timeout": 18, "retry_count": 3}


def pair(speeds=None):
    """Addresses of the two nodes on veth pairs."""
    return clusters.VerbsRails(lambda node, rail: f"rxe_n{node}r{rail}", speeds)


def triple():
    """Addresses of the three nodes on bridges."""
    return clusters.VerbsRails(lambda node, rail: f"rxe_t{node}r{rail}")


def settings(nodes=2, **sections):
    """Settings of a cluster in the guest. A rail does about 0.5 Gbit/s, and plans count on the same for all of them."""
    sections["verbs"] = {**PATIENT, **sections.get("verbs", {})}
    sections.setdefault("timeouts", {"job": "4m", "join": "3m", "drain": "20s", "peer_lost": "30s"})
    return clusters.Settings(nodes=nodes, rails=RAILS, speed="500mbit", patience=120.0, sections=sections)


def run(*command):
    """A command that must succeed; its output."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def resources(node):
    """How many RDMA objects the kernel holds on the devices of a node of the pair, by kind: qp, cq, mr, pd, srq, ctx,
    cm_id. A daemon's, and a few of the kernel's own."""
    held = collections.Counter()
    for device in json_of("rdma", "-j", "resource", "show"):
        if device["ifname"].startswith(f"rxe_n{node}r"):
            held.update({kind: count for kind, count in device.items() if kind not in ("ifindex", "ifname")})
    return dict(held)


class Exchange:
    """Two trainers, one on each of the first two nodes, in a group of their own, that send each other what segment `s`
    holds into segment `r`. A context manager."""

    number = 0

    def __init__(self, cluster, server, length):
        Exchange.number += 1
        self.group, self.length = f"group{Exchange.number}", length
        self.trainers = [harness.Trainer(node, server) for node in cluster.nodes[:2]]
        for seed, trainer in enumerate(self.trainers):
            trainer.segment("s", length, seed=seed + 1)
            trainer.segment("r", length)
        for answer in harness.join(self.trainers, self.group):
            if not answer["ok"]:
                raise AssertionError(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for trainer in self.trainers:
            trainer.kill()

    def begin(self, length=None, count=1, sources=("s", "s")):
        """`count` jobs, one after the other."""
        length = self.length if length is None else length
        for rank, trainer in enumerate(self.trainers):
            other = str(1 - rank)
            trainer.send(do="exchange", group=self.group, count=count, sends={other: [[sources[rank], 0, length]]},
                         receives={other: [["r", 0, length]]})

    def finish(self, length=None, count=1, check=True):
        """Waits for them; every byte of the last one must be right."""
        length = self.length if length is None else length
        answers = [trainer.receive() for trainer in self.trainers]
        for rank, answer in enumerate(answers):
            if not answer["ok"] or answer["done"] != count:
                raise AssertionError(f"rank {rank}: {answer}")
        for rank, trainer in enumerate(self.trainers):
            wrong = trainer.wrong_bytes("r", 0, length, seed=2 - rank) if check else 0
            if wrong:
                raise AssertionError(f"rank {rank}: {wrong} wrong bytes of {length}")

    def run(self, length=None, count=1):
        self.begin(length, count)
        self.finish(length, count)


def devices(cluster, node):
    """The `device` of every rail of a node, as the daemon tells it."""
    return [rail["device"] for rail in cluster.overview(cluster.nodes[node])["rails"]]


def total(cluster, nodes, counter):
    """A counter, summed over all rails of these nodes."""
    return sum(rail["counters"][counter] for node in nodes for rail in cluster.overview(cluster.nodes[node])["rails"])


class VerbsTest(harness.ClusterTest):
    """Tests that share one cluster over verbs."""

    settings = settings()
    addresses = staticmethod(pair)

    def totals(self, counter):
        """A counter, summed over all rails of all nodes."""
        return total(self.cluster, range(len(self.cluster.nodes)), counter)

    def late_moves(self):
        """How often late binding moved work to another rail, which may then fence once more."""
        nodes = range(len(self.cluster.nodes))
        return int(sum(self.sample(self.scrape(node), "railsd_late_moves_total") for node in nodes))

    def assert_devices(self, key, value):
        for node in range(len(self.cluster.nodes)):
            self.assertEqual([device[key] for device in devices(self.cluster, node)], [value] * RAILS, f"node {node}")


class Shaped:
    """The rails of the pair at these rates, in both directions. A context manager."""

    def __init__(self, rates):
        self.rates = rates

    def __enter__(self):
        for rail in range(len(self.rates)):
            for node in range(2):
                self.shape(rail, node)
        return self

    def shape(self, rail, node):
        """Makes one end as it is to be; something else may have taken its place."""
        run("tc", "qdisc", "replace", "dev", f"n{node}r{rail}", "root", "tbf", "rate", self.rates[rail], "burst", "66kb",
            "latency", "400ms")

    def __exit__(self, *_):
        for rail in range(len(self.rates)):
            for node in range(2):
                run("tc", "qdisc", "del", "dev", f"n{node}r{rail}", "root")

    def drops(self):
        """Packets that the shapers dropped."""
        text = "".join(run("tc", "-s", "qdisc", "show", "dev", f"n{node}r{rail}")
                       for rail in range(len(self.rates)) for node in range(2))
        return sum(int(number) for number in re.findall(r"dropped (\d+)", text))


def receive_where_it_is_sent():
    """Undoes what rails.sh does against reordering: the processors hand packets over to each other less, and unshaped
    rails are half as fast again."""
    for rail in range(RAILS):
        for node in range(2):
            Path(f"/sys/class/net/n{node}r{rail}/queues/rx-0/rps_cpus").write_text("0")


def link(interface, state):
    run("ip", "link", "set", interface, state)


def json_of(*command):
    return json.loads(run(*command))


def wait(seconds):
    """Lets something go on; nothing may depend on how long it takes."""
    time.sleep(seconds)
