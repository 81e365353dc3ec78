#!/usr/bin/env python3
"""The demo as people run it: its output, and that it leaves no process however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import unittest

import harness

DEMO = [sys.executable, str(harness.ROOT / "bench/demo.py"), "--steps", "1", "--bytes-per-rank", "2MiB"]


def processes_of(session_leader_pids):
    """The processes of the list that still run."""
    return [pid for pid in session_leader_pids if os.path.exists(f"/proc/{pid}/exe")]


def descendants(root):
    """All running descendants of the process `root`."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                    parent = int(stat.read().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found, todo = [], [root]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


class Demo(unittest.TestCase):
    def start(self, *arguments):
        process = subprocess.Popen([*DEMO, "--build", str(harness.BUILD), *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def test_prints_the_balance(self):
        process = self.start()
        out, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        for word in ("every byte verified: yes", "measured, lpt", "planned, pinned"):
            self.assertIn(word, out)

    def test_json(self):
        process = self.start("--json")
        out, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        report = json.loads(out)
        self.assertIs(report["replay"]["verified"], True)
        self.assertGreaterEqual(report["plan"]["pinned"]["tx_max_over_mean"],
                                report["plan"]["lpt"]["tx_max_over_mean"])

    def test_interrupted_at_any_point_it_leaves_nothing(self):
        for number, (how, marker) in enumerate(((signal.SIGINT, "starting"), (signal.SIGTERM, "replaying"),
                                                (signal.SIGINT, "replaying"), (signal.SIGHUP, "starting"))):
            with self.subTest(number=number, signal=how, after=marker):
                process = self.start("--steps", "200")
                while marker not in (line := process.stderr.readline()):
                    self.assertTrue(line, "the demo ended too early")
                started = harness.eventually(lambda: [pid for pid in descendants(process.pid)], "a child")
                process.send_signal(how)
                started = set(started) | set(descendants(process.pid))
                self.assertEqual(process.wait(timeout=60), 128 + how)
                harness.eventually(lambda started=started: not processes_of(started),
                                   lambda started=started: f"gone: {processes_of(started)}")

    def test_killed_it_leaves_nothing(self):
        process = self.start("--steps", "200")
        while "replaying" not in (line := process.stderr.readline()):
            self.assertTrue(line, "the demo ended too early")
        started = descendants(process.pid)
        self.assertGreaterEqual(len(started), 4)
        process.kill()
        harness.eventually(lambda: not processes_of(started), lambda: f"gone: {processes_of(started)}")

    def test_keep_says_how_to_look_and_to_stop(self):
        process = self.start("--keep")
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, errors)
        pids = [int(pid) for pid in re.search(r"^  kill ([\d ]+)$", errors, re.MULTILINE)[1].split()]
        self.assertEqual(len(processes_of(pids)), 4)
        folder = re.search(r"their files are in (\S+)", errors)[1]
        try:
            command = re.search(r"^  (\S+railsctl status .*)$", errors, re.MULTILINE)[1].split()
            self.assertEqual(subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode, 0)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
        harness.eventually(lambda: not processes_of(pids), "the kept daemons stop")
        subprocess.run(["rm", "-rf", folder], check=False)


if __name__ == "__main__":
    harness.main()
