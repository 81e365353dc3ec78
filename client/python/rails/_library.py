"""librails.so by ctypes: finds it, and declares the structures and functions of rails/rails.h."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
from concurrent.futures import Future
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, TypeVar

from rails import errors

SONAME = "librails.so.0"
FOREVER = (1 << 63) - 1
HUGE_PAGES = 1  # RAILS_SEGMENT_HUGE_PAGES
CAPACITIES = 1  # RAILS_JOB_CAPACITIES
STAGED = 1  # RAILS_DEVICE_STAGED
NO_LOCAL_COPIES = 1  # RAILS_GROUP_NO_LOCAL_COPIES
ON_STREAM = 2  # RAILS_JOB_ON_STREAM
URGENT = 4  # RAILS_JOB_URGENT
RECOVERIES = {"fail": 1, "wait": 2, "degrade": 3}

_Result = TypeVar("_Result")


class Error(ctypes.Structure):
    _fields_ = [("code", c_int32), ("text", c_char_p), ("node", c_char_p), ("ranks", POINTER(c_uint32)),
                ("rank_count", c_size_t)]


# A structure whose first field is `size` is made with its own size.
class ClientOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("socket_dir", c_char_p), ("client_name", c_char_p), ("connect_timeout_ns", c_int64),
                ("spin_ns", c_int64)]


class SegmentOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint64), ("name", c_char_p), ("timeout_ns", c_int64)]


class DeviceOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("ordinal", c_int32), ("flags", c_uint32), ("driver", c_char_p)]


class GroupOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("join_key", c_char_p), ("world_size", c_uint32),
                ("rank", c_uint32), ("timeout_ns", c_int64), ("recovery", c_int32), ("reserved", c_int32),
                ("wait_limit_ns", c_int64), ("restart_limit_ns", c_int64), ("device", c_void_p), ("slice_bytes", c_uint64),
                ("slices", c_uint32), ("device_flags", c_uint32)]


class JobOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("tag", c_uint64), ("timeout_ns", c_int64), ("submit_timeout_ns", c_int64),
                ("flags", c_uint64), ("vote", c_uint64), ("stream", c_void_p)]


class Buffers(ctypes.Structure):  # lengths by address: ctypes sets a field of POINTER slowly
    _fields_ = [("size", c_size_t), ("send", c_void_p), ("send_offset", c_uint64), ("send_bytes", c_void_p),
                ("receive", c_void_p), ("receive_offset", c_uint64), ("receive_bytes", c_void_p)]


class Range(ctypes.Structure):
    _fields_ = [("segment", c_void_p), ("offset", c_uint64), ("length", c_uint64)]


class Flow(ctypes.Structure):
    _fields_ = [("rank", c_uint32), ("range_count", c_uint32), ("ranges", POINTER(Range))]


class Layout(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("sends", POINTER(Flow)), ("send_count", c_size_t), ("receives", POINTER(Flow)),
                ("receive_count", c_size_t)]


class Report(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("seq", c_uint64), ("bytes_sent", c_uint64), ("bytes_received", c_uint64),
                ("elapsed_ns", c_int64), ("waiting_for_ranks_ns", c_int64), ("waiting_for_peers_ns", c_int64),
                ("to_first_chunk_ns", c_int64), ("node_bound_ns", c_int64), ("ratio_to_bound", c_double),
                ("rail_tx_bytes", POINTER(c_uint64)), ("rail_rx_bytes", POINTER(c_uint64)), ("rail_count", c_size_t),
                ("eager_sent_bytes", c_uint64), ("eager_received_bytes", c_uint64), ("lost_ranks", POINTER(c_uint32)),
                ("lost_rank_count", c_size_t), ("replays", c_uint32), ("reserved", c_uint32),
                ("received_by_rank", POINTER(c_uint64)), ("received_count", c_size_t), ("highest_vote", c_uint64),
                ("copied_out_bytes", c_uint64), ("copied_in_bytes", c_uint64), ("copied_local_bytes", c_uint64), ("slices", c_uint64)]


# Functions that fail: their arguments. They return an error or NULL.
_CALLS = {
    "rails_connect": [POINTER(ClientOptions), POINTER(c_void_p)],
    "rails_reconnect": [c_void_p],
    "rails_client_fd": [c_void_p, POINTER(c_int32)],
    "rails_segment_alloc": [c_void_p, c_uint64, POINTER(SegmentOptions), POINTER(c_void_p)],
    "rails_device_open": [c_void_p, POINTER(DeviceOptions), POINTER(c_void_p)],
    "rails_device_alloc": [c_void_p, c_uint64, POINTER(c_void_p)],
    "rails_device_import": [c_void_p, c_uint64, c_uint64, POINTER(c_void_p)],
    "rails_join": [c_void_p, POINTER(GroupOptions), POINTER(c_void_p)],
    "rails_leave": [c_void_p],
    "rails_all_to_all_v": [c_void_p, POINTER(Buffers), POINTER(JobOptions), POINTER(c_void_p)],
    "rails_all_to_all_ranges": [c_void_p, POINTER(Layout), POINTER(JobOptions), POINTER(c_void_p)],
    "rails_prepare": [c_void_p, POINTER(Layout), c_int64, POINTER(c_void_p)],
    "rails_submit_prepared": [c_void_p, POINTER(c_uint64), POINTER(c_uint64), POINTER(JobOptions), POINTER(c_void_p)],
    "rails_job_wait": [c_void_p, c_int64, POINTER(c_int32)],
    "rails_job_test": [c_void_p, POINTER(c_int32)],
    "rails_job_wait_on": [c_void_p, c_void_p],
    "rails_job_cancel": [c_void_p],
    "rails_job_report": [c_void_p, POINTER(Report)],
}
# The others: result and arguments.
_OTHERS = {
    "rails_error_free": (None, [c_void_p]),
    "rails_version": (c_char_p, []),
    "rails_close": (None, [c_void_p]),
    "rails_connected": (c_int32, [c_void_p]),
    "rails_node": (c_char_p, [c_void_p]),
    "rails_segment_data": (c_void_p, [c_void_p]),
    "rails_segment_free": (None, [c_void_p]),
    "rails_device_name": (c_char_p, [c_void_p]),
    "rails_device_blocks": (c_char_p, [c_void_p]),
    "rails_device_staged": (c_char_p, [c_void_p]),
    "rails_device_address": (c_uint64, [c_void_p]),
    "rails_device_free": (None, [c_void_p]),
    "rails_group_node": (c_char_p, [c_void_p, c_uint32]),
    "rails_group_free": (None, [c_void_p]),
    "rails_prepared_free": (None, [c_void_p]),
    "rails_job_free": (None, [c_void_p]),
}


def _raise_error(result: Any, _function: Any, arguments: Any) -> None:
    """Raises what a call has returned. Neither the error nor its traceback keeps a handle, which `close()` could not free."""
    del arguments
    if not result:
        return
    error = ctypes.cast(result, POINTER(Error)).contents
    what = (error.code, error.text.decode(errors="replace"), error.node.decode(errors="replace") if error.node else None,
            error.ranks[:error.rank_count])
    lib.rails_error_free(result)
    raise errors.make(*what)


def _load() -> ctypes.CDLL:
    """Loads the library that RAILS_LIBRARY names, or that lies in this folder, or the system's."""
    beside = Path(__file__).parent / "librails.so"
    name = os.environ.get("RAILS_LIBRARY") or (str(beside) if beside.exists() else SONAME)
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"the library of railsd cannot be loaded: {error}; install the package librailsd-client, or set "
                          "RAILS_LIBRARY to the path of librails.so") from error
    for call, arguments in _CALLS.items():
        function = getattr(library, call)
        function.restype, function.argtypes, function.errcheck = c_void_p, arguments, _raise_error
    for call, (result, arguments) in _OTHERS.items():
        function = getattr(library, call)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()


def version() -> str:
    """Version of the loaded library."""
    return str(lib.rails_version().decode())


class Handle(c_void_p):
    """A handle of the library: NULL until the call that makes it has filled it. The last reference frees it, and every call
    that uses it holds one: no thread frees what another one uses. If a structure has its `value`, keep this object until the
    call has returned."""

    __slots__ = ("free",)

    def __init__(self, free: Callable[[Handle], None]):
        self.free = free

    def __del__(self) -> None:
        if self.value:
            self.free(self)


@functools.lru_cache(maxsize=64)
def nanoseconds(seconds: float | None, name: str = "timeout") -> int:
    """A time limit for the library. None: 0, its default."""
    if seconds is None:
        return 0
    if not seconds >= 0:
        raise errors.InvalidArgumentError(f"{name} is {seconds}; it must not be negative")
    return FOREVER if math.isinf(seconds) else min(max(round(seconds * 1e9), 1), FOREVER - 1)


def interruptible(call: Callable[[], _Result]) -> _Result:
    """Makes a call that may wait for long. Ctrl-C interrupts it: only the main thread sees signals, and waits here for
    another one. A call that was interrupted ends by its time limit, and frees what it has made."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: Future[_Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # the main thread raises it
            outcome.set_exception(error)
    threading.Thread(target=run, name="rails-call", daemon=True).start()
    return outcome.result()
