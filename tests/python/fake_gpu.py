"""The driver of tests/cuda/fake_driver, as kernels and copies of a trainer would use it: host memory plays the GPU."""

import ctypes
import math
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

import numpy as np

import harness


def path():
    return str(harness.BUILD / "tests/cuda/fake_driver/librails_fake_cuda.so")


class Counts(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("copies", "host_to_device", "device_to_host", "device_to_device", "host_to_host", "sets",
                                              "host_functions", "pageable_copies", "flushes")]


class Live(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("allocations", "registrations", "streams", "events", "contexts")]


class Gpu:
    """Calls of the driver with device 0's primary context, from any thread."""

    def __init__(self):
        self.lib = ctypes.CDLL(path())
        for name, arguments in {"cuMemcpyAsync": [c_uint64, c_uint64, c_size_t, c_void_p], "cuMemsetD8Async": [c_uint64, c_ubyte, c_size_t, c_void_p],
                                "cuStreamSynchronize": [c_void_p], "cuStreamDestroy_v2": [c_void_p], "fakePauseStream": [c_void_p, c_int],
                                "cuCtxPushCurrent_v2": [c_void_p], "fakeSetDelays": [c_uint64, c_uint], "fakeFail": [c_char_p, c_int, c_int],
                                "fakeViolation": [c_uint64]}.items():
            getattr(self.lib, name).argtypes = arguments
        self.lib.fakeViolation.restype = c_char_p
        self.lib.fakeViolations.restype = c_uint64
        self.lib.fakeCounts.restype = Counts
        self.lib.fakeLive.restype = Live
        self.lib.cuInit(0)
        self._context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)

    def call(self, name, *arguments):
        """Calls a function in the context. Raises if it fails."""
        if name != "cuDevicePrimaryCtxRetain":
            self.lib.cuCtxPushCurrent_v2(self._context)
        error = getattr(self.lib, name)(*arguments)
        if name != "cuDevicePrimaryCtxRetain":
            self.lib.cuCtxPopCurrent_v2(ctypes.byref(c_void_p()))
        assert error == 0, f"{name}: CUDA error {error}"

    def stream(self):
        """A new stream, as its number."""
        made = c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value

    def write(self, address, array, stream):
        """Copies an array of NumPy to the device on a stream."""
        array = np.ascontiguousarray(array)
        self.call("cuMemcpyAsync", address, array.ctypes.data, array.nbytes, stream)

    def fill(self, address, value, length, stream):
        self.call("cuMemsetD8Async", address, value, length, stream)

    def read(self, address, shape, dtype, stream):
        """Copies from the device on a stream, and returns when that is done."""
        array = np.empty(shape, dtype)
        self.call("cuMemcpyAsync", array.ctypes.data, address, array.nbytes, stream)
        return array

    def violations(self):
        return [self.lib.fakeViolation(number).decode() for number in range(self.lib.fakeViolations())]


class Tensor:
    """Stands in for a CUDA tensor, which a torch without CUDA cannot make. It has what `rails` asks of one."""

    is_cuda, is_cpu = True, False

    def __init__(self, memory, shape=None, begin=0, device=0, copy=None):
        """`memory`: a rails.DeviceArray, which it keeps. `begin`: bytes. `copy`: returns a contiguous copy; None: this one is."""
        import torch
        self.memory, self.shape, self._begin, self._copy = memory, tuple(memory.shape if shape is None else shape), begin, copy
        self.dtype, self.device = memory.dtype, torch.device("cuda", device)

    def data_ptr(self):
        return self.memory.address + self._begin

    def element_size(self):
        return self.dtype.itemsize

    def numel(self):
        return math.prod(self.shape)

    def dim(self):
        return len(self.shape)

    def size(self, axis):
        return self.shape[axis]

    def is_contiguous(self):
        return self._copy is None

    def contiguous(self):
        return self if self._copy is None else self._copy()

    def is_conj(self):
        return False

    is_neg = is_conj

    def detach(self):
        return self

    resolve_conj = resolve_neg = detach

    def view(self, *_):
        return Tensor(self.memory, (self.numel(),), self._begin, self.device.index, self._copy)

    reshape = view

    def split(self, counts):
        """Consecutive rows."""
        row = self.element_size() * math.prod(self.shape[1:])
        ends = [sum(counts[:number]) for number in range(len(counts))]
        return [Tensor(self.memory, (count, *self.shape[1:]), self._begin + end * row) for count, end in zip(counts, ends)]
