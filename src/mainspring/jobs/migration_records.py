"""Records of a migration to another store: waiting jobs, dead letters, schedules and settings.

The jobs keep their order of submission. COMPLETED, CANCELED and replayed jobs are not moved.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from mainspring.jobs.commands import PutLimit, PutRedaction
from mainspring.jobs.records import JobRecord
from mainspring.jobs.recurrence.schedule_records import Occurrence, ScheduleRecord
from mainspring.security.tokens import TokenRecord

TAKEN = "another one is there, which was not overwritten"
MISSING = "is missing there"
CHANGED = "was changed there meanwhile"


class MigrationStage(StrEnum):
    """The stage of a migration, as the target store records it."""

    MOVING = "moving"
    COMPLETE = "complete"
    IN_REVIEW = "in review"
    """All jobs are moved, and a check runs whether the migration can be undone."""
    UNDOING = "undoing"


class MigratedJob(Struct, frozen=True, gc=False):
    """A waiting job or a dead letter, as a migration passes it to the target store."""

    place: int
    """The place of the job in the order of submission in the source store."""
    turn: int
    """The due time that decides the place of the job in its sequence. A retry does not change it."""
    record: JobRecord
    search: tuple[str, ...] = ()
    """The search keys of the job: see `NewJob.search`."""


class MigratedSchedule(Struct, frozen=True):
    """A schedule as a migration passes it to the target store, with its unfinished jobs and skipped
    occurrences.
    """

    record: ScheduleRecord
    alive: tuple[str, ...]
    """The ids of the schedule's jobs that have not ended, the oldest first."""
    left_out: tuple[Occurrence, ...]
    """The occurrences for which no job was made, the oldest first."""


class MigratedSettings(Struct, frozen=True):
    """Paused queues, limits, tokens and redacted parameters, as a migration passes them to the target store."""

    paused: tuple[str, ...]
    limits: tuple[PutLimit, ...]
    rates: dict[str, int]
    """For each rate limit and key (bucket): the instant at which all its tokens are available again."""
    http_tokens: tuple[TokenRecord, ...] = ()
    """The tokens of HTTP servers."""
    redactions: tuple[PutRedaction, ...] = ()
    """The redacted parameters of job types."""


class MigrationDifference(Struct, frozen=True, gc=False):
    """A difference between the source store and the target store that a check of a migration has found."""

    what: str
    """What differs: `job`, `schedule`, `limit`, `queue`, `token`, `redaction`, `envelope`."""
    name: str
    problem: str
