#!/usr/bin/env python3
"""`railsctl doctor --cluster` on real nodes and on 128 stand-ins: it names each fault once. Real nodes need root for network
namespaces."""

import http.server
import json
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import harness
from harness import clusters, eventually


def examine(command, *arguments):
    """Runs doctor and returns its exit code and report."""
    run = subprocess.run([*command, "doctor", "--json", *map(str, arguments)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    return run.returncode, json.loads(run.stdout)


def troubles(report, *levels):
    return [(finding["check"], finding["level"], finding["found"]) for finding in report["findings"]
            if finding["level"] in (levels or ("note", "warning", "error"))]


class Nodes(harness.FabricTest):
    settings = clusters.Settings(nodes=3, rails=2, speed="200mbit", sections={"timeouts": {"peer_lost": "30s"}})

    def doctor(self, *arguments):
        where = ",".join(self.cluster.addresses.metrics(node.index) for node in self.cluster.nodes)
        return examine([*self.lab.command(0), self.cluster.railsctl], "--cluster", where, *arguments)

    def well(self):
        def all_up():
            code, report = self.doctor()
            return code == 0 and all(rail["paths_up"] == rail["paths"] for rail in report["rails"])
        eventually(all_up, lambda: f"all is well: {self.doctor()}")

    def test_a_healthy_cluster(self):
        self.well()
        code, report = self.doctor()
        self.assertEqual((code, troubles(report)), (0, []))
        self.assertEqual([node["node"] for node in report["nodes"]], ["n0", "n1", "n2"])
        self.assertEqual([(rail["nodes_up"], rail["paths"], rail["paths_up"]) for rail in report["rails"]], [(3, 6, 6)] * 2)
        self.assertEqual([rail["slowest_bytes_per_second"] for rail in report["rails"]], [25_000_000] * 2)

    def test_a_rail_that_is_down(self):
        self.well()
        link = ["ip", "-n", self.lab.namespace(1), "link", "set", "rail1"]
        subprocess.run([*link, "down"], check=True)
        try:
            def told_once():
                code, report = self.doctor()
                errors = troubles(report, "error")
                return code == 1 and len(errors) == 1 and errors[0]
            check, _, found = eventually(told_once, lambda: f"one error: {self.doctor()}")
            self.assertEqual(check, "paths")
            self.assertIn("rail 1 of n1 is down to all 2 other nodes", found)
        finally:
            subprocess.run([*link, "up"], check=True)
        self.well()

    def test_a_node_that_does_not_answer(self):
        self.well()
        node = self.cluster.nodes[2]
        self.assertEqual(self.cluster.stop_node(node), 0)
        try:
            code, report = self.doctor()
            self.assertEqual(code, 1)
            address = self.cluster.addresses.metrics(2)
            self.assertIn(f"{address} does not answer", troubles(report, "error")[0][2])
            self.assertIn("n2 is a peer of others", [found for _, level, found in troubles(report) if level == "note"][0])
            self.assertEqual([node["node"] for node in report["nodes"]], ["n0", "n1", ""])
        finally:
            self.cluster.start_node(node)
            self.cluster.wait_ready()

    def test_a_drained_rail_and_a_changed_setting(self):
        self.well()
        node = self.cluster.nodes[1]
        self.assertEqual(self.cluster.ctl(node, "drain", "rail0").returncode, 0)
        before = node.config.read_text()
        node.config.write_text(before.replace('job: "2m"', 'job: "3m"').replace('"job": "2m"', '"job": "3m"'))
        try:
            self.assertEqual(self.cluster.ctl(node, "reload").returncode, 0)
            expected = [("config", "note", "settings of n1 are not those of 2 other nodes"),
                        ("paths", "note", "rail 0 is drained on n1")]
            eventually(lambda: sorted(troubles(self.doctor()[1])) == expected, lambda: troubles(self.doctor()[1]))
            self.assertEqual(self.doctor()[0], 0, "an operator wanted it")
        finally:
            node.config.write_text(before)
            self.assertEqual(self.cluster.ctl(node, "reload").returncode, 0)
            self.assertEqual(self.cluster.ctl(node, "undrain", "rail0").returncode, 0)
        self.well()


def status(node, nodes, rails):
    """The answer of node `node` of many, whose rail i is at 10.I.0.NODE."""
    names = [f"n{index}" for index in range(nodes)]
    health = {"state": "up", "drained": False, "why": ""}
    return {
        "status": {"node": names[node], "version": "0.1.0", "boot_id": f"{node:016x}", "uptime_seconds": 3600.0,
                   "draining": False, "shared_config_hash": "0123456789abcdef"},
        "rails": [{"index": rail, "name": f"rail{rail}", "address": f"10.{rail}.0.{node + 1}:7000", "interface": "",
                   "subnet": f"10.{rail}.0.0/16",
                   "speed_bytes_per_second": 50_000_000_000, "health": health, "device": None} for rail in range(rails)],
        "peers": [{"node": name, "up": True, "why": "", "rail_count": rails, "rails_up": [True] * rails,
                   "rail_states": ["up"] * rails, "rail_tx_bytes": [0] * rails, "rail_rx_bytes": [0] * rails,
                   "rail_addresses": [f"10.{rail}.0.1:7000" for rail in range(rails)], "version": "0.1.0"}
                  for name in names if name != names[node]]}


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers at 127.0.1.N as node N - 1."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):  # noqa: N802  (the library's name)
        node = int(self.connection.getsockname()[0].split(".")[3]) - 1
        self.server.paths.add(self.path)
        body = self.server.pages[node]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


class StandIns(unittest.TestCase):
    NODES, RAILS = 128, 8

    def setUp(self):
        self.server = Server(("0.0.0.0", 0), Pages)
        self.server.paths = set()
        self.statuses = [status(node, self.NODES, self.RAILS) for node in range(self.NODES)]
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.server_close)
        folder = tempfile.TemporaryDirectory(prefix="railsd-nodes-")
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name, "nodes")
        port = self.server.server_address[1]
        self.file.write_text("# all nodes\n" + "".join(f"127.0.1.{node + 1}:{port}\n" for node in range(self.NODES)))

    def run_doctor(self, *arguments):
        self.server.pages = [json.dumps(page).encode() for page in self.statuses]
        return subprocess.run([harness.BUILD / "client/railsctl/railsctl", "doctor", "--cluster", f"@{self.file}",
                               *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                              check=False)

    def test_many_nodes(self):
        run = self.run_doctor()
        self.assertEqual((run.returncode, run.stderr), (0, ""), run.stdout)
        self.assertEqual(self.server.paths, {"/api/v1/status?finished=0"})
        table = run.stdout.split("\n\n")[0].split("\n")
        self.assertEqual(table[0].split("  ")[0], "RAIL")
        self.assertEqual(len(table), 1 + self.RAILS)
        self.assertRegex(table[1], r"^0 +128 of 128 +400 Gbit/s +16256 of 16256 +-$")
        self.assertLessEqual(max(map(len, table)), 80)

    def test_the_odd_one_out_and_a_bad_answer(self):
        self.statuses[7]["rails"][3]["speed_bytes_per_second"] //= 4
        self.statuses[9] = ["no", "overview"]
        self.statuses[12]["status"]["node"] = "n\x1b[31m12"
        run = self.run_doctor("--json")
        report = json.loads(run.stdout)
        self.assertEqual(run.returncode, 1)
        self.assertNotIn("\x1b", run.stdout)
        found = [text for _, _, text in troubles(report)]
        self.assertIn("rail 3 of n7 has 100 Gbit/s, and 400 Gbit/s on 126 other nodes", found)
        self.assertTrue(any(text.endswith("does not answer: its answer is not the overview of a railsd") for text in found),
                        found)
        self.assertIn("n?[31m12", [node["node"] for node in report["nodes"]])

    def test_mistakes_in_the_command(self):
        railsctl = harness.BUILD / "client/railsctl/railsctl"
        for where, code in (("n0", 2), ("@/no/such/file", 5), ("", 2)):
            run = subprocess.run([railsctl, "doctor", "--cluster", where], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, timeout=60, check=False)
            self.assertEqual(run.returncode, code, run.stderr)


if __name__ == "__main__":
    harness.main()
