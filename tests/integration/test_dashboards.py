#!/usr/bin/env python3
"""A real Prometheus scrapes real daemons: every expression of every dashboard, recording rule and alert gives data.
Expressions of errors do so after the fault that causes them. Skipped if Prometheus is not installed."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import harness
from harness import clusters, eventually

import lab as labs

sys.path.insert(0, str(harness.ROOT / "tools"))

import dashboard_lint  # noqa: E402  (found by the line above)

FOLDER = harness.ROOT / "dashboards"
# Parts of expressions that give no data without faults, or on rails that share an interface.
OF_FAULTS = ("railsd_rail_errors_total", "railsd_rail_port_events_total", "rail:railsd_rail_port_events", "railsd_rail_interface_bytes_total",
             'code!="ok"', "railsd_control_errors_total", "railsd_peers{", "changes(railsd_rail_flaps_total",
             "changes(railsd_rail_drains_total", "railsd_limit_refused_total", "railsd_tenant_refused_total")
# Alerts of targets that the tests' Prometheus always has; promtool shows them fire.
OF_TARGETS = ("RailsdAbsent", "RailsdTargetsMissing")
SESSIONS = 8  # limit of a tenant
FLOOD = 3 * [1000]  # calls of each connection; together more than RailsdEngineQueueLong allows to wait


def expressions():
    """All expressions of panels, and the names that rules record."""
    metrics = dashboard_lint.table(harness.ROOT)
    records = dashboard_lint.recorded((FOLDER / "rails.rules.yaml").read_text())
    found = set(records)
    for path in sorted(FOLDER.glob("*.json")):
        problems, asked = dashboard_lint.check_dashboard(path, metrics, records)
        assert not problems, problems
        found |= set(asked)
    return found


class Scraped:
    """A Prometheus of a test."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which("prometheus"):
            raise unittest.SkipTest("prometheus is not installed (Debian's package prometheus)")
        super().setUpClass()

    def prefix(self):
        """Prefix of Prometheus's command."""
        return []

    def where(self):
        """A context manager within which this thread reaches Prometheus."""
        return contextlib.nullcontext()

    def start(self, more=()):
        """Starts a Prometheus that scrapes all daemons and the addresses `more`."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="railsd-prometheus-")))
        with self.where(), socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        targets = [self.cluster.addresses.metrics(node) for node in range(len(self.cluster.nodes))] + list(more)
        config = folder / "prometheus.yaml"
        config.write_text(json.dumps({  # JSON is YAML too
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(FOLDER / "rails.rules.yaml")],
            # The second job waits long enough to learn that an engine does not answer. Expressions join with
            # railsd_build_info, which must be there once for an instance.
            "scrape_configs": [{"job_name": "railsd", "static_configs": [{"targets": targets}]},
                               {"job_name": "patient", "scrape_interval": "3s", "scrape_timeout": "3s",
                                "metric_relabel_configs": [{"source_labels": ["__name__"], "action": "drop",
                                                            "regex": "railsd_build_info"}],
                                "static_configs": [{"targets": targets[:1]}]}]}))
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                self.prefix() + ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                 f"--web.listen-address={self.address}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        eventually(lambda: len(self.query('up{job="railsd"} == 1')) == len(targets), "all daemons are scraped")

    def get(self, path):
        """Prometheus's answer; None while it starts."""
        try:
            with self.where(), urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None
            raise AssertionError(f"{path}: {error.read().decode()}") from error
        except OSError:
            return None

    def query(self, expression):
        """The series that an expression gives now."""
        answer = self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        return answer["result"] if answer else []

    def alerts(self):
        """The expression of each alert that a fault makes fire."""
        groups = self.get("/api/v1/rules?type=alert")["groups"]
        return {rule["name"]: rule["query"] for group in groups for rule in group["rules"]
                if rule["name"] not in OF_TARGETS}


class GoodDay(Scraped, harness.ClusterTest):
    settings = clusters.Settings(nodes=4, rails=4, speed="1gbit")

    def test_every_expression_gives_data(self):
        self.start()
        every = expressions()
        missing = {expression for expression in every if not any(part in expression for part in OF_FAULTS)}

        def all_there():
            self.cluster.replay("--verify", "--workload", "mixtral", "--bytes-per-rank", "4MiB", "--steps", 2)
            missing.difference_update({expression for expression in missing if self.query(expression)})
            return not missing
        eventually(all_there, lambda: "\n".join(sorted(missing)))
        for expression in every:  # must at least give no error
            self.query(expression)
        self.assertEqual({alert["metric"]["alertname"] for alert in self.query('ALERTS{alertstate="firing"}')}, set())


class OtherVersion(BaseHTTPRequestHandler):
    """Serves the metrics of a daemon of another version."""

    def do_GET(self):
        body = b'railsd_build_info{version="0.0.0",node="other"} 1\n'
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Logs nothing."""


class Faults(Scraped, harness.FabricTest):
    # Failures are forgotten quickly, so that a flapping rail is soon used and flaps again.
    settings = clusters.Settings(nodes=3, rails=3, speed="200mbit",
                                 sections={"timeouts": {"peer_lost": "3s"}, "health": {"half_life": "50ms"},
                                           "tenants": [{"name": "all", "users": [str(os.geteuid())],
                                                        "quota": {"sessions": SESSIONS}}]})

    def prefix(self):
        return self.lab.command(0)

    def where(self):
        return harness.labs.inside(self.lab.namespace(0))

    def other_version(self):
        """Starts an OtherVersion and returns its address."""
        with self.where():
            server = ThreadingHTTPServer(("127.0.0.1", 0), OtherVersion)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"127.0.0.1:{server.server_address[1]}"

    def replays(self):
        """Replays while the block runs. They may fail."""
        return harness.meanwhile(lambda: self.cluster.replay("--bytes-per-rank", "8MiB", "--steps", 20, "--workload", "zipf",
                                                             check=False))

    def shown(self, *parts):
        """Waits until all awaited expressions with one of these parts, and alerts with such a name, have given data."""
        def done():
            for what, expression in list(self.awaited.items()):
                if self.query(expression):
                    del self.awaited[what]
            return not self.left(parts)
        eventually(done, lambda: f"data for {self.left(parts)}", patience=120)

    def left(self, parts):
        return [what for what in self.awaited if any(part in what for part in parts)]

    def link(self, rail, how):
        labs.run("ip", "-n", self.lab.namespace(0), "link", "set", f"rail{rail}", how)

    def cut_path(self, rail, how):
        """Cuts one path: isolated ports of a bridge reach all ports but each other."""
        for node in range(2):
            labs.run("bridge", "-n", self.lab.switch, "link", "set", "dev", f"p{node}r{rail}", "isolated", how)

    def state(self, rail):
        return self.cluster.overview(self.cluster.nodes[0])["rails"][rail]["health"]["state"]

    def flap(self, rail):
        for how, state in (("down", "down"), ("up", "up")):
            self.link(rail, how)
            eventually(lambda state=state: self.state(rail) == state, f"rail{rail} is {state}", patience=120)

    def engine_stopped(self):
        return harness.thread_stopped(self.cluster.nodes[0].pid, "engine")

    def hang(self):
        """Stops an engine, then stops it again while calls flood it."""
        with self.engine_stopped():
            self.shown("RailsdEngineDoesNotAnswer")
        for attempt in range(8):  # until a scrape comes during the flood
            probe = [harness.BUILD / "tests/integration/rails_grpc_probe",
                     f"unix:{self.cluster.nodes[0].sockets}/operator.sock", "/rails.v1.OperatorService/GetStatus"]
            with contextlib.ExitStack() as stack:
                floods = [stack.enter_context(subprocess.Popen([*probe, str(calls)], stdout=subprocess.PIPE, text=True))
                          for calls in FLOOD]
                with self.engine_stopped():
                    time.sleep(2 + 2 * attempt)  # for all calls; the next round waits longer
                for flood, calls in zip(floods, FLOOD):
                    self.assertEqual(flood.communicate(timeout=120)[0], f"answered {calls}\n")
            if self.query(f"max_over_time(({self.awaited['RailsdEngineQueueLong'].split(' >')[0]})[20s:500ms]) > 2048"):
                del self.awaited["RailsdEngineQueueLong"]
                return

    def refusals(self):
        """Opens more sessions than the tenant may have, and a connection that does not ask for a session in time."""
        node = self.cluster.nodes[0]
        trainers = [self.enterContext(harness.Trainer()) for _ in range(SESSIONS + 1)]
        answers = [trainer.do(do="connect", socket_dir=str(node.sockets)) for trainer in trainers]
        self.assertEqual([answer["ok"] for answer in answers], SESSIONS * [True] + [False], answers)
        for trainer in trainers:
            trainer.kill()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(f"{node.sockets}/descriptors.sock")
            self.shown("railsd_tenant_refused_total", "railsd_limit_refused_total", "RailsdLimitReached")

    def refused_calls(self):
        """Calls that fail, over gRPC and through a ring, until a rate of each is seen."""
        node = self.cluster.nodes[0]
        with harness.Trainer() as trainer:
            self.assertTrue(trainer.do(do="connect", socket_dir=str(node.sockets))["ok"])
            while self.left(['code!="ok"']):
                self.assertEqual(self.cluster.ctl(node, "drain", "no-such-rail").returncode, 1)
                self.assertFalse(trainer.do(do="join", group="alone", world=2, rank=0, key="", timeout=0.3)["ok"])
                self.shown("nothing")

    def certificate_of_a_week(self):
        """Restarts a node with mutual TLS and a certificate that expires soon."""
        node = self.cluster.nodes[1]
        self.cluster.pki("init")
        self.cluster.pki("issue", node.name, "--days", 7)
        self.cluster.stop_node(node)
        node.config.write_text(clusters.yaml_text({**self.cluster.config(node), "tls": self.cluster.tls_config(node.name)}))
        self.cluster.start_node(node)
        self.shown("RailsdTlsCertificateExpires")

    def test_faults_are_shown(self):
        self.start([self.other_version()])
        self.awaited = {expression: expression for expression in expressions()
                        if any(part in expression for part in OF_FAULTS)}
        self.awaited |= self.alerts()
        with self.replays():
            self.shown("railsd_rail_interface_bytes_total", "RailsdVersionsDiffer", "RailsdTlsOff")
            self.cluster.ctl(self.cluster.nodes[0], "drain", "rail2")
            self.shown("changes(railsd_rail_drains_total", "RailsdRailDrainForgotten")
            self.cluster.ctl(self.cluster.nodes[0], "undrain", "rail2")
            self.lab.shape(0, 1, "20mbit")
            self.shown("RailsdRailSlow", "RailsdJobsOverBound", "RailsdRailImbalance")
            self.lab.shape(0, 1, "200mbit")
            # The other end drops and counts frames that are larger than its MTU.
            labs.run("ip", "-n", self.lab.switch, "link", "set", "p0r1", "mtu", 1280)
            self.shown("railsd_rail_port_events")
            labs.run("ip", "-n", self.lab.switch, "link", "set", "p0r1", "mtu", labs.MTU)
            self.cut_path(1, "on")
            self.shown("RailsdPathDown")
            self.cut_path(1, "off")
            while self.left(["RailsdRailFlapping", "RailsdFailoversRising", "railsd_rail_flaps_total", "railsd_rail_errors_total"]):
                self.flap(0)
                self.shown("nothing")
            for rail in range(3):
                self.link(rail, "down")
            self.shown("RailsdRailDown", "RailsdAllRailsDown", "RailsdJobsFailing")
            for rail in range(3):
                self.link(rail, "up")
            self.cluster.stop_node(self.cluster.nodes[2], signal.SIGKILL)
            self.shown("railsd_peers{", "RailsdPeerDown", "RailsdDaemonGone", "railsd_control_errors_total")
            self.cluster.start_node(self.cluster.nodes[2])
            self.cluster.wait_ready()
        self.cluster.ctl(self.cluster.nodes[0], "drain", "--node")
        self.shown("RailsdNodeDrainForgotten")
        self.cluster.ctl(self.cluster.nodes[0], "undrain", "--node")
        self.refused_calls()
        self.hang()
        self.refusals()
        self.certificate_of_a_week()
        self.assertEqual(self.awaited, {})


if __name__ == "__main__":
    harness.main()
