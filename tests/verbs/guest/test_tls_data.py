#!/usr/bin/env python3
"""TLS by the kernel on the data connections of rails over TCP: the guest's kernel has it, the machine's may not. Rails are
on loopback addresses; nothing here needs verbs."""

import subprocess
import threading
from pathlib import Path

import harness
import rdma
from harness import clusters

RAILS = 2
WORKLOAD = ("--verify", "--workload", "uniform", "--bytes-per-rank", "4MiB", "--steps", 2)


def settings(data, nodes=2, **more):
    return clusters.Settings(nodes=nodes, rails=RAILS, speed="500mbit", patience=120.0, tls=True, sections={
        "tls": {"data": data}, "timeouts": {"job": "4m", "join": "3m", "drain": "20s", "peer_lost": "30s"}, **more})


def kernel_counts():
    """The kernel's counters of its TLS sockets."""
    return {line.split()[0]: int(line.split()[1]) for line in Path("/proc/net/tls_stat").read_text().splitlines()}


def setUpModule():
    rdma.run("modprobe", "tls")


class TlsDataTest(harness.ClusterTest):
    def rails(self, node=0):
        return self.cluster.overview(self.cluster.nodes[node])["rails"]

    def total(self, *keys):
        return sum(rail["counters"][key] for node in range(2) for rail in self.rails(node) for key in keys)

    def calls_by_chunk(self):
        """System calls of all rails for each chunk of a replay that is verified."""
        keys = ("tx_system_calls", "rx_system_calls", "tx_chunks", "rx_chunks")
        before = [self.total(key) for key in keys]
        report = self.cluster.replay(*WORKLOAD)
        self.assertIs(report["verified"], True)
        sends, receives, sent, received = (self.total(key) - value for key, value in zip(keys, before))
        print(f"{sends} sends and {receives} receives for {sent} chunks sent and {received} received", flush=True)
        self.assertGreater(sent + received, 0)
        return (sends + receives) / (sent + received)


class Records(TlsDataTest):
    settings = settings("kernel")

    def test_a_replay_is_verified(self):
        def encrypted():
            """The counters, once both ends of one connection for each rail and ordered pair of nodes have keys. The end
            that accepts takes its keys after the other one has reported the rail as up."""
            counts = kernel_counts()
            return counts if counts["TlsCurrTxSw"] >= 4 * RAILS and counts["TlsCurrTxSw"] == counts["TlsCurrRxSw"] else None

        before = harness.eventually(encrypted, kernel_counts)
        self.assertLess(self.calls_by_chunk(), 8)
        after = kernel_counts()
        self.assertEqual(after["TlsDecryptError"], before["TlsDecryptError"])
        self.assertEqual(self.total("protocol_errors"), 0)
        self.assertEqual(self.sample(self.scrape(0), "railsd_tls_data_enabled"), 1)
        with self.subTest("doctor"):
            text = self.cluster.ctl(self.cluster.nodes[0], "doctor", "--config", self.cluster.nodes[0].config).stdout
            self.assertIn("the kernel encrypts the data connections", text)

    def test_changed_bytes_end_the_connection(self):
        """A byte of each large packet to one rail is changed on the way until a connection has ended for it. The jobs
        arrive byte for byte; in plain text they would not."""
        address = self.cluster.addresses.rail(1, 0)
        before, reports = kernel_counts(), []

        def replay():
            reports.append(self.cluster.replay(*WORKLOAD[:-1], 6))
        rdma.run("tc", "qdisc", "add", "dev", "lo", "clsact")
        self.addCleanup(subprocess.run, ["tc", "qdisc", "del", "dev", "lo", "clsact"], stderr=subprocess.DEVNULL,
                        check=False)
        rdma.run("tc", "filter", "add", "dev", "lo", "egress", "protocol", "ip", "flower", "ip_proto", "tcp", "dst_ip",
                 address, "action", "pedit", "munge", "offset", "1500", "u8", "invert")
        thread = threading.Thread(target=replay)
        thread.start()
        try:
            harness.eventually(lambda: int(self.rails(1)[0]["counters"]["protocol_errors"]) > 0, lambda: self.rails(1))
        finally:
            rdma.run("tc", "qdisc", "del", "dev", "lo", "clsact")
            thread.join()
        self.assertEqual(len(reports), 1, "the replay ended well")
        self.assertIs(reports[0]["verified"], True)
        self.assertGreater(kernel_counts()["TlsDecryptError"], before["TlsDecryptError"])
        self.assertGreater(self.total("disconnects"), 0)
        harness.eventually(lambda: not self.cluster._not_ready(self.cluster.nodes[0]), "the rail comes back")
        self.assertIs(self.cluster.replay(*WORKLOAD)["verified"], True)

    def test_what_nobody_wants_is_drained(self):
        """Bytes of a job that has ended are drained: records cannot be dropped unseen."""
        trainers = [self.trainer(rank) for rank in range(2)]
        for rank, trainer in enumerate(trainers):
            trainer.segment("s", 2 << 20, seed=rank + 1)
            trainer.segment("r", 2 << 20)
        harness.join(trainers, "cancelled")
        for job in range(5):
            for rank, trainer in enumerate(trainers):
                peer = str(1 - rank)
                trainer.must(do="submit", group="cancelled", job=f"j{job}", sends={peer: [["s", 0, 2 << 20]]},
                             receives={peer: [["r", 0, 2 << 20]]})
            if job == 3:
                trainers[1].kill()
                break
            for rank, trainer in enumerate(trainers):
                self.assertEqual(trainer.must(do="wait", job=f"j{job}")["code"], "OK")
                self.assertEqual(trainer.wrong_bytes("r", 0, 2 << 20, seed=2 - rank), 0)
        trainers[0].must(do="wait", job="j3")
        trainers[0].kill()
        self.wait_idle()
        self.assertIs(self.cluster.replay(*WORKLOAD)["verified"], True)


class PlainText(TlsDataTest):
    settings = settings("off")

    def test_for_comparison(self):
        before = kernel_counts()["TlsTxSw"]
        self.assertLess(self.calls_by_chunk(), 8)
        self.assertEqual(kernel_counts()["TlsTxSw"], before)
        self.assertEqual(self.sample(self.scrape(0), "railsd_tls_data_enabled"), 0)


class Unlike(harness.unittest.TestCase):
    def test_nodes_that_differ_move_nothing_and_say_why(self):
        cluster = clusters.Cluster(settings("kernel"), build=harness.BUILD)
        other = cluster.nodes[1]
        other.config.write_text(other.config.read_text().replace('data: "kernel"', 'data: "off"'))
        self.addCleanup(cluster.stop)
        cluster.start()
        # Links are made before a daemon serves, so its page may not answer yet when the log says why rails fail.
        for says in ("tls.data is not the same at both ends", " ready socket_dir="):
            for node in cluster.nodes:
                harness.eventually(lambda node=node: says in node.log.read_text(), cluster.logs)
        self.assertEqual(cluster.overview(cluster.nodes[0])["rails"][0]["counters"]["tx_chunks"], 0)


if __name__ == "__main__":
    harness.main()
