"""GPUs: their memory, where an array lies in it, and streams."""

from __future__ import annotations

import collections
import ctypes
import math
import operator
import threading
from typing import TYPE_CHECKING, Any, Sequence

import numpy as np
import numpy.typing as npt

from rails._library import STAGED, DeviceOptions, Handle, lib
from rails._memory import Place
from rails.errors import FailedPreconditionError, InvalidArgumentError, RailsError

if TYPE_CHECKING:
    from rails.client import Client


class Device:
    """An NVIDIA GPU, made by `Client.open_device()`. Groups of that client that are joined with it can send and receive its
    memory. It works with the device's primary context, as the CUDA runtime, torch and CuPy do."""

    def __init__(self, client: Client, handle: Handle, ordinal: int):
        self._client, self._handle = client, handle
        self.ordinal = ordinal
        self.name: str = lib.rails_device_name(handle).decode(errors="replace")
        why = lib.rails_device_blocks(handle)
        # The reason why `Work.wait_on()` blocks the calling thread. None: streams wait by themselves.
        self.blocks: str | None = None if why is None else why.decode(errors="replace")
        why = lib.rails_device_staged(handle)
        # The reason why bytes to and from other nodes are staged in pinned memory. None: RDMA devices reach the GPU's memory.
        self.staged: str | None = None if why is None else why.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<rails.Device {self.ordinal}: {self.name}>"

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """Allocates an array in the device's memory. Its bytes are undefined.

        CuPy, Numba and torch see the array by `__cuda_array_interface__`: `torch.as_tensor(array, device="cuda")` and
        `cupy.asarray(array)` have the same memory. The memory lives as long as the array, a slice or a tensor of it, or an
        unfinished job that uses it. Freeing it waits for the device.

        Args:
            shape: length of each axis; a number is the length of the only axis, bytes by default.
            dtype: type of the elements.

        Raises:
            ResourceExhaustedError: the device has not enough memory.
        """
        dtype = np.dtype(dtype)
        shape = tuple(operator.index(length) for length in (shape if isinstance(shape, Sequence) else (shape,)))
        if dtype.hasobject or dtype.itemsize == 0 or any(length < 0 for length in shape):
            raise InvalidArgumentError(f"an array of shape {shape} and type {dtype} cannot be on a device")
        length = dtype.itemsize * math.prod(shape)
        if length == 0:
            return DeviceArray(None, 0, shape, dtype)
        segment = Handle(lib.rails_segment_free)
        lib.rails_device_alloc(self._handle, length, segment)
        return DeviceArray(segment, lib.rails_device_address(segment), shape, dtype)

    def place(self, array: Any, name: str) -> Place:
        """Where `array`, which is on a device, lies. `name`: for errors."""
        if self._client._forked:
            raise FailedPreconditionError("this device belongs to the parent process, and CUDA does not work in the forked child")
        address, length, row = _extent(array, name, self.ordinal)
        if length == 0:
            return Place(None, 0, 0, row)
        segment = Handle(lib.rails_segment_free)
        try:
            lib.rails_device_import(self._handle, address, length, segment)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name}: {error.text}") from None
        return Place(segment, 0, length, row)


class DeviceArray:
    """An array in the memory of a device, made by `Device.empty()`. Slices along the first axis share its memory.

    Attributes:
        address: of the first byte, on the device; 0 if there are no bytes.
        shape: length of each axis.
        dtype: type of the elements, of NumPy.
        nbytes: length of the array in bytes.
    """

    def __init__(self, segment: Handle | None, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self._segment = segment  # the memory
        self.address, self.shape, self.dtype = address, shape, dtype
        self.nbytes: int = dtype.itemsize * math.prod(shape)

    def __repr__(self) -> str:
        return f"<rails.DeviceArray of shape {self.shape} and type {self.dtype} at {self.address:#x}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Consecutive rows of the array: array[begin:end]."""
        if not isinstance(rows, slice):
            raise TypeError(f"an array of a device takes a slice of rows as its index, not {rows!r}")
        begin, end, step = rows.indices(len(self))
        if step != 1:
            raise InvalidArgumentError(f"a step of {step} leaves rows out: an array of a device has consecutive rows")
        shape = (max(end - begin, 0), *self.shape[1:])
        address = self.address + begin * self.dtype.itemsize * math.prod(shape[1:])
        return DeviceArray(self._segment, address if math.prod(shape) else 0, shape, self.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for other libraries, in version 3 of the protocol."""
        return {"version": 3, "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "strides": None,
                "stream": None}


def open_device(client: Client, handle: Handle, ordinal: int, driver: str, staged: bool) -> Device:
    """`Client.open_device()`. `handle`: of the client."""
    ordinal = operator.index(ordinal)
    if not 0 <= ordinal < 1 << 31:
        raise InvalidArgumentError(f"ordinal is {ordinal}")
    options = DeviceOptions(ctypes.sizeof(DeviceOptions), ordinal, STAGED if staged else 0, driver.encode())
    made = Handle(lib.rails_device_free)
    try:
        lib.rails_device_open(handle, options, made)
    finally:
        del handle  # a traceback must not keep it
    return Device(client, made, ordinal)


def is_on_device(array: Any) -> bool:
    """True for a tensor of torch, or another object with `__cuda_array_interface__`, in the memory of a GPU."""
    on_device = getattr(array, "is_cuda", None)  # torch makes the interface anew each time, and not for all types
    return hasattr(array, "__cuda_array_interface__") if on_device is None else bool(on_device)


def stream_number(stream: Any) -> int:
    """The CUstream of a stream: of torch, CuPy, an object with `__cuda_stream__`, or the number itself."""
    for attribute in ("cuda_stream", "ptr"):
        number = getattr(stream, attribute, None)
        if number is not None:
            return operator.index(number)
    if hasattr(stream, "__cuda_stream__"):
        version, number = stream.__cuda_stream__()
        if version != 0:
            raise InvalidArgumentError(f"stream: version {version} of __cuda_stream__ is not known; version 0 is")
        return operator.index(number)
    try:
        number = operator.index(stream)
    except TypeError:
        raise TypeError(f"stream is a {type(stream).__name__}; it must be a stream of torch or CuPy, an object with "
                        "__cuda_stream__, or an integer") from None
    if not 0 <= number < 1 << 64:
        raise InvalidArgumentError(f"stream is {number}; it must be a CUstream")
    return number


def _extent(array: Any, name: str, ordinal: int) -> tuple[int, int, int]:
    """Address, length and length of a row of a contiguous array of a device, in bytes."""
    if hasattr(array, "data_ptr"):  # a tensor of torch
        if array.is_conj() or array.is_neg():
            raise InvalidArgumentError(f"{name}: the memory of this tensor has other values than the tensor: call resolve_conj() and "
                                       "resolve_neg()")
        if array.device.index != ordinal:
            raise InvalidArgumentError(f"{name} is on {array.device}, and the group was joined with device {ordinal}")
        contiguous, size, address, shape = array.is_contiguous(), array.element_size(), array.data_ptr(), tuple(array.shape)
    else:
        interface = array.__cuda_array_interface__
        shape, size, address = tuple(interface["shape"]), np.dtype(interface["typestr"]).itemsize, interface["data"][0]
        contiguous = _contiguous(shape, interface.get("strides"), size)
        if interface.get("mask") is not None:
            raise InvalidArgumentError(f"{name} has a mask")
    if not contiguous:
        raise InvalidArgumentError(f"{name}: the array of shape {shape} is not contiguous")
    row = size * math.prod(shape[1:])
    return address, row * (shape[0] if shape else 1), row


def _contiguous(shape: tuple[int, ...], strides: Sequence[int] | None, size: int) -> bool:
    """True if the elements are one after the other, the last axis fastest. `strides`: bytes; None: they are."""
    if strides is None or 0 in shape:
        return True
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


class KeptArrays:
    """Arrays of the unfinished jobs of a group. The library cannot keep them, because other libraries made them.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: collections.deque[tuple[Handle, Any]] = collections.deque()

    def add(self, job: Handle, arrays: Any) -> None:
        """Keeps arrays until the job has ended, and drops those of jobs that have. A group has at most 64 unfinished ones."""
        self.prune()
        self._jobs.append((job, arrays))

    def prune(self) -> None:
        """Drops the arrays of jobs that have ended."""
        if not self._jobs or not self._lock.acquire(blocking=False):  # another thread does it, or did at a fork
            return
        dropped = []  # outlives the lock: a destructor may call anything
        try:
            for _ in range(len(self._jobs)):
                kept = self._jobs.popleft()
                (dropped if _ended(kept[0]) else self._jobs).append(kept)
        finally:
            self._lock.release()

    def free_group(self, group: Handle) -> None:
        """Leaves the group, whose jobs have then ended."""
        lib.rails_group_free(group)
        self._jobs.clear()


def _ended(job: Handle) -> bool:
    done = ctypes.c_int32()
    try:
        lib.rails_job_test(job, done)
    except RailsError:
        pass
    return bool(done.value)
