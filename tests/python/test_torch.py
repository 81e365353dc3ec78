"""The backend of torch.distributed, held against Gloo in the same processes."""

import concurrent.futures
import datetime
import os
import subprocess
import sys
import time

import pytest
import numpy as np
import torch

import rails
from conftest import ROOT, sockets, start_cluster
from harness import eventually
from rails import _torch_staging
from rails._torch_channel import Channel, Work
from rails._torch_staging import Parts, Pool, Staging

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


def test_operations_in_pieces(cluster, tmp_path):
    """torch_pieces_rank.py makes the same comparisons where every operation is several jobs."""
    run_ranks(cluster, "torch_pieces_rank.py", tmp_path / "store")


def test_torchs_own_tests(cluster, tmp_path):
    run_ranks(cluster, "torch_suite_rank.py", tmp_path / "store")


def test_abort_ends_a_submission_that_waits_for_a_daemon():
    with start_cluster() as cluster, rails.connect(sockets(cluster)) as client:
        channel = Channel(lambda: client.join("alone", 0, 1, recovery="wait", wait_limit=60, restart_limit=600), Pool(client), {"timeout": 600}, True)
        channel.open()
        cluster.nodes[0].process.kill()
        eventually(lambda: not client.connected, "the client sees it")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            begun = pool.submit(channel.begin, Work("barrier", [], Parts({}), Parts({}), 0))
            eventually(channel._lock.locked, "the submission waits")
            channel.close(rails.CancelledError("aborted"))
            with pytest.raises(rails.CancelledError, match="operation 1, barrier: aborted"):
                begun.result(60)


class EndedMeanwhile:
    """A job whose first wait fails, because the daemon is silent, and which then ends well."""

    def __init__(self):
        self.waits = 0

    def _end(self, _):
        self.waits += 1
        if self.waits == 1:
            raise rails.UnavailableError("railsd runs but does not answer", 14, None, ())

    def done(self):
        return True


class Limited:
    """A group that takes a job when the one before it has ended, and its jobs."""

    rank = 0

    def __init__(self):
        self.jobs, self.open, self.left = 0, False, False

    def all_to_all_ranges(self, *_, **__):
        if self.open:
            raise rails.ResourceExhaustedError("limits.max_jobs_per_group")
        self.jobs, self.open = self.jobs + 1, True
        return self

    def leave(self):
        self.left = True

    def _end(self, _):
        self.open = False


def test_pieces_wait_for_room(cluster):
    with rails.connect(sockets(cluster)) as client:
        pool, group, parts = Pool(client), Limited(), Parts({1: torch.zeros(1 << 16)})
        Work("test", [], parts, parts, 0).submit(group, pool, {"timeout": 60}, True)
        assert (group.jobs, group.left) == (3, False)
        group = Limited()
        group._end = lambda _: None  # the job does not end
        channel = Channel(lambda: group, pool, {"timeout": 60}, True)
        channel._group, channel._cuts = group, True
        for _ in range(2):
            with pytest.raises(rails.ResourceExhaustedError, match="operation 1, test"):  # it stays the reason
                channel.begin(Work("test", [], parts, parts, 0))
        assert (group.jobs, group.left) == (1, True)


class Silent(EndedMeanwhile):
    """A job whose daemon does not answer."""

    def _end(self, _):
        raise rails.UnavailableError("railsd runs but does not answer")

    def done(self):
        return False


def test_an_operation_of_unknown_end_lets_none_begin():
    """The votes of the last operation decide how the next is cut: a rank that has not seen them must not guess."""
    group = Limited()
    channel = Channel(lambda: group, None, {"timeout": 0.1}, True)
    channel._group, channel._last = group, Work("first", [], Parts({}), Parts({}), 0)
    channel._last._works = (Silent(),)
    second = channel.begin(Work("second", [], Parts({}), Parts({}), 0))
    with pytest.raises(rails.UnavailableError, match="does not answer"):
        second.wait(datetime.timedelta(seconds=60))
    assert (group.jobs, group.left) == (0, True)


def test_an_output_that_lands_late_lands_whole(cluster, monkeypatch):
    """The job's end decides, not what one wait has met; an interrupted copy is made again."""
    with rails.connect(sockets(cluster)) as client:
        pool = Pool(client)
        outputs = [torch.zeros(2), torch.zeros(2)]
        work = Work("test", outputs, Parts({}), Parts({}), 0)
        work._works = (EndedMeanwhile(),)
        work._staging = Staging(pool, 0, Parts({}), Parts(dict(enumerate(outputs, 1))), (False, False), 1)
        for memory in work._staging._into.values():
            memory.view(np.float32)[:] = 1
        copies, copy = [], np.copyto

        def interrupted_once(target, source):
            copies.append(target)
            if len(copies) == 2:
                raise KeyboardInterrupt
            copy(target, source)
        monkeypatch.setattr(_torch_staging.np, "copyto", interrupted_once)
        with pytest.raises(KeyboardInterrupt):
            work.wait()
        assert work.wait()
        assert [output.tolist() for output in outputs] == [[1, 1], [1, 1]]
