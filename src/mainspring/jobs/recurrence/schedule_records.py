"""Records of schedules, firings and occurrences: the structs that engines store and exchange with workers."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from mainspring.jobs.records import FollowUp, NewJob


class Overlap(StrEnum):
    """The policy for an occurrence that is due while the job of an earlier one has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    """The new job runs after the earlier one."""
    REPLACE = "replace"
    """The earlier job is canceled, or asked to stop; the new job runs after it."""
    ALLOW = "allow"


class ScheduleRecord(Struct, frozen=True, gc=False):
    """A schedule as it is stored: its definition and its state."""

    name: str
    type: str
    queue: str
    priority: int
    payload: bytes
    codec: str
    rule: str
    """The rule of the schedule as JSON: see `recurrence.rules`."""
    misfire: str
    """Which missed occurrences get a job: none (`skip`), one for all (`once`), or each (`all`, up to
    `catch_up`).
    """
    catch_up: int
    """For `all`: the largest number of missed occurrences that get a job."""
    overlap: Overlap
    jitter: int
    start: int | None
    end: int | None
    expires: int | None
    limits: tuple[str, ...]
    next_due: int | None
    """The next occurrence; None if the schedule has ended."""
    last_due: int | None = None
    """The last occurrence that was handled: it got a job, or was left out."""
    is_paused: bool = False
    revision: int = 0
    """A number that grows each time `PutSchedule` changes the schedule. Pauses and firings do not change it."""
    created: int = 0
    steps_aside: bool = False
    follow_up: FollowUp | None = None
    is_declared: bool | None = None
    """Whether a decorator in the code declared the schedule; None if version 0.1 stored it.

    It is not part of the definition.
    """
    signature: str | None = None
    """The signature of the name and the definition; None if the schedule is not signed. See `signing`."""
    maker: str | None = None
    """The caller of the HTTP server that has stored the definition: see `Identity.caller`.

    None if a program or the command line has stored it. It is not part of the definition.
    """

    def has_definition_of(self, other: ScheduleRecord) -> bool:
        """Return whether two records have the same definition. Their next occurrences may differ."""
        return self.definition == other.definition

    @property
    def definition(self) -> tuple[object, ...]:
        """The fields that the author of the schedule chose, without its state."""
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
    """Why no job was made for an occurrence."""

    SKIPPED = "skipped"
    """A policy left the occurrence out: it was too late, or the job of an earlier one had not ended."""
    COALESCED = "coalesced"
    """The job of a later occurrence stands for this one, too."""
    MISSED = "missed"
    """The misfire policy runs only the latest missed occurrences, and this one was earlier."""


class Occurrence(Struct, frozen=True, gc=False):
    """A record of one or more successive occurrences for which no job was made."""

    due: int
    """The first of the successive occurrences."""
    until: int
    """The last of the successive occurrences."""
    count: int
    kind: OccurrenceKind
    note: str
    decided: int


class Firing(Struct, frozen=True, gc=False):
    """The decision of a worker about the due occurrences of a schedule: which get jobs, and what comes next.

    The engine refuses it if the schedule has changed since it was read.
    """

    schedule: str
    revision: int
    expected: int | None
    """The next occurrence when the schedule was read. The engine refuses the firing if it has changed.

    None for a trigger: a job by hand, beside the occurrences. The engine stores its job also for a paused or ended
    schedule, and advances nothing.
    """
    next_due: int | None
    last_due: int | None
    jobs: tuple[NewJob, ...]
    overlap: Overlap
    records: tuple[Occurrence, ...]


class Fired(Struct, frozen=True, gc=False):
    """The answer of an engine to a firing: whether it was accepted, and the jobs that it stored."""

    is_done: bool
    submitted: tuple[str, ...] = ()
    skipped_for: str | None = None
    """The id of an earlier job that had not ended, so that no job was made; None if that was not so."""
