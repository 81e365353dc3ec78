"""Exchanges: every byte, in every form in which they can be given."""

import threading

import numpy as np
import pytest

import rails
from conftest import run_ranks, sockets

COUNTS = np.array([[3, 0, 7, 1], [0, 0, 2, 5], [4, 4, 4, 4], [1, 900, 0, 2]])  # rows from each rank to each


def row(source, target, number, dtype, width):
    """A row that is its own: (source, target, number) and then a ramp."""
    return ((np.arange(width) + 31 * source + 7 * target + 3 * number) % 97).astype(dtype)


def rows(source, target, dtype, width):
    return np.array([row(source, target, n, dtype, width) for n in range(COUNTS[source, target])], dtype).reshape(-1, width)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("dtype, width", [("float32", 33), ("float16", 64), ("uint8", 1)])
def test_all_to_all_v(cluster, nodes, dtype, width):
    def body(client, group):
        me = group.rank
        send = client.empty((2000, width), dtype)
        receive = client.empty((2000, width), dtype)
        receive[:] = 77
        out = np.concatenate([rows(me, peer, dtype, width) for peer in range(4)])
        into = np.concatenate([rows(peer, me, dtype, width) for peer in range(4)])
        send[5:5 + len(out)] = out
        report = group.all_to_all_v(send[5:], COUNTS[me].tolist(), receive[9:], COUNTS[:, me], tag=3, vote=10 * me).wait(30)
        np.testing.assert_array_equal(receive[9:9 + len(into)], into)
        assert (receive[:9] == 77).all() and (receive[9 + len(into):] == 77).all()
        assert (report.seq, report.highest_vote) == (1, 30)
        assert report.bytes_sent == COUNTS[me].sum() * send[0].nbytes
        assert report.bytes_received == COUNTS[:, me].sum() * send[0].nbytes
        assert len(report.rail_tx_bytes) == len(report.rail_rx_bytes) == 2
        return group.nodes
    for names in run_ranks(cluster, 4, body, nodes=nodes):
        assert names == tuple(f"n{rank % nodes}" for rank in range(4))


@pytest.mark.parametrize("nodes", [1, 2])
def test_capacities(cluster, nodes):
    """Nobody is told how many rows come; what comes begins at the source's slot."""
    def body(client, group):
        me, counts = group.rank, COUNTS[:, group.rank]
        slots = counts + [0, 3, 1, 20]
        send, receive = client.empty((2000, 5), np.float32), client.empty((sum(slots), 5), np.float32)
        receive[:] = 77
        out = np.concatenate([rows(me, peer, np.float32, 5) for peer in range(4)])
        send[:len(out)] = out
        report = group.all_to_all_v(send, COUNTS[me], receive, slots, capacities=True).wait(30)
        assert report.received_by_rank == tuple(counts * 20)
        begin = 0
        for peer, slot in enumerate(slots):
            np.testing.assert_array_equal(receive[begin:begin + counts[peer]], rows(peer, me, np.float32, 5))
            assert (receive[begin + counts[peer]:begin + slot] == 77).all()
            begin += slot
        exact = group.all_to_all_v(send, COUNTS[me], receive, counts).wait(30)
        assert exact.received_by_rank == ()
        with pytest.raises(rails.InvalidArgumentError, match="sends 18000 bytes to rank 1.*has room for 17980"):
            group.all_to_all_v(send, COUNTS[me], receive, np.minimum(slots, 899), capacities=True).wait(30)
    run_ranks(cluster, 4, body, nodes=nodes)


def test_a_header_rides_in_front_of_the_rows(cluster):
    """Counts by expert come with the tokens: the first range of each flow."""
    def body(client, group):
        me = group.rank
        headers, tokens = client.empty((3, 2), np.int64), client.empty((30, 4), np.float32)
        their_headers, their_tokens = client.empty((3, 2), np.int64), client.empty((3, 16, 4), np.float32)
        their_headers[:] = -1
        for peer in range(3):
            headers[peer] = (me + peer, 2 * peer)  # tokens for each of its two experts
            tokens[10 * peer:10 * peer + 10] = 10 * me + peer
        work = group.all_to_all_ranges(
            {peer: [headers[peer], tokens[10 * peer:10 * peer + int(headers[peer].sum())]] for peer in range(3)},
            {peer: [their_headers[peer], their_tokens[peer]] for peer in range(3)}, capacities=True)
        report = work.wait(30)
        for peer in range(3):
            assert their_headers[peer].tolist() == [me + peer, 2 * me]
            count = int(their_headers[peer].sum())
            assert report.received_by_rank[peer] == 16 + 16 * count
            assert (their_tokens[peer, :count] == 10 * peer + me).all()
    run_ranks(cluster, 3, body)


def scattered(client, me):
    """Arrays for ranges: the rows to each rank are the odd ones of one array, from behind, and a second array."""
    first = client.empty((4, 8, 5), np.int32)
    second = client.empty((4, 3), np.int64)
    for peer in range(4):
        first[peer] = 1000 * me + 100 * peer + np.arange(8)[:, None]
        second[peer] = -me - peer
    return {peer: [first[peer, n] for n in (7, 5, 3, 1)] + [second[peer]] for peer in range(4)}


def test_ranges(cluster):
    def body(client, group):
        me = group.rank
        into = client.empty((4, 4 * 5 * 4 + 3 * 8))  # cut in another way than what is sent
        group.all_to_all_ranges(scattered(client, me), {peer: [into[peer]] for peer in range(4)}).wait(30)
        for peer in range(4):
            numbers = into[peer, :80].view(np.int32).reshape(4, 5)
            np.testing.assert_array_equal(numbers, np.array([7, 5, 3, 1])[:, None] + 1000 * peer + 100 * me + np.zeros(5, int))
            assert into[peer, 80:].view(np.int64).tolist() == [-me - peer] * 3
    run_ranks(cluster, 4, body)


def test_rows(cluster):
    """Tokens go to the ranks of their experts from where they are, and come back to where they were."""
    def body(client, group):
        tokens, returned = client.empty((500, 12), np.float32), client.empty((500, 12), np.float32)
        random = np.random.default_rng(group.rank)
        tokens[:] = random.random(tokens.shape)
        target = random.integers(0, 4, 500)
        target[100:200] = 2
        mine = {peer: rails.Rows(tokens, np.flatnonzero(target == peer)) for peer in range(3)}
        counts = client.empty((2, 4), np.int64)
        counts[0, :3] = [len(rows.indices) for rows in mine.values()]
        group.all_to_all_v(counts[0], [1] * 3, counts[1], [1] * 3).wait(30)
        landed = client.empty((1500, 12), np.float32)
        ends = counts[1, :3].cumsum()
        theirs = {peer: [landed[end - counts[1, peer]:end]] for peer, end in enumerate(ends)}
        group.all_to_all_ranges({peer: [rows] for peer, rows in mine.items()}, theirs).wait(30)
        np.testing.assert_array_equal(theirs[group.rank][0], tokens[target == group.rank])
        group.all_to_all_ranges(theirs, {peer: [rails.Rows(returned, rows.indices.tolist())] for peer, rows in mine.items()}).wait(30)
        np.testing.assert_array_equal(returned[target < 3], tokens[target < 3])
        assert not returned[target == 3].any()
        for indices, text in (([500], "500"), ([-1, 3], "-1"), ([[1]], "shape"), ([1.5], "float")):
            with pytest.raises(ValueError, match=text):
                group.all_to_all_ranges({0: [rails.Rows(tokens, indices)]}, {})
    run_ranks(cluster, 3, body)


def test_prepared(cluster):
    def body(client, group):
        me, other = group.rank, 1 - group.rank
        send, receive = client.empty((10, 4), np.int16), client.empty((10, 4), np.int16)
        prepared = group.prepare({other: [send[:6], send[8:]]}, {other: [receive[:8]]} if me else {other: [receive[:4], receive[4:8]]})
        for number, count in enumerate((7, 0, 3, 8)):
            send[:] = np.arange(10)[:, None] + 100 * number + 1000 * me
            receive[:] = -1
            counts = [0, 0]
            counts[other] = count
            work = prepared.submit(None, None) if count == 8 else prepared.submit(counts, np.array(counts), vote=me + count)
            report = work.wait(30)
            assert (report.bytes_sent, report.highest_vote) == (count * 8, count + 1 if count < 8 else 0)
            sent = [row for row in range(10) if row not in (6, 7)][:count]
            np.testing.assert_array_equal(receive[:count, 0], np.array(sent, int) + 100 * number + 1000 * other)
            assert (receive[count:] == -1).all()
        for wrong, text in (([1, 1], "has no flow"), ([-1, -1], "-1"), ([1], "has 1 counts")):
            with pytest.raises(rails.InvalidArgumentError, match=text):
                prepared.submit(wrong, wrong)
        over = [0, 0]
        over[other] = 9
        with pytest.raises(ValueError, match="72"):  # bytes; the flow has 64
            prepared.submit(over, None)
        group.barrier(30)
    run_ranks(cluster, 2, body)


def test_urgent_jobs(cluster):
    """The daemon's own tests say what goes first; here every way to submit takes `urgent`, and every byte is right."""
    def body(client, group):
        me, other, length = group.rank, 1 - group.rank, 100_000
        send, into = client.empty(length), client.empty((4, length))
        send[:] = 1 + me
        prepared = group.prepare({other: [send]}, {other: [into[3]]})
        counts = [0, 0]
        counts[other] = length
        works = [group.all_to_all_v(send, counts, into[0], counts), group.all_to_all_v(send, counts, into[1], counts, urgent=True),
                 group.all_to_all_ranges({other: [send]}, {other: [into[2]]}, urgent=True), prepared.submit(urgent=True)]
        for work in works:
            work.wait(30)
        assert (into == 1 + other).all()
    run_ranks(cluster, 2, body)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_barrier_waits_for_every_rank(cluster, nodes):
    arrived, lock = [], threading.Lock()

    def body(_, group):
        for turn in range(8):
            with lock:
                arrived.append(turn)
            group.barrier(30)
            with lock:
                assert arrived.count(turn) == 4
    run_ranks(cluster, 4, body, nodes=nodes)


def test_many_threads_use_one_client(cluster):
    """Two groups of one client, each used by a thread, while a third thread makes and drops arrays."""
    def body(client, group):
        with client.join(f"{group.name} again", group.rank, 2) as second:
            stop, failures = threading.Event(), []

            def exchange(own, seed):
                try:
                    send, receive = client.empty((2, 50000), np.uint8), client.empty((2, 50000), np.uint8)
                    for turn in range(40):
                        send[:] = (seed + turn + own.rank) % 251
                        own.all_to_all_v(send, [1, 1], receive, [1, 1]).wait(30)
                        assert [set(receive[peer]) for peer in range(2)] == [{(seed + turn + peer) % 251} for peer in range(2)]
                except BaseException as error:
                    failures.append(error)

            def allocate():
                while not stop.is_set():
                    arrays = [client.empty(length) for length in (100, 100000, 3)]
                    assert not any(array.any() for array in arrays)
                    for array in arrays:
                        array[:] = 255
            threads = [threading.Thread(target=exchange, args=(group, 0)), threading.Thread(target=exchange, args=(second, 100))]
            allocator = threading.Thread(target=allocate)
            allocator.start()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            stop.set()
            allocator.join()
            assert not failures, failures
    run_ranks(cluster, 2, body)


def test_the_environment_names_the_sockets(cluster, monkeypatch):
    monkeypatch.setenv("RAILS_SOCKET_DIR", str(sockets(cluster, 1)))
    with rails.connect(name="by the environment") as client:
        assert client.node == "n1" and client.connected
    assert not client.connected
