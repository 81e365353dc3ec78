"""Dispatch of tokens to the ranks of their experts, and the way back."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import math
from typing import Any, Callable, NoReturn, Sequence

import numpy as np
import numpy.typing as npt

from rails.errors import InvalidArgumentError, RailsError, ResourceExhaustedError
from rails.group import Group, Rows
from rails.work import Work

_SLABS = 16  # of a buffer, if none is used up by one array
_ALIGNMENT = 64  # of arrays
_Bytes = npt.NDArray[np.uint8]
_Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Handle:
    """The way that the tokens of a dispatch took, for `Buffer.combine()` and for further dispatches of the same way."""

    rows: tuple[_Integers, ...]  # by rank, the tokens that went to it, ascending
    received: _Integers  # tokens from each rank, of shape (world_size,)
    num_tokens: int


class Event:
    """The end of an exchange: outputs may be read, and inputs written, after `wait()`."""

    def __init__(self, work: Work | None = None, release: Callable[[], None] | None = None):
        self._work, self._release = work, release
        self._finish: Callable[[], None] | None = None

    def done(self) -> bool:
        """True if the exchange has ended, well or not. Local: asks nobody."""
        return self._work is None or self._work.done()

    def wait(self, timeout: float | None = None) -> None:
        """Waits at most `timeout` seconds for the end. Raises as `rails.Work.wait()`."""
        if self._work is None:
            return
        self._work.wait(timeout)
        finish, release, self._work, self._finish, self._release = self._finish, self._release, None, None, None
        if finish is not None:
            finish()
        if release is not None:
            release()

    def current_stream_wait(self) -> None:
        self.wait()


class Buffer:
    """Exchanges tokens between the ranks of a group, each of which has the same number of experts.

    Calls have the names of DeepEP's `Buffer` and its arguments by keyword, for arrays of NumPy and tensors of torch in the
    memory of the processor. Outputs are of the kind of the inputs. Every rank makes the same calls in the same order, from one thread at a
    time; other jobs of the group may come between them, also in the same order.

        buffer = rails.Buffer(group, num_bytes=1 << 30)
        recv_x, recv_topk_idx, recv_topk_weights, per_expert, handle, _ = buffer.dispatch(
            x, topk_idx, topk_weights, num_experts=64)
        y = experts(recv_x, recv_topk_idx, recv_topk_weights)  # of the shape of recv_x
        combined, _, _ = buffer.combine(y, handle)

    A token goes once to each rank that has one of its experts. Tokens arrive in the order of ranks, then of rows. Arrays of
    `Client.empty()` are sent from where they are; others are copied once into memory that the buffer keeps.
    """

    def __init__(self, group: Group, num_bytes: int, *, timeout: float | None = None):
        """
        Args:
            group: it must outlive the buffer.
            num_bytes: the most that the buffer takes of shared memory, for what it sends and for what it has received and
                the caller still uses.
            timeout: seconds for each exchange. Default: the daemon's limit, timeouts.job.
        """
        if not isinstance(group, Group):
            raise TypeError(f"group is a {type(group).__name__}; it must be a group of rails.Client.join(), also beside groups of torch")
        self._group, self._timeout = group, timeout
        self._pool = _Pool(group, num_bytes)

    def get_dispatch_layout(self, topk_idx: Any, num_experts: int, previous_event: Event | None = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False,
                            ) -> tuple[_Integers, None, _Integers, npt.NDArray[np.bool_], Event]:
        """Counts where tokens go. Local.

        Args:
            topk_idx: experts of each token, of shape (num_tokens, num_topk): integers below `num_experts`; -1: none.
            num_experts: of all ranks together, a multiple of their number. Expert e is on rank e // (num_experts / ranks).

        Returns:
            Tokens for each rank, of shape (world_size,); None; tokens for each expert, of shape (num_experts,); whether a
            token goes to a rank, of shape (num_tokens, world_size); an event that has happened.
        """
        _wait(previous_event)
        chosen = self._experts(topk_idx, num_experts)
        is_token_in_rank = np.zeros((len(chosen), self._group.world_size), np.bool_)
        tokens, places = np.nonzero(chosen >= 0)
        is_token_in_rank[tokens, chosen[tokens, places] // self._experts_each(num_experts)] = True
        per_expert = np.bincount(chosen[tokens, places], minlength=num_experts)
        return is_token_in_rank.sum(0), None, per_expert, is_token_in_rank, Event()

    def dispatch(self, x: Any, topk_idx: Any = None, topk_weights: Any = None, *, handle: Handle | None = None,
                 num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None, is_token_in_rank: Any = None,
                 num_tokens_per_expert: Any = None, num_experts: int | None = None, expert_alignment: int = 1,
                 config: Any = None, previous_event: Event | None = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) -> tuple[Any, Any, Any, list[int] | None, Handle, Event]:
        """Sends each token to the ranks of its experts.

        Args:
            x: tokens, of shape (num_tokens, ...), or a tuple of two such arrays, as values and their scales.
            topk_idx: experts of each token, of shape (num_tokens, num_topk); -1: none.
            topk_weights: a weight for each of them, of the same shape.
            handle: of an earlier dispatch whose way these tokens take. Then no other argument says where they go.
            num_experts: of all ranks together. Default: the length of `num_tokens_per_expert`.
            is_token_in_rank, num_tokens_per_expert: of `get_dispatch_layout()`, which is called without them. The two
                suffice without `topk_idx`, too.
            expert_alignment: counts by expert are rounded up to a multiple of it.
            previous_event: is waited for first.
            async_finish: returns while tokens are under way: wait for the event before you read outputs or write inputs.
            num_tokens_per_rank, num_tokens_per_rdma_rank, config, allocate_on_comm_stream: are not needed.

        Returns:
            Tokens that came to this rank, as `x`; their experts among those of this rank, -1: of another; the experts'
            weights, 0 for those of others; tokens for each expert of this rank (None with `handle`); the handle; the event.
            Experts and weights are None where none were given.

        Raises:
            InvalidArgumentError: an argument is wrong; nothing was sent.
            ResourceExhaustedError: what goes or comes does not fit into `num_bytes`. The exchange fails at every rank, elsewhere with
                CancelledError or InvalidArgumentError, and the group goes on.
        """
        _wait(previous_event)
        if expert_alignment < 1:
            raise InvalidArgumentError(f"expert_alignment is {expert_alignment}; it must be at least 1")
        arrays = [_Array(array, f"x[{number}]") for number, array in enumerate(x)] if isinstance(x, tuple) else [_Array(x, "x")]
        per_expert, metadata = None, []
        if handle is None:
            if num_experts is None and num_tokens_per_expert is None:
                raise InvalidArgumentError("num_experts is missing: give it, or a handle, or num_tokens_per_expert")
            if topk_idx is None and (is_token_in_rank is None or num_tokens_per_expert is None):
                raise InvalidArgumentError("topk_idx is missing: give it, or a handle, or is_token_in_rank with num_tokens_per_expert")
            num_experts = len(num_tokens_per_expert) if num_experts is None else num_experts
            if is_token_in_rank is None or num_tokens_per_expert is None:
                _, _, num_tokens_per_expert, is_token_in_rank, _ = self.get_dispatch_layout(topk_idx, num_experts)
            handle = self._way(np.asarray(is_token_in_rank))
            _check_rows(arrays, handle)
            metadata = self._metadata(topk_idx, topk_weights, handle, num_experts)
            handle, by_expert = self._counted(handle, np.asarray(num_tokens_per_expert), num_experts)
            per_expert = [-(-int(count) // expert_alignment) * expert_alignment for count in by_expert]
        else:
            _check_rows(arrays, handle)
        counts = [len(rows) for rows in handle.rows]
        made, event = self._exchange(
            lambda: [self._rows(array, handle) for array in arrays] + [self._consecutive(array, counts) for array in metadata],
            [*arrays, *metadata], handle.received)
        if not async_finish:
            event.wait()
        experts = made[len(arrays)] if topk_idx is not None and metadata else None
        weights = made[len(arrays) + 1] if len(metadata) > 1 else None
        tokens = tuple(made[:len(arrays)]) if isinstance(x, tuple) else made[0]
        return tokens, experts, weights, per_expert, handle, event

    def combine(self, x: Any, handle: Handle, topk_weights: Any = None, bias: Any = None, config: Any = None,
                previous_event: Event | None = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
                ) -> tuple[Any, Any, Event]:
        """Sends what became of the tokens of a dispatch back, and adds what comes from several ranks for one token.

        Args:
            x: an entry for each received token, in their order, of shape (received, ...).
            handle: of the dispatch.
            topk_weights: numbers that go back and are added like `x`, of shape (received, num_topk).
            bias: is added to the sums, of their shape.
            previous_event, async_finish: as of `dispatch()`.

        Returns:
            Sums by token, of shape (num_tokens, ...): in the order of ranks, in single precision for types of two bytes, and
            zero for a token that went nowhere; sums of `topk_weights`, or None; the event.
        """
        _wait(previous_event)
        arrays = [_Array(x, "x")] + ([_Array(topk_weights, "topk_weights")] if topk_weights is not None else [])
        total = int(handle.received.sum())
        for array in arrays:
            if array.rows != total:
                raise InvalidArgumentError(f"{array.name} has {array.rows} rows, and {total} tokens were received")
        given, wanted = tuple(getattr(bias, "shape", ())), (handle.num_tokens, *arrays[0].shape)
        if len(given) > len(wanted) or any(have not in (1, need) for have, need in zip(given[::-1], wanted[::-1])):
            raise InvalidArgumentError(f"bias has the shape {given}, and the sums {wanted}")
        counts = np.array([len(rows) for rows in handle.rows])
        sums = [array.zeros(handle.num_tokens) for array in arrays]
        landed, event = self._exchange(lambda: [self._consecutive(array, handle.received) for array in arrays], arrays, counts)

        def add() -> None:
            for array, whole, part in zip(arrays, sums, landed):
                array.add(whole, part, handle, bias if array is arrays[0] else None)
        event._finish = add
        if not async_finish:
            event.wait()
        return sums[0], sums[1] if topk_weights is not None else None, event

    def _experts_each(self, num_experts: int) -> int:
        ranks = self._group.world_size
        if num_experts < 1 or num_experts % ranks:
            raise InvalidArgumentError(f"num_experts is {num_experts}; it must be a multiple of the group's {ranks} ranks")
        return num_experts // ranks

    def _experts(self, topk_idx: Any, num_experts: int) -> npt.NDArray[Any]:
        chosen = _numpy(topk_idx)
        if chosen.ndim != 2 or chosen.dtype.kind not in "iu":
            raise InvalidArgumentError(f"topk_idx has the shape {chosen.shape} and the type {chosen.dtype}; it must have the "
                                       "shape (num_tokens, num_topk) and integers")
        if chosen.size and (chosen.min() < -1 or chosen.max() >= num_experts):
            raise InvalidArgumentError(f"topk_idx has numbers from {chosen.min()} to {chosen.max()}, and experts are 0 to "
                                       f"{num_experts - 1}; -1: none")
        return chosen

    def _way(self, is_token_in_rank: npt.NDArray[Any]) -> Handle:
        """Where tokens go; not yet, how many come. Local."""
        ranks = self._group.world_size
        if is_token_in_rank.ndim != 2 or is_token_in_rank.shape[1] != ranks:
            raise InvalidArgumentError(f"is_token_in_rank has the shape {is_token_in_rank.shape}, and the group {ranks} ranks")
        rows = tuple(np.flatnonzero(is_token_in_rank[:, rank]) for rank in range(ranks))
        return Handle(rows, np.zeros(ranks, np.int64), len(is_token_in_rank))

    def _counted(self, handle: Handle, per_expert: npt.NDArray[Any], num_experts: int) -> tuple[Handle, _Integers]:
        """Asks how many tokens come, and how many for each expert of this rank."""
        told = np.empty((self._group.world_size, 1 + self._experts_each(num_experts)), np.int64)
        if per_expert.size != num_experts:
            raise InvalidArgumentError(f"num_tokens_per_expert has {per_expert.size} counts, and there are {num_experts} experts")
        told[:, 0] = [len(some) for some in handle.rows]
        told[:, 1:] = per_expert.reshape(len(told), -1)
        heard = self._exchange_counts(told)
        return dataclasses.replace(handle, received=heard[:, 0].copy()), heard[:, 1:].sum(0)

    def _exchange_counts(self, told: _Integers) -> _Integers:
        """A row of numbers to each rank, and from each."""
        try:
            out, into = (self._pool.take(told.nbytes).view(np.int64).reshape(told.shape) for _ in range(2))
        except ResourceExhaustedError as error:
            self._give_up(error)
        out[:] = told
        each = [1] * self._group.world_size
        work = self._group.all_to_all_v(out, each, into, each, timeout=self._timeout)
        self._pool.keep(work, (out, into))
        work.wait()
        self._pool.release()
        return into

    def _metadata(self, topk_idx: Any, topk_weights: Any, handle: Handle, num_experts: int) -> list[_Array]:
        """Experts and weights of the tokens as they are sent: consecutive, by rank, as the receiver numbers its experts."""
        if topk_idx is None:
            if topk_weights is not None:
                raise InvalidArgumentError("topk_weights are given, and no topk_idx")
            return []
        rows, each = np.concatenate(handle.rows), self._experts_each(num_experts)
        rank = np.repeat(np.arange(self._group.world_size), [len(some) for some in handle.rows])
        chosen = self._experts(topk_idx, num_experts)
        if len(chosen) != handle.num_tokens:
            raise InvalidArgumentError(f"topk_idx has {len(chosen)} tokens, and is_token_in_rank {handle.num_tokens}")
        numbers = chosen[rows].astype(np.int64) - (rank * each)[:, None]
        elsewhere = (numbers < 0) | (numbers >= each)
        numbers[elsewhere] = -1
        arrays = [_Array(_as(topk_idx, numbers if chosen.dtype.kind == "u" else numbers.astype(chosen.dtype)), "topk_idx")]
        if topk_weights is not None:
            # A tensor stays one: NumPy has not all its types.
            given = topk_weights.detach() if hasattr(topk_weights, "data_ptr") else np.asarray(topk_weights)
            if tuple(given.shape) != chosen.shape:
                raise InvalidArgumentError(f"topk_weights has the shape {tuple(given.shape)}, and topk_idx {chosen.shape}")
            weights = given[_as(given, rows)]
            weights[_as(given, elsewhere)] = 0
            arrays.append(_Array(weights, "topk_weights"))
        return arrays

    def _rows(self, array: _Array, handle: Handle) -> list[Any]:
        """By rank, the tokens of an array that go to it, in shared memory."""
        if self._group._client.shares(array.bytes):
            return [Rows(array.bytes, rows) for rows in handle.rows]
        rows = np.concatenate(handle.rows)
        staged = self._pool.take(len(rows) * array.row_bytes).reshape(len(rows), array.row_bytes)
        np.take(array.bytes, rows, axis=0, out=staged, mode="clip")
        return _split(staged, [len(some) for some in handle.rows])

    def _consecutive(self, array: _Array, counts: Sequence[int] | _Integers) -> list[Any]:
        """By rank, so many rows of an array, in shared memory."""
        shared = array.bytes
        if not self._group._client.shares(shared):
            shared = self._pool.take(shared.size).reshape(shared.shape)
            shared[:] = array.bytes
        return _split(shared, counts)

    def _exchange(self, stage: Callable[[], list[list[Any]]], kinds: list[_Array], counts: Any) -> tuple[list[Any], Event]:
        """Sends what stage()[array][rank] gives and receives so many rows from each rank; returns arrays of the kinds."""
        total = int(np.sum(counts))
        try:
            out = stage()
            landing = [self._pool.take(total * kind.row_bytes).reshape(total, kind.row_bytes) for kind in kinds]
        except ResourceExhaustedError as error:
            self._give_up(error)
        into = [_split(memory, counts) for memory in landing]
        ranks = range(self._group.world_size)
        work = self._group.all_to_all_ranges({rank: [parts[rank] for parts in out] for rank in ranks},
                                             {rank: [parts[rank] for parts in into] for rank in ranks}, timeout=self._timeout)
        self._pool.keep(work, (out, landing))
        return [kind.like(memory) for kind, memory in zip(kinds, landing)], Event(work, self._pool.release)

    def _give_up(self, error: ResourceExhaustedError) -> NoReturn:
        """Ends the exchange at every rank, since others wait for this one."""
        with contextlib.suppress(RailsError):
            work = self._group.all_to_all_ranges({}, {}, timeout=self._timeout)
            work.cancel()
            work.wait()
        raise ResourceExhaustedError(f"rank {self._group.rank} of group {self._group.name}: {error.text}") from None


class _Array:
    """An array of NumPy or a tensor of torch, as rows of bytes."""

    def __init__(self, array: Any, name: str):
        self.name, self._torch = name, None
        if hasattr(array, "data_ptr"):
            import torch
            self._torch = torch
            if array.device.type != "cpu":
                raise InvalidArgumentError(f"{name} is on {array.device}; a buffer takes tensors on cpu")
            array = array.detach().resolve_conj().resolve_neg().contiguous()
            self.dtype, self._item = array.dtype, array.element_size()
            raw = array.reshape(-1).view(torch.uint8).numpy() if array.numel() else np.empty(0, np.uint8)
        else:
            array = np.ascontiguousarray(array)
            self.dtype, self._item = array.dtype, array.itemsize
            raw = array.reshape(-1).view(np.uint8)
        if len(array.shape) == 0:
            raise InvalidArgumentError(f"{name} is a single number; its first axis must be tokens")
        self.rows, self.shape = array.shape[0], tuple(array.shape[1:])
        self.row_bytes = self._item * math.prod(self.shape)
        self.bytes: _Bytes = raw.reshape(self.rows, self.row_bytes)

    def like(self, memory: _Bytes) -> Any:
        """The rows in memory as an array of this kind."""
        shape = (len(memory), *self.shape)
        if self._torch is None:
            return memory.reshape(-1).view(self.dtype).reshape(shape)
        if memory.size == 0:
            return self._torch.empty(shape, dtype=self.dtype)
        return self._torch.from_numpy(memory.reshape(-1)).view(self.dtype).reshape(shape)

    def zeros(self, rows: int) -> Any:
        return (self._torch or np).zeros((rows, *self.shape), dtype=self.dtype)

    def add(self, whole: Any, part: Any, handle: Handle, bias: Any) -> None:
        """Adds the rows of `part`, which came in the order of ranks, to those of `whole` that they belong to."""
        numbers = self._torch or np
        wide = whole if self._item > 2 else numbers.zeros(whole.shape, dtype=numbers.float32)
        begin = 0
        for rows in handle.rows:
            wide[self._torch.from_numpy(rows) if self._torch else rows] += part[begin:begin + len(rows)]
            begin += len(rows)
        if bias is not None:
            wide += bias
        if wide is not whole:
            whole[:] = wide


class _Slab:
    """A piece of shared memory, and the parts of it that nobody uses: by begin, ascending, their lengths. No two touch."""

    def __init__(self, memory: _Bytes):
        self.memory, self.free = memory, [(0, len(memory))]

    def give_back(self, begin: int, length: int) -> None:
        at = bisect.bisect(self.free, (begin, length))
        if at < len(self.free) and self.free[at][0] == begin + length:
            length += self.free.pop(at)[1]
        if at > 0 and sum(self.free[at - 1]) == begin:
            at -= 1
            begin, before = self.free.pop(at)
            length += before
        self.free.insert(at, (begin, length))


class _Lent:
    """Memory of a pool that is in use. NumPy keeps it as the base of every view; the last one gives it back."""

    def __init__(self, pool: _Pool, slab: _Slab, begin: int, length: int):
        self._pool, self._place = pool, (slab, begin, length)
        self.__array_interface__ = slab.memory[begin:begin + length].__array_interface__

    def __del__(self) -> None:
        self._pool.returned.append(self._place)


class _Pool:
    """Shared memory that a buffer uses again and again, cut from few segments: a daemon limits their number."""

    def __init__(self, group: Group, most_bytes: int):
        self._client, self._most_bytes = group._client, most_bytes
        self._slabs: list[_Slab] = []
        self.returned: list[tuple[_Slab, int, int]] = []  # grows at any moment, in any thread
        self._kept: list[tuple[Work, Any]] = []

    def keep(self, work: Work, memory: Any) -> None:
        """Keeps memory until the job that uses it has ended: a caller may be interrupted while it waits, or drop the event."""
        self._kept.append((work, memory))

    def release(self) -> None:
        """Lets go of the memory of jobs that have ended."""
        self._kept = [(work, memory) for work, memory in self._kept if not _ended(work)]

    def take(self, length: int) -> _Bytes:
        if length == 0:
            return np.empty(0, np.uint8)
        self.release()
        while self.returned:
            slab, begin, size = self.returned.pop()
            slab.give_back(begin, size)
        size = -(-length // _ALIGNMENT) * _ALIGNMENT
        fitting = [(room, number, begin) for number, slab in enumerate(self._slabs) for begin, room in slab.free if room >= size]
        if not fitting:
            fitting = [self._grow(length, size)]
        room, number, begin = min(fitting)
        slab = self._slabs[number]
        slab.free.remove((begin, room))
        size = min(size, room)
        if room > size:
            bisect.insort(slab.free, (begin + size, room - size))
        return np.asarray(_Lent(self, slab, begin, size))[:length]

    def _grow(self, length: int, size: int) -> tuple[int, int, int]:
        """Makes a slab. Returns its length, number and begin."""
        if self._held() + size > self._most_bytes:
            self._slabs = [slab for slab in self._slabs if slab.free != [(0, len(slab.memory))]]
        left = self._most_bytes - self._held()
        if length > left:
            used = self._held() - sum(room for slab in self._slabs for _, room in slab.free)
            raise ResourceExhaustedError(f"{length} bytes do not fit into a buffer of {self._most_bytes}, of which {used} are in "
                                         "use: give it a larger num_bytes, or drop arrays that it has returned")
        memory = self._client.empty(min(max(size, self._most_bytes // _SLABS), left), np.uint8)
        self._slabs.append(_Slab(memory))
        return len(memory), len(self._slabs) - 1, 0

    def _held(self) -> int:
        return sum(len(slab.memory) for slab in self._slabs)


def _ended(work: Work) -> bool:
    try:
        return work.done()
    except RailsError:  # the daemon does not answer, and may do so again
        return False


def _check_rows(arrays: list[_Array], handle: Handle) -> None:
    for array in arrays:
        if array.rows != handle.num_tokens:
            raise InvalidArgumentError(f"{array.name} has {array.rows} tokens, and the handle has {handle.num_tokens}")


def _wait(event: Event | None) -> None:
    if event is not None:
        event.wait()


def _numpy(array: Any) -> npt.NDArray[Any]:
    return np.asarray(array.detach() if hasattr(array, "data_ptr") else array)


def _as(given: Any, array: npt.NDArray[Any]) -> Any:
    """The array as a tensor if `given` is one."""
    if not hasattr(given, "data_ptr"):
        return array
    import torch
    return torch.from_numpy(array)


def _split(rows: _Bytes, counts: Sequence[int] | _Integers) -> list[_Bytes]:
    ends = np.cumsum(counts)
    return [rows[end - count:end] for count, end in zip(counts, ends)]
