"""The jobs that tell an application of its dead letters: `@app.on_dead_letter`.

An engine stores them in the transaction that gives a job up, so that no dead letter is missed. Each has a snapshot
of the dead letter as its argument.

Invariants
- The jobs of dead-letter handlers make no such jobs, so that a handler that fails does not cause a loop. The same
  holds for jobs that follow them or that they submit. These inherit their headers, and so the header `MARK`.
- The snapshot has no arguments and no history, so that it is small enough for every store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from mainspring.jobs.job_policies import inheritable
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import FollowUp, JobRecord, NewJob
from mainspring.jobs.serializers import JsonSerializer
from mainspring.jobs.timestamps import LAST_INSTANT, to_datetime

MARK = "mainspring-dead-letter"
"""The header of the jobs of dead-letter handlers, and of jobs that result from them: the id of the dead letter."""

_encode = msgspec.json.Encoder().encode


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A snapshot of a job when it became a dead letter, for a handler of `@app.on_dead_letter`.

    `app.get(letter.id)` returns everything about the job, with its arguments and its history.
    """

    id: str
    type: str
    queue: str
    error: str
    """Why the job became a dead letter: a description in the first line, a traceback below."""
    created: datetime
    due: datetime
    finished: datetime
    starts: int
    failures: int
    timeouts: int
    crashes: int
    interruptions: int
    headers: dict[str, str]
    origin: str | None = None
    """The id of the earlier dead letter that this job replayed; None if it was no replay."""
    schedule: str | None = None
    """The name of the schedule that made the job; None if a submit made it."""

    @property
    def reason(self) -> str:
        """The first line of `error`, without the traceback."""
        return self.error.partition("\n")[0]


class DeadLetterHandler(Struct, frozen=True):
    """A stored dead-letter handler: the plan by which an engine makes a job of it for each dead letter."""

    plan: FollowUp
    aliases: tuple[str, ...] = ()
    """Earlier names of the handler."""
    passes_id: bool = False
    """Whether its argument is the id of the dead letter instead of a `DeadLetter`."""
    signature: str | None = None
    """The signature of the other fields; None if the handler is not signed. See `signing`."""

    @property
    def type(self) -> str:
        """The job type of the handler."""
        return self.plan.type


SignLetter: TypeAlias = Callable[[DeadLetterHandler, NewJob], NewJob]
"""A function that signs the job of a dead-letter handler: see `signing`."""


def letter_of(job: JobRecord) -> DeadLetter:
    """Return the snapshot of a dead letter for the jobs of dead-letter handlers."""
    return DeadLetter(
        id=job.id,
        type=job.type,
        queue=job.queue,
        error=job.error or "",
        created=to_datetime(job.created),
        due=to_datetime(job.due),
        finished=to_datetime(job.finished or job.due),
        starts=job.starts,
        failures=job.failures,
        timeouts=job.timeouts,
        crashes=job.crashes,
        interruptions=job.interruptions,
        headers=job.headers or {},
        origin=job.origin,
        schedule=job.schedule,
    )


def letter_jobs(
    letters: Iterable[DeadLetter],
    handlers: Iterable[DeadLetterHandler],
    now: int,
    new_id: Callable[[], str],
    sign: SignLetter | None = None,
    *,
    latest: int | None = None,
) -> list[NewJob]:
    """Return a job for each dead letter and each dead-letter handler, signed by `sign`.

    A delay begins at `latest`, or at `now` without it.

    A job of such a handler that becomes a dead letter itself gets none, nor does a job that results from one, so
    that there is no loop. The header `MARK` shows which jobs these are.
    """
    all_handlers = tuple(handlers)
    own = {name for handler in all_handlers for name in (handler.type, *handler.aliases)}
    pairs = [
        (handler, _job(letter, handler, latest if latest is not None and handler.plan.delay else now, new_id()))
        for letter in letters
        if letter.type not in own and MARK not in letter.headers
        for handler in all_handlers
    ]
    return [job if sign is None else sign(handler, job) for handler, job in pairs]


def _job(letter: DeadLetter, handler: DeadLetterHandler, now: int, job_id: str) -> NewJob:
    plan = handler.plan
    due = min(LAST_INSTANT, now + plan.delay)
    arguments: dict[str, Any] = {}
    if plan.argument is not None:
        arguments[plan.argument] = letter.id if handler.passes_id else letter
    return NewJob(
        job_id,
        plan.type,
        plan.queue,
        plan.priority,
        due,
        _encode(arguments),
        JsonSerializer.name,
        sequence=plan.sequence,
        steps_aside=plan.steps_aside,
        limits=tuple(bucket_of(family) for family, _ in plan.limits),
        expires=None if plan.expires is None else min(LAST_INSTANT, due + plan.expires),
        headers={**inheritable(letter.headers), MARK: letter.id},
        follow_up=plan.follow_up,
    )
