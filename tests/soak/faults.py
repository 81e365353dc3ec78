"""Every fault that the soak knows: how it begins, how it is mended, and when it was there."""

import collections
import dataclasses
import json
import os
import random
import signal
import subprocess
import threading
import time

import cluster as clusters
import lab as labs

# How often each is drawn before all others have been drawn again. Rail 3 never has a link fault, so jobs must go on.
# Any rail may be drained as long as one has no fault. Faults in DAEMON and TRAINER end jobs.
LINK = {"link down": 3, "no carrier": 2, "black hole": 2, "one direction": 3, "crawl": 2, "address removed": 2,
        "dropped": 2, "no route": 2, "connections destroyed": 4, "rail drained": 3}
DAEMON = {"daemon killed": 1, "daemon stopped": 2, "partition": 1, "pair cut": 2}
TRAINER = {"trainer killed": 3}
KINDS = [*LINK, *DAEMON, *TRAINER]
CRAWL = "2mbit"


@dataclasses.dataclass
class Fault:
    """One fault; `end` is None while it lasts. Times are time.monotonic()."""

    kind: str
    node: int
    rail: int  # None: of the whole node
    begin: float
    end: float = None


class Chronicle:
    """The faults and when they lasted. Any thread."""

    def __init__(self):
        self._lock, self._faults = threading.Lock(), []

    def add(self, kind, node, rail=None):
        fault = Fault(kind, node, rail, time.monotonic())
        with self._lock:
            self._faults.append(fault)
        return fault

    def since(self, when):
        """Faults that were there at some moment after `when`."""
        with self._lock:
            return [fault for fault in self._faults if fault.end is None or fault.end >= when]

    def counts(self):
        with self._lock:
            return {kind: sum(fault.kind == kind for fault in self._faults) for kind in KINDS}


class Injector:
    """Draws faults and mends them. Only the thread that started the daemons may use it: they die with it."""

    def __init__(self, lab, cluster, teams, seed):
        self.lab, self.cluster, self.teams = lab, cluster, teams
        self.draws = random.Random(f"faults {seed}")
        self.chronicle = Chronicle()
        self._bag, self._mends, self._next = [], [], time.monotonic()
        self._drained = set()
        # How many faults hold each port of a switch outside its bridge, and how many hold it apart from other ports of
        # the bridge. Several may last on one port, and begin and end in any order.
        self._out, self._apart = collections.Counter(), collections.Counter()
        self.deaths = []  # daemons that ended and were not killed here

    def step(self):
        """Does what is due."""
        now = time.monotonic()
        for due, mend, fault in [entry for entry in self._mends if entry[0] <= now]:
            self._mends.remove((due, mend, fault))
            mend()
            fault.end = time.monotonic()
        for node in self.cluster.nodes:
            if not node.running() and not self._lasting("daemon killed", node.index):
                self._ended(node)
        if now >= self._next:
            self._next = now + 0.1 + self.draws.expovariate(2)
            self.begin(self._draw())

    def lasting(self):
        """The faults that last now, as texts for people."""
        return [f"{fault.kind} n{fault.node}" for _, _, fault in self._mends]

    def mend(self):
        """Everything is whole again; the daemons may still be finding each other."""
        # Daemons are started last, because each needs the addresses of its rails.
        for _, mend, fault in sorted(self._mends, key=lambda entry: entry[2].kind == "daemon killed"):
            mend()
            fault.end = time.monotonic()
        self._mends = []
        for node in self.cluster.nodes:
            if not node.running():
                self._ended(node)

    def undrain(self):
        """Rails whose daemon could not be asked when the time had come."""
        for node, rail in sorted(self._drained):
            self.cluster.ctl_json(self.cluster.nodes[node], "undrain", f"rail{rail}")

    def _ended(self, node):
        """A daemon that cannot begin for want of an address is begun again, as its supervisor would."""
        last = node.log.read_text(errors="replace").rstrip().rsplit("\n", 1)[-1]
        if "no interface of this node has the address" in last:
            time.sleep(0.2)
            self.cluster.start_node(node)
        elif node not in self.deaths:
            self.deaths.append(node)

    def begin(self, kind):
        """Begins a fault of this kind somewhere, or does nothing where it cannot be."""
        draws = self.draws
        rails = self.lab.rails if kind == "rail drained" else self.lab.rails - 1
        node, rail = draws.randrange(self.lab.nodes), draws.randrange(rails)
        if kind in DAEMON and any(fault.kind in DAEMON for _, _, fault in self._mends):
            return self._bag.insert(0, kind)  # one at a time; later
        if kind in LINK and any((fault.node, fault.rail) == (node, rail) for _, _, fault in self._mends):
            return self._bag.insert(0, kind)
        if kind in LINK and len(self._bad_rails() | {rail}) == self.lab.rails:
            return self._bag.insert(0, kind)
        if kind == "trainer killed":
            return self._kill_trainer()
        if kind == "rail drained" and not self._operator(node, "drain", rail):
            return None
        fault = self.chronicle.add(kind, node, rail if kind in LINK else None)
        mend = getattr(self, "_" + kind.replace(" ", "_"))(node, rail)
        if mend is None:
            fault.end = time.monotonic()
            return None
        longest = {"daemon killed": 2, "daemon stopped": 6, "partition": 7, "pair cut": 7}.get(kind, 3)
        self._mends.append((time.monotonic() + 0.1 + longest * draws.random(), mend, fault))
        return None

    def _draw(self):
        if not self._bag:
            self._bag = [kind for kinds in (LINK, DAEMON, TRAINER) for kind, count in kinds.items()
                         for _ in range(count)]
            self.draws.shuffle(self._bag)
        return self._bag.pop()

    def _bad_rails(self):
        """Peers with which something is wrong at any node."""
        return ({fault.rail for _, _, fault in self._mends if fault.kind in LINK} |
                {rail for _, rail in self._drained})

    def _lasting(self, kind, node):
        return any(fault.kind == kind and fault.node == node for _, _, fault in self._mends)

    def _operator(self, node, how, rail):
        """False: the daemon does not answer, for it is stopped, dead or just being born."""
        if any(fault.kind in DAEMON and fault.node == node for _, _, fault in self._mends):
            return False
        try:
            self.cluster.ctl_json(self.cluster.nodes[node], how, f"rail{rail}")
        except (clusters.ClusterError, subprocess.TimeoutExpired):
            return False
        return True

    # Each begins a fault and returns what mends it, or nothing when it is over at once.

    def _ip(self, node, *command):
        labs.run("ip", "-n", self.lab.namespace(node), *command)

    def _port(self, port, *how):
        labs.run("ip", "-n", self.lab.switch, "link", "set", port, *how)

    def _link_down(self, node, rail):
        self._ip(node, "link", "set", f"rail{rail}", "down")
        return lambda: self._ip(node, "link", "set", f"rail{rail}", "up")

    def _no_carrier(self, node, rail):
        self._port(f"p{node}r{rail}", "down")
        return lambda: self._port(f"p{node}r{rail}", "up")

    def _ports(self, node):
        return [f"p{node}m", *(f"p{node}r{rail}" for rail in range(self.lab.rails))]

    def _held(self, holds, ports):
        """Ports with one more fault in `holds`; returns what takes it away again."""
        holds.update(ports)
        self._settle(ports)

        def release():
            holds.subtract(ports)
            self._settle(ports)
        return release

    def _settle(self, ports):
        for port in ports:
            if self._out[port]:
                self._port(port, "nomaster")
                continue
            of_rail = port.partition("r")[2]
            self._port(port, "master", f"br{of_rail}" if of_rail else "br-mgmt")
            self._port(port, "type", "bridge_slave", "isolated", "on" if self._apart[port] else "off")

    def check_overlaps(self):
        """Two faults of one port in each order: AssertionError unless the port is then as it was."""
        for first, second in ((self._out, self._apart), (self._apart, self._out)):
            for ends_first in (0, 1):
                releases = [self._held(first, ["p0r0"]), self._held(second, ["p0r0"])]
                releases.pop(ends_first)()
                releases.pop()()
                port = json.loads(labs.run("ip", "-n", self.lab.switch, "-j", "-d", "link", "show", "p0r0"))[0]
                assert port["master"] == "br0" and not port["linkinfo"]["info_slave_data"]["isolated"], port

    def _black_hole(self, node, rail):
        return self._held(self._out, [f"p{node}r{rail}"])

    def _swallow(self, namespace, device):
        labs.run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "pfifo", "limit", 0)

    def _one_direction(self, node, rail):
        if self.draws.random() < 0.5:
            self._swallow(self.lab.namespace(node), f"rail{rail}")
        else:
            self._swallow(self.lab.switch, f"p{node}r{rail}")
        return lambda: self.lab.shape(node, rail, self.lab.rate)

    def _dropped(self, node, rail):
        """As a rule of a firewall: carrier and addresses stay, packets vanish both ways."""
        self._swallow(self.lab.namespace(node), f"rail{rail}")
        self._swallow(self.lab.switch, f"p{node}r{rail}")
        return lambda: self.lab.shape(node, rail, self.lab.rate)

    def _crawl(self, node, rail):
        self.lab.shape(node, rail, CRAWL)
        return lambda: self.lab.shape(node, rail, self.lab.rate)

    def _address_removed(self, node, rail):
        address = [f"{self.lab.rail(node, rail)}/24", "dev", f"rail{rail}"]
        self._ip(node, "addr", "del", *address)
        return lambda: self._ip(node, "addr", "add", *address)

    def _no_route(self, node, rail):
        """One path only."""
        peer = self.draws.choice([other for other in range(self.lab.nodes) if other != node])
        self._ip(node, "route", "add", "blackhole", f"{self.lab.rail(peer, rail)}/32")
        return lambda: self._ip(node, "route", "del", "blackhole", f"{self.lab.rail(peer, rail)}/32")

    def _connections_destroyed(self, node, rail):
        for end in ("src", "dst"):
            labs.run("ip", "netns", "exec", self.lab.namespace(node), "ss", "-K", end, self.lab.rail(node, rail))

    def _rail_drained(self, node, rail):
        self._drained.add((node, rail))

        def undrain():
            if self._operator(node, "undrain", rail):
                self._drained.discard((node, rail))
        return undrain  # or at the end of the soak

    def _daemon_killed(self, node, _):
        daemon = self.cluster.nodes[node]
        self.cluster.stop_node(daemon, signal.SIGKILL)
        return lambda: self.cluster.start_node(daemon)

    def _daemon_stopped(self, node, _):
        pid = self.cluster.nodes[node].pid
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)

    def _partition(self, node, _):
        return self._held(self._out, self._ports(node))

    def _pair_cut(self, node, _):
        """This node and one other do not reach each other, and both reach the third: isolated ports of one bridge."""
        other = self.draws.choice([other for other in range(self.lab.nodes) if other != node])
        return self._held(self._apart, [*self._ports(node), *self._ports(other)])

    def _kill_trainer(self):
        victim = self.draws.choice(self.teams).victim(self.draws)
        if victim is not None:
            fault = self.chronicle.add("trainer killed", victim.node)
            victim.kill()
            fault.end = time.monotonic()
