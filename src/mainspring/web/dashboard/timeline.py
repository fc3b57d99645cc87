"""The timeline of a job, from the data in the store: submit, attempts with their causes, and the end.

The store keeps the attempts that failed, timed out, crashed or were interrupted, with their errors. It keeps the
start of the last attempt and the end of the job. The worker of an attempt that completed the job is not kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from mainspring.jobs.status import JobStatus
from mainspring.web.api.job_views import AttemptView, JobView

CAUSES = {
    "failure": "failed",
    "timeout": "timed out",
    "crash": "crashed: its worker or its process died",
    "deploy": "was interrupted by a shutdown",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSection:
    """A part of a stored error: one exception, with its traceback."""

    relation: str
    """The relation to the exception before: empty for the first, else `caused by` or the like."""
    title: str
    """The exception: `ValueError: no such order`."""
    lines: tuple[str, ...]
    """The lines of the traceback, the last call last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One entry of a job's timeline: its submit, an attempt, its end, or its next attempt."""

    kind: str
    """`submitted`, `waits`, `held`, `running`, or how the attempt or the job ended: `completed`, `failed`,
    `timeout`, `crash`, `deploy`, `canceled`, `expired`."""
    title: str
    at: datetime | None
    """When the entry's event or attempt began; the end of an attempt if only that is known; None if neither is."""
    ended: datetime | None = None
    error: tuple[TraceSection, ...] = ()
    is_future: bool = False
    worker: str | None = None

    @property
    def seconds(self) -> float | None:
        """How many seconds the attempt took; None for other entries, or if that is not known."""
        return None if self.at is None or self.ended is None else (self.ended - self.at).total_seconds()


_RELATION = re.compile(r"(?P<relation>caused by|raised while this was handled|exception \d+ of \d+): ", re.ASCII)


def split_error(error: str | None) -> tuple[TraceSection, ...]:
    """Split the text of a stored error into its exceptions: the raised one, then its causes or group members.

    Return an empty tuple for None and an empty text.
    """
    if not error:
        return ()
    sections: list[tuple[str, str, list[str]]] = []
    for line in error.split("\n"):
        found = _RELATION.match(line)
        if found is not None and sections:
            sections.append((found["relation"], line[found.end() :], []))
        elif not sections:
            sections.append(("", line, []))
        else:
            sections[-1][2].append(line)
    return tuple(TraceSection(relation=each, title=title, lines=tuple(lines)) for each, title, lines in sections)


def timeline_of(job: JobView, now: datetime, worker_name: str | None = None) -> list[TimelineEntry]:
    """Return the timeline of a job, the earliest entry first. The next attempt of a PENDING job comes last.

    - `worker_name`: the name of the worker that has leased the job
    """
    entries = [TimelineEntry(kind="submitted", title=_submitted(job), at=job.created)]
    entries += [_attempt(each) for each in job.history]
    ended = job.history[-1].ended if job.history else None
    if job.status is JobStatus.PENDING:
        entries.append(_waiting(job, now, worker_name))
    elif job.status is JobStatus.RUNNING:
        title = f"Attempt {job.starts} runs"
        if job.stop_requested:
            title += ", and was asked to stop"
        entries.append(TimelineEntry(kind="running", title=title, at=job.started, worker=worker_name))
    elif job.status is JobStatus.COMPLETED:
        entries.append(
            TimelineEntry(
                kind="completed", title=f"Attempt {job.starts} completed", at=job.started, ended=job.finished
            )
        )
    elif job.status is JobStatus.CANCELED:
        is_run = job.started is not None and (ended is None or job.started > ended)
        title = f"Canceled in attempt {job.starts}" if is_run else "Canceled"
        entries.append(
            TimelineEntry(
                kind="canceled",
                title=title,
                at=job.started if is_run else job.finished,
                ended=job.finished if is_run else None,
                error=split_error(job.error),
            )
        )
    else:
        entries.append(_given_up(job, ended))
    return entries


def _submitted(job: JobView) -> str:
    if job.schedule is not None:
        return f"Submitted by the schedule {job.schedule}"
    return "Submitted" if job.origin is None else "Submitted as a replay"


def _attempt(attempt: AttemptView) -> TimelineEntry:
    return TimelineEntry(
        kind="failed" if attempt.cause == "failure" else attempt.cause,
        title=f"Attempt {attempt.number} {CAUSES.get(attempt.cause, attempt.cause)}",
        at=attempt.started or attempt.ended,
        ended=attempt.ended if attempt.started is not None else None,
        error=split_error(attempt.error),
        worker=attempt.worker,
    )


def _waiting(job: JobView, now: datetime, worker_name: str | None) -> TimelineEntry:
    number = job.starts + 1
    is_future = job.due > now
    if job.worker is not None:
        title = f"Attempt {number} is staged: a worker holds the job until it is due"
        return TimelineEntry(kind="held", title=title, at=job.due, is_future=is_future, worker=worker_name)
    title = f"Attempt {number} is due" if is_future else f"Attempt {number} has been due"
    return TimelineEntry(kind="waits", title=title, at=job.due, is_future=is_future)


def _given_up(job: JobView, ended: datetime | None) -> TimelineEntry:
    last = job.history[-1] if job.history else None
    is_shown = last is not None and last.error == job.error
    first = (job.error or "").partition("\n")[0]
    if first.startswith("expired"):
        return TimelineEntry(kind="expired", title="Expired before it could start", at=job.finished)
    title = "Put into quarantine" if first.startswith("quarantined") else "Given up"
    title += ", and replayed" if job.replayed_as is not None else ": it is a dead letter"
    return TimelineEntry(
        kind="failed",
        title=title,
        at=job.finished or ended,
        error=() if is_shown else split_error(job.error),
    )
