#!/usr/bin/env python3
"""An emulated rail fabric on one machine: M nodes with N rails each, in network namespaces. Needs root.

Each node is a namespace. Rail r of every node is attached to one bridge. tbf shapes both directions of every rail, the
receiving one at the bridge's port, so that incast queues there as in a switch. A management network without shaping
carries the links. The machine's own namespace is not changed.

Addresses: rail r of node i has 10.(r+1).0.(i+1), management 10.250.0.(i+1). Namespace names contain the process id. A
second fabric waits for a lock, because one fabric uses all processors of a machine.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import cluster

LOCK = Path("/run/railsd-lab.lock")
ALLOWED_CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
MTU = 9000
CLONE_NEWNET = 0x40000000
BURST = "66kb"  # just over one offloaded segment; less splits segments, more lets bursts beat the bound
GOODPUT = 0.993  # payload over bytes on the wire, TCP over IPv4 at this MTU


class LabError(Exception):
    """The fabric cannot be built here."""


def run(*command, check=True):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if check and done.returncode != 0:
        raise LabError(f"{' '.join(map(str, command))}: {done.stdout.strip()}")
    return done.stdout


@contextlib.contextmanager
def inside(namespace):
    """Moves this thread into the network namespace by setns(2), which Python only has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as home, open(f"/run/netns/{namespace}", "rb") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
        try:
            yield
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)


class Lab:
    """A fabric. A context manager. Gives a Cluster its addresses and the namespaces of its daemons."""

    def __init__(self, nodes=4, rails=4, rate="200mbit", latency="100ms"):
        self.nodes, self.rails, self.rate, self.latency = nodes, rails, rate, latency
        self.prefix = f"rlab{os.getpid()}"
        self.switch = f"{self.prefix}s"
        self._lock = None
        self._allowed_before = None

    def namespace(self, node):
        return f"{self.prefix}n{node}"

    # The interface for a Cluster.
    def control(self, node):
        return f"10.250.0.{node + 1}:{cluster.CONTROL_PORT}"

    def metrics(self, node):
        return f"10.250.0.{node + 1}:{cluster.METRICS_PORT}"

    def rail(self, node, rail):
        return f"10.{rail + 1}.0.{node + 1}"

    def rail_config(self, node, rail):
        return {"address": self.rail(node, rail)}

    def command(self, node):
        return ["ip", "netns", "exec", self.namespace(node)]

    def reach(self, node):
        return inside(self.namespace(node))

    def close(self):
        """Called at the end of a cluster. The fabric stays until the lab's context ends."""

    def __enter__(self):
        if os.geteuid() != 0:
            raise LabError("the emulated fabric needs root: network namespaces and traffic shaping (try sudo)")
        for program in ("ip", "tc"):
            if not shutil.which(program):
                raise LabError(f"no program '{program}'; it is in the package iproute2")
        self._lock = open(LOCK, "w", encoding="ascii")  # held while the fabric is up
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise LabError(f"another fabric is up ({LOCK} is locked)") from error
        try:
            self._up()
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(self, *_):
        self._down()

    def _up(self):
        allowed = ALLOWED_CONGESTION_CONTROL.read_text().split()
        if "cubic" not in allowed:
            self._allowed_before = allowed
            ALLOWED_CONGESTION_CONTROL.write_text(" ".join(allowed + ["cubic"]))
        run("ip", "netns", "add", self.switch)
        self._bridge("br-mgmt")
        for rail in range(self.rails):
            self._bridge(f"br{rail}")
        for node in range(self.nodes):
            self._node(node)

    def _bridge(self, name):
        run("ip", "-n", self.switch, "link", "add", name, "type", "bridge", "stp_state", "0", "mcast_snooping", "0")
        run("ip", "-n", self.switch, "link", "set", name, "mtu", MTU, "up")

    def _node(self, node):
        namespace = self.namespace(node)
        self._add_namespace(namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        for setting in ("net.ipv4.tcp_congestion_control=cubic", "net.ipv4.tcp_slow_start_after_idle=0",
                        "net.ipv4.conf.all.rp_filter=0", "net.ipv6.conf.all.disable_ipv6=1"):
            key, value = setting.split("=")
            run("ip", "netns", "exec", namespace, "sh", "-c", f"echo {value} > /proc/sys/{key.replace('.', '/')}")
        self._link(node, "mgmt", f"p{node}m", "br-mgmt", f"10.250.0.{node + 1}")
        for rail in range(self.rails):
            self._link(node, f"rail{rail}", f"p{node}r{rail}", f"br{rail}", self.rail(node, rail))
            self.shape(node, rail, self.rate)

    def _add_namespace(self, namespace):
        run("ip", "netns", "add", namespace)

    def _link(self, node, device, port, bridge, address):
        namespace = self.namespace(node)
        run("ip", "link", "add", device, "netns", namespace, "mtu", MTU, "numtxqueues", 1, "numrxqueues", 1,
            "type", "veth", "peer", "name", port, "netns", self.switch, "mtu", MTU, "numtxqueues", 1, "numrxqueues", 1)
        run("ip", "-n", self.switch, "link", "set", port, "master", bridge, "up")
        run("ip", "-n", namespace, "link", "set", device, "up")
        run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", device)

    def _shape(self, namespace, device, rate):
        run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", BURST,
            "latency", self.latency)

    def shape(self, node, rail, rate):
        """Changes the speed of one rail of one node, in both directions."""
        self._shape(self.namespace(node), f"rail{rail}", rate)
        self._shape(self.switch, f"p{node}r{rail}", rate)

    def rail_rate(self, rail, rate):
        """Changes the speed of one rail on all nodes."""
        for node in range(self.nodes):
            self.shape(node, rail, rate)

    def drops(self):
        """Packets that the shapers have dropped since the set-up."""
        total = 0
        for namespace in [self.switch] + [self.namespace(node) for node in range(self.nodes)]:
            for line in run("tc", "-s", "-n", namespace, "qdisc", "show").splitlines():
                if "dropped" in line:
                    total += int(line.split("dropped ")[1].split(",")[0])
        return total

    def _down(self):
        for namespace in [self.namespace(node) for node in range(self.nodes)] + [self.switch]:
            if Path("/run/netns", namespace).exists():
                run("ip", "netns", "del", namespace, check=False)
        if self._allowed_before:
            with contextlib.suppress(OSError):
                ALLOWED_CONGESTION_CONTROL.write_text(" ".join(self._allowed_before))
            self._allowed_before = None
        self._lock.close()
