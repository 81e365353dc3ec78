"""Four nodes in containers, as compose.json that is made here says, and what the tests do with them.

Each node's daemon hangs on a control network and on four rail networks. Each trainer is a container without any network
that shares nothing but the socket directory with the daemon of its node. A Prometheus on the control network scrapes all.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import engine
import images
from engine import ROOT

sys.path.insert(0, str(ROOT / "tests/integration"))

import harness  # noqa: E402  (found by the line above)
from harness import clusters, eventually  # noqa: E402

NODES, RAILS = 4, 4
DISCOVERY = "railsd"  # the name behind which all daemons are
NETWORK = "10.213"
TRAINER_USER = 7474
RAILSD, RAILS_GROUP = 7471, 7472  # user of the daemon, group of trainers
TRAINER_PROGRAM = "/usr/local/bin/trainer"
HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}


class Addresses:
    """Addresses of every node on every network, with the methods that a Cluster calls."""

    def control(self, node):
        return f"{NETWORK}.250.{node + 10}:{clusters.CONTROL_PORT}"

    def metrics(self, node):
        return f"{NETWORK}.250.{node + 10}:{clusters.METRICS_PORT}"

    def rail(self, node, rail):
        return f"{NETWORK}.{rail}.{node + 10}"

    def rail_config(self, node, rail):
        return {"address": self.rail(node, rail)}

    def close(self):
        """Nothing is held."""


class ContainerNode(clusters.Node):
    """A daemon in a container called like the node."""

    stack = None

    @property
    def container(self):
        return f"{self.stack.project}-{self.name}"

    @property
    def trainer(self):
        return f"{self.stack.project}-t{self.index}"

    def poll(self):
        """Docker's report on a daemon that does not run."""
        state = self.stack.docker.inspect(self.container)["State"]
        return f"{state['Status']}, exit status {state['ExitCode']}"

    def running(self):
        state = self.stack.docker.inspect(self.container)["State"]
        return state["Running"] and not state["Paused"]

    def health(self):
        return self.stack.docker.inspect(self.container)["State"]["Health"]["Status"]


class Stack(clusters.Cluster):
    """A context manager: all containers are up and all nodes know each other, until it ends."""

    def __init__(self, docker):
        self.docker, self.project = docker, f"railsd{os.getpid()}"
        self.image = images.railsd(docker)
        self.next_image = images.railsd(docker, images.VERSIONS[1])
        self.base = images.base(docker)
        images.remove_old(docker, {self.image, self.next_image, self.base})
        settings = clusters.Settings(nodes=NODES, rails=RAILS, speed="1gbit", patience=120.0, sections={
            "timeouts": {"peer_lost": "3s", "heartbeat": "200ms", "job": "5m", "join": "1m", "drain": "20s"}})
        super().__init__(settings, build=harness.BUILD, addresses=Addresses(),
                         folder=tempfile.mkdtemp(prefix="railsd-stack-"))
        self.nodes = [ContainerNode(i, f"n{i}", self.folder / f"n{i}") for i in range(NODES)]
        self.images = [self.image] * NODES
        for node in self.nodes:
            node.stack, node.process = self, node  # a Cluster asks the process how it ended
            os.chown(node.sockets, RAILSD, RAILS_GROUP)
            node.config.chmod(0o644)
        self.folder.chmod(0o755)

    def config(self, node):
        config = super().config(node)
        config["socket_dir"] = "/run/railsd"
        config["socket_mode"], config["socket_group"] = "0660", "rails"
        config["peers"] = {"dns": {"name": DISCOVERY, "port": clusters.CONTROL_PORT, "refresh": "1s"}}
        return config

    # compose.json

    def _node(self, node):
        networks = {f"rail{rail}": {"ipv4_address": self.addresses.rail(node.index, rail)} for rail in range(RAILS)}
        networks["control"] = {"ipv4_address": self.addresses.control(node.index).split(":")[0],
                               "aliases": [DISCOVERY], "priority": 1000}
        return {**HARDENED, "container_name": node.container, "image": self.images[node.index],
                "volumes": [f"{node.sockets}:/run/railsd", f"{node.config}:/etc/railsd/railsd.yaml:ro"],
                "networks": networks, "stop_grace_period": "30s", "healthcheck": {"interval": "1s"}}

    def _trainer(self, node):
        # At its path on this machine, which is what `railsctl replay` knows.
        return {**HARDENED, "container_name": node.trainer, "image": self.image, "user": f"{TRAINER_USER}:{RAILS_GROUP}",
                "entrypoint": ["sleep", "infinity"], "init": True, "network_mode": "none", "healthcheck": {"disable": True},
                "volumes": [f"{node.sockets}:{node.sockets}", f"{harness.trainer_program()}:{TRAINER_PROGRAM}:ro"]}

    def _prometheus(self):
        programs = [f"{shutil.which(name)}:/usr/bin/{name}:ro" for name in ("prometheus", "promtool")]
        return {**HARDENED, "container_name": f"{self.project}-prometheus", "image": self.base, "user": "65534:65534",
                "command": ["/usr/bin/prometheus", "--config.file=/prometheus.json", "--storage.tsdb.path=/data"],
                "volumes": [*programs, f"{self.folder}/prometheus.json:/prometheus.json:ro"],
                "tmpfs": ["/data:mode=1777"], "networks": {"control": {}}}

    def write(self):
        """compose.json and Prometheus's configuration, for the images that the nodes have now."""
        def network(number, internal):
            return {"internal": internal, "ipam": {"config": [{"subnet": f"{NETWORK}.{number}.0/24"}]}}
        services = {node.name: self._node(node) for node in self.nodes}
        services.update({f"t{node.index}": self._trainer(node) for node in self.nodes})
        services["prometheus"] = self._prometheus()
        networks = {f"rail{rail}": network(rail, True) for rail in range(RAILS)}
        networks["control"] = network(250, True)
        (self.folder / "compose.json").write_text(json.dumps(
            {"version": "2.4", "services": services, "networks": networks}))
        (self.folder / "prometheus.json").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "railsd", "dns_sd_configs": [
                {"names": [DISCOVERY], "type": "A", "port": clusters.METRICS_PORT, "refresh_interval": "2s"}]}]}))

    def compose(self, *arguments):
        return engine.run("docker-compose", "--no-ansi", "--project-name", self.project, "--file",
                          self.folder / "compose.json", *arguments, env=self.docker.environment, cwd=self.folder)

    def overview(self, node):
        """By its socket, which the machine shares; the networks of the containers are the engine's own."""
        return {"status": self.ctl_json(node, "status"), **self.ctl_json(node, "rails"), **self.ctl_json(node, "peers")}

    def start(self):
        self.write()
        self.compose("up", "--detach")

    def stop(self):
        try:
            self.compose("down", "--timeout", "30", "--volumes")
        except engine.EngineError as error:
            if "has active endpoints" not in str(error):
                raise
            # A container that ends while the engine is busy may keep its place in a network for the engine.
            for rail in range(RAILS):
                for node in self.nodes:
                    self.docker.docker("network", "disconnect", "--force", f"{self.project}_rail{rail}", node.container, check=False)
            eventually(self._is_down, "no network of the stack is left")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_down(self):
        with contextlib.suppress(engine.EngineError):
            self.compose("down", "--volumes")
            return True
        return False

    def logs(self, nodes=None, lines=60):
        return "\n".join(f"--- {node.name}\n" + self.docker.docker("logs", "--tail", str(lines), node.container, check=False)
                         for node in nodes or self.nodes)

    # Actions of the tests

    def recreate(self, node, image):
        """The node's container anew, from another image; everybody else is left alone."""
        self.images[node.index] = image
        self.write()
        self.compose("up", "--detach", "--no-deps", node.name)

    def network(self, what, rail, node):
        """Connects a node to a rail's network again, or disconnects it."""
        address = ["--ip", self.addresses.rail(node.index, rail)] if what == "connect" else []
        self.docker.docker("network", what, *address, f"{self.project}_rail{rail}", node.container)

    def inside(self, node, *command):
        """Runs a command in the daemon's container; gives what it printed."""
        return self.docker.docker("exec", node.container, *command)

    def trainer(self, node):
        """A trainer in the container of the node's trainers, connected to the daemon; the caller kills it."""
        trainer = harness.Trainer(command=[*self.docker.command, "exec", "--interactive", node.trainer,
                                           TRAINER_PROGRAM])
        trainer.must(do="connect", socket_dir=str(node.sockets))
        return trainer

    def launched_replay(self, *arguments):
        """A verified replay whose ranks are processes in the trainers' containers."""
        command = [*self.docker.command, "exec", "--interactive", f"{self.project}-t{{node}}"]
        return self.replay("--launch", " ".join(command), "--verify", *arguments, timeout=300)

    def query(self, expression):
        """The samples of an instant query of Prometheus."""
        answer = self.docker.docker("exec", f"{self.project}-prometheus", "promtool", "query", "instant", "--format", "json",
                                    "http://127.0.0.1:9090", expression, check=False)
        try:
            return json.loads(answer)
        except ValueError:
            return []
