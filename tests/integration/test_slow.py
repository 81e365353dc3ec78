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
        "limits": {"max_half_open": 8, "max_control_connections": 40, "max_control_connections_per_address": 20,
                   "max_client_connections": 12, "max_message": "64KiB", "max_grpc_memory": "16MiB",
                   "max_connection_memory": "4MiB", "max_calls_per_control_connection": 4,
                   "max_calls_per_client_connection": 20,
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

    def whole(self, connection, path, message, headers=b""):
        """Sends a call's only message, with a pause until there is room for all of it."""
        pieces = [frame(0, 0, 1, message[at:at + 10_000]) for at in range(0, len(message), 10_000)]
        connection.sendall(PREFACE + SETTINGS + call(path, headers=headers) + b"".join(pieces[:6]))
        if len(pieces) > 6:
            # gRPC gives as much as the message says that it needs, in one go or in two.
            room = 60_000
            while room < len(message):
                room += self.granted(connection.recv(65536))
            connection.sendall(b"".join(pieces[6:]))
        connection.sendall(frame(0, 1, 1, b""))

    @staticmethod
    def granted(data):
        """Room of the stream that WINDOW_UPDATE frames give."""
        sign, room, at = frame(8, 0, 1, b"")[3:9], 0, 0
        while (at := data.find(b"\0\0\4" + sign, at)) >= 0 and at + 13 <= len(data):
            room += int.from_bytes(data[at + 9:at + 13], "big")
            at += 13
        return room

    @contextlib.contextmanager
    def replaying(self):
        """Replays in a loop, every byte compared, and at least once as a whole meanwhile."""
        with harness.verified_replays(self, steps=3):
            yield
        self.assertTrue(all(peer["up"] for peer in self.cluster.overview(self.node)["peers"]))

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
    def test_messages(self):
        """One that is too long is refused, one that is cut is none, and neither reaches anybody."""
        for path, address in ((b"/rails.v1.SessionService/GetSession", self.node.sockets / "client.sock"),
                              (b"/rails.peer.v1.PeerService/Exchange", self.cluster.addresses.control(0))):
            for size, cut, answer in ((100_000, 0, b"limits.max_message: a message of 100000 bytes"),
                                      (100_000, 1, b"grpc-status"),
                                      (200_000, 0, b"Received message larger than max (200000 vs. 131072)")):
                with self.subTest(path, size=size, cut=cut), self.replaying():
                    before = self.refused("limits.max_message")
                    connection = self.connect(address)
                    field = b"\x7a" + varint(size - 4) + bytes(size - 4)  # that nobody knows
                    self.whole(connection, path, b"\0" + size.to_bytes(4, "big") + field[:len(field) - cut])
                    self.assertIn(answer, self.heard(connection, answer))
                    counted = b"limits.max_message" in answer
                    self.assertEqual(self.refused("limits.max_message") - before, counted)

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
        """Of a caller that has not acknowledged gRPC's settings, whom gRPC itself does not hold to them."""
        many = b"".join(literal(b"x%d" % number, b"y" * 10) for number in range(200))  # 200 * (14 + 32) bytes
        for path, address in ((b"/rails.v1.SessionService/GetSession", self.node.sockets / "client.sock"),
                              (b"/rails.v1.OperatorService/DrainNode", self.node.sockets / "operator.sock"),
                              (b"/grpc.health.v1.Health/Check", self.node.sockets / "client.sock"),
                              (b"/a/b", self.cluster.addresses.control(0)),
                              (b"/rails.peer.v1.PeerService/Exchange", self.cluster.addresses.control(0))):
            with self.subTest(path), self.replaying():
                before = self.refused("limits.max_headers")
                connection = self.connect(address)
                self.whole(connection, path, bytes(5), headers=many)
                answer = b"limits.max_headers: 200 headers of"
                self.assertIn(answer, self.heard(connection, answer))
                self.assertEqual(self.refused("limits.max_headers") - before, 1)
        self.assertEqual(self.sample(self.scrape(0), "railsd_draining"), 0)

    def test_calls_of_one_connection(self):
        """Of callers that have not acknowledged how many they may make: twice as many, the others are told so."""
        for kind, most, path, address in (
                ("control", 4, b"/rails.peer.v1.PeerService/Exchange", self.cluster.addresses.control(0)),
                ("client", 20, b"/grpc.health.v1.Health/Watch", self.node.sockets / "client.sock")):
            limit = f"limits.max_calls_per_{kind}_connection"
            with self.subTest(kind), self.replaying():
                before, greedy = self.refused(limit), self.connect(address)
                greedy.sendall(PREFACE + SETTINGS + b"".join(
                    call(path, stream) + (frame(0, 1, stream, bytes(5)) if kind == "client" else b"")
                    for stream in range(1, 4 * most + 4, 2)))
                harness.eventually(lambda limit=limit, before=before: self.refused(limit) - before == 2,
                                   "two over twice the limit")
                answer = f"{limit}: {2 * most + 1} calls at once".encode()
                self.assertIn(answer, self.heard(greedy, answer))
                self.ask(self.connect(address), 1, PREFACE + SETTINGS)
                self.assertEqual(self.refused(limit) - before, 2, "another connection has its own")

    def ask(self, connection, stream, before=b""):
        """One call, whole and answered."""
        connection.sendall(before + call(b"/grpc.health.v1.Health/Check", stream) + frame(0, 1, stream, bytes(5)))
        end = frame(1, 5, stream, b"")[3:]
        self.assertIn(end, self.heard(connection, end))

    def test_memory_of_one_connection(self):
        """Who brings more than a connection may, and never ends it, is closed before the memory of all is used up."""
        limit, most = "limits.max_connection_memory", 4 << 20
        before, address = self.refused(limit), self.cluster.addresses.control(0)
        honest = self.connect(address)
        honest.sendall(PREFACE + SETTINGS)
        with self.replaying():
            greedy, asked, sent = self.connect(address), 0, 0
            greedy.sendall(PREFACE + SETTINGS + call(b"/rails.peer.v1.PeerService/Exchange") +
                           frame(0, 0, 1, b"\0" + (1 << 30).to_bytes(4, "big")))
            room = 60_000
            with contextlib.suppress(ConnectionError):
                while sent < 3 * most:
                    while room < 64_000:
                        data = greedy.recv(65536)
                        if not data:
                            raise ConnectionResetError
                        room += self.granted(data)
                    greedy.sendall(4 * frame(0, 0, 1, bytes(16_000)))
                    room, sent = room - 64_000, sent + 64_000
                    time.sleep(0.05)  # its rise, against which ten looks a second are many, on a busy machine too
                    if sent % 640_000 == 0:
                        asked += 1
                        self.ask(honest, 2 * asked - 1)
            self.assertGreaterEqual(sent, most, "so much is everybody's right")
            self.assertLess(sent, 3 * most)
        harness.eventually(lambda: self.refused(limit) - before == 1, "the greedy one is counted")
        self.assertGreater(asked, 0)

    def test_requests_of_the_status_page(self):
        before = self.refused("limits.max_http_request")
        with self.replaying():
            connection = self.connect(self.cluster.addresses.metrics(0))
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n")
            self.heard(connection)
        harness.eventually(lambda: self.refused("limits.max_http_request") - before >= 1, "counted")


class Unseen(SlowTest):
    """On daemons that nobody else has called."""

    def test_messages_that_grpc_refuses(self):
        """What no method ever sees is missing among the calls that were taken."""
        def calls(what):
            return self.sample(self.scrape(0), f"railsd_grpc_calls_{what}_total", socket="client")
        harness.eventually(lambda: calls("begun") == calls("taken"), "nothing is under way")
        before = calls("begun"), calls("taken")
        for _ in range(3):
            connection = self.connect(self.node.sockets / "client.sock")
            self.whole(connection, b"/rails.v1.SessionService/GetSession",
                       b"\0" + (200_000).to_bytes(4, "big") + bytes(200_000))
            self.assertIn(b"larger than max", self.heard(connection, b"larger than max"))
        harness.eventually(lambda: (calls("begun"), calls("taken")) == (before[0] + 3, before[1]), "three are missing")


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
