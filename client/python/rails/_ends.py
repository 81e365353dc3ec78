"""Coroutines that wait for the ends of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from typing import TYPE_CHECKING, Callable

from rails._library import Handle, lib

if TYPE_CHECKING:
    from rails.work import Work


class Ends:
    """Wakes coroutines when jobs of a client end. Each event loop in which one waits reads the client's descriptor; the
    loop that comes first wakes those of all."""

    def __init__(self) -> None:
        self._fd = -1  # not open
        self._waiting: dict[asyncio.AbstractEventLoop, dict[asyncio.Future[None], Work]] = {}

    def open(self, client: Handle) -> None:
        """Jobs that are submitted from now on can be awaited."""
        if self._fd < 0:
            fd = ctypes.c_int32()
            lib.rails_client_fd(client, fd)
            self._fd = fd.value

    @property
    def opened(self) -> bool:
        return self._fd >= 0

    def end_of(self, work: Work) -> asyncio.Future[None]:
        """A future of the running loop that is done when the job has ended."""
        for closed in [loop for loop in self._waiting if loop.is_closed()]:  # its coroutines never go on
            self._waiting.pop(closed, None)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        futures = self._waiting.setdefault(loop, {})
        if not futures and self._fd >= 0:
            loop.add_reader(self._fd, self._read)
        futures[future] = work
        future.add_done_callback(self._forget)
        if work.done():  # before the descriptor was read here
            _finish(future)
        return future

    def detach(self) -> None:
        """Uses the descriptor no more: the client is about to close it."""
        fd, self._fd = self._fd, -1
        for loop in list(self._waiting):
            if loop is asyncio._get_running_loop():
                loop.remove_reader(fd)
            else:
                _call(loop, loop.remove_reader, fd)

    def wake(self) -> None:
        """Wakes those whose jobs have ended. Any thread."""
        for loop, futures in list(self._waiting.items()):
            for future, work in list(futures.items()):
                if work.done():
                    _call(loop, _finish, future)

    def _read(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass  # another loop was first
        self.wake()

    def _forget(self, future: asyncio.Future[None]) -> None:
        loop = future.get_loop()
        futures = self._waiting[loop]
        del futures[future]
        if not futures:
            if self._fd >= 0:
                loop.remove_reader(self._fd)
            del self._waiting[loop]


def _call(loop: asyncio.AbstractEventLoop, call: Callable[..., object], argument: object) -> None:
    """Calls in the thread of a loop, unless the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, argument)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
