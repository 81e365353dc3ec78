"""Four nodes, four rail networks, trainers in containers of their own: jobs through everything that Docker can do to a
container or a network. Bytes, states and counts are compared, never times."""

import contextlib
import json
import re
import select
import unittest

import images
import stack
from stack import NODES, RAILS, eventually

MIB = 1 << 20
FLOW = MIB  # bytes from one rank to another in one job
MOST_ABOVE_BASE = 120_000_000  # bytes


class Cluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = stack.Stack(stack.DOCKER)
        cls.addClassCleanup(cls.stack.stop)
        cls.stack.start()
        cls.stack.wait_ready(120)
        cls.count = 0

    def setUp(self):
        self.open = self.enterContext(contextlib.ExitStack())
        for node in self.stack.nodes:  # what a test that failed has left
            if not node.running():
                self.stack.docker.docker("unpause", node.container, check=False)
                self.stack.docker.docker("start", node.container)
        self.all_up()

    def run(self, result=None):
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            print(f"{self.id()}: logs\n{self.stack.logs()}")

    def all_up(self):
        """Every daemon takes jobs, and every path between them is in use."""
        self.stack.wait_ready(120)

        def up():
            peers = [peer for node in self.stack.nodes for peer in self.stack.ctl_json(node, "peers")["peers"]
                     if peer["up"]]
            return len(peers) == NODES * (NODES - 1) and all(peer["rail_states"] == ["up"] * RAILS for peer in peers)
        eventually(up, lambda: str([self.stack.ctl_json(node, "peers") for node in self.stack.nodes]), patience=120)

    # Jobs: each rank sends a piece to every other, from places that tell who sent it to whom.

    def trainers(self):
        """One of each node, joined in a new group; gone at the end of the test."""
        type(self).count += 1
        trainers = []
        for rank, node in enumerate(self.stack.nodes):
            trainer = self.stack.trainer(node)
            self.open.callback(trainer.kill)
            trainer.segment("s", NODES * FLOW, seed=self.count * NODES + rank)
            trainer.segment("r", NODES * FLOW)
            trainers.append(trainer)
        for rank, trainer in enumerate(trainers):
            trainer.send(do="join", group=f"g{self.count}", world=NODES, rank=rank)
        for rank, trainer in enumerate(trainers):
            answer = trainer.receive()
            self.assertTrue(answer["ok"], answer)
            self.assertEqual(answer["members"], [node.name for node in self.stack.nodes])
        return trainers

    def exchange(self, trainers, jobs):
        """Begins `jobs` jobs, one after the other."""
        for rank, trainer in enumerate(trainers):
            others = [other for other in range(NODES) if other != rank]
            trainer.send(do="exchange", group=f"g{self.count}", count=jobs,
                         sends={str(other): [["s", other * FLOW, FLOW]] for other in others},
                         receives={str(other): [["r", other * FLOW, FLOW]] for other in others})

    def verify(self, trainers):
        for rank, trainer in enumerate(trainers):
            for other in range(NODES):
                if other == rank:
                    continue
                wrong = trainer.must(do="check", name="r", offset=other * FLOW, bytes=FLOW, first=rank * FLOW,
                                     seed=self.count * NODES + other)["wrong"]
                self.assertEqual(wrong, 0, f"bytes from rank {other} to rank {rank}")

    def good_jobs(self, trainers=None, jobs=3):
        trainers = trainers or self.trainers()
        self.exchange(trainers, jobs)
        for trainer in trainers:
            self.assertEqual(trainer.receive(), {"ok": True, "done": jobs})
        self.verify(trainers)

    def carried(self, node):
        """Payload bytes by rail, sent and received."""
        return [rail["counters"]["tx_payload_bytes"] + rail["counters"]["rx_payload_bytes"]
                for rail in self.stack.ctl_json(self.stack.nodes[node], "rails")["rails"]]

    @staticmethod
    def answered(trainer):
        return bool(select.select([trainer.output], [], [], 0)[0])

    def begin_long(self, trainers):
        """Begins jobs without an end in sight, and returns when they are under way."""
        before = sum(self.carried(0))
        # A process in a container outlives the `docker exec` that has started it.
        self.open.callback(self.stack.docker.docker, "restart", "--time", "0", *(n.trainer for n in self.stack.nodes))
        self.exchange(trainers, 1_000_000)
        eventually(lambda: sum(self.carried(0)) > before + 8 * FLOW, "jobs are under way")

    def rail_states(self, node, rail):
        """The state of one rail of the node, as each of its peers sees it."""
        return [peer["rail_states"][rail] for other in self.stack.nodes if other is not node and other.running()
                for peer in self.stack.ctl_json(other, "peers")["peers"] if peer["node"] == node.name]

    # Tests

    def test_discovery(self):
        """One name, all four daemons, each of which leaves itself out."""
        found = self.stack.inside(self.stack.nodes[0], "getent", "ahostsv4", stack.DISCOVERY)
        self.assertEqual(set(re.findall(r"^[\d.]+", found, re.MULTILINE)),
                         {self.stack.addresses.control(node).split(":")[0] for node in range(NODES)})
        for node in self.stack.nodes:
            peers = [peer["node"] for peer in self.stack.ctl_json(node, "peers")["peers"]]
            self.assertEqual(sorted(peers), sorted(other.name for other in self.stack.nodes if other is not node))

    def test_privileges_and_health(self):
        for node in self.stack.nodes:
            status = dict(line.split(":\t", 1) for line in
                          self.stack.inside(node, "cat", "/proc/1/status").splitlines() if ":\t" in line)
            self.assertEqual(status["Uid"].split(), [str(stack.RAILSD)] * 4)
            self.assertEqual({status[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}, {"0" * 16})
            self.assertEqual(status["NoNewPrivs"], "1")
            about = self.stack.docker.inspect(node.container)
            self.assertTrue(about["HostConfig"]["ReadonlyRootfs"])
            self.assertFalse(about["HostConfig"]["Privileged"])
            eventually(lambda node=node: node.health() == "healthy", lambda node=node: f"{node.name} is healthy: " + str(
                self.stack.docker.inspect(node.container)["State"]["Health"]))
            self.assertIn("Read-only file system", self.stack.docker.docker("exec", "--user", "0", node.container, "touch",
                                                                            "/usr/bin/x", check=False))
        trainer = self.stack.docker.inspect(self.stack.nodes[0].trainer)
        self.assertEqual(list(trainer["NetworkSettings"]["Networks"]), ["none"])
        self.assertEqual([mount["Destination"] for mount in trainer["Mounts"] if mount["RW"]],
                         [str(self.stack.nodes[0].sockets)])

    def test_image(self):
        size, labels = images.size(self.stack.docker, self.stack.image)
        above = size - images.size(self.stack.docker, self.stack.base)[0]
        print(f"(the image is {above / 1e6:.1f} MB above its base) ", end="", flush=True)
        self.assertLess(above, MOST_ABOVE_BASE)
        self.assertEqual((labels["org.opencontainers.image.title"], labels["org.opencontainers.image.version"]),
                         ("railsd", images.VERSIONS[0]))
        node = self.stack.nodes[0]
        packages = dict(line.split()[:2] for line in
                        self.stack.inside(node, "cat", "/usr/share/doc/railsd/packages.txt").splitlines())
        self.assertLessEqual({"railsd", "railsctl", "ibverbs-providers", "libc6"}, packages.keys())
        self.assertEqual([name for name in packages if name.endswith("-dev") or name.startswith("python")], [])
        left = self.stack.inside(node, "find", "/var/lib/apt/lists", "/var/cache/apt", "/usr/share/man", "/usr/share/locale",
                                 "-type", "f", "-newer", "/etc/railsd/railsd.yaml", "-not", "-empty")
        self.assertEqual(left.split(), [])

    def test_jobs(self):
        before = [self.carried(node) for node in range(NODES)]
        self.good_jobs(jobs=4)
        for node in range(NODES):
            sums = [after - earlier for after, earlier in zip(self.carried(node), before[node])]
            self.assertEqual(sum(sums), 4 * 2 * (NODES - 1) * FLOW)  # 4 jobs, sent and received
            self.assertTrue(all(sums), f"each rail has carried some: {sums}")

    def test_prometheus(self):
        up = 'count(up{job="railsd"} == 1)'
        eventually(lambda: [sample["value"][1] for sample in self.stack.query(up)] == [str(NODES)],
                   lambda: f"all are scraped: {self.stack.query('up')}")
        self.good_jobs()
        for node in range(NODES):
            expected = str(sum(self.carried(node)))
            expression = ('sum(railsd_rail_payload_bytes_total{instance="' + self.stack.addresses.metrics(node) + '"})')
            eventually(lambda q=expression, e=expected: [s["value"][1] for s in self.stack.query(q)] == [e],
                       lambda q=expression, e=expected: f"{q} is {e}: {self.stack.query(q)}")

    def test_rail_network_disconnected_in_mid_job(self):
        node, rail = self.stack.nodes[1], 2
        trainers = self.trainers()
        self.begin_long(trainers)
        self.stack.network("disconnect", rail, node)
        eventually(lambda: self.rail_states(node, rail) == ["down"] * (NODES - 1), "the peers know that the rail is down")
        self.assertEqual(self.stack.ctl_json(node, "rails")["rails"][rail]["health"]["state"], "down")
        self.assertFalse(any(map(self.answered, trainers)), "the jobs go on")
        still = self.carried(1)
        eventually(lambda: self.carried(1)[0] > still[0] + 8 * FLOW, "the other rails carry them")
        self.assertEqual(self.carried(1)[rail], still[rail])
        self.stack.network("connect", rail, node)
        eventually(lambda: self.rail_states(node, rail) == ["up"] * (NODES - 1), "the rail is up again", patience=120)
        eventually(lambda: self.carried(1)[rail] > still[rail], "the rail is used again")
        self.assertFalse(any(map(self.answered, trainers)), "the jobs go on")
        self.end_long(trainers)

    def end_long(self, trainers):
        """Ends what begin_long() began: the container of one trainer is killed in mid-job, and the others are told."""
        self.stack.docker.docker("kill", self.stack.nodes[0].trainer)
        for trainer in trainers[1:]:
            answer = trainer.receive()
            self.assertFalse(answer["ok"], answer)
            self.assertGreater(answer["done"], 0)
            self.assertRegex(answer["message"], "n0|rank 0")
        self.stack.docker.docker("start", self.stack.nodes[0].trainer)
        self.good_jobs()

    def lost(self, trainers, gone, codes=("UNAVAILABLE",)):
        """All ranks but that of node `gone` are told what became of it; it is named."""
        for rank, trainer in enumerate(trainers):
            if rank == gone:
                continue
            answer = trainer.receive()
            self.assertFalse(answer["ok"], answer)
            self.assertIn(answer["code"], codes, answer)
            self.assertIn(f"n{gone}", answer["message"])

    def test_node_killed(self):
        node, trainers = self.stack.nodes[2], self.trainers()
        self.begin_long(trainers)
        self.stack.docker.docker("kill", node.container)
        self.lost(trainers, 2)
        answer = trainers[2].receive()  # its own daemon is gone
        self.assertFalse(answer["ok"], answer)
        # A job that was submitted may have begun to write (ABORTED); one that was not yet has not.
        self.assertIn(answer["code"], ("ABORTED", "UNAVAILABLE"), answer)
        self.stack.docker.docker("start", node.container)
        self.all_up()
        self.good_jobs()

    def test_node_paused(self):
        node, trainers = self.stack.nodes[3], self.trainers()
        self.begin_long(trainers)
        self.stack.docker.docker("pause", node.container)
        try:
            self.lost(trainers, 3)
        finally:
            self.stack.docker.docker("unpause", node.container)
        self.assertFalse(trainers[3].receive()["ok"])
        self.all_up()
        self.good_jobs()

    def test_node_restarted(self):
        node, trainers = self.stack.nodes[0], self.trainers()
        self.good_jobs(trainers)
        self.stack.docker.docker("restart", "--time", "60", node.container)
        self.assertEqual(self.stack.docker.inspect(node.container)["State"]["ExitCode"], 0)
        self.all_up()
        # The group is gone with the daemon; the trainer says so, and connects again.
        answer = trainers[0].do(do="submit", group=f"g{self.count}", job="j", sends={}, receives={})
        self.assertFalse(answer["ok"], answer)
        self.good_jobs()

    def test_node_drained_and_stopped_in_mid_job(self):
        """The job that runs ends well everywhere, the next one nowhere, and the daemon ends as asked."""
        node, trainers = self.stack.nodes[1], self.trainers()
        self.begin_long(trainers)
        self.stack.inside(node, "railsctl", "drain", "--node", "--timeout", "60s")
        refused = trainers[1].receive()
        self.assertFalse(refused["ok"], refused)
        self.assertIn("drain", refused["message"])
        eventually(lambda: node.health() == "unhealthy", "Docker's health check says that it takes nothing new")
        self.stack.docker.docker("stop", "--time", "60", node.container)
        self.assertEqual(self.stack.docker.inspect(node.container)["State"]["ExitCode"], 0)
        for rank in (0, 2, 3):
            answer = trainers[rank].receive()
            self.assertEqual((answer["ok"], answer["done"]), (False, refused["done"]), answer)
            self.assertIn("n1", answer["message"])
        self.verify(trainers)
        self.stack.docker.docker("start", node.container)
        self.all_up()
        self.good_jobs()

    def test_rolling_upgrade(self):
        """One node after the other: drained, replaced by the new image, used."""
        self.addCleanup(self.stack.write)
        boots = [self.stack.ctl_json(node, "status")["boot_id"] for node in self.stack.nodes]
        self.good_jobs()
        for node in self.stack.nodes:
            self.stack.inside(node, "railsctl", "drain", "--node", "--timeout", "60s")
            self.assertTrue(self.stack.ctl_json(node, "status")["draining"])
            self.stack.recreate(node, self.stack.next_image)
            self.all_up()
            about = self.stack.docker.inspect(node.container)
            self.assertEqual(about["Config"]["Labels"]["org.opencontainers.image.version"], images.VERSIONS[1])
            self.good_jobs()
        after = [self.stack.ctl_json(node, "status")["boot_id"] for node in self.stack.nodes]
        self.assertEqual(len(set(boots + after)), 2 * NODES)

    def test_mixtral_replay(self):
        """Through processes in the trainers' containers; every byte is compared."""
        report = self.stack.launched_replay("--workload", "mixtral", "--steps", 8, "--ranks-per-node", 2,
                                            "--bytes-per-rank", "8MiB")
        self.assertIs(report["verified"], True)
        for direction in ("tx_bytes", "rx_bytes"):
            rails = sum(rail[direction] for rail in report["rails"])
            self.assertEqual(rails + report["eager"][direction], report["bytes"], json.dumps(report["rails"]))
