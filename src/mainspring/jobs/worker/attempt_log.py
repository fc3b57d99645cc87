"""The log lines of a worker about attempts: a start, an end, a retry, a dead letter, a refused outcome.

Each line names the job, its type, its queue, the attempt and the trace, also as fields for log collectors. A
failure carries the exception (`exc_info`), so that log handlers such as that of Sentry see it. Lateness is the
time from the due time to the start.
"""

from __future__ import annotations

import logging

from mainspring.jobs.context import JobContext
from mainspring.jobs.records import Lease, Outcome
from mainspring.jobs.retry import RetryLater
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime

logger = logging.getLogger("mainspring.worker")


def _brief(outcome: Outcome, error: BaseException | None) -> str:
    """Return the error of an outcome for the log: its first line if the log record carries `error`, else all of
    it.
    """
    text = outcome.error or ""
    return text if error is None else text.partition("\n")[0]


def _exception(error: BaseException | None) -> BaseException | None:
    """Return the exception that a log record carries; None if its traceback says nothing.

    That is so for `Retry.Later`, a request of the handler, and for a failed HTTP callback.
    """
    is_expected = isinstance(error, RetryLater) or not getattr(error, "shows_traceback", True)
    return None if is_expected else error


def log_failure(job: JobContext, outcome: Outcome, error: BaseException | None) -> None:
    """Log that a job failed and is not retried, before the store has the dead letter."""
    lease = outcome.lease
    logger.error(
        "job %s (%s) failed in attempt %d and is given up: %s",
        lease.id,
        lease.type,
        job.attempt,
        _brief(outcome, error),
        extra=job.log_fields,
        exc_info=_exception(error),
    )


def log_dead_letter(outcome: Outcome) -> None:
    """Log that the store has made a job a dead letter."""
    if logger.isEnabledFor(logging.INFO):
        job = JobContext(outcome.lease)
        logger.info("job %s (%s) is a dead letter now", job.id, job.type, extra=job.log_fields)


def log_retry(job: JobContext, outcome: Outcome, now: int, error: BaseException | None) -> None:
    """Log that an attempt failed, and when the job runs again."""
    lease = outcome.lease
    due = now if outcome.due is None else outcome.due
    logger.warning(
        "job %s (%s) failed in attempt %d and runs again in %.1f s, at %s: %s",
        lease.id,
        lease.type,
        job.attempt,
        max(0, due - now) / MICROSECONDS,
        f"{to_datetime(due):%Y-%m-%d %H:%M:%S} UTC",
        _brief(outcome, error),
        extra=job.log_fields,
        exc_info=_exception(error),
    )


def log_start(job: JobContext, lease: Lease, began: int) -> None:
    """Log that the handler of a job begins, with the attempt and the lateness, at level DEBUG."""
    logger.debug(
        "job %s (%s) runs: attempt %d, lateness %.3f s",
        lease.id,
        lease.type,
        job.attempt,
        (began - lease.due) / MICROSECONDS,
        extra=job.log_fields,
    )


def log_end(job: JobContext, outcome: Outcome, ended: int) -> None:
    """Log how an attempt ended that did not fail, with its lateness and its duration, at level DEBUG.

    Nothing is logged if the handler did not begin.
    """
    lease, began = outcome.lease, outcome.began
    if began is None:  # the handler did not begin
        return
    logger.debug(
        "job %s (%s) %s: attempt %d, lateness %.3f s, duration %.3f s",
        lease.id,
        lease.type,
        outcome.kind.value,
        job.attempt,
        (began - lease.due) / MICROSECONDS,
        (ended - began) / MICROSECONDS,
        extra=job.log_fields,
    )


def log_result_warning(job: JobContext, outcome: Outcome, *, level: int) -> None:
    """Log that the result of a completed job does not match the return annotation, or changes in the store."""
    lease = outcome.lease
    logger.log(
        level,
        "job %s (%s) completed in attempt %d, but %s",
        lease.id,
        lease.type,
        job.attempt,
        outcome.error,
        extra=job.log_fields,
    )


def log_refusal(outcome: Outcome) -> None:
    """Log that the engine refused an outcome, because this worker no longer has the lease of the job."""
    logger.warning(
        "the outcome of job %s was refused, because this worker no longer has its lease: the job was taken over "
        "by another worker, or was canceled or changed meanwhile",
        outcome.lease.id,
        extra=JobContext(outcome.lease).log_fields,
    )
