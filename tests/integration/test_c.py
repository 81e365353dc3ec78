#!/usr/bin/env python3
"""The C interface: the example in C, the library by ctypes, what it shows and what it needs."""

import ctypes
import fcntl
import mmap
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import c_library as c
import harness
from harness import clusters

SOURCES = harness.ROOT / "client/c"


def library():
    return harness.BUILD / "client/c/librails.so"


def run(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **more).stdout


def compile_c(program, *sources, flags=()):
    run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{SOURCES}/include", *sources, "-o", program,
        *flags, f"-L{library().parent}", f"-Wl,-rpath,{library().parent}", "-lrails")


class Symbols(harness.unittest.TestCase):
    def test_exports_what_the_header_declares(self):
        shown = run("nm", "-D", "--defined-only", library()).split("\n")
        exported = sorted(line.split(" ", 1)[1] for line in shown if line and not line.endswith(" A RAILS_0"))
        golden = re.findall(r"^    (\w+);$", (SOURCES / "exports.map").read_text(), re.MULTILINE)
        header = re.sub(r"/\*.*?\*/", "", (SOURCES / "include/rails/rails.h").read_text(), flags=re.DOTALL)
        self.assertEqual(exported, [f"T {name}@@RAILS_0" for name in golden])
        self.assertEqual(sorted(re.findall(r"\b(rails_\w+)\(", header)), golden)

    def test_needs_the_system_only(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library()))
        others = [name for name in needed if not re.match(c.SYSTEM, name)]
        self.assertEqual(others, [], "was it built without its own Abseil and Protobuf? Run ./dev setup build")
        undefined = re.findall(r"[Uw] (\S+)", run("nm", "-D", "--undefined-only", library()))
        alien = [name for name in undefined if not re.search(r"@(GLIBC|GLIBCXX|CXXABI|GCC)_", name)]
        self.assertEqual(set(alien) - {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"},
                         set())
        self.assertEqual([name for name in undefined if "assert" in name], [], "a library must not end a trainer")


class CTest(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit")
    counter = 0

    def setUp(self):
        CTest.counter += 1
        self.rails = c.Library(library())

    def sockets(self, node):
        return self.cluster.nodes[node].sockets

    def client(self, node=0):
        client = self.rails.connect(self.sockets(node))
        self.addCleanup(self.rails.c.rails_close, client)
        return client

    def pair(self, **more):
        """Two clients on two nodes in one group: (client, group) of each rank."""
        clients, groups = [self.client(0), self.client(1)], [None, None]

        def join(rank):
            groups[rank] = self.rails.join(clients[rank], f"c{CTest.counter}", 2, rank, **more)
        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for group in groups:
            self.addCleanup(self.rails.c.rails_group_free, group)
        return list(zip(clients, groups))

    def submit(self, group, send, sends, receive, receives, **more):
        job = self.rails.all_to_all_v(group, send, sends, receive, receives, **more)
        self.addCleanup(self.rails.c.rails_job_free, job)
        return job

    def refused(self, code, *words, call):
        with self.assertRaises(c.RailsError) as caught:
            call()
        self.assertEqual(caught.exception.code, code, caught.exception)
        for word in words:
            self.assertIn(word, caught.exception.text)
        return caught.exception


class InC(CTest):
    def ranks(self, program, world, env=None):
        """Runs one process for each rank, over both daemons, and returns what they print."""
        processes = [subprocess.Popen([program, self.sockets(rank % 2), str(world), str(rank)], text=True, env=env,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(world)]
        for process in processes:
            self.addCleanup(process.kill)
        outputs = [process.communicate(timeout=harness.PATIENCE) for process in processes]
        for rank, (process, output) in enumerate(zip(processes, outputs)):
            self.assertEqual(process.returncode, 0, output)
            self.assertIn(f"rank {rank}: every byte is right\n", output[0])
        return outputs

    def test_the_example(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "all_to_all"
            compile_c(program, SOURCES / "examples/all_to_all.c")
            outputs = self.ranks(program, 4)
        self.assertEqual([output.count(" job ") for output, _ in outputs], [4, 4, 4, 4])

    @harness.unittest.skipUnless(shutil.which("rustc"), "no Rust compiler (Debian's package rustc)")
    def test_the_example_in_rust(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "all_to_all"
            run("rustc", "-Dwarnings", SOURCES / "examples/all_to_all.rs", "-o", program, "-L", library().parent,
                f"-Clink-arg=-Wl,-rpath,{library().parent}")
            self.ranks(program, 3)

    def test_a_program_that_has_every_inner_name(self):
        """Its functions of the names of our Abseil and Protobuf end the program; no binding crosses."""
        names = sorted(set(re.findall(r" [tTwW] (_ZN?K?(?:4absl|6google)\w+)$", run("nm", library()), re.MULTILINE)))
        self.assertGreater(len(names), 300)
        with tempfile.TemporaryDirectory() as folder:
            program, source = Path(folder) / "all_to_all", Path(folder) / "names.c"
            source.write_text("#include <stdlib.h>\n" + "".join(
                f'void f{i}(void) __asm__("{name}");\nvoid f{i}(void) {{ abort(); }}\n' for i, name in enumerate(names)))
            compile_c(program, source, SOURCES / "examples/all_to_all.c", flags=["-rdynamic"])
            self.assertGreater(run("nm", "-D", "--defined-only", program).count(" T _Z"), len(names) - 1)
            env = {**os.environ, "LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": f"{folder}/bindings", "LD_BIND_NOW": "1"}
            self.ranks(program, 2, env=env)
            bindings = c.bindings(Path(folder))
        ours = [each for each in bindings if "librails.so" in each[0]]
        self.assertGreater(len(ours), 50)
        crossing = {symbol for _, target, symbol in ours if not re.match(f"librails|{c.SYSTEM}", Path(target).name)}
        self.assertEqual(crossing - {"stderr"}, set())  # the C library's, which the program has a copy of
        self.assertEqual({symbol for source, target, symbol in bindings
                          if "librails.so" in target and not symbol.startswith("rails_")}, set())


class ByFfi(CTest):
    def test_bytes_by_lengths_with_an_offset(self):
        pair = self.pair()
        self.assertEqual([self.rails.c.rails_group_node(pair[0][1], rank) for rank in range(3)], [b"n0", b"n1", None])
        self.assertEqual(self.rails.c.rails_node(pair[1][0]), b"n1")
        sends, receives = [[100, 70000], [5000, 0]], [[100, 5000], [70000, 0]]
        jobs, memories = [], []
        for rank, (client, group) in enumerate(pair):
            send, receive = self.rails.alloc(client, 80000), self.rails.alloc(client, 80000)
            self.rails.bytes(send)[:] = bytes((rank + 3 * i) & 255 for i in range(80000))
            jobs.append(self.submit(group, send, sends[rank], receive, receives[rank], send_offset=7, receive_offset=11,
                                    tag=5, vote=9 - rank))
            memories.append(self.rails.bytes(receive))
            self.rails.c.rails_segment_free(send)  # the job keeps it
        self.assertEqual([self.rails.wait(job) for job in jobs], [1, 1])
        got0, got1 = memories
        self.assertEqual(got0[11:5111], bytes((3 * i) & 255 for i in range(7, 107)) +
                         bytes((1 + 3 * i) & 255 for i in range(7, 5007)))
        self.assertEqual(got1[11:70011], bytes((3 * i) & 255 for i in range(107, 70107)))
        self.assertEqual(bytes(got1[70011:]), bytes(80000 - 70011))
        self.assertEqual([self.rails.report(job).highest_vote for job in jobs], [9, 9])
        report = self.rails.report(jobs[0])
        self.assertEqual((report.seq, report.bytes_sent, report.bytes_received, report.rail_count),
                         (1, 70100, 5100, 2))
        self.assertEqual(sum(report.rail_tx_bytes[:2]) + report.eager_sent_bytes, 70000)

    def test_ranges_and_prepared_ones(self):
        pair = self.pair()
        jobs, prepared, memories = [], [], []
        for rank, (client, group) in enumerate(pair):
            send, receive = self.rails.alloc(client, 4096), self.rails.alloc(client, 4096)
            self.rails.bytes(send)[:] = bytes([rank * 16 + i // 256 for i in range(4096)])
            cuts = {1 - rank: [(send, 1024, 256), (send, 0, 256)]}
            layout = c.layout(cuts, {1 - rank: [(receive, 2048, 512)]})
            job = self.rails.make("rails_all_to_all_ranges", group, ctypes.byref(layout), None)
            jobs.append(job)
            prepared.append(self.rails.make("rails_prepare", group, ctypes.byref(layout), ctypes.c_int64(0)))
            memories.append(self.rails.bytes(receive))
        self.assertEqual([self.rails.wait(job) for job in jobs], [1, 1])
        for rank, memory in enumerate(memories):
            other = (1 - rank) * 16
            self.assertEqual(memory[2048:2560], bytes([other + 4] * 256 + [other] * 256))
            memory[:] = bytes(4096)
        length = c.lengths([300])
        jobs = [self.rails.make("rails_submit_prepared", each, length, length, None) for each in prepared]
        self.assertEqual([self.rails.wait(job) for job in jobs], [1, 1])
        for rank, memory in enumerate(memories):
            other = (1 - rank) * 16
            self.assertEqual(memory[2048:2560], bytes([other + 4] * 256 + [other] * 44 + [0] * 212))
        self.refused("INVALID_ARGUMENT", "600", "capacity of 512", call=lambda: self.rails.make(
            "rails_submit_prepared", prepared[0], c.lengths([600]), length, None))
        self.assertEqual([self.rails.report(job).seq for job in jobs], [2, 2])  # the refused one has taken no number
        for each in prepared:
            self.rails.c.rails_prepared_free(each)

    def test_urgent_jobs(self):
        """The daemon's own tests say what goes first; here the flag is taken, and every byte is right."""
        length, flags = 100_000, [0, 4]  # RAILS_JOB_URGENT
        pair, jobs, memories = self.pair(), [[], []], []
        for rank, (client, group) in enumerate(pair):
            send, receive = self.rails.alloc(client, length), self.rails.alloc(client, 2 * length)
            memories.append(self.rails.bytes(receive))
            self.rails.bytes(send)[:] = b"\x07" * length
            for number, flag in enumerate(flags):
                out, into = ([0, length], [0, 0]) if rank == 0 else ([0, 0], [length, 0])
                jobs[rank].append(self.submit(group, send, out, receive, into, receive_offset=number * length, flags=flag))
        for each in jobs:
            self.assertEqual([self.rails.wait(job) for job in each], [1, 1])
        self.assertEqual(memories[1], b"\x07" * 2 * length)
        self.refused("INVALID_ARGUMENT", "unknown bit",
                     call=lambda: self.submit(pair[0][1], None, [0, 0], None, [0, 0], flags=8))

    def test_memory_of_the_caller(self):
        fd = os.memfd_create("caller", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 8192)
        client = self.client()

        def make():
            return self.rails.make("rails_segment_import", client, fd, ctypes.c_uint64(8192), ctypes.c_int64(0))
        self.refused("INVALID_ARGUMENT", "F_SEAL_SHRINK", call=make)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        segment = make()
        with mmap.mmap(fd, 8192) as own:
            own[5] = 77
            self.assertEqual(self.rails.bytes(segment)[5], 77)
        os.close(fd)
        self.rails.c.rails_segment_free(segment)

    def test_a_descriptor_for_event_loops(self):
        pair = self.pair()
        client, group = pair[0]
        fd = ctypes.c_int32(-1)
        self.rails.call("rails_client_fd", client, ctypes.byref(fd))
        memory = [(self.rails.alloc(each, 64), self.rails.alloc(each, 64)) for each, _ in pair]
        job = self.submit(group, memory[0][0], [0, 64], memory[0][1], [0, 64])
        self.assertEqual(select.select([fd.value], [], [], 0)[0], [])
        self.assertEqual(self.rails.test(job), 0)
        self.submit(pair[1][1], memory[1][0], [64, 0], memory[1][1], [64, 0])
        self.assertEqual(select.select([fd.value], [], [], harness.PATIENCE)[0], [fd.value])
        self.assertEqual(int.from_bytes(os.read(fd.value, 8), sys.byteorder), 1)
        self.assertEqual(self.rails.test(job), 1)
        self.assertEqual(select.select([fd.value], [], [], 0)[0], [])

    def test_two_clients_on_threads(self):
        pair = self.pair()
        wrong = []

        def rank(number):
            client, group = pair[number]
            send, receive = self.rails.alloc(client, 10000), self.rails.alloc(client, 10000)
            for turn in range(20):
                self.rails.bytes(send)[:] = bytes([turn * 2 + number]) * 10000
                job = self.rails.all_to_all_v(group, send, [5000, 5000], receive, [5000, 5000])
                ended = self.rails.wait(job)
                if not ended or self.rails.bytes(receive) != bytes([turn * 2] * 5000 + [turn * 2 + 1] * 5000):
                    wrong.append((number, turn))
                self.rails.c.rails_job_free(job)
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_structures_of_older_and_newer_programs(self):
        client = self.client()

        class Newer(c.Sized):
            _fields_ = [*c.SegmentOptions._fields_, ("later", ctypes.c_uint64)]
        self.rails.make("rails_segment_alloc", client, ctypes.c_uint64(4096), ctypes.byref(Newer()))
        self.refused("INVALID_ARGUMENT", "byte 32", call=lambda: self.rails.make(
            "rails_segment_alloc", client, ctypes.c_uint64(4096), ctypes.byref(Newer(later=1))))
        older = c.SegmentOptions(flags=99)
        older.size = 8
        self.rails.make("rails_segment_alloc", client, ctypes.c_uint64(4096), ctypes.byref(older))
        older.size = 0
        self.refused("INVALID_ARGUMENT", "size is 0", call=lambda: self.rails.make(
            "rails_segment_alloc", client, ctypes.c_uint64(4096), ctypes.byref(older)))


class Errors(CTest):
    def test_mistakes_are_named(self):
        (client, group), _ = self.pair()
        send, receive = self.rails.alloc(client, 100), self.rails.alloc(client, 100)

        def submit(*arguments, **more):
            return lambda: self.submit(group, *arguments, **more)
        for code, words, call in (
                ("INVALID_ARGUMENT", ["sends[0]", "200", "past the end"], submit(send, [0, 200], receive, [0, 0])),
                ("INVALID_ARGUMENT", ["buffers->receive is NULL"], submit(send, [0, 1], None, [0, 1])),
                ("INVALID_ARGUMENT", ["2^64"], submit(send, [1, 1], receive, [0, 0], send_offset=2**64 - 1)),
                ("INVALID_ARGUMENT", ["timeout"], submit(send, [0, 1], receive, [0, 0], submit_timeout_ns=-1)),
                ("INVALID_ARGUMENT", ["client is NULL"], lambda: self.rails.alloc(None, 1)),
                ("INVALID_ARGUMENT", ["length_bytes is 0"], lambda: self.rails.alloc(client, 0)),
                ("RESOURCE_EXHAUSTED", [], lambda: self.rails.alloc(client, 1 << 50)),
                ("INVALID_ARGUMENT", ["recovery"], lambda: self.rails.join(client, "g", 1, 0, recovery=9)),
                ("INVALID_ARGUMENT", ["rank 3"], lambda: self.rails.join(client, "g", 3, 3)),
                ("DEADLINE_EXCEEDED", ["rank"], lambda: self.rails.join(client, "g", 2, 0, timeout_ns=c.SECOND // 5)),
                ("UNAVAILABLE", ["/nowhere/", "is railsd running"], lambda: self.rails.connect("/nowhere", 0.01))):
            error = self.refused(code, *words, call=call)
            self.assertEqual((error.ranks, error.node), ([1] if code == "DEADLINE_EXCEEDED" else [], None))

    def test_ends_of_jobs(self):
        (client, group), (_, other) = self.pair()
        send, receive = self.rails.alloc(client, 100), self.rails.alloc(client, 100)
        job = self.submit(group, send, [0, 100], receive, [0, 100])
        self.assertEqual(self.rails.wait(job, 0.05), 0)  # the other rank has not submitted
        self.refused("FAILED_PRECONDITION", "has not ended", call=lambda: self.rails.report(job))
        self.refused("FAILED_PRECONDITION", call=lambda: self.submit(group, send, [0, 100], receive, [0, 100]))
        self.rails.call("rails_job_cancel", job)
        for _ in range(2):
            self.assertEqual(self.refused("CANCELLED", call=lambda: self.rails.wait(job)).ended, 1)
        self.assertEqual(self.rails.report(job).seq, 1)
        late = self.submit(group, send, [0, 100], receive, [0, 100], timeout_ns=c.SECOND // 5)
        error = self.refused("DEADLINE_EXCEEDED", "rank 1 on n1", call=lambda: self.rails.wait(late))
        self.assertEqual((error.ended, error.ranks, error.node), (1, [1], "n1"))
        waiting = self.submit(group, send, [0, 100], receive, [0, 100])
        self.rails.call("rails_leave", other)
        error = self.refused("ABORTED", "left", call=lambda: self.rails.wait(waiting))
        self.assertEqual((error.ended, error.ranks, error.node), (1, [1], "n1"))
        self.refused("FAILED_PRECONDITION", call=lambda: self.submit(other, send, [0, 0], receive, [0, 0]))

    def test_a_forked_child(self):
        (client, group), (_, other) = self.pair()
        segment = self.rails.alloc(client, 4096)
        job = self.submit(group, segment, [0, 4096], None, [0, 0])

        def child():
            for call in (lambda: self.rails.wait(job), lambda: self.rails.alloc(client, 1),
                         lambda: self.rails.report(job), lambda: self.rails.join(client, "g", 1, 0),
                         lambda: self.rails.all_to_all_v(group, segment, [0, 0], segment, [0, 0]),
                         lambda: self.rails.call("rails_client_fd", client, ctypes.byref(ctypes.c_int32())),
                         lambda: self.rails.call("rails_leave", group)):
                self.refused("FAILED_PRECONDITION", str(os.getppid()), call=call)
            self.assertEqual(self.rails.c.rails_connected(client), 0)
            self.rails.bytes(segment)[9] = 9
            anew = self.rails.connect(self.sockets(0))
            self.rails.alloc(anew, 4096)
            for free, handle in (("job", job), ("segment", segment), ("group", group)):
                getattr(self.rails.c, f"rails_{free}_free")(handle)
            for each in (client, anew):
                self.rails.c.rails_close(each)
        pid = os.fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual((self.rails.c.rails_connected(client), self.rails.bytes(segment)[9]), (1, 9))
        received = self.rails.alloc(self.client(1), 1)  # a segment of another client
        self.refused("INVALID_ARGUMENT", "another client", call=lambda: self.submit(other, None, [0, 0], received, [1, 0]))


class Restart(CTest):
    def test_a_daemon_ends(self):
        (client, group), _ = self.pair()
        CTest.counter += 1
        _, (other, its_group) = self.pair()
        segment, its_segment = self.rails.alloc(client, 4096), self.rails.alloc(other, 1)
        job = self.submit(group, segment, [0, 4096], None, [0, 0])
        its_job = self.submit(its_group, its_segment, [1, 0], None, [0, 0])
        self.cluster.stop_node(self.cluster.nodes[0], signal.SIGKILL)
        error = self.refused("ABORTED", "n0", call=lambda: self.rails.wait(job))
        self.assertEqual(error.ended, 1)
        self.assertEqual(self.rails.report(job).bytes_sent, 0)
        error = self.refused("UNAVAILABLE", "n0", call=lambda: self.rails.wait(its_job))
        self.assertEqual((error.ended, error.ranks, error.node), (1, [0], "n0"))
        self.assertEqual(self.rails.c.rails_connected(client), 0)
        self.refused("UNAVAILABLE", "n0", call=lambda: self.rails.alloc(client, 1))
        self.cluster.start_node(self.cluster.nodes[0])
        self.rails.call("rails_reconnect", client)
        self.assertEqual(self.rails.c.rails_connected(client), 1)
        alone = self.rails.join(client, "alone", 1, 0)
        again = self.submit(alone, segment, [2048], segment, [2048], receive_offset=2048)
        self.assertEqual(self.rails.wait(again), 1)
        self.rails.c.rails_group_free(alone)


if __name__ == "__main__":
    harness.main()
