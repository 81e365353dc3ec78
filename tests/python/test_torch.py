"""The backend of torch.distributed, held against Gloo in the same processes."""

import os
import subprocess
import sys

from conftest import ROOT, sockets

WORLD = 4


def run_ranks(cluster, program, store, python=(sys.executable,)):
    """Runs a program for each of four ranks on two nodes. They say nothing if all is well."""
    ranks = [subprocess.Popen([*python, ROOT / "tests/python" / program, str(rank), str(WORLD), store],
                              env={**os.environ, "RAILS_SOCKET_DIR": str(sockets(cluster, rank)), "OMP_NUM_THREADS": "1",
                                   "GLOO_SOCKET_IFNAME": "lo"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(WORLD)]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [(rank.returncode, text) for rank, text in zip(ranks, said)] == [(0, "")] * WORLD, "\n".join(said)


def test_beside_gloo(cluster, tmp_path):
    """torch_rank.py compares every operation with Gloo's."""
    run_ranks(cluster, "torch_rank.py", tmp_path / "store")


def test_torchs_own_tests(cluster, tmp_path):
    run_ranks(cluster, "torch_suite_rank.py", tmp_path / "store")
