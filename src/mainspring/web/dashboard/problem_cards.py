"""The problems that the overview shows first: what is wrong now, and the findings of `mainspring doctor`.

The statistics and the workers tell at once if jobs wait for a worker, if queues are paused and if there are dead
letters. Doctor looks at more, but takes seconds. It runs every few minutes while a page is open, and only for
callers who may see its report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mainspring.doctor import Report, Severity, examine
from mainspring.jobs.worker_status import Liveness, WorkerStatus
from mainspring.plurals import format_count
from mainspring.security.permissions import Scope
from mainspring.web.api.store_state import GroupView, StatisticsView, finding_view
from mainspring.web.dashboard.formats import duration
from mainspring.web.dashboard.page import PageCall
from mainspring.web.dashboard.snapshots import Source

if TYPE_CHECKING:
    from mainspring.app import Mainspring

LATE_SECONDS = 10.0
"""A job that has been due for this many seconds, although a worker serves it, is shown as a problem."""
SHOWN_ABOVE = frozenset({"workers", "lateness", "paused", "slots", "dead-letters"})
"""Checks of doctor whose findings are left out, because cards from the statistics show them sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemCard:
    """A card of the overview about a problem: what is wrong, why, and what to do about it."""

    key: str
    severity: Severity
    what: str
    reason: str = ""
    remedy: str = ""
    commands: Sequence[str] = ()
    href: str | None = None
    """The URL of the page that shows more; None if there is none."""


async def _examine(app: Mainspring) -> Report:
    return await app.off_loop.read(examine, app, has_handlers=bool(app.registry.all()))


async def _read_workers(app: Mainspring) -> list[WorkerStatus]:
    return await app.workers_async()


DOCTOR: Source[Report] = Source(name="doctor", read=_examine, seconds=300)
WORKERS: Source[list[WorkerStatus]] = Source(name="workers", read=_read_workers)


def find_problems(
    call: PageCall, statistics: StatisticsView, workers: Sequence[WorkerStatus], report: Report | None
) -> list[ProblemCard]:
    """Return the problems that a caller may see, the worst first; `report` is that of doctor, if there is one."""
    cards = [*_waiting(call, statistics, workers), *_workers(call, statistics, workers)]
    cards += [*_blocked(call, statistics), *_letters(call, statistics), *_slot(statistics)]
    if report is not None:
        cards += _findings(report)
    return sorted(cards, key=lambda card: -card.severity.rank)


def _jobs_wait(count: int) -> str:
    return f"{format_count(count, 'job')} {'waits' if count == 1 else 'wait'}"


def _serves(worker: WorkerStatus, group: GroupView) -> bool:
    is_for_queue = worker.queues is None or group.queue in worker.queues
    return worker.state is Liveness.ALIVE and group.type in worker.types and is_for_queue


def _waiting(call: PageCall, statistics: StatisticsView, workers: Sequence[WorkerStatus]) -> Iterable[ProblemCard]:
    late = [group for group in statistics.groups if group.oldest_due is not None and group.due]
    unserved = [group for group in late if not any(_serves(worker, group) for worker in workers)]
    for group in unserved:
        if (group.oldest_due or 0) < 2:
            continue
        yield ProblemCard(
            key=f"unserved {group.queue} {group.type}",
            severity=Severity.ERROR,
            what=f"No worker runs {group.type}",
            reason=f"{format_count(group.due, 'job')} of the queue {group.queue} could start now. The oldest has "
            f"waited for {duration(group.oldest_due)}.",
            remedy="Start a worker that has the handler and serves the queue.",
            commands=["mainspring run MODULE:APP"],
            href=call.url("jobs", status="pending", type=group.type),
        )
    late = [group for group in late if group not in unserved and (group.oldest_due or 0) >= LATE_SECONDS]
    if late:
        oldest = max(group.oldest_due or 0 for group in late)
        jobs = sum(group.due for group in late)
        yield ProblemCard(
            key="late",
            severity=Severity.WARNING,
            what=f"{_jobs_wait(jobs)} for a free slot, the oldest for {duration(oldest)}",
            reason="The workers are busy, or do not claim jobs.",
            remedy="Look at what runs. Add workers or threads, or wait until the backlog is gone.",
            href=call.url("jobs", status="pending", queue=late[0].queue),
        )


def _workers(call: PageCall, statistics: StatisticsView, workers: Sequence[WorkerStatus]) -> Iterable[ProblemCard]:
    if statistics.workers is None:  # the caller may see only some of them
        return
    gone = [worker for worker in workers if worker.state is not Liveness.ALIVE]
    for worker in gone[:5]:
        yield ProblemCard(
            key=f"worker {worker.number}",
            severity=Severity.WARNING,
            what=f"Worker {worker.name} is {worker.state}",
            reason="It sends no heartbeat. Its jobs are rescued once it counts as dead."
            if worker.state is Liveness.SILENT
            else "Another worker rescues its jobs.",
            remedy="Look at the log of its process.",
            href=call.url("workers"),
        )
    if not workers and statistics.scheduled and not statistics.due:
        yield ProblemCard(
            key="no workers",
            severity=Severity.WARNING,
            what="No worker is running",
            reason=f"{format_count(statistics.scheduled, 'job')} will be due later, and nothing will run them.",
            remedy="Start a worker.",
            commands=["mainspring run MODULE:APP"],
        )


def _blocked(call: PageCall, statistics: StatisticsView) -> Iterable[ProblemCard]:
    for queue in statistics.paused_queues:
        groups = [group for group in statistics.groups if group.queue == queue]
        blocked = sum(group.blocked for group in groups)
        if blocked:
            oldest = max((group.oldest_blocked or 0) for group in groups)
            yield ProblemCard(
                key=f"paused {queue}",
                severity=Severity.WARNING,
                what=f"The queue {queue} is paused, and {_jobs_wait(blocked)} for it",
                reason=f"The oldest has waited for {duration(oldest)}.",
                remedy="Resume the queue when its jobs may run again.",
                commands=[f"mainspring queues resume {queue}"],
                href=call.url("queues"),
            )


def _letters(call: PageCall, statistics: StatisticsView) -> Iterable[ProblemCard]:
    if statistics.dead_letters:
        letters = format_count(statistics.dead_letters, "dead letter")
        yield ProblemCard(
            key="dead letters",
            severity=Severity.WARNING,
            what=f"{letters} {'was' if statistics.dead_letters == 1 else 'were'} not replayed",
            reason="These jobs have failed for good. Their work is not done.",
            remedy="Look at the errors, then replay or delete the jobs.",
            href=call.url("dead-letters"),
        )


def _slot(statistics: StatisticsView) -> Iterable[ProblemCard]:
    slot = statistics.fullest_slot
    if slot is not None and slot.is_hot:
        yield ProblemCard(
            key="hot slot",
            severity=Severity.WARNING,
            what=f"{format_count(slot.jobs, 'job')} of {slot.type} are due within the same quarter of a second",
            reason="Most of them will start late.",
            remedy="Spread their due times, for instance with a random delay.",
        )


def _findings(report: Report) -> Iterable[ProblemCard]:
    for place, finding in enumerate(report.findings):
        if finding.severity.rank < Severity.WARNING.rank or finding.check in SHOWN_ABOVE:
            continue
        view = finding_view(finding)
        yield ProblemCard(
            key=f"doctor {place} {finding.check}",
            severity=finding.severity,
            what=view.what[:1].upper() + view.what[1:],
            reason=view.reason,
            remedy=view.remedy,
            commands=view.commands,
        )


async def gather(call: PageCall, statistics: StatisticsView) -> tuple[list[ProblemCard], bool]:
    """Return the problems that a caller may see, and whether the first report of doctor is still being made.

    For a caller that may see the report, this begins a new examination in the background every five minutes.
    """
    may_examine = call.identity.allows(Scope.OPERATE)
    report = call.peek(DOCTOR) if may_examine else None
    workers = await call.get(WORKERS)
    return find_problems(call, statistics, workers, report), may_examine and report is None
