"""What a worker and its child processes say to each other: msgspec structs as msgpack, never pickle.

A child gets one request at a time, and both ends count them from 1: that number is how `Stop` names one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.jobs.handlers import Handler
from mainspring.jobs.processes.locating import MAIN, locate
from mainspring.jobs.records import Lease


class Request(Struct, frozen=True, array_like=True):
    """Run this handler for these jobs: one, or several for a batch handler."""

    handler: str
    module: str
    qualname: str
    leases: list[Lease]
    is_batch: bool
    keep_result: bool
    max_result: int

    @classmethod
    def of(
        cls,
        handler: Handler,
        leases: list[Lease],
        *,
        max_result: int,
        keep_result: bool = True,
        is_batch: bool = False,
    ) -> Request:
        """Ask for a registered handler; where it is found comes from the registry, never from the store."""
        module, qualname = handler.place or locate(handler.function)
        bare = [replace(lease, ref=None, follow_up=None) for lease in leases]  # what only the engine understands
        return cls(handler.name, module, qualname, bare, is_batch, keep_result, max_result)


class Stop(Struct, frozen=True, array_like=True):
    """Word for the handler of the request of this number, seen as `current_job().cancelled` or `.stopping`."""

    number: int
    is_shutdown: bool


class Ready(Struct, frozen=True, array_like=True, tag=0):
    """The child has started and waits for requests."""


class Started(Struct, frozen=True, array_like=True, tag=1):
    """The handler begins now: from here on, a death is a crash of this job."""


class Note(Struct, frozen=True, array_like=True, tag=2):
    """How far the handler has come."""

    done: float
    total: float | None
    note: str | None
    place: int = 0
    """With which job of a batch."""


class AnswerKind(StrEnum):
    """How the handler ended for one job."""

    COMPLETED = "completed"
    SNOOZED = "snoozed"
    CANCELED = "canceled"
    RETRY_LATER = "retry later"
    FAILED = "failed"
    HOPELESS = "hopeless"
    """Failed, and running it again would not help: its result cannot be stored."""


class Answer(Struct, frozen=True, array_like=True):
    """How the handler ended for one job. What follows from it is decided by the worker."""

    kind: AnswerKind
    result: bytes | None = None
    error: str | None = None
    delay: int = 0
    """In microseconds, for SNOOZED and RETRY_LATER."""
    lineage: tuple[str, ...] = ()
    """The class of the error and its bases, by name: classes themselves do not travel."""

    def is_one_of(self, classes: tuple[type[BaseException], ...]) -> bool:
        """Answer whether the error was an instance of one of these, such as `retry.give_up_on`."""
        return any(full_name(kind) in self.lineage for kind in classes)


class Reply(Struct, frozen=True, array_like=True, tag=3):
    """An answer for each job of the request, and how large the child is after it."""

    answers: list[Answer]
    memory: int


FromChild: TypeAlias = Ready | Started | Note | Reply

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_stop = msgspec.msgpack.Decoder(Stop).decode
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)
decode_from_child = _from_child.decode


def full_name(kind: type) -> str:
    """Name a class so that both ends agree: a script is `__main__` here and `__mp_main__` in a child."""
    module = MAIN[0] if kind.__module__ in MAIN else kind.__module__
    return f"{module}.{kind.__qualname__}"
