"""Starts and settles leased jobs: stores starts, outcomes and progress, if the fencing token is current."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.codec import (
    PENDING,
    RUNNING,
    completed_rows,
    headers_column,
    outcome_rows,
    pairs_of_integers,
    to_group,
    to_json,
)
from mainspring.engines.sqlite.dead_letters import DeadLetterNotifier
from mainspring.engines.sqlite.store import Store
from mainspring.engines.sqlite.submitting import JobInserter
from mainspring.engines.sqlite.waiting_groups import Memberships
from mainspring.jobs.events import Event, EventKind
from mainspring.jobs.records import (
    COMPLETED,
    STATUS_AFTER,
    Lease,
    Outcome,
    OutcomeKind,
    Progress,
    ProgressReport,
)
from mainspring.jobs.status import JobStatus


class JobSettler:
    """Stores the starts, outcomes and progress of leased jobs. For use inside a unit (one transaction)."""

    def __init__(self, store: Store, inserter: JobInserter, dead_letters: DeadLetterNotifier) -> None:
        self._database = store.database
        self._lanes = store.lanes
        self._heads = store.heads
        self._parked_groups = store.parked_groups
        self._events = store.events
        self._now = store.now
        self._inserter = inserter
        self._dead_letters = dead_letters

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark jobs RUNNING that the worker has leased before they were due.

        Return for each whether it still has the lease. A job whose lease it does not have any more is left
        unchanged.
        """
        batch = to_json([_start_row(lease) for lease in leases])
        current = set(pairs_of_integers(self._database.write(sql.CURRENT, (batch, worker, PENDING))))
        self._database.write(sql.START, (batch, worker, self._now()))
        if any(lease.at_most_once for lease in leases):
            self._database.require_sync()
        answers = [(lease.ref, lease.token) in current for lease in leases]
        self._events.has_listener()  # so that workers know whether to report that handlers begin
        return answers

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        """Store outcomes, end their leases, and store what follows, such as follow-up jobs and dead-letter jobs.

        Return for each outcome whether it was accepted. An outcome is refused if the worker does not have the
        lease any more.
        """
        completed = [outcome for outcome in outcomes if outcome.kind is COMPLETED]
        has_more = any(outcome.keep_result_until is not None or outcome.error is not None for outcome in completed)
        others: list[Outcome] = []
        if len(completed) < len(outcomes):
            others = [outcome for outcome in outcomes if outcome.kind is not COMPLETED]
        now = self._now()
        refused: list[Outcome] = []
        if completed:
            statement = sql.COMPLETE_WITH_MORE if has_more else sql.COMPLETE
            batch = completed_rows(completed, has_more=has_more)
            refused += self._settle(statement, batch, completed, worker, now)
        if others:
            refused += self._settle(sql.SETTLE, outcome_rows(others, now), others, worker, now)
        if not refused:  # the usual case
            self._follow(outcomes, others)
            return [True] * len(outcomes)
        answers = _without(refused, outcomes)
        accepted = [outcome for outcome, is_accepted in zip(outcomes, answers, strict=True) if is_accepted]
        self._follow(accepted, [outcome for outcome in accepted if outcome.kind is not COMPLETED])
        return answers

    def _settle(
        self, statement: str, batch: str, outcomes: list[Outcome], worker: int, now: int
    ) -> Iterable[Outcome]:
        """Store outcomes with one statement; return those that were refused, because their lease is not current.

        The statement skips refused outcomes and ends the other leases. If it has skipped some, it is rolled back,
        to read which leases were current. Then the same statement is executed again, and skips the refused
        outcomes again.
        """
        write = self._database.write
        refused: list[Outcome] = []
        write("SAVEPOINT settling")
        write(statement, (batch, worker, now))
        if self._database.changes() != len(outcomes):
            write("ROLLBACK TO settling")
            current = set(pairs_of_integers(write(sql.CURRENT, (batch, worker, RUNNING))))
            for outcome in outcomes:
                identity = (outcome.lease.ref, outcome.lease.token)
                if identity in current:
                    current.remove(identity)  # each lease ends once, and frees its places in buckets once
                else:
                    refused.append(outcome)
            write(statement, (batch, worker, now))
        write("RELEASE settling")
        return refused

    def _follow(self, outcomes: Sequence[Outcome], others: list[Outcome]) -> None:
        """Store what follows from accepted outcomes; `others` are those of them that are not COMPLETED.

        These are events, new signatures of jobs that will run again, the free places under limits and in sequences
        (other jobs can start now), follow-up jobs, and jobs of dead-letter handlers.
        """
        self._events.write_outcomes(outcomes)
        for outcome in outcomes:
            if outcome.headers is not None:
                self._database.write(sql.SET_HEADERS, (outcome.lease.id, headers_column(outcome.headers)))
        freeing = [lease for outcome in outcomes if (lease := outcome.lease).limits or lease.sequence is not None]
        if freeing:
            self._free(freeing, others)
        follow_ups = [
            outcome.follow_up
            for outcome in outcomes
            if outcome.follow_up is not None and outcome.kind is COMPLETED
        ]
        if follow_ups:
            self._inserter.submit(follow_ups)
        failed = [outcome.lease.id for outcome in others if outcome.kind is OutcomeKind.FAILED]
        if failed:
            self._dead_letters.notify(failed)

    def _free(self, leases: list[Lease], not_completed: list[Outcome]) -> None:
        """Release the limits and sequences of these jobs, so that jobs that waited for them can start.

        A job that is PENDING again also changes which job is the first of those under the same limits; one that
        has ended does not.
        """
        memberships = Memberships((sequence, None) for sequence in {lease.sequence for lease in leases})
        again = [outcome.lease for outcome in not_completed if STATUS_AFTER[outcome.kind] is JobStatus.PENDING]
        kinds = {(lease.queue, lease.type, lease.priority, lease.limits) for lease in again if lease.limits}
        memberships.add(
            (None, to_group(lane, limits))
            for queue, kind, priority, limits in kinds
            for lane in self._lanes.limited(queue, kind, priority)
        )
        self._parked_groups.release_limits([lease.limits for lease in leases])
        self._heads.select_heads(memberships)

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        """Store the progress of handlers and, if a client listens, events that handlers have begun or progressed.

        Return for each report whether the worker still had the lease; if not, the report is ignored.
        """
        leases = to_json([(report.lease.ref, report.lease.token) for report in reports])
        current = set(pairs_of_integers(self._database.write(sql.CURRENT, (leases, worker, RUNNING))))
        answers = [(report.lease.ref, report.lease.token) in current for report in reports]
        accepted = [report for report, ok in zip(reports, answers, strict=True) if ok]
        news = [(report.lease, report.progress) for report in accepted if report.progress is not None]
        if news:
            batch = to_json([(lease.ref, lease.token, progress) for lease, progress in news])
            self._database.write(sql.REPORT, (batch, worker))
        if accepted and self._events.has_listener():
            self._events.write_begun([report.lease for report in accepted])
            self._events.write(_progress_event(lease, progress) for lease, progress in news)
        return answers


def _start_row(lease: Lease) -> tuple[object, ...]:
    return (lease.ref, lease.token, 1) if lease.at_most_once else (lease.ref, lease.token)


def _without(refused: Iterable[Outcome], outcomes: Sequence[Outcome]) -> list[bool]:
    """Return for each outcome whether it was accepted, that is, whether it is not in `refused`.

    If an object is in `outcomes` more often than in `refused`, its first occurrences count as the accepted ones.
    """
    left = Counter(map(id, refused))
    answers = [True] * len(outcomes)
    for place in reversed(range(len(outcomes))):
        identity = id(outcomes[place])
        if left[identity]:
            left[identity] -= 1
            answers[place] = False
    return answers


def _progress_event(lease: Lease, progress: Progress) -> Event:
    total = "" if progress.total is None else f" of {progress.total:g}"
    note = f"{progress.done:g}{total}{f' {progress.note}' if progress.note else ''}"
    return Event(EventKind.PROGRESS, progress.at, lease.id, lease.type, lease.queue, note)
