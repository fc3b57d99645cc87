"""What users and operators ask of an engine: commands on single jobs, and arrangements for all of them."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.status import JobStatus


class Cancel(Struct, frozen=True, gc=False):
    """Call a job off."""

    id: str


class Reschedule(Struct, frozen=True, gc=False):
    """Give a job that has not started another due time."""

    id: str
    due: int


class Reopen(Struct, frozen=True, gc=False):
    """Let a dead letter run again, as the same job, with its attempts forgotten."""

    id: str
    due: int


class Replay(Struct, frozen=True, gc=False):
    """Submit a copy of a dead letter and link the two; a letter is replayed once."""

    id: str
    new_id: str
    due: int
    payload: bytes | None = None
    """Other arguments; None for the same."""
    codec: str | None = None


class Edit(Struct, frozen=True, gc=False):
    """Give a dead letter other arguments."""

    id: str
    payload: bytes
    codec: str


class Delete(Struct, frozen=True, gc=False):
    """Forget a job that has ended."""

    id: str
    status: JobStatus | None = None
    """Only if it ended like this."""


class Regroup(Struct, frozen=True, gc=False):
    """Put a job that has not started under other limits."""

    id: str
    limits: tuple[str, ...]


Command: TypeAlias = Cancel | Reschedule | Reopen | Replay | Edit | Delete | Regroup


class Changed(Struct, frozen=True, gc=False):
    """The answer to a command: whether it was carried out, and the state of the job before it."""

    is_done: bool
    status: JobStatus | None
    """None: there is no such job."""
    note: str | None = None
    """For a reopen or replay that was refused: the job that it was replayed as, or that holds its unique key."""
    is_unique_conflict: bool = False
    """Whether the note names the holder of its unique key."""


class PutSchedule(Struct, frozen=True, gc=False):
    """Store a schedule, if it is still at the revision that its author has seen; None: if there is none."""

    record: ScheduleRecord
    expected: int | None


class PauseSchedule(Struct, frozen=True, gc=False):
    """Let a schedule rest, or wake it up at its next occurrence."""

    name: str
    is_paused: bool
    next_due: int | None
    """For a schedule that is woken up."""
    expected: int | None = None
    """Only if it is still at this revision."""


class RemoveSchedule(Struct, frozen=True, gc=False):
    """Forget a schedule; jobs that it has made stay."""

    name: str


class PauseQueue(Struct, frozen=True, gc=False):
    """Let no more jobs of a queue start, or let them start again."""

    queue: str
    is_paused: bool


class PutLimit(Struct, frozen=True, gc=False):
    """Define a family of limits, for every bucket in it: so many at once, or so many per time."""

    family: str
    most: int
    per: int | None
    """Microseconds; None: at once."""
    by: tuple[str, ...] = ()
    """The parameters that make the key of a bucket: kept for those who want to know whether they changed."""


class DropLimit(Struct, frozen=True, gc=False):
    """Forget a family of limits: its buckets admit everything."""

    family: str


Arrangement: TypeAlias = PutSchedule | PauseSchedule | RemoveSchedule | PauseQueue | PutLimit | DropLimit
