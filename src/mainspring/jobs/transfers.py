"""Records for a move to another store: waiting jobs, dead letters, schedules and settings.

Jobs keep their places in line. A move leaves out all other jobs that have ended.
"""

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
    """The stage of a move, as the target store records it."""

    MOVING = "moving"
    COMPLETE = "complete"
    IN_REVIEW = "in review"
    """The move is complete, and a check runs whether it can be undone."""
    UNDOING = "undoing"


class TravellingJob(Struct, frozen=True, gc=False):
    """A waiting job or a dead letter that is moved."""

    place: int
    """Its place in the order of submission in the source store."""
    turn: int
    """The due time that decides its place in its sequence. A retry keeps the first one."""
    record: JobRecord


class TravellingSchedule(Struct, frozen=True):
    """A schedule that is moved, with its jobs and its occurrences without a job."""

    record: ScheduleRecord
    alive: tuple[str, ...]
    """The ids of its jobs that have not ended, the oldest first."""
    left_out: tuple[Occurrence, ...]
    """The occurrences for which no job was made, the oldest first."""


class TravellingSettings(Struct, frozen=True):
    """The settings of queues and limits that are moved."""

    paused: tuple[str, ...]
    limits: tuple[PutLimit, ...]
    rates: dict[str, int]
    """For each bucket of a rate: the instant at which all tokens are available again."""


class Deviation(Struct, frozen=True, gc=False):
    """A difference between the source store and the target store."""

    what: str
    """`job`, `schedule`, `limit` or `queue`."""
    name: str
    problem: str
