"""The backend of torch.distributed, held against Gloo in the same processes."""

import os
import subprocess
import sys

from conftest import ROOT, sockets

WORLD = 4


def test_beside_gloo(cluster, tmp_path):
    """Four ranks on two nodes run torch_rank.py, which compares every operation with Gloo's."""
    ranks = [subprocess.Popen([sys.executable, ROOT / "tests/python/torch_rank.py", str(rank), str(WORLD), tmp_path / "store"],
                              env={**os.environ, "RAILS_SOCKET_DIR": str(sockets(cluster, rank)), "OMP_NUM_THREADS": "1",
                                   "GLOO_SOCKET_IFNAME": "lo"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(WORLD)]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [(rank.returncode, text) for rank, text in zip(ranks, said)] == [(0, "")] * WORLD, "\n".join(said)
