"""The Python client of railsd: memory that the daemon shares, groups of ranks, asynchronous all-to-all(v) jobs.

    import numpy as np
    import rails

    with rails.connect() as client, client.join("moe", rank=3, world_size=16) as group:
        send = client.empty((tokens, hidden), np.float32)
        receive = client.empty((capacity, hidden), np.float32)
        work = group.all_to_all_v(send, send_counts, receive, receive_counts)  # counts are rows, by rank
        report = work.wait(timeout=60)                                         # or: report = await work

Memory. `Client.empty()` returns a NumPy array in memory that the daemon maps: what is in it is sent from there and
received there. `torch.from_dlpack()` makes a tensor of it without a copy. Its views, slices and tensors may be given to
every call that takes memory; the memory lives as long as one of them.

GPUs. A group that is joined with a `Client.open_device()` also takes arrays of that GPU, of CuPy, Numba, torch or
`Device.empty()`, and its jobs are ordered with streams.

Units. Times are seconds. Counts are rows: entries of the array's first axis. A row of a one-dimensional array is one
element, and of one of bytes one byte. Lengths in reports are bytes.

Errors. Every failure of the daemon or the library is a `RailsError` of a subclass by kind. `UnavailableError` also is a
ConnectionError, `DeadlineExceededError` a TimeoutError, `InvalidArgumentError` a ValueError, and so on.

Threads. Every object may be used from any thread. Calls that wait release the interpreter. Ctrl-C interrupts connecting,
joining and waiting for a job in the main thread; other calls end by their own time limits.

Processes. Objects belong to the process that made them. In a forked child they raise FailedPreconditionError at once,
their memory is shared with the parent, and the child may `connect()` anew. Clients are closed when the interpreter exits.
"""

from rails._library import version
from rails.buffer import Buffer
from rails.client import Client, connect
from rails.device import Device, DeviceArray
from rails.errors import (AbortedError, AlreadyExistsError, CancelledError, Code, DeadlineExceededError,
                          FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError, RailsError,
                          ResourceExhaustedError, UnavailableError, UnfinishedError)
from rails.group import Group, Prepared, Rows
from rails.work import Report, Work

__version__ = version()

__all__ = ["AbortedError", "AlreadyExistsError", "Buffer", "CancelledError", "Client", "Code", "DeadlineExceededError",
           "Device", "DeviceArray", "FailedPreconditionError", "Group", "InvalidArgumentError", "NotFoundError", "PermissionDeniedError", "Prepared",
           "RailsError", "Report", "ResourceExhaustedError", "Rows", "UnavailableError", "UnfinishedError", "Work", "connect"]
