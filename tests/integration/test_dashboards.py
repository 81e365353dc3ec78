#!/usr/bin/env python3
"""A real Prometheus scrapes real daemons that run replays: every expression of every dashboard and recording rule gives
data, but for those that show what has not happened here. Skipped where Prometheus is not installed."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import harness
from harness import clusters, eventually

sys.path.insert(0, str(harness.ROOT / "tools"))

import dashboard_lint  # noqa: E402  (found by the line above)

FOLDER = harness.ROOT / "dashboards"
# Only after errors, with RDMA devices, or with interfaces of their own: what a panel shows of that is empty on a good day.
QUIET = ("railsd_rail_errors_total", "railsd_rail_port_events_total", "railsd_rail_interface_bytes_total",
         'code!="ok"', "railsd_control_stream_errors_total",
         "railsd_peer_up", "changes(railsd_rail_flaps_total", "changes(railsd_rail_drains_total")


class Dashboards(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=4, speed="1gbit")

    @classmethod
    def setUpClass(cls):
        if not shutil.which("prometheus"):
            raise unittest.SkipTest("prometheus is not installed (Debian's package prometheus)")
        super().setUpClass()

    def start(self, folder):
        """A Prometheus of its own; returns its address."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        targets = [self.cluster.addresses.metrics(node) for node in range(len(self.cluster.nodes))]
        config = Path(folder) / "prometheus.yaml"
        config.write_text(json.dumps({  # JSON is YAML too
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(FOLDER / "rails.rules.yaml")],
            "scrape_configs": [{"job_name": "railsd", "static_configs": [{"targets": targets}]}]}))
        with open(Path(folder) / "log", "wb") as log:
            process = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address={address}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return address

    @staticmethod
    def query(address, expression):
        """The series that an expression gives now; none while Prometheus starts."""
        url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return []
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        except OSError:
            return []

    def test_every_expression_gives_data(self):
        metrics = dashboard_lint.table(harness.ROOT)
        records = dashboard_lint.recorded((FOLDER / "rails.rules.yaml").read_text())
        expressions = set(records)
        for path in sorted(FOLDER.glob("*.json")):
            problems, found = dashboard_lint.check_dashboard(path, metrics, records)
            self.assertEqual(problems, [])
            expressions |= set(found)
        address = self.start(self.enterContext(tempfile.TemporaryDirectory(prefix="railsd-prometheus-")))
        eventually(lambda: len(self.query(address, 'up{job="railsd"} == 1')) == 2, "both daemons are scraped")
        missing = {expression for expression in expressions if not any(word in expression for word in QUIET)}

        def all_there():
            self.cluster.replay("--verify", "--workload", "mixtral", "--bytes-per-rank", "4MiB", "--steps", 2)
            missing.difference_update({expression for expression in missing if self.query(address, expression)})
            return not missing
        eventually(all_there, lambda: "\n".join(sorted(missing)))
        for expression in expressions:  # no error, at least
            self.query(address, expression)
        alerts = {alert["metric"]["alertname"] for alert in self.query(address, 'ALERTS{alertstate="firing"}')}
        self.assertEqual(alerts, set())


if __name__ == "__main__":
    harness.main()
