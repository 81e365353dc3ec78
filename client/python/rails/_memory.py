"""Memory that a client shares with its daemon: arrays in it, and where an array lies."""

from __future__ import annotations

import bisect
import ctypes
import math
import operator
import threading
import weakref
from typing import Any, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from rails._library import HUGE_PAGES, Handle, SegmentOptions, lib, nanoseconds
from rails.errors import InvalidArgumentError

# Arrays of at most _SMALL bytes share segments of _POOL bytes, because a daemon limits the segments of a session.
_SMALL, _POOL = 64 << 10, 1 << 20
_ALIGNMENT = 64


class Block:
    """A part of a segment. NumPy keeps it as the base of the array that `Memory.empty()` makes of it, and so every view
    and tensor of that memory keeps the segment."""

    def __init__(self, segment: Handle, offset: int, length: int):
        self.segment, self.offset, self.length = segment, offset, length
        self.address: int = lib.rails_segment_data(segment) + offset
        self.__array_interface__ = {"version": 3, "shape": (length,), "typestr": "|u1", "data": (self.address, False)}


class Place(NamedTuple):
    """Where an array lies. Lengths are bytes."""

    segment: Handle | None  # None: the array has no bytes
    offset: int
    length: int
    row: int  # length of an entry of the first axis


class Memory:
    """The shared arrays of one client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()  # by address
        self._ascending: tuple[list[int], list[weakref.ref[Block]]] | None = None  # addresses and blocks; None: to be made
        self._pool: Handle | None = None  # the segment from which small arrays are cut; its used bytes
        self._used = 0

    def empty(self, client: Handle, shape: Any, dtype: Any, huge_pages: bool, timeout: float | None) -> npt.NDArray[Any]:
        dtype = np.dtype(dtype)
        shape = tuple(operator.index(length) for length in (shape if isinstance(shape, Sequence) else (shape,)))
        if dtype.hasobject or dtype.itemsize == 0 or any(length < 0 for length in shape):
            raise InvalidArgumentError(f"an array of shape {shape} and type {dtype} cannot be shared")
        length = dtype.itemsize * math.prod(shape)
        if length == 0:
            return np.empty(shape, dtype)
        try:
            with self._lock:
                block = self._block(client, length, huge_pages, nanoseconds(timeout))
        finally:
            del client  # a traceback must not keep it
        array: npt.NDArray[Any] = np.asarray(block).view(dtype).reshape(shape)
        return array

    def _block(self, client: Handle, length: int, huge_pages: bool, timeout_ns: int) -> Block:
        """A block for a new array. With the lock."""
        try:
            if length > _SMALL or huge_pages:
                block = Block(_segment(client, length, huge_pages, timeout_ns), 0, length)
            else:
                if self._pool is None or self._used + length > _POOL:
                    self._pool, self._used = _segment(client, _POOL, False, timeout_ns), 0
                # Bytes are never given out twice: an unfinished job may use an array that nobody refers to any more.
                block = Block(self._pool, self._used, length)
                self._used += -(-length // _ALIGNMENT) * _ALIGNMENT
        finally:
            del client
        self._blocks[block.address] = block
        self._ascending = None
        return block

    def after_fork_in_child(self) -> None:
        """A thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def place(self, array: Any, name: str) -> Place:
        """Where `array` lies: a NumPy array, a tensor of torch, or another object with the buffer protocol. `name`: for
        errors."""
        address, length, row = _extent(array, name)
        if length == 0:
            return Place(None, 0, 0, row)
        addresses, blocks = self._ascending or self._sort()
        at = bisect.bisect_right(addresses, address) - 1
        block = blocks[at]() if at >= 0 else None
        if block is not None:
            offset = address - block.address
            if offset + length <= block.length:
                return Place(block.segment, block.offset + offset, length, row)
        raise InvalidArgumentError(f"{name} is not in memory of this client: copy it into an array of Client.empty()")

    def _sort(self) -> tuple[list[int], list[weakref.ref[Block]]]:
        """Makes `_ascending`."""
        with self._lock:
            known = sorted(self._blocks.items())
            self._ascending = [address for address, _ in known], [weakref.ref(block) for _, block in known]
            return self._ascending


def _segment(client: Handle, length: int, huge_pages: bool, timeout_ns: int) -> Handle:
    segment = Handle(lib.rails_segment_free)
    options = SegmentOptions(ctypes.sizeof(SegmentOptions), HUGE_PAGES if huge_pages else 0, None, timeout_ns)
    try:
        lib.rails_segment_alloc(client, length, options, segment)
    finally:
        del client
    return segment


def _extent(array: Any, name: str) -> tuple[int, int, int]:
    """Address, length and length of a row of a contiguous array, in bytes."""
    if hasattr(array, "data_ptr"):  # a tensor of torch, also of a type that NumPy lacks
        if array.is_conj() or array.is_neg():
            raise InvalidArgumentError(f"{name}: the memory of this tensor has other values than the tensor: call resolve_conj() and "
                                       "resolve_neg()")
        contiguous, size, address, shape = array.is_contiguous(), array.element_size(), array.data_ptr(), array.shape
        length = size * math.prod(shape)
    else:
        view = np.asarray(array)
        contiguous, size, shape, length = view.flags.c_contiguous, view.itemsize, view.shape, view.nbytes
        try:
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))  # three times as fast as __array_interface__
        except (TypeError, ValueError):  # only to be read, of no bytes, or of a type without the buffer protocol
            address = view.__array_interface__["data"][0]
    if not contiguous:
        raise InvalidArgumentError(f"{name}: the array of shape {tuple(shape)} is not contiguous")
    rows = shape[0] if shape else 1
    return address, length, length // rows if rows else size * math.prod(shape[1:])
