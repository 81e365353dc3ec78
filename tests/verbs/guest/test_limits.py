#!/usr/bin/env python3
"""Clusters at the limits of what can be set, and settings that cannot work."""

import fcntl
import os
import struct
import subprocess
import unittest

import harness
import rdma
from harness import MIB, clusters
from test_descriptors import Client, add_segment, memfd, open_session

# Each with what must be seen of it.
SETTINGS = {
    "one outstanding work request": {"send_queue_depth": 1},
    "a tiny completion queue": {"completion_queue_depth": 8},
    "one fence at a time": {"fence_queue_depth": 1},
    "path MTU 1024": {"path_mtu": 1024},
    "three queue pairs a peer": {"queue_pairs_per_peer": 3},
    "no windows": {"max_windows": 0},
    "nothing inline": {"inline_bytes": 0},
    "link-local GIDs": {"gid_index": 0},
}


UNIMPLEMENTED = 12
CREATE_DUMB, HANDLE_TO_FD = 0xC02064B2, 0xC00C642D  # ioctls of <drm/drm.h>


def dma_buf():
    """A dma-buf of 4,096 bytes, of the kernel's vgem."""
    subprocess.run(["modprobe", "vgem"], check=True)
    device = os.open("/dev/dri/card0", os.O_RDWR | os.O_CLOEXEC)
    try:
        buffer = fcntl.ioctl(device, CREATE_DUMB, struct.pack("6IQ", 1, 1024, 32, 0, 0, 0, 0))
        handle = struct.unpack("6IQ", buffer)[4]
        name = fcntl.ioctl(device, HANDLE_TO_FD, struct.pack("2Ii", handle, os.O_RDWR | os.O_CLOEXEC, -1))
        return struct.unpack("2Ii", name)[2]
    finally:
        os.close(device)


class LittleMemory(clusters.VerbsRails):
    """Daemons that may pin so much memory; root may pin all it likes, so they lose the capability for it."""

    LIMIT = 8 * MIB

    def command(self, _node):
        return ["prlimit", f"--memlock={self.LIMIT}", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]


class Limits(unittest.TestCase):
    def cluster(self, verbs):
        return clusters.Cluster(rdma.settings(verbs=verbs), build=harness.BUILD, addresses=rdma.pair())

    def test_every_limit_still_moves_every_byte(self):
        server = self.enterContext(harness.TrainerServer())
        for name, verbs in SETTINGS.items():
            with self.subTest(name), self.cluster(verbs) as cluster, \
                    rdma.Exchange(cluster, server, 3 * MIB) as exchange:
                exchange.run(count=3)
                exchange.run(100)
                devices = rdma.devices(cluster, 0)
                if name == "three queue pairs a peer":
                    self.assertEqual({device["queue_pairs"] for device in devices}, {3})
                weak = rdma.total(cluster, [0], "weak_zones")
                self.assertEqual(weak > 0, name == "no windows")
                if name == "no windows":
                    self.assertIn("weak", cluster.nodes[0].log.read_text())

    def test_a_dma_buf_is_refused_by_the_device_and_the_session_goes_on(self):
        with self.cluster({}) as cluster, Client(cluster.nodes[0].sockets) as client:
            self.assertEqual(client.ask(open_session())[0], 0)
            descriptor = dma_buf()
            self.addCleanup(os.close, descriptor)
            code, message = client.ask(add_segment(1, 4096), [descriptor])
            self.assertEqual(code, UNIMPLEMENTED, message)
            self.assertRegex(message, r"rxe_n0r0/1.* segment 1 .*dma-buf.*use staging")
            host = memfd()
            self.addCleanup(os.close, host)
            self.assertEqual(client.ask(add_segment(2, MIB), [host]), (0, ""))
            said = cluster.ctl(cluster.nodes[0], "doctor").stdout
            self.assertRegex(said, r"rxe_n0r0/1 \(.*\): active.*; no dma-bufs")

    def test_settings_that_cannot_work_are_refused_with_the_reason(self):
        with self.assertRaises(clusters.ClusterError) as raised:
            with self.cluster({"gid_index": 200}):
                pass
        self.assertRegex(str(raised.exception), "rxe_n[01]r0/1: GID index 200 is not in use; it has: ")

    def test_what_cannot_be_pinned_is_refused_and_says_why(self):
        addresses = LittleMemory(lambda node, rail: f"rxe_n{node}r{rail}")
        server = self.enterContext(harness.TrainerServer())
        with clusters.Cluster(rdma.settings(), build=harness.BUILD, addresses=addresses) as cluster:
            with harness.Trainer(cluster.nodes[0], server) as trainer:
                answer = trainer.do(do="segment", name="s", bytes=2 * LittleMemory.LIMIT)
                self.assertFalse(answer["ok"], answer)
                self.assertRegex(str(answer), r"rxe_n0r\d/1.*16777216 bytes.*memlock")
            with rdma.Exchange(cluster, server, MIB // 2) as exchange:
                exchange.run(count=2)

    def test_no_such_device(self):
        addresses = clusters.VerbsRails(lambda node, rail: f"rxe_x{node}r{rail}")
        with self.assertRaises(clusters.ClusterError) as raised:
            with clusters.Cluster(rdma.settings(), build=harness.BUILD, addresses=addresses):
                pass
        # Whichever node is looked at first.
        self.assertRegex(str(raised.exception), "device 'rxe_x[01]r0' is not there; this node has rxe_n0r0/1")

    def test_rails_that_would_cross_stay_down(self):
        # Node 1 lists its devices in another order: every rail would end in another one.
        addresses = clusters.VerbsRails(lambda node, rail: f"rxe_n{node}r{rail if node == 0 else rail ^ 1}")
        cluster = clusters.Cluster(rdma.settings(), build=harness.BUILD, addresses=addresses)
        self.addCleanup(cluster.stop)
        cluster.start()
        # Links are made before a daemon serves, so its page may not answer yet when the log says why rails fail.
        for says in ("to RTR, towards 10.0.", " ready socket_dir="):
            for node in cluster.nodes:
                harness.eventually(lambda node=node: says in node.log.read_text(), cluster.logs)
        for node in cluster.nodes:
            peer, = cluster.overview(node)["peers"]
            self.assertEqual([bool(up) for up in peer["rails_up"]], [False] * rdma.RAILS)


if __name__ == "__main__":
    harness.main()
