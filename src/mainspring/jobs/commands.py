"""Requests to an engine: commands for single jobs, and arrangements of schedules, queues, limits and tokens."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler
from mainspring.jobs.records import Direction
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.status import JobStatus
from mainspring.security.tokens import TokenRecord


class CancelJob(Struct, frozen=True, gc=False):
    """Cancel a PENDING job, or ask a RUNNING job to stop."""

    id: str


class Reschedule(Struct, frozen=True, gc=False):
    """Change the due time of a PENDING job, also of one that waits for a retry."""

    id: str
    due: int
    headers: dict[str, str] | None = None
    """The headers with a new signature; None if the stored ones stay."""


class Reopen(Struct, frozen=True, gc=False):
    """Run a dead letter again as the same job, with its counters of failed attempts set to zero."""

    id: str
    due: int
    headers: dict[str, str] | None = None
    """The headers with a new signature; None if the stored ones stay."""


class Replay(Struct, frozen=True, gc=False):
    """Submit a copy of a dead letter as a new job, and link both jobs. A dead letter is replayed only once."""

    id: str
    new_id: str
    due: int
    payload: bytes | None = None
    """The changed arguments of the new job, encoded; None for those of the dead letter."""
    codec: str | None = None
    search: tuple[str, ...] = ()
    """The search keys of the changed arguments; without a `payload`, those of the dead letter apply."""
    headers: dict[str, str] | None = None
    """The headers of the new job, with its signature; None for those of the dead letter."""


class Edit(Struct, frozen=True, gc=False):
    """Change the arguments of a dead letter."""

    id: str
    payload: bytes
    codec: str
    search: tuple[str, ...] = ()
    """The search keys of the changed arguments."""
    headers: dict[str, str] | None = None
    """The headers with a new signature; None if the stored ones stay."""


class Delete(Struct, frozen=True, gc=False):
    """Delete a job that has ended. The engine refuses it for other jobs."""

    id: str
    status: JobStatus | None = None
    """Delete the job only if it has this status; None for any status of ended jobs."""


class ChangeLimits(Struct, frozen=True, gc=False):
    """Replace the limits of a PENDING job by `limits`, names of limits with their keys (buckets)."""

    id: str
    limits: tuple[str, ...]


Command: TypeAlias = CancelJob | Reschedule | Reopen | Replay | Edit | Delete | ChangeLimits


class Changed(Struct, frozen=True, gc=False):
    """The answer of an engine to a command: whether it was carried out, and the status of the job before."""

    is_done: bool
    status: JobStatus | None
    """The status of the job before the command; None if there is no such job."""
    note: str | None = None
    """For a refused reopen or replay: the id of the job that replays the dead letter or holds its unique key."""
    is_unique_conflict: bool = False
    """Whether the command was refused because another job, `note`, holds the unique key."""


class PutSchedule(Struct, frozen=True, gc=False):
    """Store a schedule, unless the stored schedule of this name has changed since the caller read it."""

    record: ScheduleRecord
    expected: int | None
    """The revision that the stored schedule must have; None if no schedule of this name may be stored yet."""


class PauseSchedule(Struct, frozen=True, gc=False):
    """Pause a schedule, or resume it at its next occurrence."""

    name: str
    is_paused: bool
    next_due: int | None
    """The next occurrence of a schedule that is resumed; None for a pause, or if the schedule has ended."""
    expected: int | None = None
    """Change the schedule only if it still has this revision; None for any revision."""


class RemoveSchedule(Struct, frozen=True, gc=False):
    """Delete a schedule. The jobs that it has made stay."""

    name: str
    expected: int | None = None
    """Delete the schedule only if it still has this revision; None for any revision."""


class PauseQueue(Struct, frozen=True, gc=False):
    """Pause a queue, so that no more of its jobs start, or resume it."""

    queue: str
    is_paused: bool


class PutLimit(Struct, frozen=True, gc=False):
    """Store the limit `family`: for each key, at most `most` jobs at once, or `most` starts within `per`."""

    family: str
    most: int
    per: int | None
    """The period of a rate limit in microseconds; None for a concurrency limit."""
    by: tuple[str, ...] = ()
    """The parameters whose values are the key by which a job is counted.

    A worker compares them with its code to detect a change.
    """


class DropLimit(Struct, frozen=True, gc=False):
    """Delete the limit with the name `family`, so that it refuses no jobs any more."""

    family: str


class PutDeadLetterHandler(Struct, frozen=True, gc=False):
    """Store a dead-letter handler. From then on, each job that is given up makes a job of this handler."""

    handler: DeadLetterHandler


class DropDeadLetterHandler(Struct, frozen=True, gc=False):
    """Delete a dead-letter handler. The jobs that were made for it stay."""

    type: str


class PutRedaction(Struct, frozen=True, gc=False):
    """Redact parameters of a job type, besides those that are redacted already: see `redaction`."""

    type: str
    parameters: tuple[str, ...]


class DropRedaction(Struct, frozen=True, gc=False):
    """Delete the stored redaction of a job type, so that the arguments of its jobs are shown again."""

    type: str


class PutToken(Struct, frozen=True, gc=False):
    """Store a new token, and delete tokens that ended long ago. A token with the same id is not replaced."""

    record: TokenRecord


class RevokeToken(Struct, frozen=True, gc=False):
    """Revoke a token for ever, from the instant `at`."""

    id: str
    at: int


class NoteTokenUses(Struct, frozen=True, gc=False):
    """Store when tokens were last used, by id. An earlier instant than the stored one changes nothing."""

    uses: dict[str, int]


class ChangeCallbackPause(Struct, frozen=True, gc=False):
    """Replace the record `before` of a paused receiver of callbacks by `after`, unless it has changed since.

    `before` is None if the receiver has no record yet, and `after` is None to delete it.
    """

    before: CallbackPauseRecord | None
    after: CallbackPauseRecord | None


class DirectWorker(Struct, frozen=True, gc=False):
    """Ask a remote worker to run, to be quiet or to terminate."""

    number: int
    direction: Direction


class RemoveWorker(Struct, frozen=True, gc=False):
    """Remove a worker: it loses its leases, and the next sweep of any process lets its jobs run elsewhere.

    The jobs of a remote worker are interrupted: no attempt is used up, and no crash is counted. Another worker is
    declared dead. If it lives, it enrolls again under another number.
    """

    number: int
    reason: str
    """Why, as the end of a sentence about the worker: `was removed by an operator`."""


TokenArrangement: TypeAlias = PutToken | RevokeToken | NoteTokenUses
"""A change of the tokens of HTTP clients. Workers need not be told."""

Arrangement: TypeAlias = (
    PutSchedule
    | PauseSchedule
    | RemoveSchedule
    | PauseQueue
    | PutLimit
    | DropLimit
    | PutDeadLetterHandler
    | DropDeadLetterHandler
    | PutRedaction
    | DropRedaction
    | ChangeCallbackPause
    | DirectWorker
    | RemoveWorker
    | TokenArrangement
)
