"""What travels when jobs move from one store to another: everything that is not over, and how it stood in line."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from mainspring.jobs.commands import PutLimit
from mainspring.jobs.records import JobRecord
from mainspring.jobs.recurrence.schedule_records import Occurrence, ScheduleRecord

TAKEN = "another one is there, which was not overwritten"
MISSING = "is missing there"
CHANGED = "was changed there meanwhile"


class Stage(StrEnum):
    """How far a move has come, as the store says to which jobs are moved."""

    MOVING = "moving"
    COMPLETE = "complete"
    IN_REVIEW = "in review"
    """It is complete, and somebody looks whether it can be taken back."""
    UNDOING = "undoing"


class TravellingJob(Struct, frozen=True, gc=False):
    """A job that waits, or a dead letter."""

    place: int
    """In the order of submission, in the store that it leaves."""
    turn: int
    """With which due time it stands in its sequence: a retry keeps its first one."""
    record: JobRecord


class TravellingSchedule(Struct, frozen=True):
    """A schedule, and what is known of its occurrences."""

    record: ScheduleRecord
    alive: tuple[str, ...]
    """Its jobs that have not ended, the oldest first."""
    left_out: tuple[Occurrence, ...]
    """The occurrences for which no job was made, the oldest first."""


class TravellingSettings(Struct, frozen=True):
    """What holds for all jobs."""

    paused: tuple[str, ...]
    limits: tuple[PutLimit, ...]
    rates: dict[str, int]
    """For buckets of rates: the instant at which all tokens are there again."""


class Deviation(Struct, frozen=True, gc=False):
    """Something that is not in the other store as it was in this one."""

    what: str
    """`job`, `schedule`, `limit` or `queue`."""
    name: str
    problem: str
