#!/usr/bin/env python3
"""`railsctl top` in a real terminal (tmux) beside real daemons under a replay, and its one frame for scripts."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

import harness
from harness import clusters, eventually

COLUMNS, ROWS = 80, 24


class Terminal:
    """A terminal of 80 x 24 with a shell, in its own tmux server. A context manager."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="railsd-tmux-")
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-s", "top",
                  "env", "PS1=$ ", "sh")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tmux("kill-server")
        self._folder.cleanup()

    def tmux(self, *arguments):
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        run = subprocess.run(["tmux", "-u", "-S", f"{self._folder.name}/socket", *arguments], text=True, timeout=60,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, env=environment)
        if run.returncode != 0:
            raise AssertionError(f"tmux {arguments}: {run.stderr}")
        return run.stdout

    def type(self, text):
        self.tmux("send-keys", "-t", "top", "-l", text)

    def press(self, key):
        self.tmux("send-keys", "-t", "top", key)

    def show(self, *options):
        return self.tmux("capture-pane", "-p", *options, "-t", "top")

    def asks(self, form):
        return self.tmux("display-message", "-p", "-t", "top", form).strip()

    def on_alternate_screen(self):
        return self.asks("#{alternate_on}") == "1"


class Top(harness.ClusterTest):
    settings = clusters.Settings(nodes=3, rails=4, speed="200mbit")

    def setUp(self):
        if not shutil.which("tmux"):
            self.skipTest("tmux is not installed (Debian's package tmux)")
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.replays)
        self.thread.start()
        self.addCleanup(self.thread.join)
        self.addCleanup(self.end.set)

    def replays(self):
        while not self.end.is_set():
            self.cluster.replay("--no-verify", "--workload", "uniform", "--bytes-per-rank", "4MiB", "--steps", 10)

    def sees(self, terminal, *words):
        """Waits until all words are on the screen, checks that no line is too long, and returns the screen."""
        def all_there():
            shown = terminal.show()
            return shown if all(word in shown for word in words) else None
        shown = eventually(all_there, lambda: f"{words} in\n{terminal.show()}")
        self.assertLessEqual(len(shown.splitlines()), ROWS)
        for line in shown.splitlines():
            self.assertLessEqual(len(line), COLUMNS, line)
        return shown

    def command(self, *arguments):
        return " ".join(map(str, [self.cluster.railsctl, "top", "--interval", "300ms", *arguments]))

    def test_live(self):
        with Terminal() as terminal:
            node = self.cluster.nodes[0]
            terminal.type("echo before the show\n")
            terminal.type(self.command("--socket-dir", node.sockets) + "\n")
            shown = self.sees(terminal, "n0: 4 of 4 rails up, ", "sending ", "RAIL ", "BALANCE", "PEER ", "JOB ", "█",
                              "q quits")
            self.assertTrue(terminal.on_alternate_screen())
            for rail in range(4):
                self.assertRegex(shown, rf"(?m)^rail{rail}  up .* 200 Mbit/s$")
            for peer in ("n1", "n2"):
                self.assertRegex(shown, rf"(?m)^{peer}  ")
            # A drained rail is shown as drained, until it is undrained.
            self.addCleanup(self.cluster.ctl, node, "undrain", "rail2")
            self.cluster.ctl_json(node, "drain", "rail2")
            self.sees(terminal, "n0: 3 of 4 rails up (rail2 DRAINED), ")
            eventually(lambda: re.search(r"(?m)^rail2  DRAINED .*\n +\S.*$", terminal.show()), terminal.show)
            self.cluster.ctl_json(node, "undrain", "rail2")
            self.sees(terminal, "n0: 4 of 4 rails up, ")
            # Pause and continue; another interval; a smaller terminal; then quit.
            terminal.type("p")
            still = self.sees(terminal, "PAUSED")
            terminal.type("2")
            self.sees(terminal, "PAUSED", "every 2s")
            self.assertEqual(still.splitlines()[:20], terminal.show().splitlines()[:20])
            terminal.type("p")
            eventually(lambda: "PAUSED" not in terminal.show(), "it goes on")
            terminal.tmux("resize-window", "-t", "top", "-x", "60", "-y", "8")
            eventually(lambda: "more rails" in terminal.show(), "it fits the smaller terminal")
            self.assertTrue(all(len(line) <= 60 for line in terminal.show().splitlines()))
            self.assertIn("q quits", terminal.show())
            terminal.tmux("resize-window", "-t", "top", "-x", str(COLUMNS), "-y", str(ROWS))
            self.sees(terminal, "RAIL ", "JOB ")
            terminal.type("q")
            # The shell echoes nothing that is typed before it has its terminal back.
            eventually(lambda: terminal.show().rstrip().endswith("$"), "the shell's prompt")
            terminal.type("echo $((6 * 7)) and $?\n")
            self.sees(terminal, "before the show", "echo $((6 * 7))", "42 and 0")
            self.assertFalse(terminal.on_alternate_screen())
            self.assertEqual(terminal.asks("#{cursor_flag}"), "1")

    def test_signals_give_the_terminal_back(self):
        with Terminal() as terminal:
            terminal.type("ulimit -c 0\n")
            command = self.command("--no-color", "--socket-dir", self.cluster.nodes[0].sockets)
            for key, says in (("C-c", f"ended {128 + signal.SIGINT}"), ("C-\\", f"ended {128 + signal.SIGQUIT}")):
                terminal.type(f"clear; {command}\n")
                self.sees(terminal, "4 of 4 rails up")
                self.assertNotIn("\x1b[3", terminal.show("-e"))
                terminal.press(key)
                eventually(lambda: not terminal.on_alternate_screen(), "the terminal is as it was")
                terminal.type("echo ended $?\n")
                self.sees(terminal, says)
            # The shell stops and continues top.
            terminal.type(f"clear; set -m; {command}\n")
            self.sees(terminal, "4 of 4 rails up")
            terminal.press("C-z")
            eventually(lambda: not terminal.on_alternate_screen(), "the shell has the terminal")
            terminal.type("echo $((6 * 7))\n")
            self.sees(terminal, "42")
            terminal.type("fg\n")
            eventually(terminal.on_alternate_screen, "it is there again")
            self.sees(terminal, "4 of 4 rails up")
            terminal.type("q")
            terminal.type("echo ended $?\n")
            self.sees(terminal, "ended 0")

    def test_a_daemon_that_does_not_answer(self):
        with Terminal() as terminal:
            node = self.cluster.nodes[2]
            dirs = f"{self.cluster.nodes[0].sockets},{node.sockets}"
            terminal.type(self.command("--nodes", dirs) + "\n")
            self.sees(terminal, "> n0: 4 of 4", "  n2: 4 of 4")
            terminal.type("n")
            self.sees(terminal, "  n0: 4 of 4", "> n2: 4 of 4")
            self.end.set()
            self.thread.join()
            self.cluster.stop_node(node)
            self.addCleanup(self.cluster.wait_ready)
            self.addCleanup(lambda: node.running() or self.cluster.start_node(node))
            self.sees(terminal, "n2: NO ANSWER for", ", trying again; below is its last answer", "operator.sock", "rail3")
            terminal.type("n")
            self.sees(terminal, "> n0: 4 of 4 rails up", "1 of 2 peers up")
            self.cluster.start_node(node)
            self.cluster.wait_ready()
            terminal.type("n")
            self.sees(terminal, "> n2: 4 of 4")
            terminal.type("q")
            eventually(lambda: not terminal.on_alternate_screen(), "q ends it")

    def test_once(self):
        node = self.cluster.nodes[1]
        run = self.cluster.ctl(node, "top", "--once")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertTrue(run.stdout.startswith("n1: 4 of 4 rails up, "), run.stdout)
        self.assertNotRegex(run.stdout, r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        for line in run.stdout.splitlines():
            self.assertLessEqual(len(line), COLUMNS, line)

        def moving():
            report = self.cluster.ctl_json(node, "top", "--once", "--interval", "300ms")
            return report if all(rail["tx_bytes_per_second"] > 0 for rail in report["rates"]["rails"]) else None
        report = eventually(moving, "every rail of n1 moves")
        self.assertGreater(report["rates"]["seconds"], 0.2)
        self.assertEqual([rail["name"] for rail in report["rates"]["rails"]], [f"rail{r}" for r in range(4)])
        self.assertEqual([peer["node"] for peer in report["rates"]["peers"]], ["n0", "n2"])
        self.assertEqual([len(peer["rail_tx_bytes_per_second"]) for peer in report["rates"]["peers"]], [4, 4])
        self.assertEqual(report["status"]["node"], "n1")
        self.assertIn("4 of 4 rails up", report["verdict"])

    def test_once_where_nobody_answers(self):
        run = subprocess.run([self.cluster.railsctl, "top", "--once", "--socket-dir", "/nonexistent"], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual((run.returncode, run.stdout), (3, ""))
        self.assertIn("/nonexistent", run.stderr)
        run = subprocess.run([self.cluster.railsctl, "top", "--once", "--json", "--interval", "100ms", "--nodes",
                              f"{self.cluster.nodes[0].sockets},/nonexistent"], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, timeout=60, check=False)
        nodes = json.loads(run.stdout)["nodes"]
        self.assertEqual((run.returncode, nodes[0]["status"]["node"], nodes[1]["error"]["code"]),
                         (3, "n0", "UNAVAILABLE"))

    def test_without_a_terminal(self):
        command = [self.cluster.railsctl, "top", "--interval", "100ms", "--socket-dir", self.cluster.nodes[0].sockets]
        with clusters.running([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
            for _ in range(2):
                self.assertEqual(json.loads(process.stdout.readline())["status"]["node"], "n0")
        with clusters.running(command, stdout=subprocess.PIPE, text=True) as process:
            seen = ""
            for _ in range(100):  # lines of several frames
                seen += process.stdout.readline()
            self.assertGreaterEqual(seen.count("n0: 4 of 4 rails up"), 2)
            self.assertNotIn("\x1b", seen)


if __name__ == "__main__":
    harness.main()
