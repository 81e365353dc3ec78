"""Groups with a device, over real daemons. A fake driver plays the GPU: no test here has touched a real one.

The driver reports every access that nothing orders, and each test fails if there is one.
"""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import types
import weakref

import numpy as np
import pytest

import fake_gpu
import rails
from conftest import ROOT, run_ranks, sockets
from harness import eventually
from rails.device import stream_number

WORLD = 4
SLICES = {"slice_bytes": 1024, "slices": 3}  # small, so that jobs have several


@pytest.fixture(scope="module")
def driver():
    return fake_gpu.Gpu()


@pytest.fixture
def gpu(driver):
    driver.lib.fakeSetDelays(7, 50)
    before = driver.violations()
    yield driver
    assert driver.violations() == before


def on_ranks(cluster, body, world=WORLD, **options):
    """As run_ranks(), with body(client, group, stream), a device for each rank, and a stream of its own."""
    gpu = fake_gpu.Gpu()
    return run_ranks(cluster, world, lambda client, group: body(client, group, gpu.stream()), driver=fake_gpu.path(), **{**SLICES, **options})


def test_device_and_arrays(cluster, gpu):
    with rails.connect(sockets(cluster)) as client:
        device = client.open_device(driver=fake_gpu.path())
        assert device.name and device.blocks is None and device.ordinal == 0 and "Device 0" in repr(device)
        array = device.empty((10, 3), np.float32)
        assert (array.shape, array.nbytes, len(array), array.dtype) == ((10, 3), 120, 10, np.dtype(np.float32))
        assert array.__cuda_array_interface__ == {"version": 3, "shape": (10, 3), "typestr": "<f4", "data": (array.address, False),
                                                  "strides": None, "stream": None}
        part = array[2:5]
        assert (part.address, part.shape, part.nbytes) == (array.address + 24, (3, 3), 36)
        assert (device.empty(100).nbytes, device.empty(0).address, array[4:2].nbytes) == (100, 0, 0)
        with pytest.raises(rails.InvalidArgumentError, match="step of 2"):
            array[::2]
        with pytest.raises(TypeError, match="slice of rows"):
            array[1]
        stream = gpu.stream()
        gpu.fill(array.address, 7, array.nbytes, stream)
        held = gpu.lib.fakeLive().allocations
        del array, device
        client.close()
        gc.collect()
        assert (gpu.read(part.address, (36,), np.uint8, stream) == 7).all() and gpu.lib.fakeLive().allocations == held
        del part
        assert gpu.lib.fakeLive().allocations == held - 1


def counts_of(random):
    """Rows from each rank to each; some are none."""
    return random.integers(0, 200, (WORLD, WORLD)) * random.integers(0, 2, (WORLD, WORLD))


def rows(source, target, count, turn):
    """Rows of three numbers, which are their own."""
    return (np.arange(3 * count) * 7 + 1000003 * source + 10007 * target + 101 * turn).astype(np.int32).reshape(count, 3)


@pytest.mark.parametrize("capacities", [False, True])
def test_all_to_all_v(cluster, gpu, capacities):
    """Copies, jobs and copies back on one stream; the host waits at the end of a turn only."""
    def body(client, group, stream):
        me, random = group.rank, np.random.default_rng(5)
        send, receive = (group.device.empty((WORLD * 250, 3), np.int32) for _ in range(2))
        for turn in range(6):
            counts = counts_of(random)
            slots = counts[:, me] + (random.integers(0, 50, WORLD) if capacities else 0)
            if capacities:
                slots[me] = counts[me, me] + 1
            gpu.fill(receive.address, 0xee, receive.nbytes, stream)
            gpu.write(send.address, np.concatenate([rows(me, peer, counts[me, peer], turn) for peer in range(WORLD)]), stream)
            work = group.all_to_all_v(send, counts[me], receive[4:], slots, stream=stream, capacities=capacities, tag=turn)
            work.wait_on(stream)
            landed = gpu.read(receive.address, receive.shape, np.int32, stream)
            expected = np.full_like(landed, np.frombuffer(b"\xee" * 4, np.int32)[0])
            for peer, begin in enumerate(4 + np.cumsum(slots) - slots):
                expected[begin:begin + counts[peer, me]] = rows(peer, me, counts[peer, me], turn)
            np.testing.assert_array_equal(landed, expected)
            report = work.wait(30)
            assert report.seq == turn + 1 and report.received_by_rank == (tuple(counts[:, me] * 12) if capacities else ())
    on_ranks(cluster, body)


def test_jobs_follow_each_other_without_the_host(cluster, gpu):
    """A job sends what the one before it has received; the host waits for none of them."""
    def body(client, group, stream):
        a, b = (group.device.empty((WORLD, 500)) for _ in range(2))
        before = np.random.default_rng(group.rank).integers(0, 256, a.shape, np.uint8)
        gpu.write(a.address, before, stream)
        for source, target in ((a, b), (b, a)) * 3:
            group.all_to_all_v(source, [1] * WORLD, target, [1] * WORLD, stream=stream).wait_on(stream)
        np.testing.assert_array_equal(gpu.read(a.address, a.shape, np.uint8, stream), before)
        group.barrier(30)
    on_ranks(cluster, body)


def test_ranges_of_device_and_shared_memory(cluster, gpu):
    """Rows of an array on the device, an array of another library, and shared memory, in one flow."""
    def body(client, group, stream):
        me, others = group.rank, range(WORLD)
        tokens, landed = group.device.empty((60, 10), np.int16), group.device.empty((WORLD, 10, 10), np.int16)
        values = np.arange(600, dtype=np.int16).reshape(60, 10) + 1000 * me
        gpu.write(tokens.address, values, stream)
        extra = group.device.empty(33)
        gpu.fill(extra.address, me + 1, extra.nbytes, stream)
        foreign = types.SimpleNamespace(__cuda_array_interface__={"shape": (11, 3, 1), "typestr": "|u1", "data": (extra.address, False),
                                                                  "strides": (3, 1, 99), "version": 3})
        shared, tails = client.empty((WORLD, 5)), client.empty((WORLD, 38))
        shared[:] = me + 10
        chosen = {peer: [5 + peer, 6 + peer, 40, 3, 4, 50 + me] for peer in others}
        group.all_to_all_ranges({peer: [rails.Rows(tokens, chosen[peer]), foreign, shared[peer]] for peer in others},
                                {peer: [part_of(landed, peer, 6), tails[peer]] for peer in others}, stream=stream).wait(30)
        got = gpu.read(landed.address, landed.shape, np.int16, stream)
        for peer in others:
            expected = (np.arange(600, dtype=np.int16).reshape(60, 10) + 1000 * peer)[[5 + me, 6 + me, 40, 3, 4, 50 + peer]]
            np.testing.assert_array_equal(got[peer, :6], expected)
            assert tails[peer].tolist() == [peer + 1] * 33 + [peer + 10] * 5
    on_ranks(cluster, body)


def part_of(array, index, count):
    """The first rows of array[index]."""
    row = array.nbytes // array.shape[0]
    shape = (count, *array.shape[2:])
    return types.SimpleNamespace(kept=array, __cuda_array_interface__={
        "shape": shape, "typestr": array.dtype.str, "data": (array.address + index * row, False), "strides": None, "version": 3})


def test_a_job_waits_for_its_stream(cluster, gpu):
    """A stream is late at one rank; no byte leaves the device before it has come to the job."""
    submitted, looked = threading.Barrier(WORLD), threading.Barrier(WORLD)

    def body(client, group, stream):
        send, receive = (group.device.empty((WORLD, 400)) for _ in range(2))
        gpu.fill(send.address, 1, send.nbytes, stream)
        gpu.call("cuStreamSynchronize", stream)
        before = gpu.lib.fakeCounts().device_to_host
        submitted.wait(30)
        if group.rank == 0:
            gpu.lib.fakePauseStream(stream, 1)
        gpu.fill(send.address, 100 + group.rank, send.nbytes, stream)
        kept = weakref.ref(send)
        work = group.all_to_all_v(send, [1] * WORLD, receive, [1] * WORLD, stream=stream)
        work.wait_on(stream)
        del send
        if group.rank == 0:
            eventually(lambda: gpu.lib.fakeCounts().device_to_host > before, "another rank has copied its first slice")
        submitted.wait(30)
        assert not work.done()
        if group.rank == 0:
            del work  # the job goes on, and keeps its memory
            gc.collect()
            assert kept() is not None
        looked.wait(30)
        gpu.lib.fakePauseStream(stream, 0)
        landed = gpu.read(receive.address, receive.shape, np.uint8, stream)
        assert landed[:, 0].tolist() == landed[:, -1].tolist() == [100, 101, 102, 103]
        group.barrier(30)
        group.barrier(30)  # drops what the first job used
        assert kept() is None
    on_ranks(cluster, body)


def test_a_group_that_is_dropped_gives_the_arrays_back(cluster, gpu):
    refs = []

    def body(client, group, stream):
        array = group.device.empty((2, 100))
        refs.append(weakref.ref(array))
        gpu.lib.fakePauseStream(stream, 1)
        gpu.fill(array.address, 1, array.nbytes, stream)
        work = group.all_to_all_v(array, [1, 1], group.device.empty((2, 100)), [1, 1], stream=stream)
        work.wait_on(stream)
        group.leave()
        gpu.lib.fakePauseStream(stream, 0)
        gpu.call("cuStreamSynchronize", stream)  # does not hang
        with pytest.raises(rails.RailsError):
            work.wait(30)
        with pytest.raises(rails.RailsError):
            work.wait_on(stream)
        with pytest.raises(rails.FailedPreconditionError, match="the group is over"):
            group.all_to_all_v(array, [1, 1], group.device.empty((2, 100)), [1, 1])
    on_ranks(cluster, body, world=2)
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_refusals(cluster, gpu):
    def body(client, group, stream):
        device, none = group.device, np.empty(0, np.uint8)
        array, other = device.empty((10, 4), np.int32), device.empty((10, 4), np.int32)
        host = client.empty((10, 4), np.int32)

        def foreign(**changes):
            return types.SimpleNamespace(__cuda_array_interface__={"shape": (10, 4), "typestr": "<i4", "data": (array.address, False),
                                                                   "version": 3, **changes})

        def refused(text, send=array, receive=other, error=rails.InvalidArgumentError, to=group, **options):
            with pytest.raises(error, match=text):
                to.all_to_all_v(send, [1], receive, [1], **options)
        refused("receive: address 0x3039 is no memory of this device", receive=foreign(data=(12345, False)))
        refused("send: length_bytes 400", foreign(shape=(100,)))
        refused("send: the array of shape .10, 4. is not contiguous", foreign(strides=(16, 8)))
        refused("mask", foreign(mask=array))
        refused("overlaps", receive=foreign(shape=(9, 4), data=(array.address + 4, False)))
        refused("is not in memory of this client", np.empty(10))
        refused("vote 3: it must be 0", vote=3)
        refused("integer", stream="0", error=TypeError)
        refused("-1", stream=-1)
        refused("send is on cuda:1, and the group was joined with device 0", fake_gpu.Tensor(array, device=1))
        with pytest.raises(rails.RailsError, match="prepared") as error:
            group.prepare({0: [array]}, {0: [other]})
        assert error.value.code == rails.Code.UNIMPLEMENTED
        with client.join(f"{group.name} without", 0, 1) as without:
            for wrong in (array, foreign(), fake_gpu.Tensor(array)):
                refused("send is in the memory of a GPU, and the group .* was joined without a device", wrong, to=without)
                with pytest.raises(rails.InvalidArgumentError, match=r"receives\[0\] is in the memory of a GPU"):
                    without.all_to_all_ranges({}, {0: [wrong]})
            refused("stream is given, and the group", host, host, to=without, stream=stream)
            work = without.all_to_all_v(none, [0], none, [0])
            with pytest.raises(rails.InvalidArgumentError, match="without a device"):
                work.wait_on(stream)
            work.wait(30)
        for options, text in (({"slice_bytes": 1024}, "it needs a device"), ({"device": device, "slices": 0}, "slices is 0"),
                              ({"device": device, "slice_bytes": 10}, "slice_bytes 10"), ({"device": device, "recovery": "degrade"}, "cannot lose")):
            with pytest.raises(rails.InvalidArgumentError, match=text):
                client.join("wrong", 0, 1, **options)
        with rails.connect(sockets(cluster)) as another, pytest.raises(rails.InvalidArgumentError, match="another client"):
            another.join("wrong", 0, 1, device=device)
        with pytest.raises(TypeError, match="open_device"):
            client.join("wrong", 0, 1, device=0)
        group.all_to_all_v(array, [1], other, [1], stream=0).wait(30)  # nothing has changed
    on_ranks(cluster, body, world=1)


def test_no_device(cluster, gpu):
    with rails.connect(sockets(cluster)) as client:
        with pytest.raises(rails.NotFoundError, match="libcuda-none.so.1"):
            client.open_device(driver="libcuda-none.so.1")
        with pytest.raises(rails.NotFoundError, match="there is no CUDA device 3"):
            client.open_device(3, driver=fake_gpu.path())
        gpu.lib.fakeFail(b"cuStreamWaitValue32_v2", 1, 801)
        assert "cuStreamWaitValue32" in client.open_device(driver=fake_gpu.path()).blocks
        gpu.lib.fakeFail(b"cuMemAlloc_v2", 1, 2)
        device = client.open_device(driver=fake_gpu.path())
        with pytest.raises(rails.ResourceExhaustedError, match="100 bytes"):
            device.empty(100)


def test_streams():
    class Protocol:
        def __init__(self, version):
            self.version = version

        def __cuda_stream__(self):
            return self.version, 56
    for stream in (56, np.int64(56), types.SimpleNamespace(cuda_stream=56), types.SimpleNamespace(ptr=56), Protocol(0)):
        assert stream_number(stream) == 56
    with pytest.raises(rails.InvalidArgumentError, match="version 1"):
        stream_number(Protocol(1))


def test_a_forked_child(cluster, gpu):
    def in_child(client, group, work, array, stream):
        """Returns an empty string, or what is wrong."""
        calls = {"open": lambda: client.open_device(driver=fake_gpu.path()), "empty": lambda: group.device.empty(1), "done": work.done,
                 "wait": lambda: work.wait(1), "wait_on": lambda: work.wait_on(stream), "cancel": work.cancel,
                 "submit": lambda: group.all_to_all_v(array, [1], array, [1], stream=stream), "leave": group.leave}
        for name, call in calls.items():
            try:
                call()
            except rails.FailedPreconditionError:
                continue
            return f"{name} is not refused"
        return ""

    def body(client, group, stream):
        send, receive = group.device.empty((1, 10)), group.device.empty((1, 10))
        gpu.lib.fakePauseStream(stream, 1)
        gpu.fill(send.address, 3, 10, stream)
        work = group.all_to_all_v(send, [1], receive, [1], stream=stream)
        fork = multiprocessing.get_context("fork")
        answers = fork.SimpleQueue()

        def run():
            nonlocal group, work, send, client
            answers.put(in_child(client, group, work, send, stream))
            del group, work, send, client
            gc.collect()
        child = fork.Process(target=run)
        child.start()
        child.join(30)
        assert child.exitcode == 0 and answers.get() == ""
        gpu.lib.fakePauseStream(stream, 0)
        work.wait(30)
        assert (gpu.read(receive.address, (10,), np.uint8, stream) == 3).all()
    on_ranks(cluster, body, world=1)


def test_the_example(cluster):
    program = ROOT / "client/python/examples/there_and_back_gpu.py"
    ranks = [subprocess.Popen([sys.executable, program, "--driver", fake_gpu.path(), str(rank), "4", sockets(cluster, rank)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "FAKE_CUDA_ABORT": "1", "FAKE_CUDA_MAX_DELAY_US": "100"}) for rank in range(4)]
    for rank, process in enumerate(ranks):
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert out.count(" job ") == 2 and f"rank {rank}: every token is right\n" in out


EXIT = """
import sys, threading
import rails
*directories, driver, name = sys.argv[1:]
clients = [rails.connect(directory) for directory in directories]
devices = [client.open_device(driver=driver) for client in clients]
groups = [None, None]
def join(rank):
    groups[rank] = clients[rank].join(name, rank, 2, device=devices[rank], slice_bytes=1024)
other = threading.Thread(target=join, args=(1,))
other.start()
join(0)
other.join()
send, receive = devices[0].empty((2, 5000)), devices[0].empty((2, 5000))
works = [groups[0].all_to_all_v(send, [1, 1], receive, [1, 1], stream=0) for _ in range(2)]
works[0].wait_on(0)
"""
ENDS = {"unfinished": "", "group": "del works, groups[0]", "client": "clients[0].close(); del devices, clients",
        "all": "del works, groups, send, receive, devices, clients"}


@pytest.mark.parametrize("end", ENDS)
def test_exits(cluster, end):
    """The interpreter exits with jobs that the other rank has not submitted, and one that waits behind them; without a word."""
    run = subprocess.run([sys.executable, "-X", "dev", "-c", EXIT + ENDS[end], *map(str, (sockets(cluster, 0), sockets(cluster, 1))),
                          fake_gpu.path(), f"exit {end}"], env={**os.environ, "FAKE_CUDA_ABORT": "1"},
                         capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
