"""How long Prometheus takes to answer the dashboards of a large cluster, and how many series a node has.

Two daemons run a replay. A server offers the metrics of one of them as those of 128 nodes, with the series by peer
repeated for 127 peers. A Prometheus with the project's rules scrapes it for a while and then answers the queries of
each dashboard.
"""

import concurrent.futures
import contextlib
import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cluster import Cluster, Settings
from common import BUILD, ROOT, BenchError, Result, progress

sys.path.insert(0, str(ROOT / "tools"))

import dashboard_lint  # noqa: E402  (found by the line above)

NODES, RAILS, INTERVAL = 128, 8, 15  # nodes, rails of each, seconds between scrapes
MINUTES = 10  # of scrapes, and the range of time that a dashboard shows
PATIENCE = 300  # seconds until every node has been scraped
CONNECTIONS = 6  # of a browser to Grafana
FOLDER = ROOT / "dashboards"
GROWS = re.compile(r"^(\w+_(?:total|sum|count|bucket)(?:{.*})?) (\d+(?:\.\d+)?)$", re.MULTILINE)


def exposition():
    """The metrics of one of two daemons after a replay."""
    with Cluster(Settings(nodes=2, rails=RAILS, speed="1gbit"), build=BUILD) as cluster:
        cluster.replay("--workload", "mixtral", "--bytes-per-rank", "4MiB", "--steps", 2)
        time.sleep(5)  # for the balance
        with urllib.request.urlopen(f"http://{cluster.addresses.metrics(0)}/metrics", timeout=10) as answer:
            return answer.read().decode()


def stand_in(text, node):
    """The metrics of node number `node`, as bytes. Counters end with @, which the server replaces by growing digits."""
    lines = []
    for line in text.replace('node="n0"', f'node="n{node}"').splitlines():
        peers = [peer for peer in range(NODES) if peer != node] if 'peer="n1"' in line else [1]
        lines += [line.replace('peer="n1"', f'peer="n{peer}"') for peer in peers]
    return (GROWS.sub(r"\1 \2@", "\n".join(lines)) + "\n").encode()


class Server(ThreadingHTTPServer):
    request_queue_size = NODES

    def handle_error(self, *_):
        """Prints nothing: Prometheus closes connections when it stops scraping and when it ends."""


@contextlib.contextmanager
def daemons(text):
    """Serves the metrics of node N as /nN. Gives the port."""
    pages = {f"/n{node}": stand_in(text, node) for node in range(NODES)}

    class Daemon(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = pages[self.path].replace(b"@", b"%06d" % (time.monotonic() % 1e6))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Logs nothing."""

    server = Server(("127.0.0.1", 0), Daemon)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Prometheus:
    """A Prometheus that scrapes the daemons. A context manager."""

    def __init__(self, port, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": f"n{node}", "__metrics_path__": f"/n{node}"}}
                   for node in range(NODES)]
        config = Path(folder) / "prometheus.yaml"
        config.write_text(json.dumps({  # JSON is YAML too
            "global": {"scrape_interval": f"{INTERVAL}s", "evaluation_interval": f"{INTERVAL}s"},
            "rule_files": [str(FOLDER / "rails.rules.yaml")],
            "scrape_configs": [{"job_name": "railsd", "static_configs": targets}]}))
        self._command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                         f"--web.listen-address={self.address}"]

    def __enter__(self):
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL)
        except FileNotFoundError as error:
            raise BenchError("prometheus is not installed") from error
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()

    def wait(self):
        """Waits until Prometheus has scraped every daemon."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # Prometheus does not listen yet
                if self.value('sum(up{job="railsd"})') == NODES:
                    return
            time.sleep(1)
        raise BenchError(f"after {PATIENCE} s Prometheus has not scraped every stand-in")

    def get(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=300) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise BenchError(f"{parameters}: {error.read().decode()}") from error

    def memory(self):
        """Bytes of RAM that Prometheus uses."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * resource.getpagesize()

    def value(self, expression):
        found = self.get("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else 0


def queries(board, node):
    """The queries of Grafana for a dashboard: (expression, whether for one moment only)."""
    asked = [(target["expr"], target.get("instant", False)) for panel in board["panels"] for target in panel["targets"]]
    asked += [(annotation["expr"], False) for annotation in board["annotations"]["list"]]
    return [(dashboard_lint.substituted(expression.replace("$node", node)), instant) for expression, instant in asked]


def ask(prometheus, query):
    """Seconds until the answer has arrived."""
    expression, instant = query
    begin = time.monotonic()
    if instant:
        prometheus.get("query", query=expression)
    else:
        now = time.time()
        prometheus.get("query_range", query=expression, start=now - 60 * MINUTES, end=now, step=INTERVAL)
    return time.monotonic() - begin


def open_dashboard(prometheus, asked):
    """Seconds until all panels have their data, as a browser asks for them."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(lambda query: ask(prometheus, query), asked))
    return time.monotonic() - begin


def measure_dashboard(prometheus, name, board, node, repeat):
    asked = queries(board, node)
    alone = {query: statistics.median(ask(prometheus, query) for _ in range(repeat)) for query in asked}
    whole = statistics.median(open_dashboard(prometheus, asked) for _ in range(repeat))
    slowest = max(alone, key=alone.get)
    progress(f"{name}, {node}: {whole:.2f} s; {alone[slowest]:.2f} s for {slowest[0]}")
    which = "all nodes" if node == ".*" else "one node"
    return Result(f"dashboards.{name}.{which.replace(' ', '_')}", whole, "s", 2.0,
                  f"the last {MINUTES} minutes of {which}, {len(asked)} queries over {CONNECTIONS} connections, median of "
                  f"{repeat}; the slowest alone {alone[slowest]:.2f} s")


def measure(options):
    repeat = options.repeat or 3
    text = exposition()
    series = sum(not line.startswith(b"#") for line in stand_in(text, 0).splitlines())
    results = [Result("dashboards.series", series, "", None, f"series of a node with {RAILS} rails and {NODES - 1} peers")]
    with tempfile.TemporaryDirectory(prefix="railsd-prometheus-") as folder, daemons(text) as port, \
            Prometheus(port, folder) as prometheus:
        prometheus.wait()
        progress(f"{series} series of each of {NODES} nodes; scraping for {MINUTES} minutes")
        time.sleep(60 * MINUTES)
        missed = prometheus.value(f'count(min_over_time(up{{job="railsd"}}[{INTERVAL * 4}s]) == 0)')
        results.append(Result("dashboards.missed", missed, "", 0, "nodes with a scrape that failed in the last minute"))
        for path in sorted(FOLDER.glob("*.json")):
            board = json.loads(path.read_text())
            by_node = [variable for variable in board["templating"]["list"] if variable["name"] == "node"]
            nodes = ["n7"] if by_node else []
            if not by_node or by_node[0]["includeAll"]:
                nodes.append(".*")
            results += [measure_dashboard(prometheus, path.stem, board, node, repeat) for node in nodes]
        results.append(Result("dashboards.prometheus", prometheus.memory() / 1e9, "GB", None, "memory of Prometheus"))
    return results
