"""Describes to the middleware how attempts ended, and gives the headers that it sets to follow-up jobs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mainspring.jobs.middleware import AttemptEnd, Middlewares
from mainspring.jobs.processes.messages import ChildAnswer, full_name
from mainspring.jobs.records import STATUS_AFTER, AttemptOutcome, Outcome, OutcomeKind
from mainspring.jobs.timestamps import to_datetime
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.outcomes import RemoteError

BUILTIN = "builtins."


def announce_ends(
    middlewares: Middlewares,
    jobs: Sequence[LeasedJob],
    outcomes: Sequence[Outcome],
    answers: Sequence[ChildAnswer] = (),
) -> None:
    """Tell the middleware how the attempts of these jobs ended, and apply the headers it sets to follow-up jobs.

    `answers` are those of a child process, or of a handler with `redact=`, one for each job; else empty.
    """
    errors: list[BaseException | None] = [RemoteError(answer) for answer in answers]
    errors = errors or [job.error for job in jobs]
    ends = [_end_of(*parts) for parts in zip(jobs, outcomes, errors, strict=True)]
    middlewares.attempted(ends)
    for outcome, end in zip(outcomes, ends, strict=True):
        if outcome.follow_up is not None and end.follow_up_headers != (outcome.follow_up.headers or {}):
            outcome.follow_up = replace(outcome.follow_up, headers=end.follow_up_headers or None)


def _end_of(job: LeasedJob, outcome: Outcome, error: BaseException | None) -> AttemptEnd:
    name = outcome.name
    is_failure = outcome.kind in (OutcomeKind.RETRY, OutcomeKind.FAILED)
    status = STATUS_AFTER[outcome.kind]
    if job.has_ended:  # a shutdown has interrupted the job, and its outcome is that of the shutdown
        name, status, is_failure = "interrupted", STATUS_AFTER[OutcomeKind.INTERRUPTED], False
    follow_up = outcome.follow_up
    return AttemptEnd(
        job.context,
        name,
        status,
        error=error if is_failure else None,
        error_type=_name_of(error, name) if is_failure else None,
        error_text=outcome.error if is_failure else None,
        due=None if outcome.due is None else to_datetime(outcome.due),
        follow_up_headers=None if follow_up is None else dict(follow_up.headers or {}),
    )


def _name_of(error: BaseException | None, outcome: AttemptOutcome) -> str:
    """Return the name of the class of an exception, without `builtins.`; the outcome if there is no exception."""
    if isinstance(error, RemoteError):
        name = error.answer.class_names[0] if error.answer.class_names else outcome
    else:
        name = outcome if error is None else full_name(type(error))
    return name.removeprefix(BUILTIN)
