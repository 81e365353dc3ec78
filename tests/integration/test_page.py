#!/usr/bin/env python3
"""The page of the metrics port in a headless Chromium: its contents with real daemons, replays and faults. Skipped if
Chromium is not installed; the part with failing links needs root.

Screenshots go to screenshots/ in the build's folder."""

import contextlib
import json
import os
import signal
import subprocess
import unittest
import urllib.error
import urllib.request

import browser
import harness
from harness import clusters, eventually

import lab as labs

PHONE = 360  # CSS pixels


class Page:
    """Tests on a cluster with the page of n0 open in a browser."""

    @classmethod
    def setUpClass(cls):
        if not browser.installed():
            raise unittest.SkipTest("chromium is not installed (Debian's package chromium)")
        super().setUpClass()

    def open(self, command=()):
        page = self.enterContext(browser.Browser(command))
        page.shape(1200, 900)
        page.open(f"http://{self.cluster.addresses.metrics(0)}/")
        return page

    def wait_text(self, page, selector, wanted):
        eventually(lambda: wanted in page.text(selector),
                   lambda: f"'{wanted}' in {selector}: {page.text('body')}\n{page.complaints}", patience=120)

    def fits(self, page):
        """Checks that the page is not wider than the window."""
        self.assertLessEqual(page.run("document.documentElement.scrollWidth"), page.run("window.innerWidth"))

    @contextlib.contextmanager
    def traffic(self, *arguments):
        """Runs a replay while the block runs."""
        command = self.cluster.replay_command("--workload", "zipf", "--zipf-exponent", 0.4, "--bytes-per-rank", "4MiB",
                                              "--ranks-per-node", 2, "--steps", 100000, *arguments)
        with clusters.running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            yield
            self.assertIsNone(process.poll(), "the replay has ended too early")


class Loopback(Page, harness.ClusterTest):
    settings = clusters.Settings(nodes=2, rails=4, speed="200mbit")

    def get(self, path, **headers):
        request = urllib.request.Request(f"http://{self.cluster.addresses.metrics(0)}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def test_probes_and_json(self):
        self.assertEqual((self.get("/healthz"), self.get("/readyz")), ("ok\n", "ready\n"))
        overview = json.loads(self.get("/api/v1/status?finished=0"))
        self.assertEqual([rail["name"] for rail in overview["rails"]], [f"rail{rail}" for rail in range(4)])
        self.assertEqual(overview["rails"][2]["address"],
                         self.cluster.ctl_json(self.cluster.nodes[0], "rails")["rails"][2]["address"])
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.get("/api/v1/secrets")
        self.assertEqual(refused.exception.code, 404)
        refused.exception.close()

    def test_a_drain_a_hang_and_a_restart(self):
        page, node = self.open(), self.cluster.nodes[0]
        self.wait_text(page, "#headline", "4 of 4 rails up, idle")
        self.assertEqual(self.cluster.ctl(node, "drain", "rail1").returncode, 0)
        self.wait_text(page, "#headline", "3 of 4 rails up")
        self.wait_text(page, "#detail", "rail1 is drained")
        self.assertEqual([text.strip() for text in page.texts("#rails .state")], ["up", "drained", "up", "up"])
        self.assertEqual(self.cluster.ctl(node, "undrain", "rail1").returncode, 0)
        self.wait_text(page, "#headline", "4 of 4 rails up")
        self.assertEqual(page.complaints, [])
        os.kill(node.pid, signal.SIGSTOP)
        self.wait_text(page, "#headline", "No answer from the daemon")
        self.wait_text(page, "#detail", "it took longer than")
        os.kill(node.pid, signal.SIGCONT)
        self.wait_text(page, "#headline", "4 of 4 rails up")
        self.cluster.stop_node(node)
        self.wait_text(page, "#detail", "no connection")
        self.cluster.start_node(node)
        self.wait_text(page, "#headline", "4 of 4 rails up")
        # The browser itself reports refused connections. The page has no errors.
        self.assertEqual([text for text in page.complaints if text.get("source") != "network"], [])

    def test_names_are_text(self):
        page = self.open()
        self.wait_text(page, "#headline", "4 of 4 rails up")
        evil = "<img src=x onerror=\"document.title='broken'\">"
        trainers = [self.trainer(0), self.trainer(1)]
        for trainer in trainers:
            trainer.segment("s", 1 << 16)
        harness.join(trainers, evil)
        self.wait_text(page, "#about", "1 group")
        show = ("show({...last, active: [], finished: [{group: %s, job: {seq: 1, rank: 0}, state: 'failed', code: 'ABORTED', "
                "message: %s, bytes_sent: 0, bytes_received: 0, elapsed_seconds: 1, ratio_to_bound: 0}]}, null)")
        page.run(show % (json.dumps(evil), json.dumps(evil)))
        self.assertIn(evil, page.text("#finished"))
        self.assertEqual(page.run("document.querySelectorAll('img').length"), 0)
        self.assertNotEqual(page.run("document.title"), "broken")
        self.assertEqual(page.complaints, [])


class Fabric(Page, harness.FabricTest):
    """Rails with real speeds that fail."""

    settings = clusters.Settings(nodes=3, rails=8, speed="50mbit")

    def shot(self, page, name, height=None):
        folder = harness.BUILD / "screenshots"
        folder.mkdir(exist_ok=True)
        page.screenshot(folder / f"{name}.png", height)

    def interfaces_count(self, page):
        """Each rail has its own interface here, which counts payload and headers."""
        text = page.run("fetch('/metrics').then(answer => answer.text())")
        for rail in self.cluster.overview(self.cluster.nodes[0])["rails"]:
            sent = self.sample(text, "railsd_rail_payload_bytes_total", rail=rail["name"], direction="tx")
            self.assertGreater(self.sample(text, "railsd_rail_interface_bytes_total", rail=rail["name"], direction="tx"),
                               sent)

    def test_a_rail_goes_down_and_comes_back(self):
        page = self.open(self.lab.command(0))
        self.wait_text(page, "#headline", "8 of 8 rails up")
        with self.traffic():
            self.wait_text(page, "#headline", "8 of 8 rails up, evenly used")
            self.wait_text(page, "#detail", "× the mean over")
            self.wait_text(page, "#running", "%")
            self.wait_text(page, "#finished", "done")
            eventually(lambda: all("MB/s" in text for text in page.texts("#rails .send")), "every rail sends")
            self.fits(page)
            self.interfaces_count(page)
            self.shot(page, "light")
            page.shape(960, 700)
            self.shot(page, "top", height=790)
            page.shape(1200, 900, "dark")
            self.shot(page, "dark")
            page.shape(PHONE, 740, phone=True)
            self.assertEqual(page.run("window.innerWidth"), PHONE)
            self.fits(page)
            self.shot(page, "phone")
            page.shape(1200, 900)
            labs.run("ip", "-n", self.lab.namespace(0), "link", "set", "rail2", "down")
            self.wait_text(page, "#headline", "rail2 is DOWN: ")
            self.wait_text(page, "#detail", "7 of 8 rails up")
            self.assertEqual(page.texts("#rails .state")[2].strip(), "down")
            self.assertEqual(page.run("document.getElementById('verdict').dataset.mood"), "bad")
            self.assertTrue(all("down" in text for text in page.texts("#peers .ways")), page.texts("#peers .ways"))
            self.shot(page, "rail-down")
            labs.run("ip", "-n", self.lab.namespace(0), "link", "set", "rail2", "up")
            self.wait_text(page, "#headline", "8 of 8 rails up")
        self.assertEqual(page.complaints, [])


if __name__ == "__main__":
    harness.main()
