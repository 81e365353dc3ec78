#!/usr/bin/env python3
"""Starts, watches and stops clusters of real daemons on one machine.

The demo, the integration tests and the benchmarks all use this module; it can also be run by itself:

    bench/cluster.py --nodes 2 --rails 4 --speed 200mbit        # until interrupted

Several clusters can run at once: each reserves one network 127.K.0.0/16 by a listening socket. Daemons die with the
process that started them, unless it keeps them.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTROL_PORT, METRICS_PORT, LOCK_PORT = 7471, 9471, 7470
PR_SET_PDEATHSIG = 1


class ClusterError(Exception):
    """An error of a daemon; the text holds the end of its log."""


@dataclasses.dataclass
class Settings:
    """Settings of the daemons. `sections` holds further sections of the configuration, merged into each file."""

    nodes: int = 4
    rails: int = 4
    speed: str = "200mbit"
    patience: float = 30.0  # seconds within which the daemons must connect to each other
    sections: dict = dataclasses.field(default_factory=dict)
    tls: bool = False  # mutual TLS between the daemons, with certificates of `railsctl pki`
    rails_up: int = None  # rails to each peer that make a daemon ready; all of them by default


class Loopback:
    """Addresses in an unused network 127.K.0.0/16, reserved until close()."""

    def __init__(self):
        start = os.getpid()
        for attempt in range(200):
            number = 16 + (start + attempt) % 200
            held = socket.socket()
            try:
                held.bind((f"127.{number}.255.254", LOCK_PORT))
                held.listen()
                with socket.socket() as probe:  # an earlier run may have kept daemons here
                    probe.bind((f"127.{number}.0.1", CONTROL_PORT))
            except OSError:
                held.close()
                continue
            self._held, self.number = held, number
            return
        raise ClusterError("no free network 127.16.0.0/16 to 127.215.0.0/16: stop clusters that were kept")

    def control(self, node):
        return f"127.{self.number}.0.{node + 1}:{CONTROL_PORT}"

    def metrics(self, node):
        return f"127.{self.number}.0.{node + 1}:{METRICS_PORT}"

    def rail(self, node, rail):
        return f"127.{self.number}.{rail + 1}.{node + 1}"

    def rail_config(self, node, rail):
        """The configuration of a rail."""
        return {"address": self.rail(node, rail)}

    def command(self, _node):
        """The prefix of the daemon's command line."""
        return []

    def reach(self, _node):
        """A context manager within which this thread can connect to the daemon's addresses."""
        return contextlib.nullcontext()

    def close(self):
        self._held.close()


class LoopbackV6(Loopback):
    """Rails on [::1], told apart by ports that the kernel chooses."""

    def rail(self, node, rail):
        return "[::1]:0"


class VerbsRails(Loopback):
    """Rails over RDMA devices; only the links are on loopback. `device(node, rail)` names a device. `speeds`: by rail,
    if they differ."""

    def __init__(self, device, speeds=None):
        super().__init__()
        self._device, self._speeds = device, speeds

    def rail_config(self, node, rail):
        config = {"device": self._device(node, rail)}
        return {**config, "speed": self._speeds[rail]} if self._speeds else config


@dataclasses.dataclass
class Node:
    """One daemon."""

    index: int
    name: str
    folder: Path
    process: subprocess.Popen = None

    @property
    def sockets(self):
        return self.folder / "sockets"

    @property
    def config(self):
        return self.folder / "railsd.yaml"

    @property
    def log(self):
        return self.folder / "railsd.log"

    @property
    def pid(self):
        return self.process.pid

    def running(self):
        return self.process is not None and self.process.poll() is None

    def cpu_seconds(self):
        """Processor time of the daemon so far: (user, system)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return int(fields[11]) / ticks, int(fields[12]) / ticks


def yaml_text(value):
    """A configuration as YAML: one line for each section, with its value as JSON, which is valid YAML."""
    lines = []
    for key, section in value.items():
        if isinstance(section, list) and section:
            lines += [f"{key}:"] + [f"  - {json.dumps(item)}" for item in section]
        elif isinstance(section, dict) and section:
            lines += [f"{key}:"] + [f"  {name}: {json.dumps(item)}" for name, item in section.items()]
        else:
            lines.append(f"{key}: {json.dumps(section)}")
    return "\n".join(lines) + "\n"


def die_with_parent():
    """Called in a child before it starts its program. The child gets SIGTERM when this process ends. SIGINT ends the
    child, even if a shell runs this process in the background and so makes it ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Cluster:
    """M daemons. A context manager that starts and stops them. Use it from one thread, which must outlive it."""

    def __init__(self, settings=None, build="build/release", folder=None, addresses=None, keep=False):
        self.settings = settings or Settings()
        self.build = Path(build) if Path(build).is_absolute() else ROOT / build
        self.keep = keep
        self._own_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix="railsd-cluster-"))
        self.addresses = addresses or Loopback()
        self.nodes = [Node(i, f"n{i}", self.folder / f"n{i}") for i in range(self.settings.nodes)]
        if self.settings.tls:
            self.pki("init")
            self.pki("issue", *[node.name for node in self.nodes])
        for node in self.nodes:
            node.sockets.mkdir(parents=True, exist_ok=True)
            node.config.write_text(yaml_text(self.config(node)))

    @property
    def railsd(self):
        return self.build / "daemon/railsd"

    @property
    def railsctl(self):
        return self.build / "client/railsctl/railsctl"

    def pki(self, command, *arguments, folder=None):
        """Runs railsctl pki for the folder of this cluster's certificates, or for another one."""
        subprocess.run([self.railsctl, "pki", command, folder or self.folder / "pki", *map(str, arguments)], check=True,
                       stdout=subprocess.DEVNULL, timeout=60)

    def tls_config(self, name, folder=None):
        """The section `tls` for a node with the certificate `name`."""
        folder = folder or self.folder / "pki"
        return {"mode": "mutual", "certificate": str(folder / f"{name}.pem"), "key": str(folder / f"{name}.key"),
                "ca": str(folder / "ca.pem"), "refresh": "200ms"}

    def config(self, node):
        """The configuration of one daemon."""
        peers = [{"name": other.name, "control": self.addresses.control(other.index)}
                 for other in self.nodes if other is not node]
        config = {
            "node": node.name,
            "socket_dir": str(node.sockets),
            "control": {"listen": self.addresses.control(node.index)},
            "tls": self.tls_config(node.name) if self.settings.tls else {"mode": "plain_text"},
            "rails": [{"name": f"rail{r}", "speed": self.settings.speed, **self.addresses.rail_config(node.index, r)}
                      for r in range(self.settings.rails)],
            "peers": {"static": peers},
            "metrics": {"listen": self.addresses.metrics(node.index)},
            "timeouts": {"job": "2m", "join": "1m", "drain": "10s"},
        }
        for key, section in self.settings.sections.items():
            if isinstance(section, dict):
                config.setdefault(key, {}).update(section)
            else:
                config[key] = section
        return config

    def __enter__(self):
        try:
            self.start()
            self.wait_ready(self.settings.patience)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind, value, trace):
        if self.keep and kind is None:
            self.addresses.close()
        else:
            self.stop()

    def start_node(self, node):
        """Starts one daemon without waiting for it."""
        with open(node.log, "ab") as log:
            node.process = subprocess.Popen(
                [*self.addresses.command(node.index), self.railsd, "--config", node.config],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=None if self.keep else die_with_parent)

    def start(self):
        for node in self.nodes:
            self.start_node(node)

    def wait_ready(self, timeout=30.0, nodes=None):
        """Waits until every daemon (of `nodes`) is connected to all others by link and by every rail."""
        deadline = time.monotonic() + timeout
        waiting, why = list(nodes or self.nodes), {}
        while waiting:
            for node in list(waiting):
                if not node.running():
                    raise ClusterError(f"{node.name} ended with {node.process.poll()}\n{self.logs([node])}")
                try:
                    why[node.name] = self._not_ready(node)
                except ClusterError as error:
                    why[node.name] = str(error)
                if not why[node.name]:
                    waiting.remove(node)
            if waiting and time.monotonic() > deadline:
                reasons = "\n".join(f"{node.name}: {why[node.name]}" for node in waiting)
                raise ClusterError(f"not ready after {timeout:.0f} s\n{reasons}\n{self.logs(waiting)}")
            if waiting:
                time.sleep(0.05)

    def _not_ready(self, node):
        """Describes the first missing link or rails; empty if the daemon is ready."""
        peers = {peer["node"]: peer for peer in self.overview(node)["peers"]}
        for other in self.nodes:
            if other is node or not other.running():
                continue
            peer = peers.get(other.name)
            if not peer or not peer["up"]:
                return f"{other.name} is not up"
            if sum(map(bool, peer["rails_up"])) < (self.settings.rails_up or self.settings.rails):
                return f"rails to {other.name}: {peer['rails_up']}"
        return ""

    def ctl(self, node, *arguments, timeout=60):
        """Runs railsctl on one daemon. Returns the finished process with its output as text."""
        return subprocess.run([self.railsctl, arguments[0], "--socket-dir", node.sockets, *map(str, arguments[1:])],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout, check=False)

    def overview(self, node):
        """The state that the daemon's page shows, in the form of `railsctl --json`: status, rails, peers, jobs. Use it
        for polling, because it starts no process. Asks again while the daemon's engine is too late for the page."""
        deadline = time.monotonic() + 60
        while True:
            status, body = self._page(node)
            if status == 200:
                return json.loads(body)
            if status != 503 or time.monotonic() > deadline:
                raise ClusterError(f"no overview of {node.name}: {status} {body.decode(errors='replace')}")

    def _page(self, node):
        """Status and body of the page's JSON."""
        connection = http.client.HTTPConnection(self.addresses.metrics(node.index), timeout=60)
        try:
            with self.addresses.reach(node.index):
                connection.connect()
            connection.request("GET", "/api/v1/status")
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"no overview of {node.name}: {error}") from error
        finally:
            connection.close()

    def ctl_json(self, node, *arguments):
        run = self.ctl(node, *arguments, "--json")
        if run.returncode != 0:
            raise ClusterError(f"railsctl {arguments[0]} ended with {run.returncode}: {run.stderr.strip()}")
        return json.loads(run.stdout)

    def replay_command(self, *arguments):
        """The command that replays a workload through all daemons."""
        command = [self.railsctl, "replay"]
        for node in self.nodes:
            command += ["--daemon", str(node.sockets)]
        return command + [str(argument) for argument in arguments]

    def replay(self, *arguments, timeout=600, check=True):
        """Runs a replay and returns its JSON report (None if check is false and there is no report)."""
        with running(self.replay_command(*arguments, "--json"), stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE, text=True) as process:
            try:
                out, errors = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired as error:
                raise ClusterError(f"replay still runs after {timeout} s\n{self.logs()}") from error
        report = None
        with contextlib.suppress(ValueError):
            report = json.loads(out)
        if check and (process.returncode != 0 or report is None):
            raise ClusterError(f"replay ended with {process.returncode}: {errors.strip()}\n{self.logs()}")
        return report

    def stop_node(self, node, how=signal.SIGTERM, timeout=15.0):
        """Stops one daemon and returns its exit status. Kills it if it does not end in time."""
        if node.process is None:
            return None
        if node.running():
            node.process.send_signal(how)
        try:
            return node.process.wait(timeout)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
            return None

    def stop(self):
        """Stops all daemons and removes their files. Returns their exit statuses."""
        for node in self.nodes:
            if node.running():
                node.process.send_signal(signal.SIGTERM)
        statuses = [self.stop_node(node) for node in self.nodes]
        self.addresses.close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        return statuses

    def logs(self, nodes=None, lines=40):
        """The end of the daemons' logs, without lines of successful jobs."""
        parts = []
        for node in nodes or self.nodes:
            if node.log.exists():
                log = node.log.read_text(errors="replace").splitlines()
                tail = [line for line in log if " info job_done " not in line][-lines:]
                parts.append(f"--- {node.name}\n" + "\n".join(tail))
        return "\n".join(parts)


@contextlib.contextmanager
def running(command, **options):
    """Runs a child in its own process group. If it still runs at the end, SIGTERM and then SIGKILL end the group."""
    process = subprocess.Popen([str(part) for part in command], start_new_session=True,
                               preexec_fn=die_with_parent, **options)
    try:
        yield process
    finally:
        for how, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


def exit_on_signals():
    """Turns the signals that end a program into SystemExit, so that started processes are stopped."""
    def leave(number, _frame):
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)  # a second signal must not interrupt the stopping
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def main():
    parser = argparse.ArgumentParser(description="Runs a cluster of daemons on loopback until interrupted, and prints their sockets.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4, help="daemons")
    parser.add_argument("--rails", type=int, default=4, help="rails of each")
    parser.add_argument("--speed", default="200mbit", help="that the configuration gives each rail; nothing limits it")
    parser.add_argument("--build", default="build/release", help="the build whose railsd runs")
    options = parser.parse_args()
    exit_on_signals()
    try:
        with Cluster(Settings(options.nodes, options.rails, options.speed), build=options.build) as cluster:
            for node in cluster.nodes:
                print(f"{node.name}: pid {node.pid}, sockets in {node.sockets}", flush=True)
            signal.pause()
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
