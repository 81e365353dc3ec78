#!/usr/bin/env python3
"""Tenants on real daemons: the tenant of a client, its quotas, and that no tenant sees or disturbs another. Needs root
for clients of other users."""

import os
import re
import socket
import stat
import subprocess
import unittest

import harness
from harness import MIB, clusters

RED, BLUE, STRANGER = 64001, 64002, 64003  # unused user ids


def as_user(number, groups=""):
    """Prefix of a command that runs as this user."""
    extra = ["--groups", groups] if groups else ["--clear-groups"]
    return ["setpriv", f"--reuid={number}", f"--regid={number}", *extra]


@unittest.skipIf(os.geteuid() != 0, "only root may be other users")
class Tenants(harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=2, speed="1gbit", sections={"tenants": [
        {"name": "red", "users": [str(RED)], "quota": {"sessions": 3, "segments": 6, "segment_bytes": "8MiB", "jobs": 2,
                                                        "jobs_per_second": 1000}, "share": {"weight": 3}},
        {"name": "blue", "groups": [str(BLUE)]},
        {"name": "box"},
    ]})

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.chmod(cls.cluster.folder, 0o755)  # so that other users reach the sockets

    def client(self, user, node=0, own="", groups=""):
        """A trainer of this user, not connected yet, and its socket directory."""
        trainer = harness.Trainer(command=[*as_user(user, groups), str(harness.trainer_program())])
        self.addCleanup(trainer.kill)
        sockets = self.cluster.nodes[node].sockets
        return trainer, str(sockets / "tenants" / own if own else sockets)

    def connected(self, user, node=0, own="", groups=""):
        trainer, sockets = self.client(user, node, own, groups)
        trainer.must(do="connect", socket_dir=sockets)
        return trainer

    def connect(self, user, node=0, own="", groups=""):
        trainer, sockets = self.client(user, node, own, groups)
        return trainer.do(do="connect", socket_dir=sockets)

    def pair(self, user, group, own="", seed=1):
        """Two ranks on two nodes with a group and 1 MiB each way."""
        trainers = [self.connected(user, node, own) for node in range(2)]
        for rank, trainer in enumerate(trainers):
            trainer.segment("s", MIB, seed=seed + rank)
            trainer.segment("r", MIB)
        for answer in harness.join(trainers, group, key="key"):
            self.assertTrue(answer["ok"], answer)
        return trainers

    def submit(self, trainers, rank, group, job, place=0, length=MIB):
        other = str(1 - rank)
        return trainers[rank].do(do="submit", group=group, job=job, sends={other: [["s", place, length]]},
                                 receives={other: [["r", place, length]]})

    def exchange(self, trainers, group, job, seed=1):
        """Runs a job and checks every byte."""
        for rank in range(2):
            answer = self.submit(trainers, rank, group, job)
            self.assertTrue(answer["ok"], answer)
        for rank, trainer in enumerate(trainers):
            self.assertEqual(trainer.must(do="wait", job=job)["code"], "OK")
            self.assertEqual(trainer.wrong_bytes("r", 0, MIB, seed=seed + 1 - rank), 0)

    def tenant(self, name, node=0):
        tenants = self.cluster.ctl_json(self.cluster.nodes[node], "tenants")["tenants"]
        return next(tenant for tenant in tenants if tenant["name"] == name)

    def quota(self, name, quota, node=0):
        return next(each for each in self.tenant(name, node)["quotas"] if each["name"] == quota)

    def in_use(self, name, quota, node=0):
        return self.quota(name, quota, node)["in_use"]

    def refused(self, name, quota):
        return self.quota(name, quota)["refused"]

    def tearDown(self):
        self.doCleanups()
        self.wait_idle()
        for name in ("red", "blue", "box"):
            used = {quota["name"]: quota["in_use"] for quota in self.tenant(name)["quotas"]
                    if quota["name"] != "jobs_per_second"}
            self.assertEqual(set(used.values()), {0}, (name, used))

    def test_who_is_of_which_tenant(self):
        self.connected(RED)
        self.connected(BLUE)
        self.connected(STRANGER, groups=str(BLUE))  # by a supplementary group
        self.connected(STRANGER, own="blue", groups=str(BLUE))
        self.connected(0, own="box")  # as root of a container
        tenants = sorted((session["uid"], session["tenant"]) for session in self.status(0)["sessions"])
        self.assertEqual(tenants, [(0, "box"), (RED, "red"), (BLUE, "blue"), (STRANGER, "blue"), (STRANGER, "blue")])
        self.assertEqual({session["client_name"] for session in self.status(0)["sessions"]}, {"test trainer"})
        text = self.cluster.ctl(self.cluster.nodes[0], "tenants").stdout
        self.assertRegex(text, r"red +3 +0 +1 of 3 +0 of 6 +0 B of 8.*MiB")

    def test_who_is_of_none_is_refused(self):
        before = self.sample(self.scrape(0), "railsd_descriptor_denied_total")
        answer = self.connect(STRANGER)
        self.assertEqual(answer["code"], "PERMISSION_DENIED", answer)
        self.assertIn(f"uid {STRANGER}, gid {STRANGER} is of no tenant of node n0", answer["message"])
        self.assertIn("`users`", answer["message"])
        for other in ("red", "blue", "box"):
            self.assertNotIn(other, answer["message"])
        self.assertEqual(self.connect(RED, own="blue")["code"], "PERMISSION_DENIED")
        self.assertEqual(self.sample(self.scrape(0), "railsd_descriptor_denied_total"), before + 2)
        self.assertIn("session_denied pid=", self.cluster.nodes[0].log.read_text())
        # The folder of a tenant that lists nobody is closed. Clients retry, because the daemon may still be starting.
        trainer, sockets = self.client(STRANGER, own="box")
        self.assertEqual(trainer.do(do="connect", socket_dir=sockets, timeout=0.1)["code"], "PERMISSION_DENIED")
        folder = self.cluster.nodes[0].sockets / "tenants"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        self.assertEqual(modes, {"red": 0o755, "blue": 0o755, "box": 0o700})

    def test_a_session_is_worth_nothing_on_another_tenants_socket(self):
        sockets = self.cluster.nodes[0].sockets
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as session:
            session.connect(str(sockets / "tenants" / "box" / "descriptors.sock"))
            session.send(b"\x0a\x04\x08\x01\x10\x01")  # open_session, versions 1 to 1
            token = re.search(rb"[0-9a-f]{64}", session.recv(65536)).group().decode()
            for where, answered in (("tenants/box", 1), (".", 1), ("tenants/blue", 0), ("tenants/red", 0)):
                with self.subTest(socket=where):
                    run = subprocess.run([harness.BUILD / "tests/integration/rails_grpc_probe",
                                          f"unix:{sockets / where / 'client.sock'}",
                                          "/rails.v1.SessionService/GetSession", "1", token],
                                         capture_output=True, text=True, check=True)
                    self.assertEqual(run.stdout, f"answered {answered}\n")
        self.assertIn("session_of_another_tenant", self.cluster.nodes[0].log.read_text())
        self.assertGreater(self.sample(self.scrape(0), "railsd_grpc_calls_total", code="unauthenticated"), 0)

    def test_same_group_and_key_of_two_tenants(self):
        red = self.connected(RED, 0)
        blue = self.connected(BLUE, 1)
        for rank, trainer in enumerate((red, blue)):
            trainer.send(do="join", group="g", world=2, rank=rank, key="key", timeout=1)
        for trainer in (red, blue):
            answer = trainer.receive()
            self.assertEqual(answer["code"], "DEADLINE_EXCEEDED", answer)
            self.assertIn("1 of 2 ranks have joined", answer["message"])
        first, second = self.pair(RED, "g"), self.pair(BLUE, "g", seed=11)
        groups = [(group["tenant"], group["name"]) for group in self.status(0)["groups"]]
        self.assertEqual(sorted(groups), [("blue", "g"), ("red", "g")])
        self.exchange(first, "g", "j", seed=1)
        self.exchange(second, "g", "j", seed=11)

    def test_its_own_folder_works(self):
        self.exchange(self.pair(0, "boxed", own="box"), "boxed", "j")
        self.exchange(self.pair(RED, "own", own="red"), "own", "j")
        self.assertGreaterEqual(self.tenant("box")["jobs_done"], 1)
        self.assertGreaterEqual(self.tenant("box", 1)["bytes_received"], MIB)
        by_rail = [self.sample(self.scrape(0), "railsd_tenant_rail_sent_bytes_total", tenant="box", rail=f"rail{rail}")
                   for rail in range(2)]
        self.assertEqual(by_rail, self.tenant("box")["rail_sent_bytes"])
        self.assertGreaterEqual(sum(by_rail), MIB)

    def test_each_quota_refuses_and_others_go_on(self):
        blue = self.pair(BLUE, "blue", seed=21)
        red = self.pair(RED, "red")
        self.exchange(blue, "blue", "before", seed=21)

        with self.subTest("segment_bytes"):
            answer = red[0].do(do="segment", name="x", bytes=6 * MIB + 1)
            self.assertEqual(answer["code"], "RESOURCE_EXHAUSTED", answer)
            self.assertIn("tenants.red.quota.segment_bytes", answer["message"])
            red[0].segment("x", 6 * MIB)
            self.exchange(blue, "blue", "bytes", seed=21)
            red[0].must(do="drop", name="x")
            harness.eventually(lambda: self.in_use("red", "segment_bytes") == 2 * MIB, "bytes are given back")

        with self.subTest("jobs"):
            part = MIB // 3  # jobs under way never share bytes
            for number, job in enumerate(("one", "two")):
                self.assertTrue(self.submit(red, 0, "red", job, number * part, part)["ok"])
            answer = self.submit(red, 0, "red", "three", 2 * part, part)
            self.assertEqual(answer["code"], "RESOURCE_EXHAUSTED", answer)
            self.assertIn("tenants.red.quota.jobs: tenant red may have 2, 2 in use", answer["message"])
            self.exchange(blue, "blue", "jobs", seed=21)
            for number, job in enumerate(("one", "two")):
                self.assertTrue(self.submit(red, 1, "red", job, number * part, part)["ok"])
            for trainer in red:
                for job in ("one", "two"):
                    self.assertEqual(trainer.must(do="wait", job=job)["code"], "OK")
            self.exchange(red, "red", "three")  # takes the refused job's number

        self.assertEqual([self.refused("red", kind) for kind in ("segment_bytes", "jobs")], [1, 1])
        self.assertEqual(self.sample(self.scrape(0), "railsd_tenant_refused_total", tenant="red", quota="jobs"), 1)
        self.assertEqual(self.sample(self.scrape(0), "railsd_tenant_refused_total", tenant="blue"), 0)

    def test_a_reload_changes_quotas_only(self):
        node = self.cluster.nodes[0]
        config = self.cluster.config(node)
        written = node.config.read_text()
        self.addCleanup(lambda: (node.config.write_text(written), self.cluster.ctl_json(node, "reload")))
        tenants = [dict(tenant) for tenant in config["tenants"]]
        tenants[0]["quota"] = {**tenants[0]["quota"], "jobs": 0, "jobs_per_second": 1}
        tenants[0]["share"] = {"weight": 2, "priority": 1}
        tenants[1]["groups"] = ["0"]
        config["tenants"] = tenants
        red = self.pair(RED, "rate")
        node.config.write_text(clusters.yaml_text(config))
        report = self.cluster.ctl_json(node, "reload")
        self.assertEqual([(c["key"], c["before"], c["after"]) for c in report["applied"]],
                         [("tenants.red.quota.jobs", "2", "0"),
                          ("tenants.red.quota.jobs_per_second", "1000", "1"),
                          ("tenants.red.share.priority", "0", "1"), ("tenants.red.share.weight", "3", "2")])
        self.assertEqual([self.tenant("red")[key] for key in ("weight", "priority")], [2, 1])
        self.assertEqual([c["key"] for c in report["needs_restart"]], ["tenants.blue.groups"])
        self.connected(BLUE)
        answers = [self.submit(red, 0, "rate", f"j{number}", number * 4096, 4096) for number in range(20)]
        refused = [answer for answer in answers if not answer["ok"]]
        self.assertTrue(refused, answers)
        self.assertEqual(refused[0]["code"], "RESOURCE_EXHAUSTED")
        self.assertIn("tenants.red.quota.jobs_per_second", refused[0]["message"])


class Unknown(unittest.TestCase):
    def test_users_that_are_none_end_the_start(self):
        settings = clusters.Settings(nodes=1, rails=1, patience=harness.PATIENCE,
                                     sections={"tenants": [{"name": "a", "users": ["no-such-user"]}]})
        cluster = clusters.Cluster(settings, build=harness.BUILD)
        with self.assertRaises(clusters.ClusterError) as failed, cluster:
            pass
        self.assertIn("tenants.a.users: 'no-such-user': no such user", str(failed.exception))


if __name__ == "__main__":
    harness.main()
