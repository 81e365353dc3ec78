"""The backend of torch.distributed, held against Gloo in the same processes."""

import os
import subprocess
import sys
import time

from conftest import ROOT, sockets

WORLD = 4


def run_ranks(cluster, program, store, python=(sys.executable,)):
    """Runs a program for each of four ranks on two nodes. They say nothing if all is well."""
    ranks = [subprocess.Popen([*python, ROOT / "tests/python" / program, str(rank), str(WORLD), store],
                              env={**os.environ, "RAILS_SOCKET_DIR": str(sockets(cluster, rank)), "OMP_NUM_THREADS": "1",
                                   "GLOO_SOCKET_IFNAME": "lo"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(WORLD)]
    said, end = [], time.monotonic() + 150
    for rank in ranks:
        try:
            said.append(rank.communicate(timeout=max(end - time.monotonic(), 1))[0])
        except subprocess.TimeoutExpired:
            rank.kill()
            said.append("It hangs. " + rank.communicate()[0])
    assert [(rank.returncode, text) for rank, text in zip(ranks, said)] == [(0, "")] * WORLD, "\n".join(said)


def test_beside_gloo(cluster, tmp_path):
    """torch_rank.py compares every operation with Gloo's."""
    run_ranks(cluster, "torch_rank.py", tmp_path / "store")


def test_torchs_own_tests(cluster, tmp_path):
    run_ranks(cluster, "torch_suite_rank.py", tmp_path / "store")
