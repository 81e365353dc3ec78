"""Operations of torch.distributed as jobs of a group of `rails`: their order, their work objects."""

from __future__ import annotations

import collections
import contextlib
import datetime
import threading
import time
from typing import Any, Callable, Sequence

import torch
from torch._C._distributed_c10d import Work as _TorchWork

import rails
from rails._memory import Place
from rails._torch_staging import MANY_BYTES, PIECES, Parts, Pool, Staging, overlap

_AGAIN = "make a new group (dist.new_group)"  # as torch says it
_ROOM_TIMEOUT = 1.0  # seconds for which a later job of an operation waits for limits of the daemon


class Work(_TorchWork):
    """An operation under way, as torch.distributed returns it with async_op=True."""

    # Every operation makes one: a dict would cost a microsecond.
    __slots__ = ("_what", "_outputs", "_tag", "_members", "_parts", "_begun", "number", "_error", "_landed", "_works", "_staging",
                 "_submitted_at", "_copied", "_well", "_aborted")

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
        self._works: Sequence[rails.Work] = ()  # its jobs: one, or one for each piece
        self._submitted_at: Sequence[float] = ()  # of several jobs, seconds
        self._staging: Staging | None = None  # None: not needed, or finished
        self._copied = 0, 0, 0  # bytes that this rank copies to staging memory, from it, and to itself
        self._well = False  # its jobs have ended well
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
        self._aborted = True  # submit() reads it after it has set _works: one of the two cancels
        for work in self._works:
            work.cancel()

    @property
    def report(self) -> rails.Report:
        """The report of the operation, which has ended. If it was cut into several jobs, `slices` is their number: bytes and
        bounds are sums, `elapsed` and `ratio_to_bound` are of all together, and other figures are those of the first."""
        if not self._works or self._parts is not None:
            raise self._error or rails.FailedPreconditionError(f"{self._what} has not begun")
        report, (out, into, own) = _sum([work.report for work in self._works], self._submitted_at), self._copied
        return report._replace(bytes_sent=report.bytes_sent + own, bytes_received=report.bytes_received + own,
                               copied_out_bytes=out, copied_in_bytes=into, highest_vote=0)

    @property
    def begun(self) -> bool:
        """A job of it was submitted."""
        return bool(self._works)

    @property
    def copies_many(self) -> bool:
        """A rank has copied so much in this operation, which has ended, that cutting the next ones is worth it."""
        return self._well and bool(self._works) and self._works[-1]._highest_vote() > 0

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

    def submit(self, group: rails.Group, pool: Pool, how: dict[str, Any], cut: bool) -> None:
        """Submits it, as several jobs if `cut`, which is equal on all ranks. `how`: for each of them. Raises why that fails."""
        assert self._parts is not None
        sends, receives = self._parts
        out, into = pool.places(sends), pool.places(receives)
        overlaps = out is not None and into is not None and overlap(out, into)
        if not cut and out and into and not overlaps and sends.rows is not None and receives.rows is not None:  # the usual case, fast
            self._works = (group.all_to_all_v(out[0], sends.rows, into[0], receives.rows, tag=self._tag, **how),)
        else:
            shared = out is not None and not overlaps, into is not None
            pieces = PIECES if cut else 1
            if cut and into is not None:
                _check_distinct(into)
            self._staging = Staging(pool, group.rank, sends, receives, shared, pieces)
            self._copied = self._staging.copied_bytes
            self._submit_pieces(group, self._staging, pieces, how)
        self._parts = None
        if self._begun is not None:
            self._begun.set()
        if self._aborted:
            self.abort()

    def _submit_pieces(self, group: rails.Group, staging: Staging, pieces: int, how: dict[str, Any]) -> None:
        try:
            for piece in range(pieces):
                self._submit_piece(group, staging.flows(piece), piece, how)
        except Exception as error:
            if not self._works:
                staging.finish()
                raise
            # The jobs before know why the group is over.
            raise (self._first_error() if isinstance(error, rails.FailedPreconditionError) else None) or error from None
        try:
            staging.copy_own()
        except Exception as error:  # the jobs go on
            self._error = error

    def _submit_piece(self, group: rails.Group, flows: list[Any], piece: int, how: dict[str, Any]) -> None:
        until = time.monotonic() + _ROOM_TIMEOUT
        while True:
            try:
                at = time.monotonic()
                work = group.all_to_all_ranges(*flows, tag=self._tag, vote=int(sum(self._copied[:2]) >= MANY_BYTES), **how)
                self._works, self._submitted_at = (*self._works, work), (*self._submitted_at, at)
                return
            except rails.ResourceExhaustedError:
                if piece == 0 or time.monotonic() > until:
                    raise
                # A limit of jobs holds until the piece before has ended; one of jobs in a second, a little longer.
                with contextlib.suppress(rails.RailsError):
                    self._works[-1]._end(max(until - time.monotonic(), 0))
                time.sleep(0.01)

    def _first_error(self) -> rails.RailsError | None:
        """Why a job that was submitted has failed, if one has, or does so at once."""
        for work in self._works:
            try:
                work._end(1)
            except rails.UnfinishedError:
                return None
            except rails.RailsError as error:
                return error
        return None

    def fail(self, error: Exception) -> None:
        """It cannot be submitted."""
        self._error, self._parts = error, None
        if self._begun is not None:
            self._begun.set()

    def end(self, timeout: float) -> None:
        """Waits until the operation, which has begun, has ended, well or not. Raises why its end is not known in time: the next
        one would be cut as this rank thinks, and not as all do."""
        until = time.monotonic() + timeout
        while not self._landed:
            try:
                self.wait()
            except Exception:
                if not self._landed and time.monotonic() > until:
                    raise
                time.sleep(0 if self._landed else 0.05)

    def _settle(self, timeout: float | None) -> None:
        """Waits until the operation has ended, well or not, and brings the output from shared memory to where it belongs."""
        if self._landed:
            return
        until = None if timeout is None else time.monotonic() + timeout
        if self._begun is not None and not self._begun.wait(timeout):
            raise rails.UnfinishedError(f"{self._what} has not begun within {timeout} s, because one before it has not ended")
        error, staging, well = self._error, self._staging, True
        for piece, work in enumerate(self._works):
            try:
                work._end(None if until is None else max(until - time.monotonic(), 0))
            except rails.UnfinishedError:
                raise
            except rails.RailsError as failure:
                reason = self._reason(failure, work, piece)
                error, well = error or reason, well and reason is None
            if staging is not None and error is None:
                try:
                    staging.land(piece)
                except Exception as refused:  # torch does not write this output: the operation's own error
                    error = refused
        if staging is not None:
            staging.finish()
            self._staging = None
        self._error, self._well, self._landed = self._error or error, well, True  # another thread may have been first

    def _reason(self, failure: rails.RailsError, work: rails.Work, piece: int) -> Exception | None:
        """Why a job has failed: the same for every thread that asks, whatever its own wait has met."""
        if not work.done():  # the daemon does not answer, and may do so again
            raise self.explained(failure) from None
        try:
            work._end(0)
        except rails.RailsError as reason:
            return self.explained(reason, piece)
        return None

    def explained(self, error: Exception, piece: int = 0) -> Exception:
        """The error, with what has failed, and ranks of the process group."""
        if not isinstance(error, rails.RailsError):
            return error
        ranks = error.ranks if self._members is None else [self._members[rank] for rank in error.ranks]
        text = error.text.replace("reconnect and join again", _AGAIN).replace("join again", _AGAIN)
        part = f" (job {piece + 1} of {len(self._works)} with a part of its bytes)" if len(self._works) > 1 else ""
        return type(error)(f"operation {self.number}, {self._what}{part}: {text}", error.code, error.node, ranks)


def _check_distinct(receives: list[Place]) -> None:
    """The daemon would refuse a later job of the operation, when the first is under way."""
    spans = sorted((place.segment.value, place.offset, place.length) for place in receives if place.segment is not None)
    for (segment, begin, length), (other, next_begin, _) in zip(spans, spans[1:]):
        if segment == other and next_begin < begin + length:
            raise rails.InvalidArgumentError("tensors that are received overlap each other")


def _sum(reports: list[rails.Report], submitted_at: Sequence[float]) -> rails.Report:
    """The report of jobs that were under way together."""
    if len(reports) == 1:
        return reports[0]

    def each(name: str) -> tuple[int, ...]:
        return tuple(map(sum, zip(*(getattr(report, name) for report in reports))))
    total = {name: sum(getattr(report, name) for report in reports)
             for name in ("bytes_sent", "bytes_received", "node_bound", "eager_sent_bytes", "eager_received_bytes", "replays")}
    first = reports[0]
    elapsed = max(at + report.elapsed for at, report in zip(submitted_at, reports)) - submitted_at[0]
    ratio = (elapsed - first.waiting_for_ranks) / total["node_bound"] if total["node_bound"] > 0 else 0.0
    return first._replace(**total, elapsed=elapsed, ratio_to_bound=ratio, rail_tx_bytes=each("rail_tx_bytes"),
                          rail_rx_bytes=each("rail_rx_bytes"), slices=len(reports))


class Channel:
    """Operations over one group of `rails`, serial in effect: one begins when the one before it has ended. Thread-safe.

    The caller's thread submits an operation if none is under way. Otherwise a thread of the channel does, which ends with
    the last one that waits.
    """

    def __init__(self, join: Callable[[], rails.Group], pool: Pool, how: dict[str, Any], may_cut: bool):
        """`join`: joins the group, when the first operation begins. `how`: `timeout` and `urgent` of its jobs. `may_cut`: all
        ranks see the same votes, so they may agree by them to cut operations."""
        self._join, self._pool, self._how, self._may_cut = join, pool, how, may_cut
        self._lock = threading.Lock()
        self._group: rails.Group | None = None
        self._waiting: collections.deque[Work] = collections.deque()  # not yet submitted
        self._runs = False  # its thread, which submits them
        self._last: Work | None = None  # of those submitted
        self._cuts = False  # operations are cut from now on
        self._over: Exception | None = None  # why no operation can begin any more
        self.begun = 0  # operations, also those that wait

    def open(self) -> None:
        """Joins the group, if that has not been done."""
        if self._group is None:
            group = self._join()
            one_node = len(set(group.nodes)) == 1  # nothing goes on while it copies
            with self._lock:
                self._group = group
                self._may_cut = self._may_cut and not one_node
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
                    self._last.end(self._how["timeout"])
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
        if self._may_cut and not self._cuts and self._last is not None:
            self._cuts = self._last.copies_many
        try:
            work.submit(self._group, self._pool, self._how, self._cuts)
        except rails.RailsError as error:
            explained = work.explained(self._over or error)
            # Other ranks wait for this one, which has no place among their jobs any more.
            if work.begun or isinstance(error, (rails.UnavailableError, rails.AbortedError)):
                self._over = self._over or explained
                with contextlib.suppress(rails.RailsError):
                    self._group.leave()
            raise explained from None
        except Exception:
            raise
        except BaseException:  # interrupted: a job may have been submitted that nobody here knows of
            with contextlib.suppress(rails.RailsError):
                self._group.leave()
            raise
        self._last = work
