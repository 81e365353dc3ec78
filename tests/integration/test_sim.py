#!/usr/bin/env python3
"""`railsctl sim`: the scenarios of the documentation, files that it writes, the page in a headless Chromium, and mistakes."""

import csv
import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import browser
import doc_blocks
import harness

SCENARIOS = harness.ROOT / "docs/scenarios"
PROPAGATION = 2e-6  # seconds, over two links
SMALL = ("--workload", "mixtral-8x7b", "--nodes", "4", "--tokens", "256", "--policy", "optimum,planner,round_robin,pinned")


class Simulation(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="railsd-sim-")))

    def sim(self, *arguments, code=0):
        run = subprocess.run([harness.BUILD / "client/railsctl/railsctl", "sim", *map(str, arguments)], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, check=False, cwd=self.folder)
        self.assertEqual(run.returncode, code, f"{arguments}\n{run.stdout}\n{run.stderr}")
        if code == 0:
            self.assertEqual(run.stderr, "", "progress is for terminals only")
        return run

    def test_scenarios_of_the_documentation(self):
        for path in sorted(SCENARIOS.glob("*.yaml")):
            with self.subTest(scenario=path.name):
                report = json.loads(self.sim(path, "--json").stdout)
                self.assertEqual(report["title"], path.stem)
                for point in report["points"]:
                    policies = {policy["policy"]: policy for policy in point["policies"]}
                    self.assertLess(policies["planner"]["network_seconds"], 1.05 * point["bound_seconds"] + PROPAGATION)
                    for policy in policies.values():
                        if policy["network_seconds"] is not None:
                            self.assertGreater(policy["network_seconds"], 0.998 * point["bound_seconds"])

    def test_the_same_scenario_gives_the_same_bytes(self):
        written = []
        for threads in (1, 3):
            files = [self.folder / f"{threads}.{kind}" for kind in ("csv", "html")]
            run = self.sim(*SMALL, "--skew", 0.4, "--skew", 0.8, "--threads", threads, "--csv", files[0], "--report", files[1])
            written.append([run.stdout, *(file.read_text() for file in files)])
        self.assertEqual(*written)
        rows = list(csv.DictReader(written[0][1].splitlines()))
        self.assertEqual([row["model.skew"] for row in rows], ["0.4"] * 4 + ["0.8"] * 4)
        self.assertFalse(re.search("https?:|<script|url\\(", written[0][2]), "the page needs nothing else")

    def test_fixed_cost_by_step(self):
        text = self.sim(*SMALL, "--explain").stdout
        for step in ("job", "peers", "flows", "shares", "READY", "network"):
            self.assertRegex(text, rf"\n{step} ")
        free = json.loads(self.sim(*SMALL, "--fixed-cost", "false", "--json").stdout)
        self.assertEqual(free["points"][0]["policies"][1]["fixed"]["seconds"], 0)

    def test_packets(self):
        report = json.loads(self.sim("--workload", "incast", "--nodes", 4, "--gpus", 2, "--rails", 2, "--bytes-per-rank",
                                     "1MiB", "--mode", "packet", "--policy", "planner", "--json").stdout)
        self.assertGreater(report["points"][0]["policies"][0]["queue_peak_bytes"], 0)

    def test_files_of_traffic(self):
        (self.folder / "two.csv").write_text("0,3000000\n5000000,0\n")
        scenario = self.folder / "file.yaml"
        scenario.write_text("workload:\n  file: two.csv\npolicy: planner\n")
        point = json.loads(self.sim(scenario, "--json").stdout)["points"][0]
        self.assertEqual((point["nodes"], point["bytes_between_nodes"]), (2, 8000000))
        scenario.write_text("workload:\n  file: two.csv\nfabric:\n  nodes: 3\n")
        self.assertRegex(self.sim(scenario, code=5).stderr, r"file.yaml:2: workload.file: .*two.csv: has 2 ends; 3 nodes")
        # Another workload on the command line replaces the file.
        self.assertIn("uniform: 3 nodes", self.sim(scenario, "--workload", "uniform", "--policy", "planner").stdout)

    def test_mistakes(self):
        scenario = self.folder / "bad.yaml"
        for text, message in (("fabric: {nodes: 4, speed: 0}", 'bad.yaml:1: fabric.speed: "0" is zero'),
                              ("seed: 1\nfabrik: {}", "bad.yaml:2: fabrik: is no key; did you mean fabric?"),
                              ("workload: zipf\nmodel: {tokens: 4}", 'bad.yaml:2: model.tokens: "4" changes nothing'),
                              ("workload: mixtral-8x7b\nfabric: {nodes: 5}", 'bad.yaml:2: fabric.nodes: "5" does not fit'),
                              ("a: [", "bad.yaml:")):
            scenario.write_text(text + "\n")
            self.assertIn(message, self.sim(scenario, code=5).stderr)
        self.assertIn("No such file", self.sim("missing.yaml", code=5).stderr)
        self.assertIn('--nodes: "0" is not between', self.sim("--nodes", 0, code=2).stderr)
        error = json.loads(self.sim("--policy", "plannr", "--json", code=2).stdout)["error"]
        self.assertEqual((error["code"], error["exit_code"]), ("INVALID_ARGUMENT", 2))
        self.assertIn("did you mean planner?", error["message"])
        self.sim(*SMALL, "--csv", "/no/such/folder/a.csv", code=1)

    def test_the_page_on_the_paper(self):
        path = f"{harness.BUILD / 'client/railsctl'}:{os.environ['PATH']}"
        blocks = doc_blocks.blocks(harness.ROOT / "docs/reproduction.md", "dev")
        self.assertGreater(len(blocks), 5)
        for block in blocks:
            with self.subTest(block=str(block)):
                run = subprocess.run(["bash", "-euc", block.text], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     timeout=300, check=False, cwd=harness.ROOT, env={**os.environ, "PATH": path})
                self.assertEqual(run.returncode, 0, run.stdout)
                self.assertIsNone(doc_blocks.missing(block.output, run.stdout), run.stdout)

    def test_no_policy_beats_the_planner_on_the_papers_workloads(self):
        best = 0
        for name in ("sparse", "mixtral"):
            report = json.loads(self.sim(SCENARIOS / f"{name}.yaml", "--json").stdout)
            for point in report["points"]:
                seconds = {policy["policy"]: policy["seconds"] for policy in point["policies"]}
                for policy in ("rails_paper", "ecmp", "pinned"):
                    self.assertLessEqual(seconds["planner"], 1.001 * seconds[policy], point["point"])
                    best = max(best, 1 - seconds["planner"] / seconds[policy])
        self.assertGreater(best, 0.78, "the best reduction of the paper")

    def test_short_exchanges_stay_whole_because_shares_cost_more(self):
        policies = ("planner", "ecmp", "pinned", "aligned", "rails_paper")
        sweep = [word for workload in ("mixtral", "uniform", "sparse") for word in ("--workload", workload)]
        sweep += [word for size in ("20KiB", "96KiB", "1MiB") for word in ("--bytes-per-rank", size)]
        report = json.loads(self.sim(*sweep, "--nodes", 8, "--nodes", 32, "--exchanges", "dispatch", "--policy", ",".join(policies),
                                     "--json").stdout)
        self.assertEqual(len(report["points"]), 18)
        saved = behind = 0
        for point in report["points"]:
            planner, *others = point["policies"]
            for other in others:
                self.assertLessEqual(planner["seconds"], 1.02 * other["seconds"], (point["point"], other["policy"]))
                self.assertLessEqual(planner["fixed"]["shares"], other["fixed"]["shares"], (point["point"], other["policy"]))
                saved = max(saved, 1 - planner["seconds"] / other["seconds"])
                behind = max(behind, planner["network_seconds"] / other["network_seconds"] - 1)
        self.assertGreater(behind, 0.2, "without fixed cost")
        self.assertGreater(saved, 0.1)

    def test_the_documentation_lists_every_key(self):
        self.assertIn(self.sim("--keys").stdout, (harness.ROOT / "docs/simulator.md").read_text(),
                      "build/release/sim/railsctl-sim --keys prints the table of docs/simulator.md")

    @unittest.skipUnless(browser.installed(), "chromium is not installed (Debian's package chromium)")
    def test_the_page(self):
        page = self.folder / "page.html"
        self.sim(SCENARIOS / "moe-training.yaml", "--nodes", 4, "--nodes", 8, "--overlap", 0.5, "--tokens", 256, "--report", page)
        with browser.Browser() as chromium:
            for width, scheme in ((1200, "light"), (1200, "dark"), (360, "light")):
                chromium.shape(width, 900, scheme)
                chromium.open(page.as_uri())
                harness.eventually(lambda: chromium.run("document.readyState") == "complete" and
                                   chromium.run("document.querySelectorAll('footer').length") == 1, "the page has loaded")
                chromium.run("document.querySelectorAll('details').forEach(details => details.open = true)")
                self.assertLessEqual(chromium.run("document.documentElement.scrollWidth"), width)
                self.assertIn("planner", chromium.text("tr.best"))
                self.assertEqual(self.overlaps(chromium), [])
                self.assertEqual(chromium.complaints, [])
                folder = harness.BUILD / "screenshots"
                folder.mkdir(exist_ok=True)
                chromium.screenshot(folder / f"sim-{width}-{scheme}.png")

    @staticmethod
    def overlaps(chromium):
        """Texts of one plot that cover each other."""
        return chromium.run("""[...document.querySelectorAll('svg[role=img]')].flatMap(svg => {
            const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
            return texts.flatMap(([name, a], i) => texts.slice(i + 1).filter(([, b]) => a.left < b.right - 1 &&
                b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2).map(([other]) => name + ' / ' + other));
        })""")


if __name__ == "__main__":
    harness.main()
