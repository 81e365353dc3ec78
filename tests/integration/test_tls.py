#!/usr/bin/env python3
"""Mutual TLS between daemons: accepted nodes, refused nodes and their errors, and certificates that change meanwhile.

Whatever strangers do, jobs of the nodes that trust each other go on, and every byte is right.
"""

import datetime
import json
import socket
import subprocess
import tempfile
from pathlib import Path

import harness
from harness import MIB, clusters, eventually, join

LENGTH = 2 * MIB


def hours_from_now(hours):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


class TlsTest(harness.ClusterTest):
    settings = clusters.Settings(nodes=3, rails=2, speed="1gbit", tls=True, sections={"timeouts": {"peer_lost": "30s"}})

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(dir=self.cluster.folder))  # for other certificates
        self.jobs = 0

    def pair(self, group, nodes=(0, 1)):
        trainers = [self.trainer(node) for node in nodes]
        for rank, trainer in enumerate(trainers):
            trainer.segment("s", LENGTH, seed=rank)
            trainer.segment("r", LENGTH)
        for answer in join(trainers, group):
            self.assertTrue(answer["ok"], answer)
        return group, trainers

    def exchange(self, pair):
        group, trainers = pair
        self.jobs += 1
        for rank, trainer in enumerate(trainers):
            other = str(1 - rank)
            trainer.must(do="fill", name="r", offset=0, bytes=LENGTH, seed=9)
            trainer.must(do="submit", group=group, job=f"j{self.jobs}", sends={other: [["s", 0, LENGTH]]},
                         receives={other: [["r", 0, LENGTH]]})
        for rank, trainer in enumerate(trainers):
            self.assertEqual(trainer.must(do="wait", job=f"j{self.jobs}")["code"], "OK")
            self.assertEqual(trainer.wrong_bytes("r", 0, LENGTH, seed=1 - rank), 0)

    def count(self, name, node=0, **labels):
        return self.sample(self.scrape(node), name, **labels)

    def log(self, node):
        return self.cluster.nodes[node].log.read_text()

    def why(self, node, peer):
        """Why a peer is not up, as shown by a node, which may still be starting."""
        asked = self.cluster.ctl(self.cluster.nodes[node], "peers", "--json")
        peers = json.loads(asked.stdout)["peers"] if asked.returncode == 0 else []
        return next((p["why"] for p in peers if p["node"] == peer), "")

    def restart(self, node, **tls):
        """Restarts a node with another `tls` section."""
        node = self.cluster.nodes[node]
        self.cluster.stop_node(node)
        node.config.write_text(clusters.yaml_text({**self.cluster.config(node), **({"tls": tls} if tls else {})}))
        self.cluster.start_node(node)


class Together(TlsTest):
    def test_bytes_move_and_everybody_is_told(self):
        pair = self.pair("together", (0, 2))
        for _ in range(3):
            self.exchange(pair)
        expiry = self.status(0)["tls_certificate_expiry_seconds"]
        self.assertTrue(self.status(0)["tls"])
        self.assertGreater(expiry, 0)
        self.assertEqual(self.count("railsd_tls_certificate_expiry_seconds"), expiry)
        self.assertEqual(self.count("railsd_tls_enabled"), 1)
        self.assertNotIn("no_tls_between_nodes", self.log(0))
        self.assertNotIn("PRIVATE KEY", self.log(0))
        found = self.cluster.ctl(self.cluster.nodes[0], "doctor").stdout
        self.assertIn("mutual TLS; its certificate expires in 364d", found)

    def strangers(self):
        """(name, arguments of openssl besides the address, log line of the daemon) of each stranger."""
        mine, other = self.cluster.folder / "pki", self.folder / "other"
        self.cluster.pki("init", folder=other)
        self.cluster.pki("issue", "n1", folder=other)
        times = {"expired": hours_from_now(-48), "early": hours_from_now(24)}
        for name, begin in times.items():  # signed by this cluster's authority
            folder = self.folder / name
            folder.mkdir()
            for file in ("ca.pem", "ca.key"):
                (folder / file).write_bytes((mine / file).read_bytes())
            self.cluster.pki("issue", "n1", "--from", begin, "--days", 1, folder=folder)

        def shows(folder):
            return ["-tls1_3", "-cert", folder / "n1.pem", "-key", folder / "n1.key"]
        return [("nobody", ["-tls1_3"], "peer did not return a certificate"),
                ("another authority's", shows(other), "certificate verify failed"),
                ("expired", shows(self.folder / "expired"), "certificate verify failed"),
                ("not valid yet", shows(self.folder / "early"), "certificate verify failed"),
                ("of TLS 1.2", ["-tls1_2", *shows(mine)[1:]], "unsupported protocol"),
                ("of another protocol", [*shows(mine), "-alpn", "h2"], "no application protocol")]

    def test_strangers_are_refused(self):
        pair, address = self.pair("strangers"), self.cluster.addresses.control(0)
        for who, options, reason in self.strangers():
            with self.subTest(who=who):
                before, said = self.count("railsd_tls_handshakes_failed_total"), self.log(0).count(reason)
                subprocess.run(["openssl", "s_client", "-connect", address, "-alpn", "railsd-link/1", *map(str, options)],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               timeout=60, check=False)
                eventually(lambda: self.count("railsd_tls_handshakes_failed_total") > before, "it is counted")
                eventually(lambda: self.log(0).count(reason) > said, lambda: f"{reason}\n{self.log(0)[-2000:]}")
                self.exchange(pair)


class Apart(TlsTest):
    """A node that the others refuse, and later accept again."""

    def apart(self, reason, **tls):
        pair = self.pair(f"apart-{reason}")
        before = self.count("railsd_tls_handshakes_failed_total")
        self.restart(2, **tls)
        eventually(lambda: self.count("railsd_tls_handshakes_failed_total") > before, "it is counted")
        eventually(lambda: reason in self.why(0, "n2"), lambda: f"n0 says of n2: {self.why(0, 'n2')}")
        for _ in range(3):
            self.exchange(pair)
        self.assertEqual(self.count("railsd_peer_up", peer="n2"), 0)
        self.restart(2)
        self.cluster.wait_ready(60)
        self.exchange(pair)
        self.exchange(self.pair(f"again-{reason}", (1, 2)))

    def test_another_authority(self):
        self.cluster.pki("init", folder=self.folder / "other")
        self.cluster.pki("issue", "n2", folder=self.folder / "other")
        self.apart("certificate verify failed", **self.cluster.tls_config("n2", self.folder / "other"))

    def test_plain_text(self):
        self.apart("one end has TLS (tls.mode: mutual) and the other plain text", mode="plain_text")


class Expiry(TlsTest):
    """A certificate that nobody renews."""

    def test_streams_that_are_up_go_on_and_new_ones_do_not_begin(self):
        folder = self.folder / "short"
        folder.mkdir()
        for file in ("ca.pem", "ca.key"):
            (folder / file).write_bytes((self.cluster.folder / "pki" / file).read_bytes())
        self.cluster.pki("issue", "n2", folder=folder)
        self.restart(2, **self.cluster.tls_config("n2", folder))
        self.cluster.wait_ready(60)
        pair = self.pair("short", (0, 2))
        self.exchange(pair)
        taken = self.count("railsd_tls_files_total", node=2, result="taken")
        self.cluster.pki("issue", "n2", "--force", "--from", hours_from_now(-24 + 30 / 3600), "--days", 1, folder=folder)
        eventually(lambda: self.count("railsd_tls_files_total", node=2, result="taken") > taken, "n2 takes it")
        eventually(lambda: "tls_certificate_expired" in self.log(2), "n2 says that its certificate has expired")
        self.exchange(pair)
        found = self.cluster.ctl(self.cluster.nodes[2], "doctor").stdout
        self.assertIn("its certificate expired", found)
        self.restart(1)
        eventually(lambda: "certificate verify failed" in self.why(1, "n2"), lambda: f"n1 says of n2: {self.why(1, 'n2')}")
        eventually(lambda: self.count("railsd_tls_handshakes_failed_total", node=1) > 0, "it is counted")
        self.exchange(pair)
        # After the renewal the running node is accepted again.
        self.cluster.pki("issue", "n2", "--force", folder=folder)
        self.cluster.wait_ready(60)
        self.exchange(pair)
        self.exchange(self.pair("renewed", (1, 2)))


class Start(TlsTest):
    """Files that a daemon does not start with."""

    def refused(self, **tls):
        node = self.cluster.nodes[2]
        config = self.folder / "railsd.yaml"
        sockets = self.folder / "sockets"
        config.write_text(clusters.yaml_text({**self.cluster.config(node), "socket_dir": str(sockets), "tls": tls}))
        run = subprocess.run([self.cluster.railsd, "--config", config], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(run.returncode, 1, run.stderr)
        reason = run.stderr.strip().split("\n")[-1].removeprefix("railsd: ")
        check = subprocess.run([self.cluster.railsd, "--config", config, "--check-config"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(check.returncode, 3, check.stderr)
        self.assertRegex(check.stderr, r"railsd\.yaml: tls\.")
        found = self.cluster.ctl(node, "doctor", "--config", config).stdout
        self.assertIn("A daemon does not start with this file", found)
        return reason

    def test_wrong_files(self):
        pki, good = self.cluster.folder / "pki", self.cluster.tls_config("n2")
        self.assertIn(f"tls.certificate: {pki}/n1.pem: is of n1, not of this node, n2",
                      self.refused(**self.cluster.tls_config("n1")))
        self.assertIn(f"{pki}/n9.pem: cannot open", self.refused(**{**good, "certificate": str(pki / "n9.pem")}))


class Rotation(TlsTest):
    """Certificates and the authority change while jobs run, without a restart."""

    def taken(self):
        return [self.count("railsd_tls_files_total", node=node, result="taken") for node in range(3)]

    def write(self, name, text):
        path = self.cluster.folder / "pki" / name
        beside = path.with_suffix(".tmp")
        beside.write_text(text)
        beside.chmod(0o600)
        beside.replace(path)

    def round(self, write):
        """Changes files and waits until every daemon has taken them. Jobs run before, meanwhile and afterwards."""
        before = self.taken()
        write()
        eventually(lambda: all(now > then for now, then in zip(self.taken(), before)),
                   lambda: f"files are taken: {before} {self.taken()}")
        for pair in self.pairs:
            self.exchange(pair)

    def test_everything_changes(self):
        self.pairs = [self.pair("rotation-01", (0, 1)), self.pair("rotation-12", (1, 2))]
        pki, new = self.cluster.folder / "pki", self.folder / "new"
        old_ca, lost = (pki / "ca.pem").read_text(), self.count("railsd_control_errors_total", kind="lost")
        streams = self.count("railsd_control_errors_total", kind="disconnect")
        self.cluster.pki("init", folder=new)
        self.cluster.pki("issue", "n0", "n1", "n2", "--days", 30, folder=new)
        new_ca = (new / "ca.pem").read_text()
        self.round(lambda: self.write("ca.pem", old_ca + new_ca))

        def certificates():
            for node in ("n0", "n1", "n2"):
                for kind in ("key", "pem"):
                    self.write(f"{node}.{kind}", (new / f"{node}.{kind}").read_text())
        self.round(certificates)
        self.round(lambda: self.write("ca.pem", new_ca))
        # No connection or link has ended.
        self.assertEqual(self.count("railsd_control_errors_total", kind="lost"), lost)
        self.assertEqual(self.count("railsd_control_errors_total", kind="disconnect"), streams)
        # Connections made anew use what is new, and their links go on.
        for node in range(3):
            peers = json.loads(self.cluster.ctl(self.cluster.nodes[node], "redial", "--json").stdout)["peers"]
            self.assertEqual([sorted(peer) for peer in peers], [["node", "seconds"]] * 2, "no error")
            for pair in self.pairs:
                self.exchange(pair)
        self.assertGreater(self.count("railsd_control_errors_total", kind="disconnect"), streams)
        stranger = self.cluster.ctl(self.cluster.nodes[0], "redial", "n7")
        self.assertNotEqual(stranger.returncode, 0)
        self.assertIn("'n7' is no peer of node n0", stranger.stderr)
        stranger = json.loads(self.cluster.ctl(self.cluster.nodes[0], "redial", "n7", "--json").stdout)["peers"]
        self.assertIn("'n7' is no peer of node n0", stranger[0]["error"])
        self.assertEqual(self.count("railsd_control_errors_total", kind="lost"), lost)
        # A restarted node is accepted with the new files. The old files are no longer accepted.
        self.restart(2)
        self.cluster.wait_ready(60)
        self.exchange(self.pairs[0])
        self.exchange(self.pair("rotation-20", (2, 0)))

    def test_broken_files_are_not_taken(self):
        self.pairs = [self.pair("broken")]
        pki = self.cluster.folder / "pki"
        good = (pki / "n0.pem").read_text()
        expiry = self.count("railsd_tls_certificate_expiry_seconds")
        for bad in (good[:100], (pki / "n1.pem").read_text()):
            before = self.count("railsd_tls_files_total", result="refused")
            self.write("n0.pem", bad)
            eventually(lambda: self.count("railsd_tls_files_total", result="refused") > before, "it is refused")
            # The files read before stay in force, also for new connections.
            self.restart(2)
            self.cluster.wait_ready(60)
            self.exchange(self.pairs[0])
            self.write("n0.pem", good)
            eventually(lambda: "tls_files_refused" in self.log(0), "it is said")
        self.assertEqual(self.count("railsd_tls_certificate_expiry_seconds"), expiry)


if __name__ == "__main__":
    harness.main()
