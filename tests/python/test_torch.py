"""The backend of torch.distributed, held against Gloo in the same processes."""

import concurrent.futures
import os
import subprocess
import sys
import time

import pytest

import rails
from conftest import ROOT, sockets, start_cluster
from harness import eventually
from rails._torch_channel import Channel, Parts, Pool, Work

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


def test_abort_ends_a_submission_that_waits_for_a_daemon():
    with start_cluster() as cluster, rails.connect(sockets(cluster)) as client:
        channel = Channel(lambda: client.join("alone", 0, 1, recovery="wait", wait_limit=60, restart_limit=600), Pool(client), 600)
        channel.open()
        cluster.nodes[0].process.kill()
        eventually(lambda: not client.connected, "the client sees it")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            begun = pool.submit(channel.begin, Work("barrier", [], Parts({}), Parts({}), 0))
            eventually(channel._lock.locked, "the submission waits")
            channel.close(rails.CancelledError("aborted"))
            with pytest.raises(rails.CancelledError, match="operation 1, barrier: aborted"):
                begun.result(60)
