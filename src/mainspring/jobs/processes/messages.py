"""Messages between a worker and its child processes: msgspec structs, encoded as msgpack, never as pickle.

A child gets one request at a time. Both sides count the requests from 1, and a `StopMessage` contains the number
of the request that it means.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.jobs.handlers import Handler
from mainspring.jobs.processes.application import ChildSetup, canonical_module
from mainspring.jobs.processes.child_logs import LogNote
from mainspring.jobs.processes.handler_location import locate
from mainspring.jobs.records import Lease


class CallRequest(Struct, frozen=True, array_like=True):
    """A worker's request to a child process to run a handler for one job, or for several jobs of a batch
    handler.
    """

    handler: str
    module: str
    qualname: str
    leases: list[Lease]
    is_batch: bool
    keep_result: bool
    max_result: int
    passed: dict[str, str] | None = None
    """The texts that the middleware in the worker passes to that in the child; None if there is no middleware."""
    redacted: tuple[str, ...] = ()
    """The parameters whose values the child masks in errors."""

    @classmethod
    def of(
        cls,
        handler: Handler,
        leases: list[Lease],
        *,
        max_result: int,
        keep_result: bool = True,
        is_batch: bool = False,
    ) -> CallRequest:
        """Make a request for a registered handler.

        The module of the handler comes from the registry, never from the store.
        """
        module, qualname = handler.place or locate(handler.function)
        bare = [replace(lease, ref=None, follow_up=None) for lease in leases]  # the child needs neither of them
        return cls(
            handler.name, module, qualname, bare, is_batch, keep_result, max_result, redacted=handler.redacted
        )


class StopMessage(Struct, frozen=True, array_like=True):
    """A message of a worker that asks the handler of the request `number` to stop.

    With `is_shutdown`, it only tells the handler that the worker shuts down.
    """

    number: int
    is_shutdown: bool


class ChildReady(Struct, frozen=True, array_like=True, tag=0):
    """A message of a child process: it has started and waits for requests."""


class HandlerStarted(Struct, frozen=True, array_like=True, tag=1):
    """A message of a child process: the handler begins now.

    If the process dies after that, the job has crashed.
    """


class ProgressNote(Struct, frozen=True, array_like=True, tag=2):
    """A message of a child process: the handler has reported this progress of one job."""

    done: float
    total: float | None
    note: str | None
    place: int = 0
    """The index of the job in its batch."""


class AnswerKind(StrEnum):
    """How the handler in a child process ended for one job."""

    COMPLETED = "completed"
    SNOOZED = "snoozed"
    CANCELED = "canceled"
    RETRY_LATER = "retry later"
    FAILED = "failed"
    NOT_RETRYABLE = "not retryable"
    """The attempt failed, and a retry would not help: for example, the result cannot be stored."""


class ChildAnswer(Struct, frozen=True, array_like=True):
    """The message in which a child says how the handler ended for one job.

    The worker decides whether to retry the job.
    """

    kind: AnswerKind
    result: bytes | None = None
    error: str | None = None
    """The error; for COMPLETED, a warning about the result."""
    delay: int = 0
    """The delay in microseconds, for SNOOZED and RETRY_LATER."""
    class_names: tuple[str, ...] = ()
    """The names of the exception's class and of its base classes, because classes cannot be sent."""

    def is_one_of(self, classes: tuple[type[BaseException], ...]) -> bool:
        """Return whether the exception is an instance of one of these classes, such as `retry.give_up_on`."""
        return any(full_name(kind) in self.class_names for kind in classes)


class ChildReply(Struct, frozen=True, array_like=True, tag=3):
    """The reply of a child to a request: an answer for each job, and the memory use of the child in bytes."""

    answers: list[ChildAnswer]
    memory: int


FromChild: TypeAlias = ChildReady | HandlerStarted | ProgressNote | ChildReply | LogNote

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(CallRequest).decode
decode_setup = msgspec.msgpack.Decoder(ChildSetup).decode
decode_stop = msgspec.msgpack.Decoder(StopMessage).decode
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
decode_from_child = _from_child.decode


def full_name(kind: type) -> str:
    """Return the full name of a class, equal in worker and child also for classes of a script (`__main__`)."""
    return f"{canonical_module(kind.__module__)}.{kind.__qualname__}"
