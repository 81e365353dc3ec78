"""The emulated fabric as `bench peers` needs it: equal device orders, broken rails, and programs inside the nodes."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from lab import Lab, LabError, inside, run
from peers.cells import BROKEN_NODE, BROKEN_RAIL

DRAWS = 300
SETTLED = 0.5  # seconds

# The launchers of Open MPI and MPICH call this in place of ssh: OPTIONS HOST COMMAND. Each node gets its own host name,
# because MPI would otherwise take two nodes for one.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host="$1"; shift
node=$((${{host##*.}} - 1))
exec ip netns exec {prefix}n$node unshare --uts sh -c 'hostname node'$node'; eval "$0"' "$*"
"""


class PeerLab(Lab):
    """A fabric that stays up while its rails change state. A context manager."""

    def __init__(self, nodes, rails):
        super().__init__(nodes, rails)
        self._order, self._rejected, self.folder = None, [], None
        self.state = "healthy"

    def __enter__(self):
        super().__enter__()
        # Holds the files that killed programs leave behind, also those that they would put into /dev/shm.
        self.folder = Path(tempfile.mkdtemp(prefix="railsd-peers-"))
        self.agent.write_text(AGENT.format(prefix=self.prefix), encoding="ascii")
        self.agent.chmod(0o755)
        return self

    def __exit__(self, *why):
        self.end_programs([])
        shutil.rmtree(self.folder, ignore_errors=True)
        super().__exit__(*why)

    @property
    def agent(self):
        return self.folder / "agent.sh"

    def management(self, node):
        return f"10.250.0.{node + 1}"

    def _up(self):
        try:
            super()._up()
        finally:
            for rejected in self._rejected:
                run("ip", "netns", "del", rejected, check=False)

    def _add_namespace(self, namespace):
        """Makes namespaces until one lists its rails in the same order as the first node. UCX 1.13 connects local
        device i with remote device i in that order, and rails on different switches cannot reach each other. The kernel
        derives the order from a hash of the namespace's address. Rejected namespaces stay until all are made, so that
        addresses differ."""
        if not namespace.startswith(f"{self.prefix}n"):
            super()._add_namespace(namespace)
            return
        for draw in range(DRAWS):
            drawn = f"{namespace}d{draw}"
            run("ip", "netns", "add", drawn)
            self._rejected.append(drawn)  # if it is accepted, the bind mount below keeps it
            for rail in range(self.rails):
                run("ip", "-n", drawn, "link", "add", f"rail{rail}", "type", "bridge")
            names = run("ip", "netns", "exec", drawn, "ls", "-U", "/sys/class/net").split()
            for rail in range(self.rails):
                run("ip", "-n", drawn, "link", "del", f"rail{rail}")
            order = [name for name in names if name.startswith("rail")]
            self._order = self._order or order
            if order == self._order:
                Path("/run/netns", namespace).touch()
                run("mount", "--bind", f"/run/netns/{drawn}", f"/run/netns/{namespace}")
                return
        raise LabError(f"no namespace of {DRAWS} lists its devices in the order {self._order}")

    def _shape(self, namespace, device, rate):
        if rate is None:
            run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", check=False)
        else:
            super()._shape(namespace, device, rate)

    def _broken_port(self, how):
        run("ip", "-n", self.switch, "link", "set", f"p{BROKEN_NODE}r{BROKEN_RAIL}", how)

    def set_state(self, state, latency):
        """Brings all rails into a state. `latency`: the longest queue of the shapers, as a time."""
        self.state, self.latency = state, latency
        self._broken_port("down" if state == "dead" else "up")
        for rail in range(self.rails):
            slow = state == "slow" and rail == BROKEN_RAIL
            self.rail_rate(rail, None if state == "unshaped" else "100mbit" if slow else self.rate)
        time.sleep(SETTLED)

    def command_inside(self, command):
        """A command line that runs a command in node 0 with that node's host name."""
        return [*self.command(0), "unshare", "--uts", "sh", "-c", 'hostname node0; exec "$@"', "sh", *map(str, command)]

    def end_programs(self, spared):
        """Kills all processes in the nodes but those with the spared ids. Launchers leave some behind when a peer hangs."""
        for node in range(self.nodes):
            for pid in map(int, run("ip", "netns", "pids", self.namespace(node), check=False).split()):
                if pid not in spared and pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def sent_bytes(self, node):
        """Bytes that a node's rails have sent, with headers."""
        with inside(self.namespace(node)):
            return self._sent_bytes_here()

    @staticmethod
    def _sent_bytes_here():
        total = 0
        for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines():
            name, _, counters = line.partition(":")
            if name.strip().startswith("rail"):
                total += int(counters.split()[8])
        return total

    def cut_after(self, length, stop):
        """Waits until the broken node has sent `length` more bytes, then takes the carrier from its broken rail.
        Returns False if `stop` (an Event) is set before."""
        with inside(self.namespace(BROKEN_NODE)):
            begin = self._sent_bytes_here()
            while self._sent_bytes_here() - begin < length:
                if stop.wait(0.002):
                    return False
        self._broken_port("down")
        return True

    def mend(self):
        self._broken_port("up")
        time.sleep(SETTLED)


def installed(program):
    return subprocess.run(["sh", "-c", f"command -v {program}"], stdout=subprocess.DEVNULL, check=False).returncode == 0
