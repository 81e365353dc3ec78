#!/usr/bin/env python3
"""Connections that take their time, or take too much, on everything a daemon listens on: each limit bites, says so in its
metric, and a replay meanwhile loses no byte."""

import contextlib
import select
import socket
import subprocess
import threading
import time

import harness
from harness import MIB, clusters

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
CLIENT_HELLO = b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03" + bytes(100)  # a record of 256 bytes, cut


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    """A header that is not indexed, HPACK."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call(path, stream=1):
    """The headers of a gRPC call."""
    return frame(1, 4, stream, b"\x83\x86" + literal(b":path", path) + literal(b":authority", b"x") +
                 literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers"))


class SlowTest(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", sections={
        "timeouts": {"peer_lost": "30s", "handshake": "1s", "rail_handshake": "1s", "idle": "3s", "http": "500ms"},
        "limits": {"max_half_open": 8, "max_control_connections": 40, "max_control_connections_per_address": 20,
                   "max_client_connections": 12, "max_message": "64KiB", "max_grpc_memory": "16MiB",
                   "max_http_request": "2KiB"}})

    def setUp(self):
        self.node = self.cluster.nodes[0]
        self.held = self.enterContext(contextlib.ExitStack())

    def refused(self, limit):
        return self.sample(self.scrape(0), "railsd_limit_refused_total", limit=limit)

    def connect(self, address):
        """To "host:port", or to a path."""
        if ":" in str(address):
            host, _, port = address.rpartition(":")
            return self.held.enter_context(socket.create_connection((host.strip("[]"), int(port)), timeout=60))
        connection = self.held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.settimeout(60)
        connection.connect(str(address))
        return connection

    def trickle(self, connection, data):
        """Byte by byte until the other end hangs up; says how many it took."""
        sent = 0
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(data[sent:sent + 1] or b"\0")
                sent += 1
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    while connection.recv(4096):
                        pass
                    return sent
        return sent

    def ended(self, connection):
        with contextlib.suppress(ConnectionError):
            while connection.recv(4096):
                pass
        return True

    @contextlib.contextmanager
    def replaying(self):
        """Replays in a loop, every byte compared, and at least once as a whole meanwhile."""
        stop, reports, failed = threading.Event(), [], []

        def loop():
            try:
                while not stop.is_set() or not reports:
                    reports.append(self.cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "2MiB",
                                                       "--steps", 3))
            except Exception as error:  # what a thread raises nobody sees
                failed.append(error)
        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        self.assertEqual(failed, [])
        self.assertTrue(reports and all(report["verified"] is True for report in reports))
        self.assertTrue(all(peer["up"] for peer in self.cluster.ctl_json(self.node, "peers")["peers"]))

    def assert_slow_ones_end(self, address, data, limit, count=3):
        before = self.refused(limit)
        with self.replaying():
            slow = [self.connect(address) for _ in range(count)]
            threads = [threading.Thread(target=self.trickle, args=(connection, data)) for connection in slow]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        harness.eventually(lambda: self.refused(limit) - before >= count,
                           lambda: f"{limit} counts {self.refused(limit) - before} of {count}")


class Slow(SlowTest):
    def test_control_port(self):
        address = self.cluster.addresses.control(0)
        self.assert_slow_ones_end(address, PREFACE[:-1], "timeouts.handshake")

    def test_headers_without_end(self):
        address, before = self.cluster.addresses.control(0), self.refused("timeouts.handshake")
        with self.replaying():
            begun = [self.connect(address) for _ in range(3)]
            for connection in begun:
                connection.sendall(PREFACE + SETTINGS + frame(1, 0, 1, b"\x83\x86"))
            for connection in begun:
                with contextlib.suppress(OSError):
                    while True:
                        connection.sendall(frame(9, 0, 1, literal(b"a", b"b")))  # CONTINUATION, and no last one
                        time.sleep(0.05)
                self.assertTrue(self.ended(connection))
        harness.eventually(lambda: self.refused("timeouts.handshake") - before >= 3, "the late ones are counted")

    def test_client_and_operator_sockets(self):
        for name in ("client.sock", "operator.sock"):
            with self.subTest(name):
                self.assert_slow_ones_end(self.node.sockets / name, PREFACE[:-1], "timeouts.handshake")

    def test_headers_without_end_on_a_client_socket(self):
        with self.replaying():
            connection = self.connect(self.node.sockets / "client.sock")
            connection.sendall(PREFACE + SETTINGS + frame(1, 0, 1, b"\x83\x86"))
            self.assertTrue(self.ended(connection), "idle: no call has come")

    def test_data_ports(self):
        for rail in self.cluster.ctl_json(self.node, "rails")["rails"]:
            with self.subTest(rail["name"]):
                self.assert_slow_ones_end(rail["address"], b"\x01RSHEL", "timeouts.rail_handshake")

    def test_status_page(self):
        self.assert_slow_ones_end(self.cluster.addresses.metrics(0), b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 1000,
                                  "timeouts.http")

    def test_descriptor_socket(self):
        before = self.refused("timeouts.handshake")
        with self.replaying():
            idle = self.held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.settimeout(60)
            idle.connect(str(self.node.sockets / "descriptors.sock"))
            self.assertEqual(idle.recv(4096), b"")
        self.assertGreaterEqual(self.refused("timeouts.handshake") - before, 1)


class TooMany(SlowTest):
    def test_half_open(self):
        rail = self.cluster.ctl_json(self.node, "rails")["rails"][0]["address"]
        for address in (self.cluster.addresses.control(0), self.node.sockets / "client.sock", rail):
            with self.subTest(address), self.replaying():
                before = self.refused("limits.max_half_open")
                begun = [self.connect(address) for _ in range(100)]
                harness.eventually(lambda before=before: self.refused("limits.max_half_open") - before >= 92,
                                   "all but the last few give way")
                self.assertTrue(all(self.ended(connection) for connection in begun[:92]))

    def test_connections_of_one_address(self):
        """Each makes calls, so that no other limit ends it."""
        limit = "limits.max_control_connections_per_address"
        address, before = self.cluster.addresses.control(0), self.refused(limit)
        with self.replaying():
            for _ in range(30):
                self.connect(address).sendall(PREFACE + SETTINGS + call(b"/grpc.health.v1.Health/Watch"))
            harness.eventually(lambda: self.refused(limit) - before >= 10, "those over the limit are counted")
            open_now = self.sample(self.scrape(0), "railsd_grpc_connections", socket="control", state="open")
            self.assertLessEqual(open_now, 20)

    def test_connections_of_clients(self):
        """Those that are up go on; there is room again when others have gone."""
        limit, path = "limits.max_client_connections", self.node.sockets / "client.sock"
        trainers, before = [self.trainer(node) for node in range(2)], self.refused(limit)
        for rank, trainer in enumerate(trainers):
            trainer.segment("s", MIB, seed=rank + 1)
            trainer.segment("r", MIB)
        self.assertTrue(all(answer["ok"] for answer in harness.join(trainers, "g")))
        for _ in range(30):
            self.connect(path).sendall(PREFACE + SETTINGS + call(b"/grpc.health.v1.Health/Watch"))
        harness.eventually(lambda: self.refused(limit) - before >= 18, "those over the limit are counted")
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group="g", job="j", sends={other: [["s", 0, MIB]]},
                         receives={other: [["r", 0, MIB]]})
        for rank, trainer in enumerate(trainers):
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")
            self.assertEqual(trainer.wrong_bytes("r", 0, MIB, seed=2 - rank), 0)
        self.held.close()
        harness.eventually(lambda: self.sample(self.scrape(0), "railsd_grpc_connections", socket="client",
                                               state="open") <= 2, "the others are noticed to have gone")
        self.trainer(0)


class TooLarge(SlowTest):
    def heard(self, connection, until=None):
        """What the daemon says until it hangs up, or has said something."""
        heard = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while not until or until not in heard:
                data = connection.recv(65536)
                if not data:
                    break
                heard += data
        return heard

    def test_messages(self):
        """One that is too long is refused, one that is cut is none, and neither reaches anybody."""
        window, begin = 65535, frame(8, 0, 1, b"")[3:9]
        for path, address in ((b"/rails.v1.SessionService/GetSession", self.node.sockets / "client.sock"),
                              (b"/rails.peer.v1.PeerService/Exchange", self.cluster.addresses.control(0))):
            for cut, answer in ((0, b"Received message larger than max (100000 vs. 65536)"), (1, b"grpc-status")):
                with self.subTest(path, cut=cut), self.replaying():
                    connection = self.connect(address)
                    message = b"\0" + (100_000).to_bytes(4, "big") + bytes(100_000 - cut)
                    pieces = [message[at:at + 10_000] for at in range(0, len(message), 10_000)]
                    first = window // 10_000
                    connection.sendall(PREFACE + SETTINGS + call(path) +
                                       b"".join(frame(0, 0, 1, piece) for piece in pieces[:first]))
                    self.assertIn(begin, self.heard(connection, begin), "there is room for all of it")
                    connection.sendall(b"".join(frame(0, 0, 1, piece) for piece in pieces[first:]) + frame(0, 1, 1, b""))
                    self.assertIn(answer, self.heard(connection, answer))

    @staticmethod
    def granted(data):
        """Room of the stream that WINDOW_UPDATE frames give."""
        sign, room, at = frame(8, 0, 1, b"")[3:9], 0, 0
        while (at := data.find(b"\0\0\4" + sign, at)) >= 0 and at + 13 <= len(data):
            room += int.from_bytes(data[at + 9:at + 13], "big")
            at += 13
        return room

    def test_memory(self):
        """A message that never ends is cut off, however long it says that it is."""
        connection = self.connect(self.node.sockets / "client.sock")
        most = 16 << 20  # limits.max_grpc_memory
        connection.sendall(PREFACE + SETTINGS + call(b"/rails.v1.SessionService/GetSession") +
                           frame(0, 0, 1, b"\0" + (1 << 30).to_bytes(4, "big")))
        reset, sent, said = b"\0\0\4\3\0\0\0\0\1" + (11).to_bytes(4, "big"), 0, b""  # ENHANCE_YOUR_CALM
        piece = frame(0, 0, 1, bytes(16_000))
        # Its windows grow with what it takes: after each, what it says is read.
        with self.replaying():
            connection.setblocking(False)
            room = 60_000
            while sent < 2 * most and reset not in said:
                select.select([connection], [connection] if room >= 16_000 else [], [])
                with contextlib.suppress(BlockingIOError):
                    data = connection.recv(65536)
                    if not data:
                        break
                    said = said[-20:] + data
                    room += self.granted(data)
                if room >= 16_000:
                    connection.setblocking(True)
                    connection.sendall(piece)
                    connection.setblocking(False)
                    room, sent = room - 16_000, sent + 16_000
        self.assertIn(reset, said)
        self.assertLess(sent, 2 * most)

    def test_headers(self):
        with self.replaying():
            connection = self.connect(self.cluster.addresses.control(0))
            many = b"".join(literal(b"x%d" % number, b"y" * 100) for number in range(120))
            connection.sendall(PREFACE + SETTINGS + frame(1, 4, 1, b"\x83\x86" + literal(b":path", b"/a/b") + many))
            self.assertTrue(self.heard(connection))

    def test_requests_of_the_status_page(self):
        before = self.refused("limits.max_http_request")
        with self.replaying():
            connection = self.connect(self.cluster.addresses.metrics(0))
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n")
            self.heard(connection)
        harness.eventually(lambda: self.refused("limits.max_http_request") - before >= 1, "counted")


class Tls(SlowTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", tls=True, sections=SlowTest.settings.sections)

    def test_control_port(self):
        self.assert_slow_ones_end(self.cluster.addresses.control(0), CLIENT_HELLO[:100], "timeouts.handshake")

    def test_a_handshake_that_stops_in_the_middle(self):
        """The first message is whole, so the TLS library waits for the second."""
        before = self.refused("timeouts.handshake")
        hello = self.client_hello()
        with self.replaying():
            connection = self.connect(self.cluster.addresses.control(0))
            connection.sendall(hello)
            self.assertTrue(self.ended(connection))
        harness.eventually(lambda: self.refused("timeouts.handshake") - before >= 1, "counted")

    def client_hello(self):
        """As openssl says it, taken by a listener of our own."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{listener.getsockname()[1]}", "-alpn", "h2",
                                   "-tls1_3"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as client:
                connection, _ = listener.accept()
                with connection:
                    head = connection.recv(5, socket.MSG_WAITALL)
                    hello = head + connection.recv(int.from_bytes(head[3:], "big"), socket.MSG_WAITALL)
                client.wait()
        return hello


if __name__ == "__main__":
    harness.main()
