"""Tools that the integration tests share: clusters of real daemons, controlled trainers, and waits for conditions.

Each test file ends with `harness.main()`; `--build DIR` names the build that is tested, `--seed N` repeats a random
test. The tests measure no time. Every wait is for a condition, with a deadline that only a broken program reaches.
"""

import argparse
import collections
import contextlib
import ctypes
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import cluster as clusters  # noqa: E402  (found by the line above)
import lab as labs  # noqa: E402

BUILD = ROOT / "build/release"
SEED = random.SystemRandom().randrange(1 << 32)
PATIENCE = 60.0  # seconds to wait for a condition
SLOW = False  # a sanitizer build, several times slower: repeat less
MIB = 1 << 20


def eventually(condition, what, patience=None):
    """Waits until `condition()` is true and returns its value."""
    deadline = time.monotonic() + (patience or PATIENCE)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"never happened: {what() if callable(what) else what}")
        time.sleep(0.02)


def trainer_program():
    return BUILD / "tests/integration/rails_test_trainer"


class TrainerServer:
    """Starts trainers by forking, which is much faster than starting a program. A context manager."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="railsd-trainers-")
        self._path = f"{self._folder.name}/socket"
        self._process = subprocess.Popen([trainer_program(), "--serve", self._path], stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, text=True, start_new_session=True)
        if self._process.stdout.readline() != "serving\n":
            raise AssertionError(f"the trainers' server ended with {self._process.wait()}")

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return connection

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


class Trainer:
    """A process that uses the client library as commanded. A context manager that kills the process on exit."""

    def __init__(self, node=None, server=None, command=()):
        self.process = None
        if server is not None:
            with server.connect() as connection:
                self.input, self.output = connection.makefile("w"), connection.makefile("r")
            self.pid = self.receive()["pid"]
        else:
            self.process = subprocess.Popen(command or [trainer_program()], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, text=True, start_new_session=True)
            self.input, self.output, self.pid = self.process.stdin, self.process.stdout, self.process.pid
        if node is not None:
            self.must(do="connect", socket_dir=str(node.sockets))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def send(self, **command):
        """Sends a command without waiting for the answer."""
        self.input.write(json.dumps(command) + "\n")
        self.input.flush()

    def receive(self):
        line = self.output.readline()
        if not line:
            raise AssertionError(f"the trainer ended with {self.process.wait() if self.process else 'no word'}")
        return json.loads(line)

    def do(self, **command):
        self.send(**command)
        return self.receive()

    def must(self, **command):
        answer = self.do(**command)
        if not answer["ok"]:
            raise AssertionError(f"{command}: {answer}")
        return answer

    def segment(self, name, length, seed=None):
        self.must(do="segment", name=name, bytes=length)
        if seed is not None:
            self.must(do="fill", name=name, offset=0, bytes=length, seed=seed)

    def wrong_bytes(self, name, offset, length, seed):
        return self.must(do="check", name=name, offset=offset, bytes=length, seed=seed)["wrong"]

    def kill(self):
        if self.pid is None:
            return
        if self.process is None or self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(self.pid)
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                select.select([handle], [], [])  # waits until the process has ended
                os.close(handle)
        if self.process is not None:
            self.process.wait()
        self.pid = None
        for stream in (self.input, self.output):
            with contextlib.suppress(OSError):  # unsent commands
                stream.close()


def join(trainers, group, key=""):
    """Makes all trainers join one group, in rank order. Returns their answers."""
    for rank, trainer in enumerate(trainers):
        trainer.send(do="join", group=group, world=len(trainers), rank=rank, key=key)
    return [trainer.receive() for trainer in trainers]


@contextlib.contextmanager
def thread_stopped(pid, name):
    """Stops the thread `name` of a process by ptrace(2); its other threads go on. Needs root, or the process's parent.
    Yields a function to call repeatedly if the process may end meanwhile: the kernel keeps a traced thread for its
    tracer."""
    libc = ctypes.CDLL(None, use_errno=True)
    tasks = Path(f"/proc/{pid}/task")
    thread = next(int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == name)
    wall = 0x40000000  # __WALL

    def ptrace(request):
        if libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace({request:#x})")

    def reap():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(thread, wall | os.WNOHANG)
    ptrace(0x4206)  # PTRACE_SEIZE
    ptrace(0x4207)  # PTRACE_INTERRUPT
    os.waitpid(thread, wall)
    try:
        yield reap
    finally:
        with contextlib.suppress(ProcessLookupError):
            ptrace(17)  # PTRACE_DETACH


@contextlib.contextmanager
def meanwhile(step):
    """Calls `step` again and again in a thread while the block runs. Yields a function that raises what a step has
    raised; so does the end of the block."""
    stop, errors = threading.Event(), []

    def loop():
        while not stop.is_set() and not errors:
            try:
                step()
            except Exception as error:  # an exception of a thread would be lost
                errors.append(error)

    def check():
        if errors:
            raise errors[0]
    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield check
    finally:
        stop.set()
        thread.join()
    check()


def footprint(pid):
    """Resources of a process: descriptors by kind, its own threads by name, mapped shared memory."""
    descriptors, threads = collections.Counter(), collections.Counter()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
        descriptors[re.sub(r":\[\d+\]$|\d+$", "", target)] += 1
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            name = Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if not re.match(r"grpc|default-executo|resolver-execu|event_engine|timer", name):
            threads[name] += 1
    mapped = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/memfd:" in line]
    return {"descriptors": dict(descriptors), "threads": dict(threads), "mapped": len(mapped)}


def settled_footprint(pid):
    """footprint(), once the threads of a daemon that has just started have taken their names."""
    first = 2 if SLOW else 1  # the main thread, and one that some sanitizers add
    return eventually(lambda: (held := footprint(pid))["threads"].get("railsd", 0) <= first and held, lambda: footprint(pid))


class ClusterTest(unittest.TestCase):
    """Tests that share one cluster with the shape `settings`."""

    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit")
    addresses = None  # a class like clusters.Loopback

    @classmethod
    def setUpClass(cls):
        cls.cluster = clusters.Cluster(cls.settings, build=BUILD, addresses=cls.addresses() if cls.addresses else None)
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        statuses = {node.name: cls.cluster.stop_node(node) for node in cls.cluster.nodes}
        logs = cls.cluster.logs()
        cls.cluster.stop()
        bad = {name: status for name, status in statuses.items() if status != 0}
        if bad:
            raise AssertionError(f"daemons ended with {bad}\n{logs}")

    def run(self, result=None):
        before = len(result.failures) + len(result.errors) if result else 0
        super().run(result)
        if result and len(result.failures) + len(result.errors) > before:
            print(f"{self.id()}: logs\n{self.cluster.logs()}", file=sys.stderr)

    def trainer(self, node):
        """A trainer connected to daemon `node`. Killed at the end of the test."""
        trainer = Trainer(self.cluster.nodes[node])
        self.addCleanup(trainer.kill)
        return trainer

    def status(self, node):
        return self.cluster.overview(self.cluster.nodes[node])["status"]

    def idle(self, node):
        """True if the daemon holds no session, no group and no job."""
        status = self.status(node)
        return not status["sessions"] and not status["groups"] and not int(status["jobs_active"])

    def scrape(self, node):
        """The daemon's answer to a scrape, whole: it lacks families while the daemon's engine is too late."""
        address = self.cluster.addresses.metrics(node)

        def whole():
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
                text = answer.read().decode()
            return None if "\nrailsd_scrape_failed 1\n" in text else text
        return eventually(whole, f"n{node} answers a scrape in time")

    def sample(self, text, name, **labels):
        """Sum of the samples of one metric with these labels."""
        lines = [line for line in text.split("\n") if re.match(rf"{name}[ {{]", line) and
                 all(f'{key}="{value}"' in line for key, value in labels.items())]
        self.assertTrue(lines, f"no {name} {labels} in\n{text}")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def check_replay(self, report):
        """Every byte between nodes was right, and is counted once in each direction: by a rail, or as eager."""
        self.assertIs(report["verified"], True)
        self.assertGreater(report["bytes"], 0)
        for direction in ("tx_bytes", "rx_bytes"):
            rails = sum(rail[direction] for rail in report["rails"])
            self.assertEqual(rails + report["eager"][direction], report["bytes"], report["rails"])
        return report

    @contextlib.contextmanager
    def replaying(self, *arguments):
        """Replays, one after the other, while the block runs, at least one to its end; all are checked. Yields a function
        that counts those that have ended."""
        arguments = arguments or ("--workload", "uniform", "--bytes-per-rank", "2MiB", "--steps", 2)
        reports = []

        def replay():
            reports.append(self.cluster.replay("--verify", "--seed", SEED + len(reports), *arguments))

        def ended():
            check()
            return len(reports)
        with meanwhile(replay) as check:
            yield ended
            eventually(ended, "a replay ended", patience=300)
        for report in reports:
            self.check_replay(report)

    def another(self, ended, more=2):
        """Waits until so many more replays have ended: the second one began after now."""
        count = ended() + more
        eventually(lambda: ended() >= count, "a replay ended", patience=300)

    def wait_idle(self):
        for node in range(len(self.cluster.nodes)):
            eventually(lambda node=node: self.idle(node), lambda node=node: f"n{node} idle: {self.status(node)}")


class FabricTest(ClusterTest):
    """Tests that share one cluster in network namespaces, whose rails have the speed of `settings`. Needs root."""

    @classmethod
    def setUpClass(cls):
        fabric = contextlib.ExitStack()
        cls.addClassCleanup(fabric.close)
        shape = cls.settings
        try:
            cls.lab = fabric.enter_context(labs.Lab(nodes=shape.nodes, rails=shape.rails, rate=shape.speed))
        except labs.LabError as error:
            raise unittest.SkipTest(str(error)) from error
        cls.cluster = clusters.Cluster(shape, build=BUILD, addresses=cls.lab)
        cls.cluster.__enter__()


@contextlib.contextmanager
def race_reports():
    """Yields a list that finally holds ThreadSanitizer's reports of all processes started meanwhile. Exit statuses do
    not suffice, because some processes are killed or not waited for. Empty in builds without it."""
    reports = []
    with tempfile.TemporaryDirectory(prefix="railsd-races-") as folder:
        os.environ["TSAN_OPTIONS"] = f"{os.environ.get('TSAN_OPTIONS', '')}:log_path={folder}/report"
        yield reports
        reports += [path.read_text(errors="replace") for path in sorted(Path(folder).iterdir())]


class TimedResult(unittest.TextTestResult):
    """Prints the time of cases that take more than a second."""

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        seconds = time.monotonic() - self.began
        if seconds > 1:
            self.stream.writeln(f"    {seconds:.1f} s")


class TimedRunner(unittest.TextTestRunner):
    resultclass = TimedResult


def main():
    global BUILD, SEED, SLOW
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build", default=str(BUILD))
    parser.add_argument("--seed", type=int, default=SEED)
    options, rest = parser.parse_known_args()
    # Sets the globals of the module `harness`, as which tests import this file.
    BUILD, SEED = Path(options.build).resolve(), options.seed
    cache = BUILD / "CMakeCache.txt"
    SLOW = cache.exists() and bool(re.search(r"^RAILSD_SANITIZE:\w+=.+", cache.read_text(), re.MULTILINE))
    print(f"seed {SEED}", file=sys.stderr)
    with race_reports() as reports:
        tests = unittest.main(module="__main__", argv=[sys.argv[0], *rest], exit=False,
                              testRunner=TimedRunner)
    for report in reports:
        print(f"FAIL: a process had a data race\n{report}", file=sys.stderr)
    sys.exit(0 if tests.result.wasSuccessful() and not reports else 1)
