"""Errors by kind, with what they name."""

import pickle
import signal
import threading

import numpy as np
import pytest

import rails
from conftest import run_ranks, sockets


def test_no_daemon(tmp_path):
    with pytest.raises(rails.UnavailableError, match="is railsd running") as caught:
        rails.connect(tmp_path, timeout=0)
    assert isinstance(caught.value, ConnectionError) and caught.value.code == rails.Code.UNAVAILABLE
    assert str(tmp_path) in caught.value.text and str(caught.value).startswith("UNAVAILABLE: ")


def test_kinds():
    for kind, standard in ((rails.UnavailableError, ConnectionError), (rails.AbortedError, ConnectionError),
                           (rails.DeadlineExceededError, TimeoutError), (rails.UnfinishedError, TimeoutError),
                           (rails.InvalidArgumentError, ValueError), (rails.ResourceExhaustedError, MemoryError),
                           (rails.PermissionDeniedError, PermissionError), (rails.NotFoundError, LookupError)):
        assert issubclass(kind, standard) and issubclass(kind, rails.RailsError)
        error = kind("text", node="n1", ranks=[1, 3])
        again = pickle.loads(pickle.dumps(error))  # from one process to another
        assert type(again) is kind and str(again) == str(error) == f"{kind.code.name}: text"
        assert (again.text, again.code, again.node, again.ranks) == ("text", kind.code, "n1", (1, 3))


def test_groups(cluster):
    with rails.connect(sockets(cluster)) as client:
        with pytest.raises(rails.DeadlineExceededError, match="0.*2") as caught:
            client.join("alone", 1, 3, timeout=0.3)
        assert isinstance(caught.value, TimeoutError) and caught.value.ranks == (0, 2)
        for arguments, text in ((("outside", 2, 2), "2"), (("", 0, 1), "name"), (("minus", -1, 2), "-1")):
            with pytest.raises(ValueError, match=text):
                client.join(*arguments, timeout=1)
        for secret in ({"name": "a\0b"}, {"name": "c", "key": "a\0b"}):  # the library would see their beginning
            with pytest.raises(ValueError, match="zero byte"):
                client.join(**secret, rank=0, world_size=1, timeout=1)
        with pytest.raises(ValueError, match="sometimes"):
            client.join("recovery", 0, 1, recovery="sometimes")
        with pytest.raises(ValueError, match="wait_limit"):
            client.join("recovery", 0, 1, recovery="wait")
        with pytest.raises(ValueError, match="-1"):
            client.join("negative", 0, 1, timeout=-1)


def test_jobs(cluster):
    def body(client, group):
        send, receive = client.empty((2, 100), np.uint8), client.empty((2, 100), np.uint8)
        other = 1 - group.rank
        with pytest.raises(rails.InvalidArgumentError, match="overlap"):
            group.all_to_all_ranges({}, {other: [receive[0, :60], receive[0, 50:]]})
        for rank in (7, -1, 1 << 32):
            with pytest.raises(rails.InvalidArgumentError, match=str(rank)):
                group.all_to_all_ranges({rank: [send[0]]}, {})
        for name in ("tag", "vote"):
            with pytest.raises(rails.InvalidArgumentError, match=name):
                group.all_to_all_v(send, [0, 0], receive, [0, 0], **{name: 1 << 64})
        group.barrier(30)  # what was refused has taken no number
        work = group.all_to_all_v(send, [0, 0], receive, [group.rank, 0])
        with pytest.raises(rails.RailsError, match="rank 0.*rank 1|rank 1.*rank 0"):
            work.wait(30)
        assert work.done()
        with pytest.raises(rails.RailsError):
            work.wait(30)
        assert work.report.bytes_sent == 0
    run_ranks(cluster, 2, body)


def test_memory_in_use(cluster):
    cancelled = threading.Event()

    def body(client, group):
        send, receive = client.empty(2, np.uint8), client.empty(2, np.uint8)
        if group.rank == 0:
            work = group.all_to_all_v(send, [1, 1], receive, [1, 1])
            with pytest.raises(rails.FailedPreconditionError):
                group.all_to_all_v(send, [1, 1], receive, [1, 1])
            with pytest.raises(rails.FailedPreconditionError):
                work.report
            work.cancel()
            cancelled.set()
            with pytest.raises(rails.CancelledError):
                work.wait(30)
            assert work.done()
        else:
            assert cancelled.wait(30)
            with pytest.raises(rails.CancelledError):
                group.all_to_all_v(send, [1, 1], receive, [1, 1]).wait(30)
    run_ranks(cluster, 2, body)




def test_a_limit_of_a_job(cluster):
    late = threading.Event()

    def body(_, group):
        if group.rank == 0:
            with pytest.raises(rails.DeadlineExceededError) as caught:
                group.barrier(0.2)
            assert (caught.value.ranks, caught.value.node) == ((1,), "n1")
            late.set()
        else:
            late.wait(30)
    run_ranks(cluster, 2, body)


def test_what_is_closed(cluster):
    client = rails.connect(sockets(cluster))
    group = client.join("closed", 0, 1)
    group.leave()
    group.leave()
    with pytest.raises(rails.FailedPreconditionError):
        group.barrier(1)
    client.close()
    client.close()
    for call in (lambda: client.empty(3), lambda: client.join("more", 0, 1), client.reconnect):
        with pytest.raises(rails.FailedPreconditionError, match="closed"):
            call()


def test_a_silent_daemon_ends_a_call_by_its_timeout(own_cluster):
    daemon = own_cluster.nodes[0].process
    with rails.connect(sockets(own_cluster)) as client:
        daemon.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(rails.UnavailableError, match="timeout 200ms"):
                client.empty(1 << 20, timeout=0.2)
        finally:
            daemon.send_signal(signal.SIGCONT)
        assert not client.connected  # an answer that comes late would be taken for another one
        client.reconnect()
        assert client.empty(1 << 20).nbytes == 1 << 20
