"""Operations of torch.distributed as jobs of a group of `rails`: staging memory, their order, their work objects."""

from __future__ import annotations

import collections
import contextlib
import datetime
import threading
import time
from typing import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch._C._distributed_c10d import Work as _TorchWork

import rails
from rails._memory import Place

_ALIGNMENT = 64  # of tensors in memory for staging
_Memory = npt.NDArray[np.uint8]


def tensor_of(memory: _Memory, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of the bytes, without a copy."""
    if len(memory) == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.from_numpy(memory).view(dtype).reshape(shape)


def _size(tensor: torch.Tensor) -> int:
    """Bytes of a tensor."""
    return tensor.numel() * tensor.element_size()


def is_plain(tensor: torch.Tensor) -> bool:
    """Its memory is its values, one after the other."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies a tensor of the same type and length. Several threads of torch would only be in each other's way: the ranks of a
    node copy at the same time."""
    if is_plain(target) and is_plain(source) and target.numel():
        # The stride of an axis of length 1 says nothing.
        target, source = (tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8) for tensor in (target, source))
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source.reshape(target.shape))


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


def _overlap(sends: list[Place], receives: list[Place]) -> bool:
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
    """Memory for tensors that are not shared, which the operations of a process group use in turn. Thread-safe."""

    def __init__(self, client: rails.Client):
        self._client = client
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
        return self._client.empty(max(1 << (length - 1).bit_length(), 4096), np.uint8)

    def give(self, memory: list[_Memory]) -> None:
        with self._lock:
            self._free += memory


class _Staging:
    """Memory of one operation for tensors that are not shared. `finish()` is thread-safe."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._lock = threading.Lock()
        self._taken: list[_Memory] = []
        self._landing: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._own: tuple[torch.Tensor, torch.Tensor] | None = None  # to and from this rank, if the daemon does not copy it

    def submit(self, group: rails.Group, sends: Parts, receives: Parts, shared: tuple[bool, bool], tag: int,
               timeout: float) -> rails.Work:
        """Submits the operation as the group's next job. `shared`: it uses the memory of what is sent, and received."""
        # Only if the job touches none of the caller's memory: parts may overlap in any way.
        flows = self._flows(None if any(shared) else group.rank, sends, receives, shared)
        return group.all_to_all_ranges(*flows, tag=tag, timeout=timeout)

    def copy_own(self) -> None:
        """Copies what the rank sends to itself, beside the rails."""
        if self._own is not None:
            _copy(*self._own)
            self._own = None

    def _flows(self, own: int | None, sends: Parts, receives: Parts, shared: tuple[bool, bool]) -> list[dict[int, list[torch.Tensor]]]:
        """By rank, shared tensors that go to it, and that come from it. `own`: this rank, if it copies its own part."""
        out, into = tensors_by_rank(sends), tensors_by_rank(receives)
        # Sizes that differ fail the operation at every rank: the daemon must see them.
        if own is not None and own in out and out[own].numel() == into[own].numel() and out[own].dtype == into[own].dtype:
            self._own = into.pop(own), out.pop(own)
        if not shared[0]:
            places = self._places(out)
            for tensor, place in places.values():
                _copy(place, tensor)
            out = {peer: places[id(tensor)][1] for peer, tensor in out.items()}
        if not shared[1]:
            places = self._places(into)
            self._landing += places.values()
            into = {peer: places[id(tensor)][1] for peer, tensor in into.items()}
        return [{peer: [tensor] for peer, tensor in tensors.items()} for tensors in (out, into)]

    def finish(self, well: bool) -> None:
        """The operation has ended: brings the output to where it belongs, and gives the memory back. Once."""
        with self._lock:
            for tensor, memory in self._landing if well else ():
                _copy(tensor, memory)
            self._pool.give(self._taken)  # after all copies: if one is interrupted, the next call makes them again
            self._landing, self._taken = [], []

    def _places(self, tensors: dict[int, torch.Tensor]) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """By identity, each tensor and a shared one like it. They lie in one piece of memory, each aligned for its type."""
        different = {id(tensor): tensor for tensor in tensors.values()}
        sizes = [_size(tensor) for tensor in different.values()]
        length = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
        memory, begin, places = np.empty(0, np.uint8), 0, {}
        if length:
            memory = self._pool.take(length)
            self._taken.append(memory)
        for (identity, tensor), size in zip(different.items(), sizes):
            places[identity] = tensor, tensor_of(memory[begin:begin + size], tensor.dtype, tensor.shape)
            begin += -(-size // _ALIGNMENT) * _ALIGNMENT
        return places


class Work(_TorchWork):
    """An operation under way, as torch.distributed returns it with async_op=True."""

    # Every operation makes one: a dict would cost a microsecond.
    __slots__ = ("_what", "_outputs", "_tag", "_members", "_parts", "_begun", "number", "_error", "_landed", "_work", "_staging",
                 "_aborted")

    def __init__(self, what: str, outputs: list[torch.Tensor], sends: Parts, receives: Parts, tag: int,
                 members: Sequence[int] | None = None):
        """`what`: its name in errors. `tag`: equal on all ranks. `members`: the ranks of its group in the process group, if
        those are others."""
        super().__init__()
        self._what, self._outputs, self._tag, self._members = what, outputs, tag, members
        self._parts: tuple[Parts, Parts] | None = (sends, receives)  # None: submitted
        self._begun: threading.Event | None = None  # of an operation that waits for others: submitted, or failed before
        self.number = 0  # in its channel, from 1
        self._error: Exception | None = None  # why it was not submitted, or has failed
        self._landed = False  # it has ended, and its output is where it belongs
        self._work: rails.Work | None = None
        self._staging: _Staging | None = None  # None: not needed, or finished
        self._aborted = False

    def is_completed(self) -> bool:
        """True if the operation has ended, well or not, and its output is there. Local."""
        if self._landed:
            return True
        try:
            self._settle(0)
        except rails.RailsError:  # under way, or its daemon does not answer
            return False
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Why the operation has failed; None: it has not, or is under way."""
        return self._error if self.is_completed() else None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta()) -> bool:
        """Waits until the output is there. A `timeout` of zero means no own limit: the group's applies.

        Raises:
            rails.RailsError: as `rails.Work.wait()`. The text begins with the operation; `ranks` are those of the group.
        """
        self._settle(timeout.total_seconds() if timeout else None)
        if self._error is not None:
            raise self._error
        return True

    def abort(self) -> None:
        """Ends the operation at every rank, where it fails with `rails.CancelledError`; one that has not begun, as soon as
        it has. The group is over if the operation was running. Waits at most 10 s for the daemon."""
        self._aborted = True  # submit() reads it after it has set _work: one of the two cancels
        if self._work is not None:
            self._work.cancel()

    @property
    def report(self) -> rails.Report:
        """The report of the operation, which has ended."""
        if self._work is None:
            raise self._error or rails.FailedPreconditionError(f"{self._what} has not begun")
        return self._work.report

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the output, which a thread of its own completes."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()

        def run() -> None:
            try:
                self.wait()
                future.set_result(self._outputs)
            except Exception as error:  # whoever waits for the future must hear of it
                future.set_exception(error)
        threading.Thread(target=run, name="rails-future", daemon=True).start()
        return future

    def queue(self) -> None:
        """Others are before it. Called before another thread knows it."""
        self._begun = threading.Event()

    def submit(self, group: rails.Group, pool: Pool, timeout: float) -> None:
        """Submits it. Raises why that fails."""
        assert self._parts is not None
        sends, receives = self._parts
        out, into = pool.places(sends), pool.places(receives)
        overlap = out is not None and into is not None and _overlap(out, into)
        if out and into and not overlap and sends.rows is not None and receives.rows is not None:  # the usual case, fast
            self._work = group.all_to_all_v(out[0], sends.rows, into[0], receives.rows, tag=self._tag, timeout=timeout)
        else:
            staging = self._staging = _Staging(pool)
            shared = out is not None and not overlap, into is not None
            try:
                self._work = staging.submit(group, sends, receives, shared, self._tag, timeout)
            except BaseException:
                staging.finish(False)
                raise
            staging.copy_own()
        self._parts = None
        if self._begun is not None:
            self._begun.set()
        if self._aborted:
            self.abort()

    def fail(self, error: Exception) -> None:
        """It cannot be submitted."""
        self._error, self._parts = error, None
        if self._begun is not None:
            self._begun.set()

    def end(self) -> None:
        """Waits until the operation, which has begun, has ended, well or not."""
        with contextlib.suppress(Exception):
            self.wait()

    def _settle(self, timeout: float | None) -> None:
        """Waits until the operation has ended, well or not, and brings the output from shared memory to where it belongs."""
        if self._landed:
            return
        until = None if timeout is None else time.monotonic() + timeout
        if self._begun is not None and not self._begun.wait(timeout):
            raise rails.UnfinishedError(f"{self._what} has not begun within {timeout} s, because one before it has not ended")
        error = self._error
        if self._work is not None:
            try:
                self._work._end(None if until is None else max(until - time.monotonic(), 0))
            except rails.UnfinishedError:
                raise
            except rails.RailsError as failure:
                if not self._work.done():  # the daemon does not answer, and may do so again
                    raise self.explained(failure) from None
                error = self._outcome()
        staging = self._staging
        if staging is not None:
            staging.finish(error is None)
            self._staging = None
        self._error, self._landed = error, True

    def _outcome(self) -> Exception | None:
        """How the job has ended: the same for every thread that asks, whatever its own wait has met."""
        assert self._work is not None
        try:
            self._work._end(0)
        except rails.RailsError as failure:
            return self.explained(failure)
        return None

    def explained(self, error: Exception) -> Exception:
        """The error, with what has failed, and ranks of the process group."""
        if not isinstance(error, rails.RailsError):
            return error
        ranks = error.ranks if self._members is None else [self._members[rank] for rank in error.ranks]
        return type(error)(f"operation {self.number}, {self._what}: {error.text}", error.code, error.node, ranks)


class Channel:
    """Operations over one group of `rails`, serial in effect: one begins when the one before it has ended. Thread-safe.

    The caller's thread submits an operation if none is under way. Otherwise a thread of the channel does, which ends with
    the last one that waits.
    """

    def __init__(self, join: Callable[[], rails.Group], pool: Pool, timeout: float):
        """`join`: joins the group, when the first operation begins. `timeout`: seconds for each operation."""
        self._join, self._pool, self._timeout = join, pool, timeout
        self._lock = threading.Lock()
        self._group: rails.Group | None = None
        self._waiting: collections.deque[Work] = collections.deque()  # not yet submitted
        self._runs = False  # its thread, which submits them
        self._last: Work | None = None  # of those submitted
        self._over: Exception | None = None  # why no operation can begin any more
        self.begun = 0  # operations, also those that wait

    def open(self) -> None:
        """Joins the group, if that has not been done."""
        if self._group is None:
            group = self._join()
            with self._lock:
                self._group = group
            if self._over is not None:
                group.leave()

    def begin(self, work: Work) -> Work:
        """Begins an operation, and returns it.

        Raises:
            rails.RailsError: why it cannot be submitted. If others are before it, `Work.wait()` raises that.
        """
        with self._lock:
            if self._over is not None:
                raise self._over
            work.number = self.begun + 1
            if self._group is not None and not self._runs and (self._last is None or self._last.is_completed()):
                self._submit(work)
            else:
                work.queue()
                self._waiting.append(work)
                if not self._runs:
                    self._runs = True
                    threading.Thread(target=self._run, name="rails-torch", daemon=True).start()
            self.begun = work.number
        return work

    def close(self, error: Exception) -> None:
        """Ends all operations at every rank, and leaves the group: those that wait fail with `error`, as do those to come.
        Waits at most 10 s for the daemon."""
        self._over = self._over or error  # a channel that opens meanwhile sees it, and leaves
        if self._group is not None:  # without the lock: a submission that waits for another daemon has it, and ends by this
            with contextlib.suppress(rails.RailsError):
                self._group.leave()
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        for work in waiting:
            work.fail(work.explained(error))

    def _run(self) -> None:
        """Submits all that wait, each when the one before it has ended."""
        try:
            self.open()
            while self._wants_next():
                if self._last is not None:
                    self._last.end()
                with self._lock:
                    if self._waiting:  # else closed meanwhile
                        self._submit_first()
        except Exception as error:  # the operations behind it would be taken for others at the other ranks
            self.close(error)

    def _wants_next(self) -> bool:
        with self._lock:
            self._runs = bool(self._waiting)
            return self._runs

    def _submit_first(self) -> None:
        work = self._waiting.popleft()
        try:
            self._submit(work)
        except Exception as error:
            work.fail(error)
            raise

    def _submit(self, work: Work) -> None:
        assert self._group is not None
        try:
            work.submit(self._group, self._pool, self._timeout)
        except rails.RailsError as error:
            raise work.explained(self._over or error) from None
        self._last = work
