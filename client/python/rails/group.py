"""Groups of ranks, and the exchanges between them."""

from __future__ import annotations

import ctypes
import functools
import operator
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple, Sequence

import numpy as np
import numpy.typing as npt

from rails._library import (CAPACITIES, ON_STREAM, URGENT, Buffers, Flow, Handle, JobOptions, Layout, Range, lib,
                            nanoseconds)
from rails._memory import Place
from rails.device import Device, KeptArrays, is_on_device, stream_number
from rails.errors import InvalidArgumentError
from rails.work import Work

if TYPE_CHECKING:
    from rails.client import Client

    _Bytes = ctypes.Array[ctypes.c_uint64]

_RANGE = np.dtype([("segment", np.uint64), ("offset", np.uint64), ("length", np.uint64)])  # as the structure Range


class Rows(NamedTuple):
    """Rows of an array, in any order: array[indices] without the copy."""

    array: Any  # as arrays of `Group.all_to_all_v()`
    indices: Any  # integers, of shape (rows,): of a list, an array or a tensor


# By rank what goes to it, or comes from it, in this order: arrays and Rows.
Flows = Mapping[int, Iterable[Any]]


class Group:
    """This rank's membership in a group, made by `Client.join()`. A context manager that leaves.

    Every rank submits its jobs in the same order: the n-th of each is the same job. Jobs of a group run at the same time
    and may end in any order: wait for a job before submitting another that uses its results or its memory.
    """

    def __init__(self, client: Client, handle: Handle, name: str, rank: int, world_size: int, device: Device | None = None,
                 kept: KeptArrays | None = None):
        self._client, self._handle = client, handle
        self.device = device  # whose memory jobs may use; None: they use memory of `Client.empty()` only
        self._kept = kept  # None without a device
        self.name, self.rank, self.world_size = name, rank, world_size
        self._lengths = ctypes.c_uint64 * (2 * world_size)  # bytes to each rank, then from each

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"<rails.Group {self.name}: rank {self.rank} of {self.world_size}>"

    @property
    def nodes(self) -> tuple[str, ...]:
        """Name of the node of each rank."""
        return tuple(lib.rails_group_node(self._handle, rank).decode() for rank in range(self.world_size))

    def all_to_all_v(self, send: Any, send_counts: Sequence[int], receive: Any, receive_counts: Sequence[int], *,
                     tag: int = 0, timeout: float | None = None, submit_timeout: float | None = None,
                     capacities: bool = False, vote: int = 0, urgent: bool = False, stream: Any = None) -> Work:
        """Submits this rank's part of the group's next job: consecutive rows of an array to each rank, and from each.

        In a group with a device, arrays may also be on that device: of `Device.empty()`, torch, or another object with
        `__cuda_array_interface__`, whose own stream is not looked at. The group keeps them until the job has ended.

        Args:
            send: array of shape (at least the sum of `send_counts`, ...): rows for rank 0, then those for rank 1, and so
                on. Contiguous, in memory of `Client.empty()`: an array, a slice along its first axis, a tensor.
            send_counts: rows for each rank, of shape (world_size,): integers of a list, an array or a tensor.
            receive: array of shape (at least the sum of `receive_counts`, ...), like `send`. It must not overlap `send` or
                memory of another unfinished job. Exception: rows that the rank sends to itself may stay where they are.
            receive_counts: rows from each rank, of shape (world_size,). Their bytes must be those that the rank sends.
            tag: the caller's own mark, equal on every rank; shown to operators.
            timeout: seconds for the job. Default: the daemon's limit, timeouts.job.
            submit_timeout: seconds for the daemon to accept the job. Default: 30.
            capacities: `receive_counts` say how many rows may come, and `Report.received_by_rank` how many bytes came; they
                are the first rows from that rank, and the others are untouched. More fails the job. Equal on every rank.
            vote: any number; `Report.highest_vote` is the highest that a rank gave with this job.
            urgent: this node sends the job's bytes before those of other jobs of its tenant to the same nodes, and copies
                them first. It is enough that one of the node's ranks says so; ranks may differ.
            stream: in a group with a device, the stream that writes what is sent, or uses what is received: of torch or
                CuPy, an object with `__cuda_stream__`, or the number of a CUstream. The job begins when the stream has come
                to this call. None: the bytes are ready, as after waiting for the device. See `Work.wait_on()` for later work.

        Raises:
            InvalidArgumentError: names the argument and its value. Nothing has changed.
            FailedPreconditionError: another unfinished job uses this memory, or the group is over.
            UnavailableError: the daemon drains, has exited, or does not answer in time.
        """
        to, out = self._rows(send, send_counts, "send")
        source, into = self._rows(receive, receive_counts, "receive")
        lengths = self._lengths(*out, *into)
        address = ctypes.addressof(lengths)
        buffers = Buffers(ctypes.sizeof(Buffers), to.segment and to.segment.value, to.offset, address,
                          source.segment and source.segment.value, source.offset, address + ctypes.sizeof(lengths) // 2)
        return self._submit(lib.rails_all_to_all_v, buffers, tag, timeout, submit_timeout, capacities, vote, urgent,
                            stream=stream, arrays=(send, receive))

    def all_to_all_ranges(self, sends: Flows, receives: Flows, *, tag: int = 0, timeout: float | None = None,
                          submit_timeout: float | None = None, capacities: bool = False, vote: int = 0,
                          urgent: bool = False, stream: Any = None) -> Work:
        """As `all_to_all_v()`, with any arrays to and from each rank, which need not be consecutive.

        Tokens go to the ranks of their experts straight from where they are:
            group.all_to_all_ranges({rank: [rails.Rows(tokens, np.flatnonzero(target == rank))] for rank in ranks}, receives)

        Args:
            sends: by rank the arrays and `Rows` that go to it, in this order. Ranks that are left out get nothing.
            receives: by rank the arrays for what comes from it. They may be cut in another way than the sender's; the
                bytes of both must be equal. With `capacities` they may be more, 16,384 ranges at most.

        On a device each run of neighbouring rows is a copy of its own: sort scattered rows there, and send the result.
        """
        layout = _Layout(self, sends, receives)
        return self._submit(lib.rails_all_to_all_ranges, layout.layout, tag, timeout, submit_timeout, capacities, vote, urgent,
                            stream=stream, arrays=layout.arrays)

    def prepare(self, sends: Flows, receives: Flows, *, timeout: float | None = None) -> Prepared:
        """Has the daemon check and keep arrays that many jobs use, so that a job costs nothing by array.

        Args:
            sends, receives: as for `all_to_all_ranges()`; their lengths are capacities. Other ranks need not prepare.
            timeout: seconds for the daemon. Default: 30.

        Raises:
            ResourceExhaustedError: limits.max_prepared_per_session or limits.max_prepared_ranges_per_session.
        """
        layout, prepared = _Layout(self, sends, receives), Handle(lib.rails_prepared_free)
        lib.rails_prepare(self._handle, layout.layout, nanoseconds(timeout), prepared)
        return Prepared(self, prepared, layout)

    def barrier(self, timeout: float | None = None) -> None:
        """Returns when every rank has called it as its next job: a job of no bytes.

        Args:
            timeout: seconds. Default: the daemon's limit for jobs, timeouts.job.

        Raises:
            DeadlineExceededError: a rank has not come in time.
        """
        none = [0] * self.world_size
        self.all_to_all_v(np.empty(0, np.uint8), none, np.empty(0, np.uint8), none, timeout=timeout).wait()

    def leave(self) -> None:
        """Leaves the group: unfinished jobs of all its ranks fail, and no job can be submitted any more. Jobs of other
        ranks in which this rank's part has ended are not affected. Waits at most 10 s for the daemon."""
        lib.rails_leave(self._handle)

    def _rows(self, array: Any, counts: Sequence[int], name: str) -> tuple[Place, list[int]]:
        """Where an array lies, and the bytes of its rows for each rank."""
        place = array if isinstance(array, Place) else self._place(array, name)
        listed, row = _integers(counts, f"{name}_counts"), place.row
        sizes = [count * row for count in listed]
        if len(sizes) != self.world_size:
            raise InvalidArgumentError(f"{name}_counts has {len(sizes)} counts, and the group {self.world_size} ranks")
        if min(sizes) < 0:
            raise InvalidArgumentError(f"{name}_counts is {listed}: a count must not be negative")
        if sum(sizes) > place.length:
            raise InvalidArgumentError(f"{name}_counts {listed} need {sum(sizes)} bytes in rows of {row}, and "
                                       f"{name} has {place.length}")
        return place, sizes

    def _place(self, array: Any, name: str) -> Place:
        """Where an array lies, in shared memory or on the device."""
        if self.device is not None and is_on_device(array):
            return self.device.place(array, name)
        try:
            return self._client._memory.place(array, name)
        except Exception:
            if not is_on_device(array):
                raise
            raise InvalidArgumentError(f"{name} is in the memory of a GPU, and the group {self.name} was joined without a device: "
                                       "join it with device=client.open_device()") from None

    def _submit(self, call: Any, what: Any, tag: int, timeout: float | None, submit_timeout: float | None,
                capacities: bool, vote: int, urgent: bool, handle: Handle | None = None, stream: Any = None,
                arrays: Any = None) -> Work:
        awaitable = self._client._prepare_await()  # before the library looks
        number = None if stream is None else self._stream(stream)
        options = _options(tag, timeout, submit_timeout, capacities, vote, urgent, number)
        job = Handle(lib.rails_job_free)
        call(handle or self._handle, what, options, job)
        if self._kept is not None:
            self._kept.add(job, arrays)
        return Work(self, job, awaitable)

    def _stream(self, stream: Any) -> int:
        if self.device is None:
            raise InvalidArgumentError(f"stream is given, and the group {self.name} was joined without a device")
        return stream_number(stream)


class Prepared:
    """Arrays that the daemon has checked once, made by `Group.prepare()`. It keeps them until this object is gone and the
    jobs that use them have ended."""

    def __init__(self, group: Group, handle: Handle, layout: _Layout):
        self._group, self._handle = group, handle
        self._send_rows, self._receive_rows = layout.send_rows, layout.receive_rows

    def submit(self, send_counts: Sequence[int] | None = None, receive_counts: Sequence[int] | None = None, *,
               tag: int = 0, timeout: float | None = None, submit_timeout: float | None = None,
               capacities: bool = False, vote: int = 0, urgent: bool = False) -> Work:
        """Submits this rank's part of the group's next job: the first rows of each flow. Jobs of one Prepared that
        receives anything cannot be under way together.

        Args:
            send_counts: rows for each rank, of shape (world_size,); 0 for ranks that have no flow. Default: all rows.
            receive_counts: rows from each rank, likewise.
            tag, timeout, submit_timeout, capacities, vote, urgent: as of `Group.all_to_all_v()`.

        Raises:
            InvalidArgumentError: a count is over the rows of its flow; also as `Group.all_to_all_v()`.
        """
        out = self._bytes(send_counts, self._send_rows, "send_counts")
        into = self._bytes(receive_counts, self._receive_rows, "receive_counts")
        return self._group._submit(lambda handle, _, options, job: lib.rails_submit_prepared(
            handle, out, into, options, job), None, tag, timeout, submit_timeout, capacities, vote, urgent, self._handle)

    def _bytes(self, counts: Sequence[int] | None, rows: dict[int, int | None], name: str) -> _Bytes | None:
        """Bytes of each flow."""
        if counts is None:
            return None
        listed = _integers(counts, name)
        if len(listed) != self._group.world_size:
            raise InvalidArgumentError(f"{name} has {len(listed)} counts, and the group {self._group.world_size} ranks")
        for rank, count in enumerate(listed):
            if count < 0 or (count > 0 and rows.get(rank) is None):
                why = "its arrays have rows of different lengths" if rank in rows else "it has no flow"
                raise InvalidArgumentError(f"{name}[{rank}] is {count}" + (f", and {why}" if count > 0 else ""))
        return (ctypes.c_uint64 * len(rows))(*[listed[rank] * (row or 0) for rank, row in rows.items()])


@functools.lru_cache(maxsize=64)
def _options(tag: int, timeout: float | None, submit_timeout: float | None, capacities: bool, vote: int, urgent: bool,
             stream: int | None) -> JobOptions:
    """The options as the library takes them. It reads them only."""
    for name, value in (("tag", tag), ("vote", vote)):
        if not 0 <= value < 1 << 64:
            raise InvalidArgumentError(f"{name} is {value}; it must fit into 64 bits")
    return JobOptions(ctypes.sizeof(JobOptions), tag, nanoseconds(timeout), nanoseconds(submit_timeout, "submit_timeout"),
                      (CAPACITIES if capacities else 0) | (0 if stream is None else ON_STREAM) | (URGENT if urgent else 0), vote,
                      stream or 0)


def _integers(counts: Any, name: str) -> list[int]:
    listed = list(counts.tolist() if hasattr(counts, "tolist") else counts)
    try:
        return list(map(operator.index, listed))
    except TypeError:
        raise TypeError(f"{name} is {listed}; it must be integers") from None


class _Layout:
    """Flows as the library takes them. Keep it until the call has returned."""

    def __init__(self, group: Group, sends: Flows, receives: Flows):
        self._kept: list[Any] = []
        self.arrays: list[Any] = []  # all that are given
        out, self.send_rows = self._flows(group, sends, "sends")
        into, self.receive_rows = self._flows(group, receives, "receives")
        self.layout = Layout(ctypes.sizeof(Layout), out, len(out), into, len(into))

    def _flows(self, group: Group, flows: Flows, name: str) -> tuple[Any, dict[int, int | None]]:
        """The flows, and the bytes of a row of each; None: its arrays differ."""
        if not hasattr(flows, "items"):
            raise TypeError(f"{name} is a {type(flows).__name__}; it must be a dict of lists of arrays, by rank")
        made = (Flow * len(flows))()
        rows: dict[int, int | None] = {}
        for number, (rank, arrays) in enumerate(flows.items()):
            if not 0 <= rank < group.world_size:
                raise InvalidArgumentError(f"{name}[{rank}]: the group has {group.world_size} ranks")
            parts, sizes = [], set()
            for item in arrays:
                array, indices = item if isinstance(item, Rows) else (item, None)
                place = group._place(array, f"{name}[{rank}]")
                self.arrays.append(array)
                sizes.add(place.row)
                if place.segment or indices is not None:
                    parts.append(_ranges(place, indices, f"{name}[{rank}]"))
                    self._kept.append(place.segment)
            ranges = np.concatenate(parts) if parts else np.empty(0, _RANGE)
            self._kept.append(ranges)
            made[number] = Flow(rank, len(ranges), ranges.ctypes.data_as(ctypes.POINTER(Range)))
            rows[operator.index(rank)] = sizes.pop() if len(sizes) == 1 else None
        return made, rows


def _ranges(place: Place, indices: Any, name: str) -> npt.NDArray[Any]:
    """The ranges of an array, or of its rows with these indices; neighbours become one range."""
    pointer = place.segment.value if place.segment else 0
    if indices is None:
        return np.array([(pointer, place.offset, place.length)], _RANGE)
    indices = np.asarray(indices)
    if indices.size == 0:
        return np.empty(0, _RANGE)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise InvalidArgumentError(f"{name}: indices of shape {indices.shape} and type {indices.dtype} are no row numbers")
    indices = indices.astype(np.int64)
    if indices.min() < 0 or (int(indices.max()) + 1) * place.row > place.length:
        raise InvalidArgumentError(f"{name}: indices from {indices.min()} to {indices.max()} are not all rows of the array")
    first = np.flatnonzero(np.diff(indices, prepend=indices[0] - 2) != 1)
    ranges = np.empty(len(first), _RANGE)
    ranges["segment"] = pointer
    ranges["offset"] = place.offset + indices[first] * place.row
    ranges["length"] = np.diff(first, append=len(indices)) * place.row
    return ranges
