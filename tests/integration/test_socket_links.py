#!/usr/bin/env python3
"""Symbolic links in the place of the daemon's sockets: the daemon does not follow them, and names the link."""

import os
import tempfile
import unittest
from pathlib import Path

import harness
from harness import clusters


class Links(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.victim, self.elsewhere = self.folder / "victim", self.folder / "elsewhere"
        self.victim.write_text("as it was")
        self.victim.chmod(0o600)
        self.elsewhere.mkdir(mode=0o700)

    def refused(self, link, target):
        """The error of a daemon that finds this link in its socket directory and does not start."""
        settings = clusters.Settings(nodes=1, rails=1, patience=harness.PATIENCE,
                                     sections={"tenants": [{"name": "box"}]})
        cluster = clusters.Cluster(settings, build=harness.BUILD, folder=self.folder)
        place = cluster.nodes[0].sockets / link
        for folder in reversed(place.parents[:link.count("/")]):
            folder.mkdir(mode=0o700, exist_ok=True)
        place.symlink_to(target)
        with self.assertRaises(clusters.ClusterError) as failed, cluster:
            pass
        self.assertTrue(place.is_symlink(), "it was not touched")
        place.unlink()
        self.assertEqual((self.victim.read_text(), self.victim.stat().st_mode & 0o777), ("as it was", 0o600))
        self.assertEqual((os.listdir(self.elsewhere), self.elsewhere.stat().st_mode & 0o777), ([], 0o700))
        return str(failed.exception)

    def test_where_a_socket_should_be(self):
        for name in ("client.sock", "operator.sock", "descriptors.sock", "tenants/box/client.sock",
                     "tenants/box/descriptors.sock"):
            with self.subTest(name):
                self.assertIn(f"{name}: exists and is not a socket", self.refused(name, self.victim))

    def test_where_the_lock_should_be(self):
        self.assertIn("railsd.lock: cannot open", self.refused("railsd.lock", self.victim))

    def test_where_a_folder_should_be(self):
        for name in ("tenants/box", "tenants"):
            with self.subTest(name):
                self.assertIn(f"{name}: exists and is not a folder", self.refused(name, self.elsewhere))
                if name == "tenants/box":
                    (self.folder / "n0/sockets/tenants").rmdir()

    def test_to_nowhere(self):
        self.assertIn("client.sock: exists and is not a socket", self.refused("client.sock", self.elsewhere / "new"))


if __name__ == "__main__":
    harness.main()
