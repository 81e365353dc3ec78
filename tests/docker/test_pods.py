"""The pods of deploy/kubernetes, imitated with all their fields on two nodes, and used: the daemons find each other by the
Service's name, a training pod runs a job through them, they are drained by preStop and replaced."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import images
import pods
import stack
from stack import eventually

NODES, RAILS = 2, 4
SERVICE = "railsd.railsd.svc.cluster.local"
FIRST_RANK = "railsd-acceptance-0.railsd-acceptance"
BYTES = 4 << 20
IPC_LOCK = 1 << 14


class Pods(unittest.TestCase):
    """With the pod of the overlay for TCP."""

    overlay, capabilities, no_new_privileges = "tcp", 0, 1

    @classmethod
    def setUpClass(cls):
        cls.docker, cls.prefix = stack.DOCKER, f"pods{os.getpid()}"
        cls.folder = Path(tempfile.mkdtemp(prefix="railsd-pods-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.folder.chmod(0o755)
        cls.spec, cls.config = pods.daemon_pod(cls.overlay)
        image = images.railsd(cls.docker)
        cls.docker.docker("tag", image, cls.spec["containers"][0]["image"])
        cls.addClassCleanup(cls.docker.docker, "rmi", cls.spec["containers"][0]["image"])
        cls.networks = [f"{cls.prefix}-{name}" for name in ["control"] + [f"rail{rail}" for rail in range(RAILS)]]
        for number, network in enumerate(cls.networks):
            cls.docker.docker("network", "create", "--internal", "--subnet", f"10.214.{number}.0/24", network)
            cls.addClassCleanup(cls.docker.docker, "network", "rm", network)
        cls.nodes = [cls.make_node(node, images.base(cls.docker)) for node in range(NODES)]
        for node in range(NODES):
            cls.start(node)

    @classmethod
    def make_node(cls, node, base):
        """A container that is a node: its network, whose eth1 and so on are the rails, and its folders."""
        name = f"{cls.prefix}-node{node}"
        aliases = [SERVICE, FIRST_RANK] if node == 0 else [SERVICE]
        cls.docker.docker("create", "--name", name, "--network", cls.networks[0],
                          *(f"--network-alias={alias}" for alias in aliases), base, "sleep", "infinity")
        cls.addClassCleanup(cls.docker.docker, "rm", "--force", name)
        cls.docker.docker("start", name)
        for network in cls.networks[1:]:  # in this order: each gets the next interface
            cls.docker.docker("network", "connect", network, name)
        paths = {"sockets": cls.folder / f"n{node}/sockets", "config": cls.folder / f"n{node}/config",
                 "infiniband": cls.folder / f"n{node}/infiniband"}
        for path in paths.values():
            path.mkdir(parents=True)
        (paths["config"] / "railsd.yaml").write_text(cls.tcp_config())
        address = cls.docker.docker("inspect", "--format",
                                    f'{{{{(index .NetworkSettings.Networks "{cls.networks[0]}").IPAddress}}}}', name).strip()
        return pods.Pod(cls.spec, f"{cls.prefix}-n{node}", name, paths, address)

    @classmethod
    def tcp_config(cls):
        """There is no RDMA here: whatever the overlay, the rails are those of the one for TCP."""
        return pods.daemon_pod("tcp")[1]

    @classmethod
    def start(cls, node):
        name = f"{cls.prefix}-pod{node}"
        cls.addClassCleanup(cls.docker.docker, "rm", "--force", name, check=False)
        cls.nodes[node].start(cls.docker, name)

    def inside(self, node, *command, **options):
        return self.docker.docker("exec", f"{self.prefix}-pod{node}", *command, **options)

    def answers(self, node, probe):
        """Whether what the kubelet would ask is answered as it should be."""
        return subprocess.run([*self.docker.command, "exec", f"{self.prefix}-pod{node}", *self.nodes[node].probe(probe)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def listeners(self, node):
        """The addresses at which the control port and the metrics of a node's daemon are."""
        found = set()
        for line in self.inside(node, "cat", "/proc/net/tcp").splitlines()[1:]:
            (address, port), state = line.split()[1].split(":"), line.split()[3]
            if state == "0A" and int(port, 16) in (7471, 9471):
                found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(address))))
        return found

    def ready(self):
        for node in range(NODES):
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                eventually(lambda n=node, p=probe: self.answers(n, p), lambda n=node, p=probe: f"{p} of node {n}: " +
                           self.docker.docker("logs", f"{self.prefix}-pod{n}"))
            # Both rails' ends must be up, or jobs would wait for them.
            eventually(lambda n=node: self.inside(n, "railsctl", "peers").count(":up") == RAILS,
                       lambda n=node: self.inside(n, "railsctl", "peers"))

    def job(self, group):
        """Two pods like the example's, whose ranks exchange 4 MiB each way."""
        spec = pods.job_pod()
        with contextlib.ExitStack() as opened:
            trainers = []
            for node in range(NODES):
                pod = pods.Pod(spec, self.nodes[node].node, self.nodes[node].network,
                               {"railsd": self.nodes[node].paths["sockets"]})
                [container] = spec["containers"]
                program = f"{stack.harness.trainer_program()}:{stack.TRAINER_PROGRAM}:ro"
                trainers.append(stack.harness.Trainer(command=[
                    *self.docker.command, "run", "--rm", "--interactive", *pod.run_options(container), "--volume", program,
                    "--entrypoint", stack.TRAINER_PROGRAM, self.spec["containers"][0]["image"]]))
                opened.callback(trainers[-1].kill)
                trainers[-1].must(do="connect", socket_dir="/run/railsd")
                trainers[-1].segment("s", BYTES, seed=node)
                trainers[-1].segment("r", BYTES)
            for answer in stack.harness.join(trainers, group):
                self.assertTrue(answer["ok"], answer)
            for rank, trainer in enumerate(trainers):
                trainer.must(do="submit", group=group, job="j", sends={str(1 - rank): [["s", 0, BYTES]]},
                             receives={str(1 - rank): [["r", 0, BYTES]]})
            for rank, trainer in enumerate(trainers):
                report = trainer.must(do="wait", job="j")
                self.assertEqual((report["terminal"], report["code"]), (True, "OK"), report)
                self.assertEqual(trainer.wrong_bytes("r", 0, BYTES, 1 - rank), 0)
                self.assertEqual(sum(report["rail_tx"]), BYTES)

    def test_configuration(self):
        """The ConfigMap's file is one that the daemon takes."""
        path = self.folder / "railsd.yaml"
        path.write_text(self.config)
        self.assertIn(": ok", self.docker.docker(
            "run", "--rm", "--network", "none", "--volume", f"{path}:/etc/railsd/railsd.yaml:ro",
            self.spec["containers"][0]["image"], "--config", "/etc/railsd/railsd.yaml", "--check-config"))

    def test_acceptance(self):
        """The example's Job, with a pod on each of the nodes: every byte is right, and both pods end well."""
        self.ready()
        spec = pods.job_pod("acceptance-job.yaml")
        [container] = spec["containers"]
        container["command"] += ["--steps=2"]
        [world] = [item for item in container["env"] if item["name"] == "WORLD_SIZE"]
        world["value"] = str(NODES)
        names = [f"{self.prefix}-acceptance{rank}" for rank in range(NODES)]
        for rank, node in enumerate(self.nodes):
            self.addCleanup(self.docker.docker, "rm", "--force", names[rank], check=False)
            pods.Pod(spec, node.node, node.network, {"railsd": node.paths["sockets"]}, index=rank,
                     secrets={("railsd-acceptance", "token"): "shared"}).start(self.docker, names[rank])
        for name in names:
            self.assertEqual(self.docker.docker("wait", name).strip(), "0", self.docker.docker("logs", name))
        self.assertIn("every byte was right", self.docker.docker("logs", names[0]))

    def test_life(self):
        """Started, used, drained by preStop, ended, replaced, used."""
        self.ready()
        status = dict(line.split(":\t", 1) for line in self.inside(0, "cat", "/proc/1/status").splitlines() if ":\t" in line)
        self.assertEqual(status["Uid"].split(), ["7471"] * 4)
        self.assertEqual(set(status["Groups"].split()), {"7471", "7472", "7473"})
        self.assertEqual({int(status[key], 16) for key in ("CapPrm", "CapEff", "CapBnd")}, {self.capabilities})
        self.assertEqual(int(status["NoNewPrivs"]), self.no_new_privileges)
        self.assertEqual(self.listeners(0), {self.nodes[0].fields["status.hostIP"]}, "and no rail's address")
        log = [json.loads(line) for line in self.docker.docker("logs", f"{self.prefix}-pod0").splitlines()]
        [memory] = [entry for entry in log if entry["event"] == "locked_memory"]
        self.assertEqual(memory["unlimited_by_capability"], "true" if self.capabilities else "false")
        self.job("before")
        for node in range(NODES):
            self.inside(node, *self.nodes[node].pre_stop())
            self.assertFalse(self.answers(node, "readinessProbe"), "a drained node takes nothing new")
            self.assertTrue(self.answers(node, "livenessProbe"), "a drained node is alive")
            name = f"{self.prefix}-pod{node}"
            self.docker.docker("stop", "--time", "60", name)
            self.assertEqual(self.docker.inspect(name)["State"]["ExitCode"], 0)
            self.docker.docker("rm", name)
            self.start(node)
            self.ready()
            self.job(f"after{node}")


class VerbsPods(Pods):
    """With the pod of the overlay for verbs: the same, but it may lock memory."""

    overlay, capabilities, no_new_privileges = "verbs", IPC_LOCK, 0
