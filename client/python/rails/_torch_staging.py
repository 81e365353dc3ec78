"""Memory of operations of torch.distributed: where their tensors lie, and how others go through memory of the daemon."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple, Sequence

import numpy as np
import numpy.typing as npt
import torch

import rails
from rails._memory import Place

PIECES = 3  # jobs of an operation that is cut, so that most of it is copied while a part of it is on the rails
MANY_BYTES = 4 << 20  # a rank that copies so many votes for cutting the operations of its group
_SHORT_BYTES = 16 << 10  # flows below are not cut
_CUT_BYTES = 64  # cuts are multiples of it
_ALIGNMENT = 64  # of tensors in staging memory
_Memory = npt.NDArray[np.uint8]


def tensor_of(memory: _Memory, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of the bytes, without a copy."""
    if len(memory) == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.from_numpy(memory).view(dtype).reshape(shape)


def is_plain(tensor: torch.Tensor) -> bool:
    """Its memory is its values, one after the other."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


class Parts:
    """Tensors that go to ranks, or come from them."""

    def __init__(self, by_rank: dict[int, torch.Tensor], whole: torch.Tensor | None = None, rows: Sequence[int] | None = None):
        self.by_rank = by_rank
        self.whole = whole  # all are views of it
        self.rows = rows  # of `whole` for each rank, one after the other; `by_rank` is then empty
        # One or more that have the device and the type of all.
        self.tensors = list(by_rank.values()) if whole is None else [whole]


def tensors_by_rank(parts: Parts) -> dict[int, torch.Tensor]:
    """A new dict of its tensors by rank."""
    return dict(parts.by_rank if parts.whole is None or parts.rows is None else enumerate(parts.whole.split(parts.rows)))


def overlap(sends: list[Place], receives: list[Place]) -> bool:
    """True if a place of the one list has memory of one of the other."""
    if len(sends) == len(receives) == 1:  # the usual case, fast
        (out,), (into,) = sends, receives
        return out.segment is into.segment and out.offset < into.offset + into.length and into.offset < out.offset + out.length
    ends = [(0, 0), (0, 0)]  # segment and offset where the places of each list so far end
    spans = [(place.segment.value, place.offset, place.length, which) for which, places in enumerate((sends, receives))
             for place in places if place.segment is not None]
    for segment, begin, length, which in sorted(spans):
        if (segment, begin) < ends[1 - which]:
            return True
        ends[which] = max(ends[which], (segment, begin + length))
    return False


class Pool:
    """Staging memory, which the operations of a process group use in turn. Thread-safe."""

    def __init__(self, client: rails.Client, patience: float = 0):
        """`patience`: seconds for which the group may wait for a daemon that is away."""
        self._client, self._patience = client, patience
        self._place = client._memory.place
        self._lock = threading.Lock()
        self._free: list[_Memory] = []

    def places(self, parts: Parts) -> list[Place] | None:
        """Where they lie in memory that the client shares; None if one does not."""
        try:
            return [self._place(tensor, "a tensor") for tensor in parts.tensors]
        except rails.InvalidArgumentError:
            return None

    def take(self, length: int) -> _Memory:
        with self._lock:
            fitting = [number for number, memory in enumerate(self._free) if len(memory) >= length]
            if fitting:
                return self._free.pop(min(fitting, key=lambda number: len(self._free[number])))
            self._free.clear()  # what is too small would pile up
        until = time.monotonic() + self._patience
        while True:
            try:
                return self._client.empty(max(1 << (length - 1).bit_length(), 4096), np.uint8)
            except (rails.UnavailableError, rails.AbortedError):
                if time.monotonic() >= until:
                    raise
                time.sleep(0.05)

    def give(self, memory: list[_Memory]) -> None:
        with self._lock:
            self._free += memory


def _size(tensor: torch.Tensor) -> int:
    """Bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


def _bytes_of(tensor: torch.Tensor) -> _Memory:
    """The bytes of a plain tensor, without a copy."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    # The stride of an axis of length 1 says nothing.
    flat: _Memory = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return flat


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a tensor of the same type and length. Several threads of torch would only be in each other's way: the ranks of a
    node copy at the same time."""
    if is_plain(target) and is_plain(source):
        np.copyto(_bytes_of(target), _bytes_of(source))
    else:
        with torch.inference_mode():  # a thread of the channel has not the caller's modes
            target.copy_(source.reshape(target.shape))


def _cut(length: int, piece: int, pieces: int) -> slice:
    """The bytes of a flow that are in a piece of the operation, the same at both of its ends. The first piece is short,
    because it is copied before anything is sent; and the last one, because it is copied when all has come."""
    if pieces == 1:
        return slice(0, length)
    end = length // 6 // _CUT_BYTES * _CUT_BYTES
    cuts = (0, end, length - end, length) if length >= _SHORT_BYTES else (0, length, length, length)
    return slice(cuts[piece], cuts[piece + 1])


class _Copied(NamedTuple):
    """A tensor, and the staging memory that stands for it."""

    tensor: torch.Tensor
    plain: _Memory | None  # its bytes, which are copied piece by piece; None: it is copied at once, before or after all jobs
    memory: _Memory

    def whole(self) -> torch.Tensor:
        return tensor_of(self.memory, self.tensor.dtype, self.tensor.shape)


class Staging:
    """The memory of one operation, in pieces that are jobs of their own. `land()` and `finish()` are thread-safe."""

    def __init__(self, pool: Pool, rank: int, sends: Parts, receives: Parts, shared: tuple[bool, bool], pieces: int):
        """`shared`: the jobs use the memory of what is sent, and received. Otherwise it is copied."""
        self._pool, self._pieces = pool, pieces
        self._lock = threading.Lock()
        self._taken: list[_Memory] = []
        self._landed = 0  # pieces whose output is where it belongs
        self._own: tuple[torch.Tensor, torch.Tensor] | None = None  # to and from this rank, if the daemon does not copy it
        out, into = tensors_by_rank(sends), tensors_by_rank(receives)
        # Only if the jobs touch none of the caller's memory: parts may overlap in any way. Sizes that differ fail the
        # operation at every rank: the daemon must see them.
        if not any(shared) and rank in out and out[rank].numel() == into[rank].numel() and out[rank].dtype == into[rank].dtype:
            self._own = into.pop(rank), out.pop(rank)
        # A tensor may overlap memory of the other side that a job writes or sends while pieces are copied.
        self._out, self._outgoing = self._memory(out, shared[0], shared[1])
        self._into, self._incoming = self._memory(into, shared[1], shared[0])
        # Bytes that this rank copies to staging memory, from it, and to itself.
        out_bytes, in_bytes = (sum(len(copied.memory) for copied in side) for side in (self._outgoing, self._incoming))
        self.copied_bytes = out_bytes, in_bytes, _size(self._own[0]) if self._own is not None else 0

    def _memory(self, tensors: dict[int, torch.Tensor], shared: bool, at_once: bool) -> tuple[dict[int, _Memory], list[_Copied]]:
        """The bytes of each flow in memory of the daemon, and the tensors that are copied there: one after the other, each
        aligned for its type. `at_once`: not piece by piece."""
        if shared:
            return {peer: _bytes_of(tensor) for peer, tensor in tensors.items()}, []
        different = {id(tensor): tensor for tensor in tensors.values()}
        length = sum(-(-_size(tensor) // _ALIGNMENT) * _ALIGNMENT for tensor in different.values())
        memory, begin, copied = np.empty(0, np.uint8), 0, {}
        if length:
            memory = self._pool.take(length)
            self._taken.append(memory)
        for identity, tensor in different.items():
            plain = _bytes_of(tensor) if is_plain(tensor) and not at_once else None
            copied[identity] = _Copied(tensor, plain, memory[begin:begin + _size(tensor)])
            begin += -(-_size(tensor) // _ALIGNMENT) * _ALIGNMENT
        return {peer: copied[id(tensor)].memory for peer, tensor in tensors.items()}, list(copied.values())

    def flows(self, piece: int) -> list[dict[int, list[_Memory]]]:
        """By rank, memory of the piece that goes to it, and that comes from it. The first is ready to be sent."""
        for copied in self._outgoing:
            if copied.plain is not None:
                part = _cut(len(copied.memory), piece, self._pieces)
                np.copyto(copied.memory[part], copied.plain[part])
            elif piece == 0:
                _copy(copied.whole(), copied.tensor)
        return [{peer: [memory[_cut(len(memory), piece, self._pieces)]] for peer, memory in side.items()}
                for side in (self._out, self._into)]

    def copy_own(self) -> None:
        """Copies what the rank sends to itself, beside the rails."""
        if self._own is not None:
            (into, out), self._own = self._own, None
            _copy(into, out if is_plain(into) and is_plain(out) else out.clone())  # they may overlap

    def land(self, piece: int) -> None:
        """The job of the piece has ended well: brings its output to where it belongs. Once; pieces come in order."""
        with self._lock:
            if piece != self._landed:
                return
            for copied in self._incoming:
                if copied.plain is not None:
                    part = _cut(len(copied.memory), piece, self._pieces)
                    np.copyto(copied.plain[part], copied.memory[part])
                elif piece == self._pieces - 1:
                    _copy(copied.tensor, copied.whole())
            self._landed += 1  # after all copies: if one is interrupted, the next call makes them again

    def finish(self) -> None:
        """The jobs have ended: gives the memory back."""
        with self._lock:
            self._landed = self._pieces
            self._pool.give(self._taken)
            self._taken = []
