"""Shared memory: no copy on the way to NumPy, and a life as long as the last view's."""

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

import rails
from conftest import run_ranks, sockets, status


def address(array):
    return array.__array_interface__["data"][0]


def mapped():
    return sum("/memfd:" in line for line in Path("/proc/self/maps").read_text().split("\n"))


@pytest.fixture
def client(cluster):
    with rails.connect(sockets(cluster)) as client:
        yield client


@pytest.mark.parametrize("shape, dtype", [((100, 7, 3), "float32"), (1 << 20, "uint8"), ((), "int64"), ((3,), "complex128"),
                                          ((5, 2), [("token", "i4"), ("weight", "f2")])])
def test_no_copy(client, shape, dtype):
    array = client.empty(shape, dtype)
    assert array.shape == (shape if isinstance(shape, tuple) else (shape,)) and array.dtype == np.dtype(dtype)
    assert not array.view(np.uint8).any() if shape else array == 0
    assert address(np.asarray(memoryview(array))) == address(array)  # the buffer protocol
    assert address(array) % 64 == 0
    if array.dtype.names is None:
        assert address(np.from_dlpack(array)) == address(array)
        assert array.__dlpack_device__() == (1, 0)  # kDLCPU


def test_tensors_share_the_address(client):
    """torch.from_dlpack() copies nothing: of an array, of its slices, of one without bytes."""
    array = client.empty((6, 5), np.int32)
    tensor = torch.from_dlpack(array)
    assert (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype) == (address(array), (6, 5), torch.int32)
    array[2:] = np.arange(5)
    tensor[0] = 7
    assert array[0].tolist() == [7] * 5 and tensor[5].tolist() == [0, 1, 2, 3, 4]
    column = torch.from_dlpack(array[1:, 2])
    assert column.data_ptr() == address(array) + array.strides[0] + 2 * array.itemsize and column.stride() == (5,)
    assert tensor.view(torch.int16)[1:].data_ptr() == address(array[1:])
    assert torch.from_dlpack(client.empty((0, 5), np.float32)).shape == (0, 5)


def test_shapes(client):
    assert client.empty((0, 5), np.float32).shape == (0, 5)
    assert client.empty(np.arange(2, 4).sum()).shape == (5,) and client.empty([np.int64(2), 3])[1, 2] == 0
    for shape, dtype in (((2, -1), "u1"), (3, object), (3, "V0")):
        with pytest.raises(ValueError):
            client.empty(shape, dtype)


def test_views_keep_the_memory(cluster):
    before = mapped()
    client = rails.connect(sockets(cluster))
    view = memoryview(client.empty((1000, 1000), np.uint8)[500:])
    view[7, 8] = 9
    array = client.empty(100000, np.float32)
    array[50000] = 2.5
    capsule = np.from_dlpack(array)[50000:]
    client.close()
    del client, array
    gc.collect()
    assert mapped() > before
    assert view[7, 8] == 9 and capsule[0] == 2.5 and capsule.sum() == 2.5
    del view, capsule
    gc.collect()
    assert mapped() == before


def test_small_arrays_share_segments(cluster, client):
    node = cluster.nodes[0]
    arrays = [client.empty(1000, np.int32) for _ in range(600)]  # limits.max_segments_per_session is 64
    for number, array in enumerate(arrays):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))
    segments = int(status(cluster, node)["sessions"][0]["segments"])
    assert segments <= 3
    del array, arrays
    gc.collect()
    client.empty(1 << 20)  # waits for what was released
    assert int(status(cluster, node)["sessions"][0]["segments"]) <= 2


class Tensor:
    """A tensor of torch, as far as the package looks at it."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def data_ptr(self):
        return address(self.array)

    def element_size(self):
        return self.array.itemsize

    def is_conj(self):
        return False

    is_neg = is_conj

    def is_contiguous(self):
        return self.array.flags.c_contiguous


def test_memory_is_known_by_its_address(cluster):
    def body(client, group):
        send, receive = client.empty((2, 4, 9), np.int16), client.empty((2, 4, 9), np.int16)
        send[:] = group.rank + np.arange(4)[:, None]
        forms = [lambda a: a, memoryview, Tensor, np.from_dlpack, lambda a: a.reshape(8, 9)[:8].view("u2").reshape(2, 36)]
        for wrap in forms:
            receive[:] = -1
            group.all_to_all_v(wrap(send), [1, 1], wrap(receive), [1, 1]).wait(30)
            np.testing.assert_array_equal(receive, np.arange(2)[:, None, None] + np.arange(4)[:, None] + np.zeros((2, 4, 9)))
        tail = client.empty((2, 9), np.int16)
        group.all_to_all_v(send[1, 2:], [1, 1], tail, [1, 1]).wait(30)
        assert tail[:, 0].tolist() == [2 + group.rank, 3 + group.rank]
    run_ranks(cluster, 2, body)


def test_memory_that_is_not_shared_is_refused(cluster, client):
    with client.join("refused", 0, 1) as group:
        shared = client.empty((4, 4), np.int32)
        with rails.connect(sockets(cluster)) as other:
            foreign = other.empty((4, 4), np.int32)
            for array, text in ((np.zeros((4, 4)), "send is not in memory"), ([1, 2], "send is not in memory"),
                                (foreign, "send is not in memory"), (shared[:, 1:], "not contiguous"), (shared.T, "not contiguous")):
                with pytest.raises(ValueError, match=text):
                    group.all_to_all_v(array, [1], shared, [1])
        for counts, error, text in (([5], ValueError, "send_counts"), ([-1], ValueError, "-1"), ([1, 1], ValueError, "2 counts"),
                                    ([1.0], TypeError, r"send_counts is \[1.0\]")):
            with pytest.raises(error, match=text):
                group.all_to_all_v(shared, counts, shared, [1])
        shared[:] = np.arange(16).reshape(4, 4)
        with pytest.raises(ValueError, match="overlaps the receive range"):
            group.all_to_all_v(shared[1:], [2], shared, [2])
        group.all_to_all_v(shared[2:], [2], shared, [2]).wait(30)
        assert shared[:, 0].tolist() == [8, 12, 8, 12]
        group.all_to_all_v(shared, [4], shared, [4]).wait(30)  # it stays where it is
        group.all_to_all_v(shared, [1], shared, [4], capacities=True).wait(30)
        assert shared[:, 0].tolist() == [8, 12, 8, 12]

