"""The backend of torch.distributed on a GPU. Neither torch nor a GPU is real here: torch has no CUDA, so `fake_gpu.Tensor`
stands in for its tensors and `torch.cuda.current_stream` is replaced; a fake driver plays the GPU. The daemons are real.
"""

import concurrent.futures
import datetime
import gc
import threading
import types
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist

import fake_gpu
import rails
import rails.torch
from conftest import sockets
from fake_gpu import Tensor

WORLD = 4
LIMIT = datetime.timedelta(seconds=30)


class Rank:
    """A rank in a thread: its process group, its stream, and tensors in memory of the device."""

    def __init__(self, cluster, gpu, rank, store, **options):
        self.gpu, self.rank, self.stream, self._memory = gpu, rank, gpu.stream(), []
        gpu.streams[threading.get_ident()] = types.SimpleNamespace(cuda_stream=self.stream)
        directory = str(sockets(cluster, rank))
        self.device = rails.torch.client(directory).open_device(driver=fake_gpu.path())
        options = rails.torch.Options(directory, driver=fake_gpu.path(), **{"slice_bytes": 1024, **options})
        self.group = rails.torch.ProcessGroup(store, rank, WORLD, LIMIT, options, "test")

    def memory(self, shape, dtype):
        """Memory that lives as long as the rank: torch's allocator, unlike the driver, frees it in the order of the stream."""
        self._memory.append(self.device.empty(shape, dtype))
        return self._memory[-1]

    def tensor(self, values):
        """A tensor that the stream fills."""
        values = np.asarray(values)
        memory = self.memory(values.shape, values.dtype)
        if values.size:
            self.gpu.write(memory.address, values, self.stream)
        return Tensor(memory)

    def zeros(self, *shape):
        return self.tensor(np.zeros(shape, np.int32))

    def scattered(self, values):
        """A tensor that says it is not contiguous. The stream makes its contiguous copy."""
        given = self.tensor(values)

        def copy():
            made = self.memory(given.shape, given.dtype)
            self.gpu.call("cuMemcpyAsync", made.address, given.data_ptr(), made.nbytes, self.stream)
            return Tensor(made)
        return Tensor(given.memory, copy=copy)

    def values(self, tensor):
        """The tensor, when the stream has come to this point."""
        return self.gpu.read(tensor.data_ptr(), tensor.shape, tensor.dtype, self.stream) if tensor.numel() else np.empty(tensor.shape)


@pytest.fixture
def gpu(monkeypatch):
    driver = fake_gpu.Gpu()
    driver.lib.fakeSetDelays(11, 50)
    driver.streams = {}
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: driver.streams[threading.get_ident()])
    before = driver.violations()
    yield driver
    assert driver.violations() == before


@pytest.fixture
def on_ranks(cluster, gpu):
    """Calls body(rank) for four ranks in threads."""
    def run(body, **options):
        store = dist.HashStore()

        def run_one(number):
            rank = Rank(cluster, gpu, number, store, **options)
            try:
                body(rank)
            finally:
                gpu.lib.fakePauseStream(rank.stream, 0)
                gpu.call("cuStreamSynchronize", rank.stream)
        with concurrent.futures.ThreadPoolExecutor(WORLD) as pool:
            for future in [pool.submit(run_one, number) for number in range(WORLD)]:
                future.result(60)
    yield run
    rails.torch._gpus.clear()
    for client in rails.torch._clients.values():
        client.close()
    rails.torch._clients.clear()


def test_operations(on_ranks):
    """Every operation, several on one stream; the host waits for the last one only."""
    splits = np.array([[(3 * source + 2 * target) % 4 * 50 for target in range(WORLD)] for source in range(WORLD)])

    def part(source, target):
        return np.arange(splits[source, target] * 5, dtype=np.int32).reshape(-1, 5) + 10000 * source + 1000 * target

    def body(rank):
        me, group, outputs = rank.rank, rank.group, []
        for make in (rank.tensor, rank.scattered):
            for out, into in ((splits[me], splits[:, me]), ([], [])):
                rows = [part(me, peer) for peer in range(WORLD)] if len(out) else [np.full((30, 5), 10 * me + peer, np.int32) for peer in range(WORLD)]
                landed = [part(peer, me) for peer in range(WORLD)] if len(out) else [np.full((30, 5), 10 * peer + me, np.int32) for peer in range(WORLD)]
                output = rank.zeros(sum(map(len, landed)), 5)
                assert group.alltoall_base(output, make(np.concatenate(rows)), list(into), list(out)).wait()
                outputs.append((output, np.concatenate(landed)))
            lists = [rank.zeros(splits[peer, me], 5) for peer in range(WORLD)]
            group.alltoall(lists, [make(part(me, peer)) for peer in range(WORLD)]).wait()
            outputs += [(output, part(peer, me)) for peer, output in enumerate(lists)]
            whole, parts, mine = rank.zeros(WORLD, 300), [rank.zeros(300) for _ in range(WORLD)], np.arange(300, dtype=np.int32)
            group._allgather_base(whole, make(mine + 1000 * me)).wait()
            group.allgather([parts], [make(mine + 1000 * me)]).wait()
            outputs += [(whole, np.stack([mine + 1000 * peer for peer in range(WORLD)]))]
            outputs += [(output, mine + 1000 * peer) for peer, output in enumerate(parts)]
        for output, expected in outputs:
            np.testing.assert_array_equal(rank.values(output), expected)
        group.barrier().wait()
        assert group._get_sequence_number_for_group() == 11
        in_place = rank.tensor(np.where(np.arange(WORLD) == me, me, -1).astype(np.int32)[:, None].repeat(300, 1))
        mine = Tensor(in_place.memory, (300,), 1200 * me)
        group._allgather_base(in_place, mine).wait()
        assert rank.values(in_place)[:, 299].tolist() == list(range(WORLD))
    on_ranks(body)


@pytest.mark.parametrize("length", [20, 500])
def test_operations_that_share_memory_are_serial(on_ranks, length):
    """No wait() between operations of which each sends what the one before it has received."""
    def body(rank):
        before = np.arange(WORLD * length, dtype=np.int32).reshape(WORLD, length) + 10000 * rank.rank
        a, b = rank.tensor(before), rank.zeros(WORLD, length)
        works = [rank.group.alltoall_base(*pair, [], []) for pair in ((b, a), (a, b)) * 2]
        works[-1].wait()
        np.testing.assert_array_equal(rank.values(a), before)
        assert all(work.is_completed() and work.is_success() and work.result() for work in works)
    on_ranks(body)


def test_wait_lets_the_host_go_on(on_ranks):
    begun = threading.Barrier(WORLD)

    def body(rank):
        rank.gpu.lib.fakePauseStream(rank.stream, 1)
        send, receive = rank.tensor(np.full(WORLD * 100, rank.rank, np.int32)), rank.zeros(WORLD * 100)
        work = rank.group.alltoall_base(receive, send, [], [])
        kept = weakref.ref(send)
        del send
        assert work.wait() and not work.is_completed() and not work.is_success() and work.exception() is None
        with pytest.raises(rails.UnfinishedError):
            work.wait(datetime.timedelta(milliseconds=1))
        with pytest.raises(rails.FailedPreconditionError, match="has not ended"):
            work.report
        begun.wait(30)
        del work
        gc.collect()
        assert kept() is not None
        rank.gpu.lib.fakePauseStream(rank.stream, 0)
        assert rank.values(receive).tolist() == sorted(list(range(WORLD)) * 100)
        rank.group.alltoall_base(receive, rank.zeros(WORLD * 100), [], []).wait(LIMIT)
        assert kept() is None
    on_ranks(body)


def too_many(rank):
    """Rows for each rank, of which all expect 100; rank 1 sends more to others."""
    return [101 if rank == 1 and peer != 1 else 100 for peer in range(WORLD)]


def test_blocking(on_ranks):
    """With Options(blocking=True) wait() returns when the operation has ended, and raises its error."""
    def body(rank):
        output = rank.zeros(WORLD * 100)
        work = rank.group.alltoall_base(output, rank.tensor(np.full(WORLD * 100, rank.rank, np.int32)), [], [])
        assert work.wait() and work.is_completed() and work.report.seq == 1
        counts = too_many(rank.rank)
        work = rank.group.alltoall_base(output, rank.zeros(sum(counts)), [], counts)
        with pytest.raises(rails.RailsError, match="operation 2 on cuda:0, all_to_all_single: "):
            work.wait()
        with pytest.raises(rails.RailsError, match="operation 2 on cuda:0, all_to_all_single: "):
            rank.group.alltoall_base(output, rank.zeros(WORLD * 100), [], []).wait()
    on_ranks(body, blocking=True)


def test_futures(on_ranks, monkeypatch):
    future = torch.futures.Future
    monkeypatch.setattr(torch.futures, "Future", lambda devices: future())  # devices need CUDA

    def body(rank):
        output = rank.zeros(WORLD * 100)
        work = rank.group.alltoall_base(output, rank.zeros(WORLD * 100), [], [])
        assert work.get_future().wait()[0] is output and work.is_success()
        counts = too_many(rank.rank)
        work = rank.group.alltoall_base(rank.zeros(WORLD * 100), rank.zeros(sum(counts)), [], counts)
        with pytest.raises(rails.RailsError, match="operation 2"):
            work.get_future().wait()
    on_ranks(body)


def test_errors_are_raised_by_the_next_operation(on_ranks):
    failed = threading.Barrier(WORLD)

    def body(rank):
        send, receive = rank.zeros(WORLD * 100), rank.zeros(WORLD * 100)
        rank.group.alltoall_base(receive, send, [], []).wait(LIMIT)
        if rank.rank == 0:
            rank.gpu.lib.fakePauseStream(rank.stream, 1)  # it begins nowhere
        work = rank.group.alltoall_base(rank.tensor(np.zeros(WORLD * 100, np.int32)), send, [], [])
        work.wait()
        failed.wait(30)
        if rank.rank == 1:
            work.abort()
        rank.gpu.lib.fakePauseStream(rank.stream, 0)
        with pytest.raises(rails.RailsError, match="operation 2"):
            work.wait(LIMIT)
        assert "operation 2" in str(work.exception()) and work.is_completed() and not work.is_success()
        with pytest.raises(rails.RailsError, match="operation 2 on cuda:0, all_to_all_single") as error:
            rank.group.alltoall_base(receive, send, [], [])
        assert rank.rank != 1 or isinstance(error.value, rails.CancelledError)
        failed.wait(30)
        rank.group.barrier().wait()  # on cpu the group goes on
        rank.group.abort()
        with pytest.raises(rails.RailsError):
            rank.group.alltoall_base(receive, send, [], [])
    on_ranks(body)


def test_refusals(on_ranks):
    def body(rank):
        group, send, receive = rank.group, rank.zeros(WORLD), rank.zeros(WORLD)
        each = group.alltoall_base

        def refused(text, call, *arguments, error=ValueError):
            with pytest.raises(error, match=text):
                call(*arguments)
        refused("all_to_all_single: tensors on cpu and cuda:0 in one operation", each, receive, torch.zeros(WORLD), [], [])
        refused("all_to_all_single: tensors on cpu and cuda:0 in one operation", each, torch.zeros(WORLD), send, [], [])
        refused("all_to_all: tensors on cuda:0 and cuda:1", group.alltoall, [receive] * WORLD, [Tensor(send.memory, device=1)] * WORLD)
        refused("a tensor on meta; the backend rails takes tensors on cpu and cuda", each, receive, torch.zeros(WORLD, device="meta"), [], [])
        refused(r"all_to_all_single: an output of shape \(4,\) on cuda:0 is not contiguous", each, rank.scattered(np.zeros(4)), send, [], [])
        refused("send to rank .* a tensor on cuda:0; the backend rails sends and receives only tensors on cpu", group.send, [send], rank.rank ^ 1)
        refused("recv from rank .* a tensor on cuda:0", group.recv, [send], rank.rank ^ 1)
        each(receive, send, [], []).wait(LIMIT)
        refused("a tensor on cuda:1: the first operation of this group was on cuda:0", each,
                *(Tensor(tensor.memory, device=1) for tensor in (receive, send)), [], [])
        each(receive, send, [], []).wait(LIMIT)  # nothing has changed
        for _ in range(2):  # refused by the library, it ends the group, lest a rank be alone with it
            refused("operation 3 on cuda:0, all_to_all_single: .* overlaps", each, send, send, [], [])
    on_ranks(body)


def test_recovery_without_nodes_is_refused(on_ranks):
    def body(rank):
        rank.group.barrier().wait()
        for _ in range(2):
            with pytest.raises(rails.InvalidArgumentError, match="cannot lose ranks"):
                rank.group.alltoall_base(rank.zeros(WORLD), rank.zeros(WORLD), [], [])
    on_ranks(body, recovery="degrade")


def test_the_backend_is_known_for_both_devices():
    capability = getattr(dist.Backend, "backend_capability", {"rails": ["cpu", "cuda"]})  # torch 1 has none
    assert capability["rails"] == ["cpu", "cuda"]
