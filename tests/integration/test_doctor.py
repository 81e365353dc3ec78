#!/usr/bin/env python3
"""`railsctl doctor` on real nodes: it names each fault and the remedy, and names none on a healthy node. Needs root for
network namespaces and limits of a process."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness
from harness import clusters, eventually

# Checks of this machine, not of the node.
ELSEWHERE = {"clock", "hugepages", "memlock"}


def examine(cluster, command, *arguments):
    """Runs doctor and returns its exit code and report."""
    run = subprocess.run([*command, cluster.railsctl, "doctor", "--json", *map(str, arguments)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return run.returncode, json.loads(run.stdout)


def findings(report, check, *levels):
    return [finding for finding in report["findings"]
            if finding["check"] == check and (not levels or finding["level"] in levels)]


class Fabric(harness.FabricTest):
    settings = clusters.Settings(nodes=3, rails=2, speed="200mbit", sections={"timeouts": {"peer_lost": "30s"}})

    def doctor(self, node, *arguments):
        node = self.cluster.nodes[node]
        return examine(self.cluster, self.lab.command(node.index), "--socket-dir", node.sockets, *arguments)

    def setUp(self):
        def well():
            return all(not self.complaints(self.doctor(node)[1]) for node in range(len(self.cluster.nodes)))
        eventually(well, lambda: f"all is well: {[self.complaints(self.doctor(node)[1]) for node in range(3)]}")

    def complaints(self, report):
        return [finding for finding in report["findings"]
                if finding["level"] in ("warning", "error") and finding["check"] not in ELSEWHERE]

    def test_a_node_without_mistakes(self):
        code, report = self.doctor(1)
        self.assertEqual((code, report["errors"], self.complaints(report)), (0, 0, []))
        self.assertEqual((report["node"], report["running"]), ("n1", True))
        self.assertEqual(report["config"], str(self.cluster.nodes[1].config), "of the daemon's command line")
        self.assertIn("2 peers, 2 rails", findings(report, "peers", "ok")[0]["found"])
        # The shapers are slower than the link speed that the kernel reports.
        self.assertIn("rail0 (rail0): the link has 10.0 Gbit/s, the planner counts on 200 Mbit/s",
                      findings(report, "interfaces", "note")[0]["found"])
        self.assertIn("subnet of its own", findings(report, "subnets", "ok")[0]["found"])
        self.assertEqual(findings(report, "mtu", "ok")[0]["found"], "9000 on all rails")
        self.assertTrue(findings(report, "files", "ok"))

    def test_a_link_that_is_down(self):
        namespace = self.lab.namespace(1)
        link = ["ip", "-n", namespace, "link", "set", "rail1"]
        subprocess.run([*link, "down"], check=True)
        try:
            def named():
                code, report = self.doctor(1)
                return code == 1 and findings(report, "rails", "error") and report
            report = eventually(named, "doctor exits with 1")
            self.assertIn("rail1 is DOWN", findings(report, "rails", "error")[0]["found"])
            link_down = findings(report, "interfaces", "error")[0]
            self.assertEqual(link_down["found"], "rail1 (rail1): the link is down")
            self.assertIn("ip link set rail1 up", link_down["do"])

            def far():
                errors = findings(self.doctor(0)[1], "peers", "error")
                return [finding["found"] for finding in errors if "node n1 is not reached over rail1" in finding["found"]]
            eventually(far, "the others name the path")
        finally:
            subprocess.run([*link, "up"], check=True)

    def test_a_daemon_that_has_just_begun(self):
        """doctor gives a young daemon time to reach its peers before it reports them as down."""
        late, node = self.cluster.nodes[0], self.cluster.nodes[1]
        self.assertEqual(self.cluster.stop_node(node), 0)
        os.kill(late.pid, signal.SIGSTOP)
        try:
            self.cluster.start_node(node)
            eventually(lambda: self.cluster.ctl(node, "status").returncode == 0, "it answers")
            peers = json.loads(self.cluster.ctl(node, "peers", "--json").stdout)["peers"]
            self.assertEqual([peer["up"] for peer in peers if peer["node"] == "n0"], [False])
            command = [*self.lab.command(1), self.cluster.railsctl, "doctor", "--json", "--socket-dir", node.sockets]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
                os.kill(late.pid, signal.SIGCONT)
                report = json.loads(run.communicate(timeout=60)[0])
        finally:
            os.kill(late.pid, signal.SIGCONT)
        self.assertEqual((run.returncode, self.complaints(report)), (0, []))

    def test_an_address_that_is_gone_and_packets_that_differ(self):
        namespace, address = self.lab.namespace(2), self.lab.rail(2, 0)
        subprocess.run(["ip", "-n", namespace, "addr", "del", f"{address}/24", "dev", "rail0"], check=True)
        subprocess.run(["ip", "-n", namespace, "link", "set", "rail1", "mtu", "1500"], check=True)
        try:
            code, report = self.doctor(2)
            self.assertEqual(code, 1)
            self.assertEqual(findings(report, "interfaces", "error")[0]["found"],
                             f"rail0: no interface of this machine has the address {address}")
        finally:
            subprocess.run(["ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "rail0"], check=True)
        try:
            found = findings(self.doctor(2)[1], "mtu", "warning")
            self.assertEqual(found[0]["found"], "the rails differ: 1500 on rail1; 9000 on rail0")
        finally:
            subprocess.run(["ip", "-n", namespace, "link", "set", "rail1", "mtu", "9000"], check=True)

    def test_limits_of_the_daemon(self):
        pid = self.cluster.nodes[0].pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        locked = resource.prlimit(pid, resource.RLIMIT_MEMLOCK)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (200, hard))
        resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (65536, locked[1]))
        try:
            code, report = self.doctor(0)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            resource.prlimit(pid, resource.RLIMIT_MEMLOCK, locked)
        self.assertEqual(code, 1)
        self.assertIn("the daemon may open 200 files", findings(report, "files", "error")[0]["found"])
        memlock = findings(report, "memlock")[0]
        if "CAP_IPC_LOCK" not in memlock["found"]:
            self.assertIn(f"the daemon (process {pid}) may lock 64.0 KiB", memlock["found"])

    def test_a_file_that_has_changed(self):
        config = self.cluster.nodes[2].config
        before = config.read_text()
        config.write_text(before.replace('job: "2m"', 'job: "3m"'))
        try:
            code, report = self.doctor(2)
        finally:
            config.write_text(before)
        self.assertEqual(code, 0)
        self.assertIn("is not what the daemon runs with", findings(report, "config", "warning")[0]["found"])

    def test_the_sizes_of_the_runbook(self):
        peers, rails, sessions = 2, 2, 3
        trainers = [self.trainer(0) for _ in range(sessions)]
        for trainer in trainers:
            trainer.segment("a", 1 << 16)
        used = sum(harness.footprint(self.cluster.nodes[0].pid)["descriptors"].values())
        for trainer in trainers:
            trainer.kill()
        formula = 22 + 6 * rails + peers * (1 + 2 * rails) + 3 * sessions + sessions
        self.assertIn("22 + 6 N + (M - 1) (1 + 2 N) + 3 P + segments", (harness.ROOT / "deploy/RUNBOOK.md").read_text())
        self.assertIn(f"22 + 48 + 63 x 17 + 24 + 32 = {22 + 48 + 63 * 17 + 24 + 32:,} descriptors",
                      (harness.ROOT / "deploy/RUNBOOK.md").read_text())
        # A tool that has just sent a request may still be connected.
        self.assertAlmostEqual(used, formula, delta=6)
        needed = re.search(r"need up to (\d+)", findings(self.doctor(0)[1], "files", "ok")[0]["found"])
        self.assertGreater(int(needed[1]), formula)

    def test_from_another_network(self):
        node = self.cluster.nodes[0]
        report = examine(self.cluster, [], "--socket-dir", node.sockets)[1]
        self.assertIn("another network namespace", findings(report, "interfaces", "note")[0]["found"])

    def test_a_drained_rail(self):
        node = self.cluster.nodes[1]
        self.assertEqual(self.cluster.ctl(node, "drain", "rail0").returncode, 0)
        try:
            code, report = self.doctor(1)
            self.assertEqual(code, 0, "an operator wanted it")
            self.assertIn("railsctl undrain rail0", findings(report, "rails", "warning")[0]["do"])
            eventually(lambda: findings(self.doctor(0)[1], "peers", "note"), "n0 has heard of it")
            code, report = self.doctor(0)
            self.assertEqual(code, 0, "no fault of n0 either")
            self.assertEqual(findings(report, "peers", "note")[0]["found"], "node n1 has drained rail0")
            self.assertEqual(findings(report, "peers", "error") + findings(report, "rails", "error"), [])
        finally:
            self.assertEqual(self.cluster.ctl(node, "undrain", "rail0").returncode, 0)

    def test_a_drained_node(self):
        node = self.cluster.nodes[1]
        self.assertEqual(self.cluster.ctl(node, "drain", "--node").returncode, 0)
        try:
            code, report = self.doctor(1)
            self.assertEqual(code, 0, "an operator wanted it")
            self.assertIn("railsctl undrain --node", findings(report, "daemon", "warning")[0]["do"])
        finally:
            self.assertEqual(self.cluster.ctl(node, "undrain", "--node").returncode, 0)

    def test_a_text_for_people(self):
        node = self.cluster.nodes[0]
        run = subprocess.run([*self.lab.command(0), self.cluster.railsctl, "doctor", "--socket-dir", node.sockets],
                             stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(run.returncode, 0)
        self.assertRegex(run.stdout, r"(?m)^ok      peers         all reached over every rail: 2 peers, 2 rails$")
        self.assertRegex(run.stdout.splitlines()[-1], r"^0 errors, \d+ warnings?, \d+ notes?; \d+ ok$")


class Links(unittest.TestCase):
    """Findings of n0 about a link that is down, by what n1 is."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = clusters.Cluster(clusters.Settings(nodes=2, rails=1, tls=True), build=harness.BUILD)
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start_node(cls.cluster.nodes[0])

    def told(self, check, means, **changes):
        """Starts n1 with another configuration, unless nothing is to change, and waits until doctor on n0 has a finding of
        this check that means this. Returns the finding."""
        near, far = self.cluster.nodes
        if changes:
            far.config.write_text(clusters.yaml_text({**self.cluster.config(far), **changes}))
            self.cluster.start_node(far)

        def found():
            code, report = examine(self.cluster, [], "--socket-dir", near.sockets)
            errors = [finding for finding in report["findings"] if finding["level"] == "error"]
            self.assertEqual(findings(report, "rails", "error"), [])
            self.last = errors
            return code == 1 and errors and errors[0]["check"] == check and means in errors[0]["means"] and errors[0]
        try:
            return eventually(found, lambda: f"doctor says '{means}': {self.last}")
        finally:
            if changes:
                self.assertEqual(self.cluster.stop_node(far), 0, self.cluster.logs([far]))

    def test_no_daemon(self):
        self.assertIn("systemctl status railsd", self.told("peers", "no daemon listens")["do"])

    def test_plain_text_there(self):
        self.assertIn("tls.mode", self.told("peers", "mutual TLS and the other one plain text",
                                            tls={"mode": "plain_text"})["do"])

    def test_another_authority(self):
        other = self.cluster.folder / "other-pki"
        self.cluster.pki("init", folder=other)
        self.cluster.pki("issue", "n1", folder=other)
        finding = self.told("peers", "does not accept the certificate", tls=self.cluster.tls_config("n1", other))
        self.assertIn("openssl verify", finding["do"])

    def test_another_name(self):
        self.cluster.pki("issue", "n7")
        finding = self.told("peers", "under another name", node="n7", tls=self.cluster.tls_config("n7"))
        self.assertIn("answered by node n7", finding["found"])

    def test_the_same_name(self):
        finding = self.told("names", "keeps it", node="n0", tls=self.cluster.tls_config("n0"), peers={})
        self.assertIn("two daemons", finding["found"])

    def test_not_listed(self):
        self.assertIn("lists the other one", self.told("peers", "only the peers that its configuration lists",
                                                 peers={"static": [{"name": "n9", "control": "127.0.0.1:9"}]})["do"])

    def test_other_settings(self):
        finding = self.told("peers", "must be alike", limits={"max_world_size": 8})
        self.assertIn("max_world_size", finding["found"])


class NoDaemon(unittest.TestCase):
    """doctor before a daemon is started, and after it has died."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = clusters.Cluster(clusters.Settings(nodes=2, rails=2), build=harness.BUILD)
        cls.addClassCleanup(cls.cluster.stop)

    def doctor(self, *arguments):
        return examine(self.cluster, [], *arguments)

    def test_a_node_that_is_to_be_started(self):
        config = self.cluster.nodes[0].config
        code, report = self.doctor("--config", config)
        self.assertEqual((code, report["errors"], report["running"]), (0, 0, False))
        self.assertEqual(report["socket_dir"], str(self.cluster.nodes[0].sockets), "of the configuration")
        self.assertIn("no daemon runs", findings(report, "daemon", "warning")[0]["found"])
        self.assertIn("has no mistakes", findings(report, "config", "ok")[0]["found"])
        self.assertIn("node n1 does not answer", findings(report, "peers", "note")[0]["found"])
        self.assertIn("rail0 lo", findings(report, "interfaces", "ok")[0]["found"])

    def test_a_configuration_with_mistakes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "wrong.yaml")
            path.write_text(self.cluster.nodes[0].config.read_text().replace('"200mbit"', '"fast"') + "\nplam: 1\n")
            code, report = self.doctor("--config", path, "--socket-dir", self.cluster.nodes[0].sockets)
        self.assertEqual(code, 1)
        found = findings(report, "config", "error")[0]
        self.assertIn("'fast'", found["found"])
        self.assertIn("plam", found["found"])
        self.assertIn("--check-config", found["do"])

    def test_a_file_that_is_not_there(self):
        code, report = self.doctor("--config", "/nowhere/railsd.yaml")
        self.assertEqual(code, 1)
        self.assertIn("/nowhere/railsd.yaml does not exist", findings(report, "config", "error")[0]["found"])

    def test_a_daemon_that_was_killed(self):
        node = self.cluster.nodes[1]
        self.cluster.start_node(node)
        eventually(lambda: self.cluster.ctl(node, "status").returncode == 0, "it answers")
        node.process.kill()
        node.process.wait()
        code, report = self.doctor("--config", node.config)
        self.assertEqual(code, 1)
        self.assertIn("systemctl restart railsd", findings(report, "daemon", "error")[0]["do"])

    def test_a_user_who_may_not(self):
        node, command = self.cluster.nodes[0], []
        self.cluster.start_node(node)
        eventually(lambda: " ready socket_dir=" in node.log.read_text(), "its sockets have their modes")
        railsctl = shutil.copy(self.cluster.railsctl, self.cluster.folder)  # every user can read it there
        self.cluster.folder.chmod(0o755)
        for name in ("client.sock", "operator.sock"):
            Path(node.sockets, name).chmod(0o600 if os.geteuid() == 0 else 0)
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        run = subprocess.run([*command, railsctl, "doctor", "--json", "--socket-dir", node.sockets],
                             stdout=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(self.cluster.stop_node(node), 0)
        report = json.loads(run.stdout)
        self.assertEqual(run.returncode, 1)
        self.assertIn("may not use client.sock", findings(report, "sockets", "warning")[0]["found"])
        self.assertIn("usermod -aG rails-operators", findings(report, "daemon", "error")[0]["do"])


if __name__ == "__main__":
    harness.main()
