"""Sessions with the daemon of this node."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import os
import weakref
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from rails._ends import Ends
from rails._library import NO_LOCAL_COPIES, RECOVERIES, ClientOptions, GroupOptions, Handle, interruptible, lib, nanoseconds
from rails._memory import Memory
from rails.device import Device, KeptArrays, open_device
from rails.errors import FailedPreconditionError, InvalidArgumentError
from rails.group import Group

DEFAULT_SOCKET_DIR = "/run/railsd"


def connect(socket_dir: str | os.PathLike[str] | None = None, *, name: str = "", timeout: float = 10.0,
            spin: float = 0.0) -> Client:
    """Opens a session with the daemon of this node.

    Args:
        socket_dir: the daemon's `socket_dir`. Default: the environment variable RAILS_SOCKET_DIR, or /run/railsd.
        name: shown to operators.
        timeout: seconds for which it tries again while the daemon does not run.
        spin: seconds for which a waiting thread looks for an answer before it sleeps; costs a processor.

    Raises:
        UnavailableError: no daemon listens there; the text names the socket.
        PermissionDeniedError: this user may not use the socket.
    """
    socket_dir = os.fspath(socket_dir or os.environ.get("RAILS_SOCKET_DIR") or DEFAULT_SOCKET_DIR)
    options = ClientOptions(ctypes.sizeof(ClientOptions), os.fsencode(socket_dir), name.encode(), nanoseconds(timeout), round(spin * 1e9))

    def call() -> Handle:
        made = Handle(lib.rails_close)
        lib.rails_connect(options, made)
        return made
    return Client(interruptible(call))


class Client:
    """A session with the daemon, made by `connect()`. A context manager that closes it."""

    def __init__(self, handle: Handle):
        self._handle: Handle | None = handle
        self._forked = False
        self._memory = Memory()
        self._ends = Ends()
        handle.free = functools.partial(_close, self._ends)
        self._node: str = lib.rails_node(handle).decode()
        _clients.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rails.Client of node {self._node}{'' if self.connected else ', not connected'}>"

    @property
    def node(self) -> str:
        """Name of this node."""
        return self._node

    @property
    def connected(self) -> bool:
        """True until the daemon has exited or the client is closed. Local."""
        handle = self._handle
        return handle is not None and bool(lib.rails_connected(handle))

    def close(self) -> None:
        """Ends the session. Unfinished jobs end with CancelledError. Arrays stay valid, but no daemon shares them any
        more. Waits at most a second for the daemon. Calls of other threads that are under way end first."""
        if self._forked:
            self._handle = None
            return
        self._ends.detach()
        self._handle = None  # the last reference closes it, in this thread or in one that is in a call

    def reconnect(self) -> None:
        """After the daemon has exited: opens a new session and registers the living arrays again. Groups can then be
        joined again; those of recovery "wait" do all that by themselves. Returns at once while connected.

        Raises:
            UnavailableError: no daemon came within the `timeout` of `connect()`.
        """
        handle = self._open_handle()

        def call() -> None:
            lib.rails_reconnect(handle)
        try:
            interruptible(call)
        finally:
            del handle  # a traceback must not keep it

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.uint8, *, huge_pages: bool = False,
              timeout: float | None = None) -> npt.NDArray[Any]:
        """Makes an array in memory that the daemon shares, filled with zeros.

        The array has the buffer protocol and DLPack: `torch.from_dlpack(array)` is a tensor of the same memory. For
        torch.bfloat16, make an array of int16 and call `.view(torch.bfloat16)` on the tensor. The memory lives as long as
        the array, a view or a tensor of it, or an unfinished job that uses it.

        An array over 64 KiB is a segment of its own, whose registration takes about a millisecond and counts against
        limits.max_segments_per_session of the daemon: make few arrays, keep them, and slice them. Smaller arrays share
        segments of 1 MiB, and give their memory back when all arrays of their segment are gone.

        Args:
            shape: length of each axis.
            dtype: type of the elements.
            huge_pages: takes the system's huge pages; the array is always a segment of its own.
            timeout: seconds for each of the daemon's two answers. Default: 60.

        Raises:
            ResourceExhaustedError: memory or a limit does not suffice, or no huge page is free.
            UnavailableError: the daemon has exited, or does not answer in time: `reconnect()`, and join again.
        """
        return self._memory.empty(self._open_handle(), shape, dtype, huge_pages, timeout)

    def shares(self, array: Any) -> bool:
        """True if the array is contiguous and in memory of this client, so that calls take it. Local."""
        try:
            self._memory.place(array, "array")
        except InvalidArgumentError:
            return False
        return True

    def join(self, name: str, rank: int, world_size: int, *, key: str = "", timeout: float = 120.0,
             recovery: str = "fail", wait_limit: float | None = None, restart_limit: float | None = None,
             device: Device | None = None, slice_bytes: int | None = None, slices: int | None = None,
             local_copies: bool = True) -> Group:
        """Joins a group, and returns when all its ranks have.

        With a device, an error of one job ends the group at every rank, recovery "degrade" and `Group.prepare()` are
        refused, and `vote` must be 0.

        Args:
            name: the group's name, equal on all ranks, like all arguments but `rank`.
            rank: this rank, from 0.
            world_size: number of ranks.
            key: a secret that the ranks share. Ranks with different keys do not meet.
            timeout: seconds for all ranks to join.
            recovery: what becomes of the group when a node is lost. "fail": its jobs raise UnavailableError. "wait": jobs
                wait, and start again with a new daemon. "degrade": the other nodes go on; `Report.lost_ranks` names the
                ranks that were lost.
            wait_limit: with "wait", seconds to wait for a silent daemon. Required there.
            restart_limit: with "wait", seconds to wait for a new daemon. Default: 120; 0: jobs do not survive their daemon.
            device: jobs may use the memory of this device, made by `open_device()` of this client. On all ranks or on none.
            slice_bytes: with a device, bytes that a rank copies at once. Default: 16 MiB.
            slices: with a device, how many of them are under way. The group pins twice this many times `slice_bytes` of the
                node's memory. Default: 4.
            local_copies: with a device, GPUs of ranks of a node copy from each other, where they can. False: their bytes are
                staged, and the daemon copies them. Need not be equal on all ranks.

        Raises:
            DeadlineExceededError: ranks are missing; the text names them.
            InvalidArgumentError: an argument is wrong, or differs from that of another rank.
            AlreadyExistsError: the rank has already joined.
        """
        if recovery not in RECOVERIES:
            raise InvalidArgumentError(f"recovery is '{recovery}'; it must be one of {', '.join(RECOVERIES)}")
        for argument, value, least in (("rank", rank, 0), ("world_size", world_size, 1)):
            if not least <= value < 1 << 32:
                raise InvalidArgumentError(f"{argument} is {value}")
        for argument, text in (("name", name), ("key", key)):
            if "\0" in text:
                raise InvalidArgumentError(f"{argument}: {text!r} has a zero byte")
        _check_device(self, device, slice_bytes, slices)
        handle = self._open_handle()
        options = GroupOptions(ctypes.sizeof(GroupOptions), name.encode(), key.encode(), world_size, rank, nanoseconds(timeout), RECOVERIES[recovery], 0,
                               nanoseconds(wait_limit, "wait_limit"),
                               -1 if restart_limit == 0 else nanoseconds(restart_limit, "restart_limit"),
                               device and device._handle.value, slice_bytes or 0, slices or 0, 0 if local_copies else NO_LOCAL_COPIES)
        kept = None if device is None else KeptArrays()

        def call() -> Handle:
            made = Handle(lib.rails_group_free if kept is None else kept.free_group)
            lib.rails_join(handle, options, made)
            return made
        try:
            return Group(self, interruptible(call), name, rank, world_size, device, kept)
        finally:
            del handle  # a traceback must not keep it

    def open_device(self, ordinal: int = 0, *, driver: str = "libcuda.so.1", staged: bool = False) -> Device:
        """Opens an NVIDIA GPU, for `join(device=...)`.

        Args:
            ordinal: as for `cudaSetDevice()` and `torch.device("cuda", ordinal)`.
            driver: the driver's library.
            staged: stages the device's memory also where RDMA devices could reach it.

        Raises:
            NotFoundError: there is no driver, or no such device.
            UnavailableError: the driver does not start.
        """
        return open_device(self, self._open_handle(), ordinal, driver, staged)

    def _prepare_await(self) -> bool:
        """Before a job is submitted, which can be awaited if it is in an event loop. True: the client's descriptor tells of its
        end."""
        if asyncio._get_running_loop() is not None:
            self._ends.open(self._open_handle())
        return self._ends.opened

    def _open_handle(self) -> Handle:
        handle = self._handle
        if self._forked:
            raise FailedPreconditionError("this client belongs to the parent process: connect anew in the forked child")
        if handle is None:
            raise FailedPreconditionError("this client is closed")
        return handle


def _check_device(client: Client, device: Device | None, slice_bytes: int | None, slices: int | None) -> None:
    if device is not None and not isinstance(device, Device):
        raise TypeError(f"device is a {type(device).__name__}; it must be one of Client.open_device()")
    if device is not None and device._client is not client:
        raise InvalidArgumentError("device was opened with another client: open it with this one")
    for argument, value, bits in (("slice_bytes", slice_bytes, 64), ("slices", slices, 32)):
        if value is not None and device is None:
            raise InvalidArgumentError(f"{argument} is {value}; it needs a device")
        if value is not None and not 0 < value < 1 << bits:
            raise InvalidArgumentError(f"{argument} is {value}")


def _close(ends: Ends, handle: Handle) -> None:
    """Closes a client, whose jobs end, and wakes the coroutines that wait for them."""
    lib.rails_close(handle)
    ends.wake()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_clients() -> None:
    for client in list(_clients):
        client.close()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._forked = True
        client._memory.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
