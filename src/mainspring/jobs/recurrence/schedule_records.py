"""What an engine keeps of a schedule: its rule and policies, its next occurrence, what became of earlier ones."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from mainspring.jobs.records import FollowUp, NewJob


class Overlap(StrEnum):
    """What happens when an occurrence comes while a job of an earlier one has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    """It runs after the earlier one."""
    REPLACE = "replace"
    """The earlier one is called off, or asked to stop; the new one runs after it."""
    ALLOW = "allow"


class ScheduleRecord(Struct, frozen=True):
    """A schedule as the store has it."""

    name: str
    type: str
    queue: str
    priority: int
    payload: bytes
    codec: str
    rule: str
    """JSON: see `recurrence.rules`."""
    misfire: str
    """`skip`, `once`, or `all`."""
    catch_up: int
    """For `all`: how many missed occurrences are made up for."""
    overlap: Overlap
    jitter: int
    start: int | None
    end: int | None
    expires: int | None
    limits: tuple[str, ...]
    next_due: int | None
    """The next occurrence; None: there is none any more."""
    last_due: int | None = None
    """The last occurrence that was decided about."""
    is_paused: bool = False
    revision: int = 0
    """Grows with every change of its definition."""
    created: int = 0
    steps_aside: bool = False
    follow_up: FollowUp | None = None

    def has_definition_of(self, other: ScheduleRecord) -> bool:
        """Answer whether both mean the same, apart from where they are in time."""
        return self.definition == other.definition

    @property
    def definition(self) -> tuple[object, ...]:
        """What its author has said."""
        return (
            self.type,
            self.queue,
            self.priority,
            self.payload,
            self.codec,
            self.rule,
            self.misfire,
            self.catch_up,
            self.overlap,
            self.jitter,
            self.start,
            self.end,
            self.expires,
            self.limits,
            self.steps_aside,
            self.follow_up,
        )


class OccurrenceKind(StrEnum):
    """What became of an occurrence for which no job was made."""

    SKIPPED = "skipped"
    """Left out by policy: too late, or the earlier one had not ended."""
    COALESCED = "coalesced"
    """Several that were missed became one job."""
    MISSED = "missed"
    """More were missed than were to be made up for."""


class Occurrence(Struct, frozen=True, gc=False):
    """A record of occurrences for which no job was made: one, or several in a row."""

    due: int
    """The first."""
    until: int
    """The last."""
    count: int
    kind: OccurrenceKind
    note: str
    decided: int


class Firing(Struct, frozen=True):
    """A decision about the occurrences of a schedule that are due: valid only if nobody was quicker."""

    schedule: str
    revision: int
    expected: int
    """The next occurrence as its author has seen it."""
    next_due: int | None
    last_due: int
    jobs: tuple[NewJob, ...]
    overlap: Overlap
    records: tuple[Occurrence, ...]


class Fired(Struct, frozen=True, gc=False):
    """The answer to a firing."""

    is_done: bool
    submitted: tuple[str, ...] = ()
    skipped_for: str | None = None
    """The job that had not ended."""
