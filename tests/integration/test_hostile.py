#!/usr/bin/env python3
"""Hostile bytes on every socket of a daemon while a replay runs. The replay is not affected."""

import array
import contextlib
import os
import random
import resource
import socket
import threading

import harness
from harness import clusters


class Hostile(harness.ClusterTest):
    # A high limit: the test checks bytes and states, not the delay of heartbeats on a starved machine with a sanitizer.
    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit", sections={"timeouts": {"peer_lost": "30s"}})

    def setUp(self):
        self.random = random.Random(harness.SEED)
        self.stop, self.sent, self.threads = threading.Event(), {}, []

    def garbage(self, chance):
        """Returns noise, zeros, the begin of HTTP/2, or false lengths."""
        kind = chance.randrange(5)
        if kind == 0:
            return chance.randbytes(chance.randrange(1, 5000))
        if kind == 1:
            return bytes(chance.randrange(1, 70000))
        if kind == 2:
            return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(200)
        if kind == 3:
            return b"\xff" * chance.randrange(1, 300)
        return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"

    def attack(self, name, once):
        """Calls `once(chance)` repeatedly on a thread until the replay has ended."""
        chance = random.Random(f"{harness.SEED}{name}")

        def loop():
            while not self.stop.is_set():
                with contextlib.suppress(OSError):
                    once(chance)
                self.sent[name] = self.sent.get(name, 0) + 1
                # gRPC with a sanitizer accepts few connections a second, so a faster flood would shut others out.
                self.stop.wait(0.03 if harness.SLOW else 0.002)
        thread = threading.Thread(target=loop, name=name)
        thread.start()
        self.threads.append(thread)

    def tcp(self, address):
        host, _, port = address.rpartition(":")

        def once(chance):
            with socket.create_connection((host.strip("[]"), int(port)), timeout=2) as connection:
                connection.sendall(self.garbage(chance))
                if chance.random() < 0.5:
                    connection.settimeout(0.05)
                    connection.recv(100)
        return once

    def stream(self, path):
        def once(chance):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(2)
                connection.connect(str(path))
                connection.sendall(self.garbage(chance))
        return once

    def packets(self, path):
        def once(chance):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(2)
                connection.connect(str(path))
                for _ in range(chance.randrange(1, 4)):
                    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(chance.randrange(0, 4))]
                    try:
                        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                        connection.sendmsg([self.garbage(chance)[:60000]], rights if descriptors else [])
                    finally:
                        for descriptor in descriptors:
                            os.close(descriptor)
        return once

    def silent(self, path):
        """Connects, sends nothing and disconnects later."""
        held = []

        def once(chance):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(2)
            connection.connect(str(path))
            held.append(connection)
            if len(held) > 20 or chance.random() < 0.1:
                while held:
                    held.pop().close()
        return once

    def test_a_replay_does_not_notice(self):
        node = self.cluster.nodes[0]
        before = harness.settled_footprint(node.pid)
        rails = [rail["address"] for rail in self.cluster.overview(node)["rails"]]
        self.attack("control", self.tcp(self.cluster.addresses.control(0)))
        self.attack("metrics", self.tcp(self.cluster.addresses.metrics(0)))
        for number, address in enumerate(rails):
            self.attack(f"rail{number}", self.tcp(address))
        self.attack("client", self.stream(node.sockets / "client.sock"))
        self.attack("operator", self.stream(node.sockets / "operator.sock"))
        self.attack("descriptors", self.packets(node.sockets / "descriptors.sock"))
        self.attack("silent", self.silent(node.sockets / "descriptors.sock"))
        try:
            for workload in ("uniform", "zipf", "mixtral"):
                report = self.cluster.replay("--verify", "--workload", workload, "--bytes-per-rank", "8MiB",
                                             "--steps", 4, "--ranks-per-node", 2)
                self.assertIs(report["verified"], True)
            harness.eventually(lambda: len(self.sent) == 10 and min(self.sent.values()) >= 20,
                               lambda: f"every socket was attacked: {self.sent}")
        finally:
            self.stop.set()
            for thread in self.threads:
                thread.join()
        self.wait_idle()
        after = self.cluster.overview(node)["rails"]
        counted = sum(int(rail["counters"]["protocol_errors"]) + int(rail["counters"]["refused_connections"]) for rail in after)
        self.assertGreater(counted, 0, "hostile bytes on rails are counted")
        harness.eventually(lambda: harness.footprint(node.pid)["threads"] == before["threads"],
                           lambda: f"threads now {harness.footprint(node.pid)}, before {before}")
        slack = 16  # the metrics server and gRPC keep a few connections until they time out
        harness.eventually(lambda: sum(harness.footprint(node.pid)["descriptors"].values())
                           <= sum(before["descriptors"].values()) + slack,
                           lambda: f"descriptors now {harness.footprint(node.pid)}, before {before}")

    def flood(self, address, count, first_bytes):
        """Opens `count` connections, each of which sends `first_bytes` and nothing more."""
        host, _, port = address.rpartition(":")
        held = contextlib.ExitStack()
        for _ in range(count):
            connection = held.enter_context(socket.create_connection((host.strip("[]"), int(port)), timeout=60))
            with contextlib.suppress(ConnectionError):  # a later connection may already have replaced it
                connection.sendall(first_bytes)
        return held

    def test_ten_thousand_connections(self):
        """Connections to the control port and to a rail. Jobs begin, run and end meanwhile, and no resource is left."""
        count = 1000 if harness.SLOW else 10_000
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if most < count + 1000:
            self.skipTest(f"a process may open {most} files, and {count} connections need more")
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        node = self.cluster.nodes[0]
        rail = self.cluster.overview(node)["rails"][0]["address"]
        before = harness.settled_footprint(node.pid)
        for name, address, first_bytes in (("control", self.cluster.addresses.control(0), b"PRI * HTTP/2.0\r\n\r\n"),
                                           ("rail", rail, b"\x01RSHEL")):
            with self.subTest(name), self.flood(address, count, first_bytes):
                report = self.cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "4MiB",
                                             "--steps", 2)
                self.assertIs(report["verified"], True)
                self.assertTrue(all(peer["up"] for peer in self.cluster.overview(node)["peers"]))

        def refused():
            return sum(int(rail["counters"]["refused_connections"]) for rail in self.cluster.overview(node)["rails"])
        harness.eventually(lambda: refused() >= count - 64, lambda: f"connections that gave way are counted: {refused()}")
        self.wait_idle()
        harness.eventually(lambda: sum(harness.footprint(node.pid)["descriptors"].values())
                           <= sum(before["descriptors"].values()) + 16,
                           lambda: f"descriptors now {harness.footprint(node.pid)}, before {before}")


if __name__ == "__main__":
    harness.main()
