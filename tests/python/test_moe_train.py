"""The example moe_train.py: a model that learns the same over rails and over Gloo."""

import json
import os
import re
import subprocess
import sys

import harness
from conftest import ROOT, programs


def test_losses_are_equal(cluster, tmp_path):
    run = subprocess.run([sys.executable, ROOT / "client/python/examples/moe_train.py", "--ranks", "4", "--steps", "3", "--json",
                          "--plot", tmp_path / "plot.svg", "--trace", tmp_path / "trace.csv", *(node.sockets for node in cluster.nodes)],
                         env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["equal"] is True
    losses = report["runs"]["rails"]["losses"]
    assert len(losses) == 3 and losses[2] < losses[0]
    assert report["runs"]["rails"]["balance"] >= 1
    assert (tmp_path / "plot.svg").read_text().count("<polyline") == 2
    replay = cluster.replay(tmp_path / "trace.csv", "--trace-ranks-per-node", "2", "--verify", "--bytes-per-token", "256")
    assert replay["verified"] is True and replay["bytes"] > 0


def test_the_demo():
    """`./dev demo moe` after its build: four daemons, here two ranks, the table of both runs."""
    with programs((["bench/demo_moe.py", "--build", harness.BUILD, "--ranks", "2", "--steps", "1"], {}), limit=200) as (demo,):
        said = demo.communicate()[0]
    assert demo.returncode == 0, said
    gloo, rails = (re.search(rf"^{name} +\S+ ms +\d+% +(\S+) +(\S+)", said, re.MULTILINE) for name in ("gloo", "rails"))
    assert gloo[1] == rails[1] and gloo[2] == "-" and float(rails[2]) >= 1, said
    assert "the losses of all steps are equal to the last bit\n" in said
