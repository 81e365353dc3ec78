"""Jobs under way and their reports."""

from __future__ import annotations

import asyncio
import ctypes
import math
from typing import TYPE_CHECKING, Any, Generator, NamedTuple

from rails import _library
from rails._library import Handle, interruptible, lib, nanoseconds
from rails.device import stream_number
from rails.errors import RailsError, UnfinishedError

if TYPE_CHECKING:
    from rails.group import Group

# Seconds for which a thread waits itself. A wait of the main thread that lasts longer goes on in another thread, so that
# Ctrl-C interrupts it. It is a single call: the library asks a silent daemon after some seconds in one call.
_FIRST_WAIT = 0.2


class Report(NamedTuple):
    """The outcome of this rank's part of a job.

    Times are seconds. Figures "of the node" are of the whole job on this node: of all its ranks here.

    Attributes:
        seq: number of the job in its group, from 1.
        bytes_sent: by this rank, to ranks of its node and to itself, too.
        bytes_received: by this rank, in the same way.
        elapsed: from the acceptance of this rank's submission to its end.
        waiting_for_ranks: from then until the last rank of this node had submitted.
        waiting_for_peers: from then until every peer was ready.
        to_first_chunk: from acceptance until a rail got the job's first chunk. 0: nothing left the node.
        node_bound: the least time, of the node: max(out, in) / sum of the rails' speeds.
        ratio_to_bound: time since the last rank of the node submitted, over `node_bound`; below 1, the rails are faster
            than their configured speeds. 0: nothing left the node.
        rail_tx_bytes: sent by each rail, of the node.
        rail_rx_bytes: received by each rail, of the node.
        eager_sent_bytes: of the node: bytes of short exchanges, which went with messages and no rail carried.
        eager_received_bytes: as above.
        lost_ranks: recovery "degrade": ranks that were lost before all their bytes were exchanged.
        replays: recovery "wait": how often the job was submitted again.
        received_by_rank: capacities: bytes of each source, as it said; else empty.
        highest_vote: if the job has succeeded, the highest `vote` of all ranks, the same at every rank; otherwise the
            highest that is known. Recovery "degrade": the vote of a lost rank counts only where its node had told it,
            so ranks may see different numbers after a loss.
        copied_out_bytes: bytes that were not in memory of the daemon, and were copied there before they were sent: by GPUs in
            a group with a device, by `rails.torch` from tensors that are not shared.
        copied_in_bytes: the same, from memory of the daemon to where they belong.
        copied_local_bytes: in a group with a device, else 0: bytes that GPUs have copied from other ranks of the node.
        slices: jobs of the daemon of which this is the report; 0: a single one.
    """

    seq: int
    bytes_sent: int
    bytes_received: int
    elapsed: float
    waiting_for_ranks: float
    waiting_for_peers: float
    to_first_chunk: float
    node_bound: float
    ratio_to_bound: float
    rail_tx_bytes: tuple[int, ...]
    rail_rx_bytes: tuple[int, ...]
    eager_sent_bytes: int
    eager_received_bytes: int
    lost_ranks: tuple[int, ...]
    replays: int
    received_by_rank: tuple[int, ...]
    highest_vote: int
    copied_out_bytes: int
    copied_in_bytes: int
    copied_local_bytes: int
    slices: int


class Work:
    """A job under way: this rank's part of an all-to-all(v).

    Until it has ended, its memory belongs to the daemon: write neither what it sends nor what it receives, and read
    nothing that it receives. A Work may be dropped: the job goes on, and keeps its memory. In a coroutine, `await work`
    is `work.wait()`; a coroutine that is cancelled meanwhile does not cancel the job.
    """

    def __init__(self, group: Group, handle: Handle, awaitable: bool):
        self._group = group  # leaving would end the job
        self._handle = handle
        self._awaitable = awaitable  # the client's descriptor tells of its end

    def __repr__(self) -> str:
        return f"<rails.Work of group {self._group.name}>"

    def done(self) -> bool:
        """True if the job has ended, well or not. Local: asks nobody."""
        done = ctypes.c_int32()
        try:
            lib.rails_job_test(self._handle, done)
        except RailsError:
            if not done.value:
                raise
        if done.value and self._group._kept is not None:
            self._group._kept.prune()
        return bool(done.value)

    def wait(self, timeout: float | None = None) -> Report:
        """Waits for the end of the job. After it, its memory is the caller's again.

        Args:
            timeout: seconds to wait. None: until the job ends, which its own time limit ensures.

        Raises:
            UnfinishedError: the job has not ended within `timeout`; it goes on, and may be waited for again.
            UnavailableError: a node was lost; `node` and `ranks` name it. Also: this node's daemon does not answer;
                `done()` is then False, and the job may be waited for again.
            CancelledError: a rank has cancelled the job, or the client was closed.
            DeadlineExceededError: the job's time limit has passed.
            AbortedError: the daemon has exited, or a rank has left the group.
        """
        self._end(timeout)
        return self.report

    def _end(self, timeout: float | None) -> None:
        """wait() without the report."""
        try:
            ended = self._wait_once(_FIRST_WAIT if timeout is None else min(timeout, _FIRST_WAIT))
            if not ended and (timeout is None or timeout > _FIRST_WAIT):
                rest = math.inf if timeout is None else timeout - _FIRST_WAIT
                ended = interruptible(lambda: self._wait_once(rest))
        finally:
            if self._group._kept is not None:
                self._group._kept.prune()
        if not ended:
            raise UnfinishedError(f"the job has not ended within {timeout} s; it goes on")

    def wait_on(self, stream: Any) -> None:
        """In a group with a device: makes later work on a stream wait until the job has ended, well or not. Received bytes
        are then in place, and sent ones may be overwritten. Returns at once, unless `Device.blocks` says why not.

        Meanwhile the stream stands still, so a call that waits for the whole device waits for the job.

        Args:
            stream: as of `Group.all_to_all_v()`, any of the device.

        Raises:
            RailsError: the job has failed already. `wait()` raises a later error.
        """
        number = stream_number(stream)
        lib.rails_job_wait_on(self._handle, number)

    def __await__(self) -> Generator[Any, None, Report]:
        if not self.done():
            if self._awaitable:
                yield from self._group._client._ends.end_of(self).__await__()
            else:  # submitted before the client had a descriptor
                yield from asyncio.get_running_loop().run_in_executor(None, self.wait, None).__await__()
        return self.wait(0)

    def cancel(self) -> None:
        """Asks every rank to end the job, which then fails with CancelledError unless it has already ended. The group is
        over if the job was running. Waits at most 10 s for the daemon."""
        lib.rails_job_cancel(self._handle)

    @property
    def report(self) -> Report:
        """The outcome; of a job that has failed as far as it is known. Local.

        Raises:
            FailedPreconditionError: the job has not ended.
        """
        out = _library.Report(ctypes.sizeof(_library.Report))
        lib.rails_job_report(self._handle, out)
        rails = out.rail_count
        return Report(out.seq, out.bytes_sent, out.bytes_received, out.elapsed_ns / 1e9, out.waiting_for_ranks_ns / 1e9,
                      out.waiting_for_peers_ns / 1e9, out.to_first_chunk_ns / 1e9, out.node_bound_ns / 1e9,
                      out.ratio_to_bound, tuple(out.rail_tx_bytes[:rails]), tuple(out.rail_rx_bytes[:rails]),
                      out.eager_sent_bytes, out.eager_received_bytes, tuple(out.lost_ranks[:out.lost_rank_count]),
                      out.replays, tuple(out.received_by_rank[:out.received_count]), out.highest_vote, out.copied_out_bytes, out.copied_in_bytes, out.copied_local_bytes, out.slices)

    def _highest_vote(self) -> int:
        """`report.highest_vote`, faster."""
        out = _library.Report(ctypes.sizeof(_library.Report))
        lib.rails_job_report(self._handle, out)
        return int(out.highest_vote)

    def _wait_once(self, timeout: float) -> bool:
        done = ctypes.c_int32()
        lib.rails_job_wait(self._handle, nanoseconds(timeout), done)
        return bool(done.value)
