"""The example moe_train.py: a model that learns the same over rails and over Gloo."""

import json
import os
import subprocess
import sys

import harness
from conftest import ROOT


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
