"""Waiting for jobs: limits, coroutines, Ctrl-C, daemons that end."""

import asyncio
import concurrent.futures
import contextlib
import copy
import gc
import os
import pickle
import signal
import threading

import pytest

import rails
from conftest import run_ranks, sockets, start_cluster
from harness import eventually


def join_both(clients, name):
    """Both clients join a group. Returns both memberships."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(lambda rank: clients[rank].join(name, rank, 2), range(2)))


@contextlib.contextmanager
def joined_pair(cluster, name):
    """Client and group of rank 0; rank 1 has joined and submits nothing."""
    with rails.connect(sockets(cluster)) as client, rails.connect(sockets(cluster, 1)) as other:
        groups = join_both([client, other], name)
        yield client, groups[0]


def submit(client, group):
    """A job of a byte for each pair of ranks."""
    world = group.world_size
    send, receive = client.empty(world), client.empty(world)
    send[:] = group.rank + 1
    work = group.all_to_all_v(send, [1] * world, receive, [1] * world)
    work.received = receive
    return work


def test_an_unfinished_job(cluster):
    late = threading.Event()

    def body(client, group):
        if group.rank == 0:
            work = submit(client, group)
            assert not work.done()
            for timeout in (0, 0.01, 0.3):
                with pytest.raises(TimeoutError, match="goes on") as caught:
                    work.wait(timeout)
                assert type(caught.value) is rails.UnfinishedError
            late.set()
            work.wait(30)
            assert work.done() and work.wait(0) == work.report
        else:
            late.wait(30)
            work = submit(client, group)
            work.wait()
        assert work.received.tolist() == [1, 2]
    run_ranks(cluster, 2, body)


def test_a_report_is_a_value(cluster):
    """It needs nothing else of the job."""
    with rails.connect(sockets(cluster)) as client, client.join("report", 0, 1) as group:
        work = submit(client, group)
        report = work.wait()
        assert report == work.report
        del work
    del client, group
    gc.collect()
    copies = [pickle.loads(pickle.dumps(report)), copy.deepcopy(report), rails.Report(**report._asdict())]
    assert (report.seq, report.bytes_sent, report.lost_ranks) == (1, 1, ())
    assert copies == [report] * 3 and len({report, *copies}) == 1
    assert repr(report).startswith("Report(seq=1, bytes_sent=1, ")


def test_coroutines(cluster):
    """Each rank has an event loop of its own, and awaits several jobs at once; the first was submitted before it."""
    cancelled = threading.Event()

    def body(client, group):
        async def main(first):
            async def one(work):
                report = await work
                return report.seq
            works = [submit(client, group) for _ in range(8)]
            assert await asyncio.wait_for(asyncio.gather(*map(one, [first, *works])), 30) == list(range(1, 10))
            assert (await works[0]).seq == 2  # once more
            if group.rank == 0:
                work = submit(client, group)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(one(work), 0.05)
                assert not work.done()  # the job goes on
                work.cancel()
                cancelled.set()
                with pytest.raises(rails.CancelledError):
                    await work
            else:
                assert cancelled.wait(30)
                with pytest.raises(rails.CancelledError):
                    await submit(client, group)
            return [work.received.tolist() for work in works[:8]]
        return asyncio.run(main(submit(client, group)))
    assert run_ranks(cluster, 2, body) == [[[1, 2]] * 8] * 2


def test_two_event_loops_of_one_client(cluster):
    def body(client, group):
        async def one(work):
            return (await asyncio.wait_for(work, 30)).seq

        async def main():
            works = [submit(client, group) for _ in range(20)]
            other = asyncio.to_thread(asyncio.run, both(works[1::2]))
            return sorted(await both(works[::2]) + await other)

        async def both(works):
            return await asyncio.gather(*map(one, works))
        return asyncio.run(main())
    assert run_ranks(cluster, 2, body) == [list(range(1, 21))] * 2


def test_closing_wakes_coroutines(cluster):
    with joined_pair(cluster, "closing") as (client, group):
        async def main():
            work = submit(client, group)
            asyncio.get_running_loop().call_later(0.05, client.close)
            with pytest.raises(rails.CancelledError):
                await asyncio.wait_for(work, 30)
        asyncio.run(main())


def interrupt_soon():
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_ctrl_c(cluster, tmp_path, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
    client = rails.connect(sockets(cluster))
    timer = interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        client.join("interrupted", 0, 2, timeout=3)
    timer.join()
    timer = interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        rails.connect(tmp_path, timeout=3)
    timer.join()
    with joined_pair(cluster, "interrupted wait") as (second, group):
        work = submit(second, group)
        calls = []
        with monkeypatch.context() as patch:
            wait = rails.work.lib.rails_job_wait
            patch.setattr(rails.work.lib, "rails_job_wait", lambda *arguments: (calls.append(1), wait(*arguments)))
            with pytest.raises(rails.UnfinishedError):
                work.wait(0.5)
        assert len(calls) == 2  # no slices, in which the library would never ask a silent daemon
        timer = interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            work.wait()
        timer.join()
        assert not work.done()
    client.close()
    # The call that was interrupted still uses the session, until its time is over.
    eventually(lambda: not any(thread.name == "rails-call" for thread in threading.enumerate()), "calls end")


def test_daemons_that_end():
    """The daemon of rank 1 is killed, then that of rank 0; both are started again, and the client goes on."""
    with start_cluster() as cluster:
        clients = [rails.connect(sockets(cluster, rank), timeout=30) for rank in range(2)]
        groups = join_both(clients, "before")
        work = submit(clients[0], groups[0])
        cluster.nodes[1].process.kill()
        with pytest.raises(rails.UnavailableError, match="n1") as caught:
            work.wait(60)
        assert isinstance(caught.value, ConnectionError) and (caught.value.ranks, caught.value.node) == ((1,), "n1")
        assert not clients[1].connected or eventually(lambda: not clients[1].connected, "the client sees it")
        with pytest.raises(rails.RailsError):
            clients[1].empty(1 << 20)
        cluster.stop_node(cluster.nodes[1])
        cluster.start_node(cluster.nodes[1])
        cluster.wait_ready()
        clients[1].reconnect()
        groups = join_both(clients, "between")
        work = submit(clients[0], groups[0])

        async def main():
            inside = submit(clients[0], groups[0])
            asyncio.get_running_loop().call_later(0.05, cluster.nodes[0].process.kill)
            with pytest.raises(rails.AbortedError):
                await asyncio.wait_for(inside, 30)
        asyncio.run(main())
        with pytest.raises(rails.AbortedError):
            work.wait(30)
        cluster.stop_node(cluster.nodes[0])
        cluster.start_node(cluster.nodes[0])
        cluster.wait_ready()
        clients[0].reconnect()
        assert clients[0].connected
        assert work.received.tolist() == [1, 0]  # the memory is the same, with the byte of the rank to itself
        groups = join_both(clients, "after")
        works = [submit(*pair) for pair in zip(clients, groups)]
        for work in works:
            work.wait(30)
            assert work.received.tolist() == [1, 2]
        for client in clients:
            client.close()


def test_close_after_an_error_that_is_kept(cluster):
    """The traceback of a join that failed does not hold the client open: its jobs end at once."""
    client, other = (rails.connect(sockets(cluster, rank)) for rank in range(2))
    groups = join_both([client, other], "kept")
    work = submit(client, groups[0])
    with pytest.raises(rails.DeadlineExceededError) as kept:
        client.join("nobody else", 0, 2, timeout=0.2)
    client.close()
    with pytest.raises(rails.CancelledError):
        work.wait(10)
    other.close()
    assert kept.value.__traceback__


def test_await_while_another_thread_holds_the_client(cluster):
    """Another thread is in a call when the client is closed: the coroutine ends when that call has."""
    async def main():
        with joined_pair(cluster, "held") as (client, group), concurrent.futures.ThreadPoolExecutor() as pool:
            work = submit(client, group)
            waiting = [asyncio.ensure_future(end_of(work))]
            await asyncio.sleep(0)
            call = pool.submit(client.join, "nobody comes", 0, 2, timeout=1)
            await asyncio.sleep(0.2)
            client.close()
            waiting.append(asyncio.ensure_future(end_of(work)))
            for each in waiting:
                with pytest.raises(rails.CancelledError):
                    await asyncio.wait_for(each, 30)
            assert call.exception() is not None

    async def end_of(work):
        return await work
    asyncio.run(main())


def test_a_child_of_a_thread_that_makes_memory(cluster):
    """A child that forks while the parent's thread holds a lock is refused, and does not wait for it."""
    with joined_pair(cluster, "forked") as (client, group):
        memory = client.empty((2, 2))
        client.empty(10)  # addresses are sorted at the next use
        with client._memory._lock:
            child = os.fork()
            if child == 0:
                try:
                    group.all_to_all_v(memory[0], [1, 1], memory[1], [1, 1])
                except rails.FailedPreconditionError:
                    os._exit(0)
                os._exit(1)
        eventually(lambda: os.waitpid(child, os.WNOHANG) == (child, 0), "the child is refused", patience=30)
