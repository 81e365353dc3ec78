"""Errors of the daemon and of the library, by kind."""

from __future__ import annotations

import enum
from typing import Sequence


class Code(enum.IntEnum):
    """Codes of gRPC and Abseil."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RailsError(Exception):
    """A failure of the daemon or of the library.

    Attributes:
        code: its kind.
        text: what failed, on what, with which value, what to do; without the code.
        ranks: the ranks whose failure is the reason: they left, died, did not come in time, or their node was lost. At most
            64. Empty: none, or not known.
        node: the node of all `ranks`. None: they are on several, or it is not known.
    """

    code: Code = Code.UNKNOWN

    def __init__(self, text: str, code: Code | None = None, node: str | None = None, ranks: Sequence[int] = ()):
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = code
        self.node = node
        self.ranks = tuple(ranks)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"


class CancelledError(RailsError):
    """The job was cancelled by a rank, or its client was closed."""

    code = Code.CANCELLED


class InvalidArgumentError(RailsError, ValueError):
    """An argument is wrong; the text names it and its value. Nothing has changed."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceededError(RailsError, TimeoutError):
    """A time limit has passed: that of the job, or that for all ranks to join; the text names missing ranks."""

    code = Code.DEADLINE_EXCEEDED


class UnfinishedError(RailsError, TimeoutError):
    """`Work.wait()` has waited for its `timeout`. The job goes on, and its memory still belongs to the daemon."""

    code = Code.DEADLINE_EXCEEDED


class NotFoundError(RailsError, LookupError):
    """The daemon does not know what the call names."""

    code = Code.NOT_FOUND


class AlreadyExistsError(RailsError):
    """The rank has already joined."""

    code = Code.ALREADY_EXISTS


class PermissionDeniedError(RailsError, PermissionError):
    """This user may not do that."""

    code = Code.PERMISSION_DENIED


class ResourceExhaustedError(RailsError, MemoryError):
    """Memory or a limit of the daemon does not suffice; the text names it."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPreconditionError(RailsError, RuntimeError):
    """The object is not in the right state: the group is over, memory is in use by another job, this is a forked
    child, the client is closed."""

    code = Code.FAILED_PRECONDITION


class AbortedError(RailsError, ConnectionError):
    """The daemon has exited, and with it the job: reconnect the client and join again. Or a rank has left the group."""

    code = Code.ABORTED


class UnavailableError(RailsError, ConnectionError):
    """The daemon or another node cannot be reached."""

    code = Code.UNAVAILABLE


_KINDS = {kind.code: kind for kind in (CancelledError, InvalidArgumentError, DeadlineExceededError, NotFoundError,
                                       AlreadyExistsError, PermissionDeniedError, ResourceExhaustedError,
                                       FailedPreconditionError, AbortedError, UnavailableError)}
_KINDS[Code.OUT_OF_RANGE] = InvalidArgumentError
_KINDS[Code.UNAUTHENTICATED] = PermissionDeniedError


def make(code: int, text: str, node: str | None, ranks: Sequence[int]) -> RailsError:
    """The error of the class for a code."""
    known = Code(code) if code in Code._value2member_map_ else Code.UNKNOWN
    return _KINDS.get(known, RailsError)(text, known, node, ranks)
