#!/usr/bin/env python3
"""Slow and greedy connections to all of a daemon's listeners: each limit applies, its metric counts, and a replay loses
no byte meanwhile."""

import contextlib
import select
import socket
import subprocess
import threading

import harness
from harness import MIB, clusters

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
ACKNOWLEDGED = b"\0\0\0\4\1\0\0\0\0"
LINK_HELLO = b"railsd-link/1\r\n" + (1000).to_bytes(4, "little") + b"\1"  # a link's preface and the begin of a HELLO
CLIENT_HELLO = b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03" + bytes(100)  # a record of 256 bytes, cut


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    """Encodes a header without indexing (HPACK)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def call(path, stream=1, headers=b""):
    """The headers of a gRPC call."""
    return frame(1, 4, stream, b"\x83\x86" + literal(b":path", path) + literal(b":authority", b"x") +
                 literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers") + headers)


class SlowTest(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", sections={
        "timeouts": {"peer_lost": "30s", "handshake": "1s", "rail_handshake": "1s", "idle": "3s", "http": "500ms"},
        "limits": {"max_half_open": 8, "max_message": "64KiB", "max_grpc_memory": "16MiB", "max_calls_per_client_connection": 20,
                   "max_http_request": "2KiB"}})

    def setUp(self):
        self.node = self.cluster.nodes[0]
        self.held = self.enterContext(contextlib.ExitStack())

    def refused(self, limit):
        return self.sample(self.scrape(0), "railsd_limit_refused_total", limit=limit)

    def connect(self, address):
        """Connects to "host:port" or to a path."""
        if ":" in str(address):
            host, _, port = address.rpartition(":")
            return self.held.enter_context(socket.create_connection((host.strip("[]"), int(port)), timeout=60))
        connection = self.held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.settimeout(60)
        connection.connect(str(address))
        return connection

    def trickle(self, connection, data):
        """Sends byte by byte until the other end closes. Returns how many bytes it took."""
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

    def heard(self, connection, until=None):
        """Returns the daemon's bytes until it closes the connection, or until they contain `until`."""
        heard = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while not until or until not in heard:
                data = connection.recv(65536)
                if not data:
                    break
                heard += data
        return heard

    def whole(self, connection, path, message, headers=b""):
        """Sends a call's only message; pauses until the window has room for all of it."""
        pieces = [frame(0, 0, 1, message[at:at + 10_000]) for at in range(0, len(message), 10_000)]
        connection.sendall(PREFACE + SETTINGS + call(path, headers=headers) + b"".join(pieces[:6]))
        if len(pieces) > 6:
            # gRPC grants the window that the message's length needs, in one or two steps.
            room = 60_000
            while room < len(message):
                room += self.granted(connection.recv(65536))
            connection.sendall(b"".join(pieces[6:]))
        connection.sendall(frame(0, 1, 1, b""))

    @staticmethod
    def granted(data):
        """The window that the stream's WINDOW_UPDATE frames grant."""
        sign, room, at = frame(8, 0, 1, b"")[3:9], 0, 0
        while (at := data.find(b"\0\0\4" + sign, at)) >= 0 and at + 13 <= len(data):
            room += int.from_bytes(data[at + 9:at + 13], "big")
            at += 13
        return room

    @contextlib.contextmanager
    def replaying(self):
        """Afterwards all peers are still up."""
        with super().replaying():
            yield
        self.assertTrue(all(peer["up"] for peer in self.cluster.overview(self.node)["peers"]))

    def slow_ones_end(self, address, data, count=3):
        with self.replaying():
            slow = [self.connect(address) for _ in range(count)]
            threads = [threading.Thread(target=self.trickle, args=(connection, data)) for connection in slow]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def assert_slow_ones_end(self, address, data, limit, count=3):
        before = self.refused(limit)
        self.slow_ones_end(address, data, count)
        harness.eventually(lambda: self.refused(limit) - before >= count,
                           lambda: f"{limit} counts {self.refused(limit) - before} of {count}")


class Slow(SlowTest):
    def test_control_port(self):
        self.assert_slow_ones_end(self.cluster.addresses.control(0), LINK_HELLO, "timeouts.handshake")

    def test_client_and_operator_sockets(self):
        for name in ("client.sock", "operator.sock"):
            with self.subTest(name):
                self.slow_ones_end(self.node.sockets / name, PREFACE[:-1])

    def test_headers_without_end_on_a_client_socket(self):
        with self.replaying():
            connection = self.connect(self.node.sockets / "client.sock")
            connection.sendall(PREFACE + SETTINGS + frame(1, 0, 1, b"\x83\x86"))
            self.assertTrue(self.ended(connection), "idle: no call has come")

    def test_data_ports(self):
        for rail in self.cluster.overview(self.node)["rails"]:
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
        rail = self.cluster.overview(self.node)["rails"][0]["address"]
        for address in (self.cluster.addresses.control(0), rail):
            with self.subTest(address), self.replaying():
                before = self.refused("limits.max_half_open")
                begun = [self.connect(address) for _ in range(100)]
                harness.eventually(lambda before=before: self.refused("limits.max_half_open") - before >= 92,
                                   "all but the last few give way")
                self.assertTrue(all(self.ended(connection) for connection in begun[:92]))

    def test_connections_of_clients(self):
        """Many connections of one client: jobs go on, others connect, and the daemon drops them when they close."""
        path = self.node.sockets / "client.sock"
        trainers = [self.trainer(node) for node in range(2)]
        for rank, trainer in enumerate(trainers):
            trainer.segment("s", MIB, seed=rank + 1)
            trainer.segment("r", MIB)
        self.assertTrue(all(answer["ok"] for answer in harness.join(trainers, "g")))
        before = sum(harness.footprint(self.node.pid)["descriptors"].values())
        for _ in range(300):
            self.connect(path).sendall(PREFACE + SETTINGS + call(b"/grpc.health.v1.Health/Watch"))
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group="g", job="j", sends={other: [["s", 0, MIB]]},
                         receives={other: [["r", 0, MIB]]})
        for rank, trainer in enumerate(trainers):
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")
            self.assertEqual(trainer.wrong_bytes("r", 0, MIB, seed=2 - rank), 0)
        self.trainer(0)
        self.held.close()
        harness.eventually(lambda: sum(harness.footprint(self.node.pid)["descriptors"].values()) < before + 100,
                           "the others are noticed to have gone")


class TooLarge(SlowTest):
    def test_messages(self):
        """A message that is too long or cut off is answered with an error and does not reach a service."""
        path = b"/rails.v1.SessionService/GetSession"
        for size, cut, answer in ((100_000, 0, b"Received message larger than max (100000 vs. 65536)"),
                                  (60_000, 1, b"grpc-status")):
            with self.subTest(size=size, cut=cut), self.replaying():
                connection = self.connect(self.node.sockets / "client.sock")
                field = b"\x7a" + varint(size - 4) + bytes(size - 4)  # an unknown field
                self.whole(connection, path, b"\0" + size.to_bytes(4, "big") + field[:len(field) - cut])
                self.assertIn(answer, self.heard(connection, answer))

    def test_memory(self):
        """A message that never ends is cut off, whatever length it claims."""
        connection = self.connect(self.node.sockets / "client.sock")
        most = 16 << 20  # limits.max_grpc_memory
        connection.sendall(PREFACE + SETTINGS + call(b"/rails.v1.SessionService/GetSession") +
                           frame(0, 0, 1, b"\0" + (1 << 30).to_bytes(4, "big")))
        reset, sent, said = b"\0\0\4\3\0\0\0\0\1" + (11).to_bytes(4, "big"), 0, b""  # ENHANCE_YOUR_CALM
        piece = frame(0, 0, 1, bytes(16_000))
        # gRPC's windows grow with the bytes that it takes. Reads its answers between writes.
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
        """Headers of a caller that has acknowledged gRPC's settings: gRPC 1.51 does not enforce them on others."""
        many = b"".join(literal(b"x%d" % number, b"y" * 10) for number in range(200))  # 200 * (14 + 32) bytes
        for path, name in ((b"/rails.v1.SessionService/GetSession", "client.sock"),
                           (b"/rails.v1.OperatorService/DrainNode", "operator.sock"),
                           (b"/grpc.health.v1.Health/Check", "client.sock")):
            with self.subTest(path), self.replaying():
                connection = self.connect(self.node.sockets / name)
                self.acknowledge(connection)
                self.ask(connection, 1)
                connection.sendall(call(path, 3, headers=many) + frame(0, 1, 3, bytes(5)))
                answer = b"received initial metadata size exceeds limit"
                self.assertIn(answer, self.heard(connection, answer))
        self.assertEqual(self.sample(self.scrape(0), "railsd_draining"), 0)

    def test_calls_of_one_connection(self):
        """Too many calls of a caller that has acknowledged the limit: its connection is closed, others are answered."""
        path, address = b"/grpc.health.v1.Health/Watch", self.node.sockets / "client.sock"
        with self.replaying():
            greedy = self.connect(address)
            self.acknowledge(greedy)
            self.ask(greedy, 1)
            with contextlib.suppress(ConnectionError):
                greedy.sendall(b"".join(call(path, stream) + frame(0, 1, stream, bytes(5)) for stream in range(3, 100, 2)))
            self.assertTrue(self.ended(greedy))
            self.ask(self.connect(address), 1, PREFACE + SETTINGS)

    def acknowledge(self, connection):
        """Acknowledges gRPC's settings. gRPC enforces them only then."""
        connection.sendall(PREFACE + SETTINGS)
        settings = frame(4, 0, 0, b"")[3:]
        self.assertIn(settings, self.heard(connection, settings))
        connection.sendall(ACKNOWLEDGED)

    def ask(self, connection, stream, before=b""):
        """Makes one complete call and checks that it is answered."""
        connection.sendall(before + call(b"/grpc.health.v1.Health/Check", stream) + frame(0, 1, stream, bytes(5)))
        end = frame(1, 5, stream, b"")[3:]
        self.assertIn(end, self.heard(connection, end))

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
        """The first message is complete, so the TLS library waits for the second."""
        before = self.refused("timeouts.handshake")
        hello = self.client_hello()
        with self.replaying():
            connection = self.connect(self.cluster.addresses.control(0))
            connection.sendall(hello)
            self.assertTrue(self.ended(connection))
        harness.eventually(lambda: self.refused("timeouts.handshake") - before >= 1, "counted")

    def client_hello(self):
        """The ClientHello of openssl, read by a listener of this test."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{listener.getsockname()[1]}", "-alpn", "railsd-link/1",
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
