"""Operations of torch.distributed on tensors of a GPU: jobs of a group of `rails` with a device, ordered with streams."""

from __future__ import annotations

import collections
import contextlib
import datetime
import threading
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch._C._distributed_c10d import Work as _TorchWork

import rails
from rails._torch_staging import Parts, is_plain, tensors_by_rank


class _Span(NamedTuple):
    """Bytes of a tensor, on the device."""

    begin: int
    end: int
    received: bool


class CudaWork(_TorchWork):
    """An operation on a GPU, as torch.distributed returns it with async_op=True."""

    def __init__(self, what: str, outputs: list[torch.Tensor], device: torch.device, blocking: bool):
        super().__init__()
        self._what, self._outputs, self._device, self._blocking = what, outputs, device, blocking
        self._work: rails.Work | None = None
        self.spans: list[_Span] = []

    def begin(self, work: rails.Work, spans: list[_Span]) -> None:
        self._work, self.spans = work, spans

    def is_completed(self) -> bool:
        """True if the operation has ended, well or not. Local."""
        return self._job.done()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Why the operation has failed; None: it has not, or is under way."""
        try:
            self._job._end(0)
        except rails.UnfinishedError:
            return None
        except rails.RailsError as error:
            return self.explained(error)
        return None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta()) -> bool:
        """Makes the current stream of the device wait until the output is there, and returns at once. With a `timeout` other
        than zero, or Options.blocking, the calling thread waits instead.

        Raises:
            rails.RailsError: the operation has failed already; after waiting in the thread, also a later failure. The text
                begins with the operation.
            rails.UnfinishedError: the operation has not ended within `timeout`.
        """
        limit = timeout.total_seconds() or None
        try:
            if self._blocking or limit is not None:
                self._job._end(limit)
            else:
                self._job.wait_on(torch.cuda.current_stream(self._device))
        except rails.UnfinishedError:
            raise
        except rails.RailsError as error:
            raise self.explained(error) from None
        return True

    def order_before(self, stream: object) -> None:
        """Makes later work on a stream wait for the operation."""
        try:
            self._job.wait_on(stream)
        except rails.RailsError as error:
            raise self.explained(error) from None

    def synchronize(self) -> None:
        self.wait()

    def abort(self) -> None:
        """Ends the operation at every rank, where it fails with `rails.CancelledError`. The group has then no more operations
        on GPUs."""
        self._job.cancel()

    @property
    def report(self) -> rails.Report:
        """The report of the operation, which has ended."""
        return self._job.report

    def result(self) -> list[torch.Tensor]:
        return self._outputs

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the output, which a thread of its own completes when the operation has ended."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[self._device])

        def run() -> None:
            try:
                self._job._end(None)
                future.set_result(self._outputs)
            except rails.RailsError as error:
                future.set_exception(self.explained(error))
            except Exception as error:  # whoever waits for the future must hear of it
                future.set_exception(error)
        threading.Thread(target=run, name="rails-future", daemon=True).start()
        return future

    def explained(self, error: rails.RailsError) -> rails.RailsError:
        """The error, with what has failed."""
        return type(error)(f"{self._what}: {error.text}", error.code, error.node, error.ranks)

    @property
    def _job(self) -> rails.Work:
        assert self._work is not None
        return self._work


class CudaChannel:
    """Operations on one GPU over a group of `rails` with a device, which the first operation joins. Thread-safe.

    Operations run at the same time, except that one waits for those before it whose memory it shares: they are serial in
    effect.
    """

    def __init__(self, join: Callable[[torch.device], rails.Group], how: dict[str, Any], blocking: bool):
        """`join`: joins the group, for tensors of a device. `how`: as of `Channel`. `blocking`: as of Options."""
        self._join, self._blocking = join, blocking
        self._how = {**how, "submit_timeout": how["timeout"]}
        self._lock = threading.Lock()
        self._group: rails.Group | None = None
        self._device: torch.device | None = None
        self._unfinished: collections.deque[CudaWork] = collections.deque()
        self._over: rails.RailsError | None = None  # why no operation can begin any more
        self.begun = 0

    def begin(self, name: str, outputs: list[torch.Tensor], sends: Parts, receives: Parts, tag: int,
              device: torch.device) -> CudaWork:
        """Begins an operation behind what the device's current stream has to do.

        Raises:
            rails.RailsError: an earlier operation has failed, or why this one cannot be submitted, which ends the group.
        """
        _check_outputs(name, receives)
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{name}: the backend rails cannot be captured in a CUDA graph")
        with self._lock:
            self._forget_ended()
            if self._over is not None:
                raise self._over
            group = self._open(device)
            stream = torch.cuda.current_stream(device)
            sends = _contiguous(sends)
            work = CudaWork(f"operation {self.begun + 1} on {device}, {name}", outputs, device, self._blocking)
            spans = [*_spans(sends, False), *_spans(receives, True)]
            for earlier in self._unfinished:
                if _conflict(earlier.spans, spans):
                    earlier.order_before(stream)
            try:
                work.begin(self._submit(group, sends, receives, tag, stream), spans)
            except rails.RailsError as error:  # the other ranks would take the next operation for this one
                self.close(work.explained(error))
                assert self._over is not None
                raise self._over from None
            self._unfinished.append(work)
            self.begun += 1
        return work

    def close(self, error: rails.RailsError) -> None:
        """Ends all operations at every rank, and leaves the group. Waits at most 10 s for the daemon."""
        self._over = self._over or error  # without the lock: a rank that joins has it, and leaves when it sees this
        if self._group is not None:
            with contextlib.suppress(rails.RailsError):
                self._group.leave()

    def _open(self, device: torch.device) -> rails.Group:
        """The group, joined if that has not been done."""
        if self._group is None:
            try:
                group = self._join(device)
            except rails.RailsError as error:  # other ranks may have joined, and would count operations differently
                self._over = self._over or error
                raise self._over from None
            self._group, self._device = group, device
            if self._over is not None:
                group.leave()
                raise self._over
        if device != self._device:
            raise ValueError(f"a tensor on {device}: the first operation of this group was on {self._device}, and a rank has one GPU "
                             "in a group")
        return self._group

    def _submit(self, group: rails.Group, sends: Parts, receives: Parts, tag: int, stream: torch.cuda.Stream) -> rails.Work:
        if sends.rows is not None and receives.rows is not None:
            return group.all_to_all_v(sends.whole, sends.rows, receives.whole, receives.rows, tag=tag, stream=stream, **self._how)
        out, into = ({peer: [tensor] for peer, tensor in tensors_by_rank(parts).items()} for parts in (sends, receives))
        return group.all_to_all_ranges(out, into, tag=tag, stream=stream, **self._how)

    def _forget_ended(self) -> None:
        """Drops operations that have ended. The first that has failed is the reason why no other can begin."""
        for work in list(self._unfinished):
            if work.is_completed():
                self._unfinished.remove(work)
                error = work.exception()
                if isinstance(error, rails.RailsError):
                    self._over = self._over or error


def _check_outputs(name: str, receives: Parts) -> None:
    for tensor in receives.tensors:
        if not is_plain(tensor):
            raise ValueError(f"{name}: an output of shape {tuple(tensor.shape)} on {tensor.device} is not contiguous, or a view with "
                             "other values than its memory: give a contiguous one, and copy it after wait()")


def _contiguous(parts: Parts) -> Parts:
    """The tensors, or contiguous copies, which the current stream makes."""
    if all(is_plain(tensor) for tensor in parts.tensors):
        return parts
    copies: dict[int, torch.Tensor] = {}  # by identity: a tensor may go to every rank

    def plain(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return copies[id(tensor)]
    whole = None if parts.whole is None or parts.rows is None else plain(parts.whole)
    return Parts({peer: plain(tensor) for peer, tensor in parts.by_rank.items()}, whole, parts.rows)


def _spans(parts: Parts, received: bool) -> list[_Span]:
    """Where contiguous tensors lie."""
    tensors: Sequence[torch.Tensor] = parts.tensors
    return [_Span(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), received) for tensor in tensors]


def _conflict(some: list[_Span], others: list[_Span]) -> bool:
    """True if both have the same memory, and receive it at least once."""
    return any((one.received or other.received) and one.begin < other.end and other.begin < one.end for one in some for other in others)
