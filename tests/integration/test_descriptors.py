#!/usr/bin/env python3
"""Hostile descriptors, sent in every way that the descriptor socket has. Each is refused with the right status, counted
and closed; the daemon keeps none, and verified jobs run meanwhile."""

import array
import collections
import contextlib
import ctypes
import fcntl
import os
import re
import socket
import struct
import tempfile
import threading
from pathlib import Path

import harness
from harness import MIB, clusters

INVALID_ARGUMENT, RESOURCE_EXHAUSTED = 3, 8
SEAL_SEAL, SEAL_SHRINK, SEAL_WRITE, SEAL_FUTURE_WRITE = 1, 2, 8, 16
PUNCH_HOLE, KEEP_SIZE = 2, 1
MOST_IN_A_MESSAGE = 253  # the kernel's SCM_MAX_FD
PAGE = os.sysconf("SC_PAGE_SIZE")


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def field(number, value):
    """Encodes one field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def open_session(name=b"hostile"):
    return field(1, field(1, 1) + field(2, 1) + field(3, name))


def add_segment(number, length):
    return field(2, field(1, number) + field(2, length))


def memfd(length=MIB, seals=SEAL_SHRINK):
    """A memfd with this length and these seals."""
    descriptor = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, length)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class Client:
    """A client of the descriptor socket, made by hand. A context manager."""

    def __init__(self, sockets):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(harness.PATIENCE)
        self.socket.connect(str(sockets / "descriptors.sock"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data, descriptors=()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self.socket.sendmsg([data], rights if descriptors else [])

    def answer(self):
        """Code and message of the next answer; None if the connection was closed."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 4)
        except ConnectionError:
            return None
        for descriptor in descriptors:
            os.close(descriptor)
        if not data:
            return None
        code = message = None
        if data[:1] == b"\x08":
            code, data = data[1], data[2:]
        if data[:1] == b"\x12":
            length, rest = (data[1], data[2:]) if data[1] < 128 else (data[1] & 127 | data[2] << 7, data[3:])
            message = rest[:length].decode()
        return code or 0, message or ""

    def ask(self, data, descriptors=()):
        self.send(data, descriptors)
        return self.answer()


class Descriptors(harness.ClusterTest):
    QUOTA = {"sessions": 3, "segments": 4, "segment_bytes": "4MiB"}
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", sections={
        "tenants": [{"name": "main", "users": [str(os.getuid())]},
                    {"name": "box", "users": [str(os.getuid())], "quota": QUOTA}],
        "timeouts": {"peer_lost": "30s"}})

    def setUp(self):
        self.node = self.cluster.nodes[0]
        self.held = contextlib.ExitStack()
        self.addCleanup(self.held.close)
        self.wait_idle()
        harness.eventually(lambda: harness.footprint(self.node.pid)["mapped"] == 0, "segments of the last test are unmapped")
        self.before = self.kinds()
        self.sent = set()  # names in /proc of the sent descriptors

    def kinds(self):
        """The daemon's open descriptors by kind, without sockets, which gRPC and the metrics server open and close."""
        kinds = harness.footprint(self.node.pid)["descriptors"]
        return {kind: count for kind, count in kinds.items() if kind != "socket"}

    def own(self, descriptor):
        """Closes the descriptor at the end of the test, and remembers its name."""
        self.held.callback(os.close, descriptor)
        self.sent.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        return descriptor

    def left(self):
        """Sent descriptors that the daemon has open. All memfds share one name, and /dev/null may be open anyway."""
        names = []
        for entry in os.listdir(f"/proc/{self.node.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                names.append(os.readlink(f"/proc/{self.node.pid}/fd/{entry}"))
        return self.sent.intersection(names) - {"/dev/null", "anon_inode:[eventfd]", "anon_inode:[eventpoll]"}

    def counted(self, name="bad_packets"):
        return self.sample(self.scrape(0), f"railsd_descriptor_{name}_total")

    def session(self, own="main"):
        client = self.held.enter_context(Client(self.node.sockets / "tenants" / own))
        self.assertEqual(client.ask(open_session()), (0, ""))
        return client

    def assert_unharmed(self):
        """Checks that the daemon has none of the sent descriptors open, and that jobs run."""
        self.held.close()
        self.wait_idle()
        harness.eventually(lambda: self.kinds() == self.before and not self.left(),
                           lambda: f"open now: {self.kinds()}, before: {self.before}; of what was sent: {self.left()}")
        report = self.cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "1MiB", "--steps", 1)
        self.assertIs(report["verified"], True)

    def kinds_of_descriptors(self):
        """(name, descriptor, text of the refusal) of each kind."""
        folder = Path(self.held.enter_context(tempfile.TemporaryDirectory()))
        (folder / "file").write_bytes(bytes(MIB))
        pipe = os.pipe()
        self.own(pipe[1])
        unix, tcp = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET)
        writable = self.own(memfd())
        opened = [
            ("directory", os.open(folder, os.O_RDONLY), "not a memfd"),
            ("file", os.open(folder / "file", os.O_RDWR), "not a memfd"),
            ("unnamed file", os.open(folder, os.O_TMPFILE | os.O_RDWR), "not a memfd"),
            ("pipe", pipe[0], "not a memfd"),
            ("null device", os.open("/dev/null", os.O_RDWR), "not a memfd"),
            ("zero device", os.open("/dev/zero", os.O_RDWR), "not a memfd"),
            ("terminal", os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY), "not a memfd"),
            ("unix socket", unix.detach(), "not a memfd"),
            ("tcp socket", tcp.detach(), "not a memfd"),
            ("event counter", os.eventfd(0), "not a memfd"),
            ("process", os.pidfd_open(os.getpid()), "not a memfd"),
            ("proc file", os.open("/proc/self/mem", os.O_RDWR), "not a memfd"),
            ("path only", os.open(folder, os.O_PATH), "not open"),
            ("path of a memfd", os.open(f"/proc/self/fd/{writable}", os.O_PATH), "not open"),
            ("unsealed memfd", memfd(seals=0), "lacks F_SEAL_SHRINK"),
            ("memfd that takes no seals", os.memfd_create("hostile"), "lacks F_SEAL_SHRINK"),
            ("memfd sealed against seals only", memfd(seals=SEAL_SEAL), "lacks F_SEAL_SHRINK"),
            ("short memfd", memfd(length=MIB - 1), "is more than the memfd's 1048575 bytes"),
            ("empty memfd", memfd(length=0), "is more than the memfd's 0 bytes"),
            ("memfd sealed against writing", memfd(seals=SEAL_SHRINK | SEAL_WRITE), "sealed against writing"),
            ("memfd sealed against writing later", memfd(seals=SEAL_SHRINK | SEAL_FUTURE_WRITE),
             "sealed against writing"),
            ("memfd that may be read only", os.open(f"/proc/self/fd/{writable}", os.O_RDONLY), "reading and writing"),
        ]
        if os.access("/dev/shm", os.W_OK):  # the file system of memfds, but with a name
            opened.append(("file in shared memory", os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR),
                           "lacks F_SEAL_SHRINK"))
        return [(name, self.own(descriptor), says) for name, descriptor, says in opened]

    def test_each_kind(self):
        """Every descriptor that is no sealed memfd is refused, and the session goes on."""
        counted = self.counted()
        kinds = self.kinds_of_descriptors()
        client = self.session()
        with self.replaying():
            for name, descriptor, says in kinds:
                with self.subTest(name):
                    code, message = client.ask(add_segment(1, MIB), [descriptor])
                    self.assertEqual(code, INVALID_ARGUMENT, message)
                    self.assertIn(says, message)
        self.assertEqual(self.counted(), counted + len(kinds))
        self.assertEqual(client.ask(add_segment(1, MIB), [self.own(memfd())]), (0, ""))
        self.assert_unharmed()

    def test_files_that_shrink(self):
        """Files truncated before and after they were sent. A registered one cannot shrink: the kernel refuses."""
        client = self.session()
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), MIB)
            client.send(add_segment(1, MIB), [file.fileno()])
            os.ftruncate(file.fileno(), 0)
            self.assertEqual(client.answer()[0], INVALID_ARGUMENT)
        unsealed = self.own(memfd(seals=0))
        client.send(add_segment(1, MIB), [unsealed])
        os.ftruncate(unsealed, 0)
        self.assertEqual(client.answer()[0], INVALID_ARGUMENT)
        good = self.own(memfd())
        self.assertEqual(client.ask(add_segment(1, MIB), [good]), (0, ""))
        with self.assertRaises(PermissionError):
            os.ftruncate(good, MIB - 1)
        os.ftruncate(good, 2 * MIB)  # growing is harmless
        self.assert_unharmed()

    def test_floods(self):
        """Clients that send without end (requests, noise, nothing) and never read an answer."""
        null = self.own(os.open("/dev/null", os.O_RDWR))
        good = self.own(memfd(PAGE))
        bodies = {"requests": add_segment(1, PAGE), "noise": b"\xff" * 100, "long": bytes(1 << 16)}
        sent = collections.Counter()

        def flood(body, count):
            with Client(self.node.sockets) as client, contextlib.suppress(OSError):
                client.socket.settimeout(0.5)
                client.send(open_session())
                for number in range(200):
                    client.send(body, [good if number % 3 else null] * count)
                    sent[count] += 1
        with self.replaying():
            for _ in range(3 if harness.SLOW else 20):
                for body in bodies.values():
                    for count in (1, 16, 17, MOST_IN_A_MESSAGE):
                        flood(body, count)
        self.assertTrue(all(sent[count] > 0 for count in (1, 16, 17, MOST_IN_A_MESSAGE)), sent)
        self.assertLess(sum(self.kinds().values()), sum(self.before.values()) + 1000, "none are kept")
        self.assert_unharmed()

    def test_descriptors_that_wait_unread(self):
        """Descriptors queue in a socket that the daemon does not read: on a connection without a session, behind an
        answer that nobody reads, and inside a socket that is itself sent, in a ring."""
        null = self.own(os.open("/dev/null", os.O_RDWR))
        with self.replaying():
            for own in ("main", "box"):
                client = self.session(own)
                client.socket.settimeout(0)
                with contextlib.suppress(OSError):
                    for _ in range(1000):
                        client.send(add_segment(1, MIB), [null] * 16)
            for _ in range(50):
                left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with left, right:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [left.fileno(), right.fileno()]))]
                    left.sendmsg([b"x"], rights)
                    right.sendmsg([b"x"], rights)
                    client = self.session()
                    self.assertEqual(client.ask(add_segment(1, MIB), [left.fileno()])[0], INVALID_ARGUMENT)
                    client.socket.close()
        self.assert_unharmed()

    def lingering(self):
        """A socket whose close waits ten minutes for a peer that does not read."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.held.callback(listener.close)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        out = socket.create_connection(listener.getsockname())
        deaf, _ = listener.accept()
        self.held.callback(deaf.close)
        out.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                out.send(bytes(1 << 16))
        out.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
        return out

    def test_sockets_that_linger(self):
        """The last process that closes such a socket blocks. The daemon must not: others open sessions meanwhile."""
        for count, body in ((1, add_segment(1, MIB)), (16, add_segment(1, MIB)), (MOST_IN_A_MESSAGE, b"noise"), (1, b"")):
            with self.subTest(count=count, body=body):
                client = self.session()
                out = self.lingering()
                # The rest waits while the daemon handles these, so the daemon closes the socket last.
                first = self.own(memfd(PAGE))
                for number in range(3):
                    client.send(add_segment(number, PAGE), [first])
                client.send(body, [out.fileno()] * count)
                with contextlib.suppress(BrokenPipeError):  # noise may already have ended the connection
                    client.send(b"")  # looks like the end
                    client.send(body, [out.fileno()])
                out.close()
                client.socket.close()
                self.session().socket.close()
        self.assert_unharmed()

    def test_over_every_quota(self):
        """Segments over a quota are refused, and their descriptors are closed."""
        box = self.session("box")
        refused = {}
        for number in range(4):
            self.assertEqual(box.ask(add_segment(number, MIB // 2), [self.own(memfd())]), (0, ""))
        refused["segments"] = box.ask(add_segment(9, MIB // 2), [self.own(memfd())])
        refused["segment_bytes"] = self.session("box").ask(add_segment(1, 3 * MIB), [self.own(memfd(3 * MIB))])
        self.session("box")
        refused["sessions"] = self.held.enter_context(Client(self.node.sockets / "tenants" / "box")).ask(open_session())
        self.assertEqual(refused["segments"][0], RESOURCE_EXHAUSTED, refused)
        self.assertEqual({code for code, _ in refused.values()}, {RESOURCE_EXHAUSTED}, refused)
        with self.replaying():
            for number in range(200):
                self.assertEqual(box.ask(add_segment(10 + number, PAGE), [self.own(memfd(PAGE))])[0], RESOURCE_EXHAUSTED)
        self.assertIn(box.ask(add_segment(1, MIB), [self.own(memfd())])[0], (6, RESOURCE_EXHAUSTED), "a number twice")
        self.assertLessEqual(harness.footprint(self.node.pid)["descriptors"].get("/memfd:hostile (deleted)", 0), 4)
        self.assert_unharmed()


class Holes(harness.ClusterTest):
    """Pages are removed under running jobs. The daemon then reads zeros or gets an error, but no signal."""

    def test_holes_in_both_ends(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
        trainers = [self.trainer(rank) for rank in range(2)]
        for rank, trainer in enumerate(trainers):
            trainer.segment("s", 16 * MIB, seed=rank + 1)
            trainer.segment("r", 16 * MIB)
        for answer in harness.join(trainers, "holes"):
            self.assertTrue(answer["ok"], answer)
        memory = [os.open(f"/proc/{trainer.pid}/fd/{name}", os.O_RDWR) for trainer in trainers
                  for name in os.listdir(f"/proc/{trainer.pid}/fd")
                  if re.match("/memfd:", os.readlink(f"/proc/{trainer.pid}/fd/{name}"))]
        for descriptor in memory:
            self.addCleanup(os.close, descriptor)
        self.assertEqual(len(memory), 4)
        stop, punched = threading.Event(), collections.Counter()

        def punch():
            while not stop.is_set():
                for descriptor in memory:
                    size = os.fstat(descriptor).st_size
                    done = libc.fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, 0, size) == 0
                    punched[done] += 1
        thread = threading.Thread(target=punch)
        thread.start()
        try:
            for job in range(5):
                self.exchange(trainers, f"punched{job}")
            report = self.cluster.replay("--verify", "--workload", "uniform", "--bytes-per-rank", "4MiB", "--steps", 2)
            self.assertIs(report["verified"], True, "others do not notice")
        finally:
            stop.set()
            thread.join()
        self.assertGreater(punched[True], 0)
        self.assertEqual(punched[False], 0)
        for rank, trainer in enumerate(trainers):
            trainer.must(do="fill", name="s", offset=0, bytes=16 * MIB, seed=rank + 11)
        self.exchange(trainers, "whole")
        for rank, trainer in enumerate(trainers):
            self.assertEqual(trainer.wrong_bytes("r", 0, 16 * MIB, seed=12 - rank), 0)

    def exchange(self, trainers, job):
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="submit", group="holes", job=job, sends={other: [["s", 0, 16 * MIB]]},
                         receives={other: [["r", 0, 16 * MIB]]})
        for trainer in trainers:
            self.assertEqual(trainer.must(do="wait", job=job)["code"], "OK")


if __name__ == "__main__":
    harness.main()
