#!/usr/bin/env python3
"""The service on a machine that boots: start, readiness, reload, watchdog, restarts, drain, upgrade."""

import tempfile
import unittest
from pathlib import Path

import debian
from debian import harness
from harness import MIB, eventually

CONFIG = "/etc/railsd/railsd.yaml"
PEER_CONFIG = "/etc/railsd/peer.yaml"
TRAINER = harness.ROOT / "build/release/tests/integration/rails_test_trainer"
# Appended to the packaged file: two rails, and another node, which is a daemon of its own on the same machine.
RAILS = """
node: n0
rails: [{name: rail0, address: "127.1.0.1", speed: 1gbit}, {name: rail1, address: "127.1.1.1", speed: 1gbit}]
control: {listen: "127.0.1.1:7471"}
tls: {mode: plain_text}
peers: {static: [{name: n1, control: "127.0.1.2:7471"}]}
"""
PEER = """
node: n1
socket_dir: /run/railsd-peer
socket_mode: "0666"
rails: [{name: rail0, address: "127.1.0.2", speed: 1gbit}, {name: rail1, address: "127.1.1.2", speed: 1gbit}]
control: {listen: "127.0.1.2:7471"}
tls: {mode: plain_text}
peers: {static: [{name: n0, control: "127.0.1.1:7471"}]}
"""


class Service(debian.RootTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root.apt("install", *debian.inner(debian.packages()[name] for name in ("railsctl", "railsd")))
        # A trainer and an operator, who are not root.
        for user, group in (("atrainer", "rails"), ("anoperator", "rails-operators"), ("stranger", None)):
            cls.root.run("useradd", "-g", "users", *(["-G", group] if group else []), user)
        drop_in = cls.root.path / "etc/systemd/system/railsd.service.d"
        drop_in.mkdir(parents=True)
        (drop_in / "test.conf").write_text("[Service]\nWatchdogSec=10\n")
        cls.machine = cls.enterClassContext(debian.Machine(cls.root, binds=[TRAINER]))

    def run(self, result=None):
        before = len(result.failures) + len(result.errors) if result else 0
        super().run(result)
        if result and len(result.failures) + len(result.errors) > before and hasattr(self, "machine"):
            print(f"{self.id()}:\n{self.machine.journal()}")

    def main_pid(self):
        return int(self.machine.show("MainPID"))

    def restart_count(self):
        return int(self.machine.show("NRestarts"))

    def serves(self):
        return self.machine.try_("railsctl", "status", user="anoperator")[0] == 0

    def restarted(self, pid):
        """The service serves again, with another process than `pid`."""
        return self.machine.show("ActiveState") == "active" and self.main_pid() not in (0, pid) and self.serves()

    def peer_is_up(self):
        peers = self.machine.ctl("peers")["peers"]
        return [peer["node"] for peer in peers if peer["up"] and all(peer["rails_up"])] == ["n1"]

    def test_1_without_rails_it_says_what_to_do(self):
        self.assertEqual(self.machine.try_("systemctl", "is-enabled", "railsd")[1].strip(), "disabled")
        self.assertNotEqual(self.machine.try_("systemctl", "start", "railsd")[0], 0)
        eventually(lambda: self.machine.show("ActiveState") == "failed", "a service without rails fails for good")
        self.assertEqual(self.machine.show("ExecMainStatus"), "3")
        self.assertEqual(self.restart_count(), 0)
        self.assertIn("rails: missing", self.machine.journal())

    def test_2_it_is_ready_when_it_serves_and_not_before(self):
        # A log that nobody reads yet holds the start up.
        self.root.write(CONFIG, self.root.read(CONFIG) + RAILS)
        self.machine.run("sh", "-c", f"sed '$a log: {{file: /var/log/railsd/held}}' {CONFIG} > /etc/railsd/held.yaml; "
                                     "install -d -o railsd -g railsd /var/log/railsd; mkfifo -m 666 /var/log/railsd/held")
        drop_in = "/run/systemd/system/railsd.service.d/held.conf"
        self.machine.run("sh", "-c", f"mkdir -p $(dirname {drop_in}); printf '[Service]\\nExecStart=\\n"
                                     f"ExecStart=/usr/bin/railsd --config /etc/railsd/held.yaml\\n' > {drop_in}; "
                                     "systemctl daemon-reload; systemctl start --no-block railsd")
        eventually(lambda: self.main_pid() != 0, "the daemon starts")
        self.assertEqual(self.machine.show("ActiveState"), "activating")
        self.assertFalse(self.serves())
        self.assertEqual(self.machine.show("ActiveState"), "activating")
        self.machine.run("systemd-run", "-q", "-u", "reader", "cat", "/var/log/railsd/held")
        eventually(lambda: self.machine.show("ActiveState") == "active", "a daemon whose log is read serves")
        self.assertTrue(self.serves())
        self.machine.run("systemctl", "stop", "railsd")
        self.machine.run("sh", "-c", f"rm {drop_in} /var/log/railsd/held /etc/railsd/held.yaml; systemctl daemon-reload")
        # From now on as it is packaged; `start` returns when it is ready.
        self.machine.run("systemctl", "enable", "--now", "railsd")
        self.assertTrue(self.serves())
        self.assertIn("node n0, 2 rails", self.machine.show("StatusText"))

    def test_3_who_may_use_it(self):
        modes = self.machine.run("stat", "-c", "%n %U:%G %a", *(f"/run/railsd/{name}.sock" for name in
                                                               ("client", "descriptors", "operator")))
        self.assertEqual(modes.split("\n")[:3], ["/run/railsd/client.sock railsd:rails 660",
                                                 "/run/railsd/descriptors.sock railsd:rails 660",
                                                 "/run/railsd/operator.sock railsd:rails-operators 660"])
        self.assertNotEqual(self.machine.try_("railsctl", "status", user="stranger")[0], 0)
        status = Path(f"/proc/{self.machine.outer_pid(self.main_pid())}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.split("\n") if ":\t" in line)
        self.assertEqual((int(fields["CapEff"], 16), int(fields["CapBnd"], 16), fields["NoNewPrivs"]), (0, 0, "1"))
        self.assertEqual(fields["Seccomp"], "2")

    def test_4_reload(self):
        text = self.root.read(CONFIG)
        pid = self.main_pid()
        self.root.write(CONFIG, text + "log: {level: debug}\n")
        self.machine.run("systemctl", "reload", "railsd")
        self.assertEqual(self.machine.ctl("log-level")["level"], "debug")
        self.root.write(CONFIG, text.replace("speed: 1gbit", "speed: 2gbit", 1))
        self.machine.run("systemctl", "reload", "railsd")
        self.assertIn("NEEDS A RESTART", self.machine.journal())
        self.root.write(CONFIG, text + "nonsense: 1\n")
        self.assertNotEqual(self.machine.try_("systemctl", "reload", "railsd")[0], 0)
        self.assertIn("nonsense", self.machine.journal())
        self.root.write(CONFIG, text)
        self.machine.run("systemctl", "reload", "railsd")
        self.assertEqual(self.machine.ctl("log-level")["level"], "info")
        self.assertEqual(self.main_pid(), pid)

    def test_5_an_idle_daemon_is_left_alone(self):
        pid = self.main_pid()
        for _ in range(3):  # signs of life
            before = self.machine.show("WatchdogTimestampMonotonic")
            eventually(lambda: self.machine.show("WatchdogTimestampMonotonic") != before, "the watchdog is answered")
        self.assertEqual((self.main_pid(), self.restart_count()), (pid, 0))

    def test_6_a_rail_that_stands_still_brings_a_restart(self):
        pid, restarts = self.main_pid(), self.restart_count()
        with harness.thread_stopped(self.machine.outer_pid(pid), "rail-1") as reap:
            eventually(lambda: reap() or self.restarted(pid), "the watchdog restarts the daemon", patience=180)
        self.assertEqual(self.restart_count(), restarts + 1)
        self.assertIn("Watchdog timeout", self.machine.run("journalctl", "-u", "railsd", "--no-pager"))

    def test_7_restart_after_a_crash(self):
        pid, restarts = self.main_pid(), self.restart_count()
        self.assertNotEqual(pid, 0)
        self.machine.run("kill", "-9", pid)
        eventually(lambda: self.restarted(pid), "a killed daemon comes back", patience=180)
        self.assertEqual(self.restart_count(), restarts + 1)

    def start_peer(self):
        """The other node's daemon, unless it runs."""
        self.root.write(PEER_CONFIG, PEER)
        if self.machine.try_("systemctl", "is-active", "peer")[0] != 0:
            self.machine.run("systemd-run", "-q", "-u", "peer", "railsd", "--config", PEER_CONFIG)
        eventually(self.peer_is_up, "the daemons find each other")

    def test_7_the_commands_of_the_pages(self):
        self.start_peer()
        blocks = debian.page_blocks("systemd")
        self.assertEqual(len(blocks), 4, blocks)
        for block in blocks:
            with self.subTest(block=str(block)):
                self.machine.run("bash", "-euc", "cd /packages\n" + block.text)
                eventually(lambda: self.serves() and self.peer_is_up(), "the daemon serves and reaches its peer")

    def trainer(self, socket_dir):
        trainer = debian.MachineTrainer(self.machine, TRAINER, "atrainer", socket_dir)
        self.addCleanup(trainer.kill)
        return trainer

    def test_8_stop_lets_a_job_end(self):
        self.start_peer()
        trainers = [self.trainer(folder) for folder in ("/run/railsd", "/run/railsd-peer")]
        for seed, trainer in enumerate(trainers):
            trainer.segment("s", MIB, seed=seed)
            trainer.segment("r", MIB)
        self.assertTrue(all(answer["ok"] for answer in harness.join(trainers, "g")))
        jobs = [{"group": "g", "job": "j", "sends": {other: [["s", 0, MIB]]}, "receives": {other: [["r", 0, MIB]]}}
                for other in ("1", "0")]
        trainers[0].must(do="submit", **jobs[0])
        pid = self.main_pid()
        self.machine.run("systemctl", "stop", "--no-block", "railsd")
        eventually(lambda: "drain" in self.machine.show("StatusText"), "the daemon says that it drains")
        self.assertEqual((self.machine.show("ActiveState"), self.main_pid()), ("deactivating", pid))
        trainers[1].must(do="submit", **jobs[1])
        for seed, trainer in enumerate(trainers):
            self.assertEqual(trainer.must(do="wait", job="j")["code"], "OK")
            self.assertEqual(trainer.wrong_bytes("r", 0, MIB, 1 - seed), 0)
        eventually(lambda: self.machine.show("ActiveState") == "inactive", "the service stops when the job has ended")
        self.assertEqual((self.machine.show("Result"), self.machine.show("ExecMainStatus")), ("success", "0"))
        self.machine.run("systemctl", "stop", "peer")

    def test_9_an_upgrade_keeps_the_configuration_and_restarts(self):
        self.machine.run("systemctl", "start", "railsd")
        pid, config = self.main_pid(), self.root.read(CONFIG)
        with tempfile.TemporaryDirectory(dir=debian.debian_root.ROOTS) as folder:
            newer = [debian.repacked(debian.packages()[name], "99.1.0", folder) for name in ("railsctl", "railsd")]
            self.root.add_packages(newer)
        self.machine.run("dpkg", "-i", *debian.inner(newer))
        self.assertTrue(self.restarted(pid))
        self.assertEqual(self.root.read(CONFIG), config)
        # One that takes the configuration for wrong leaves the old one running.
        pid = self.main_pid()
        self.root.write(CONFIG, config + "nonsense: 1\n")
        self.assertIn("nonsense", self.machine.run("dpkg", "-i", *debian.inner(newer)))
        self.assertEqual(self.main_pid(), pid)
        self.machine.run("dpkg", "--purge", "railsd")
        self.assertFalse(self.root.exists(CONFIG))
        self.assertEqual(self.machine.try_("systemctl", "is-active", "railsd")[1].strip(), "inactive")


if __name__ == "__main__":
    unittest.main(verbosity=2)
