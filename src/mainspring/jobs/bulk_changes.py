"""Changes all jobs that filters choose, in steps: cancel, retry, run now, reschedule.

A caller first counts the jobs with `count_jobs`, shows the number, and then calls `change_jobs` with the same
filters until the answer has no cursor. Each call changes at most `STEP` jobs, so it takes a bounded time, and the
caller can show progress or stop between two calls.

Invariants
- The filters have an end: `until` is an instant. Jobs that are submitted after the count are not changed.
- The cursor moves on, so no call sees a job again that has the same status. A RUNNING job may be asked to stop
  twice.
- A job that has started or ended since it was read is left as it is, and counted as such.
- A selection may name jobs by their ids, at most `STEP`. Other filters apply to these jobs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from mainspring.jobs.audit import AuditNote, clip_names
from mainspring.jobs.commands import Changed, Reopen, Reschedule
from mainspring.jobs.ids import require_id
from mainspring.jobs.info import JobInfo, JobPage
from mainspring.jobs.manager import JobManager
from mainspring.jobs.records import Query, invalid_cursor
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_instant

MAX_COUNTED = 10_000
"""The largest exact count of jobs. Beyond it, a count is a lower bound."""
STEP = 500
"""How many jobs one call of `change_jobs` changes at most. That takes a fraction of a second."""
CHUNK = 100  # jobs in one transaction


class BulkAction(StrEnum):
    """What `change_jobs` does with each job that the filters choose."""

    CANCEL = "cancel"
    RETRY = "retry"
    RUN_NOW = "run-now"
    RESCHEDULE = "reschedule"

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """The statuses that a job must have to be changed by the action."""
        return _STATUSES[self]


_STATUSES = {
    BulkAction.CANCEL: (JobStatus.PENDING, JobStatus.RUNNING),
    BulkAction.RETRY: (JobStatus.FAILED,),
    BulkAction.RUN_NOW: (JobStatus.PENDING,),
    BulkAction.RESCHEDULE: (JobStatus.PENDING,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection:
    """The filters that choose the jobs of a bulk change. They mean the same as in `JobManager.list`."""

    status: JobStatus | None = None
    queue: str | None = None
    type: str | None = None
    arguments: Mapping[str, Any] | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    types: frozenset[str] | None = None
    """Only jobs of these types: those that the caller may change; None for all."""
    queues: frozenset[str] | None = None
    """Only jobs of these queues: those that the caller may change; None for all."""
    ids: tuple[str, ...] | None = None
    """Only jobs with these ids, at most `STEP`; None for all. Not together with arguments or text."""

    @property
    def is_search(self) -> bool:
        """Whether the filters include arguments or a text. Such jobs are found by reading each job."""
        return bool(self.arguments or self.text)

    def page(
        self,
        manager: JobManager,
        status: JobStatus | None,
        *,
        limit: int,
        after: str | None = None,
        is_replayed: bool | None = None,
        newest_first: bool = False,
    ) -> JobPage:
        """Return a page of the chosen jobs that have this status, whatever `self.status`; None for any.

        A selection by ids has one page.
        """
        if self.ids is not None:
            query = self.query(manager, status, is_replayed=is_replayed)
            return JobPage(manager.infos(manager.engine.find(query).records), None)
        return manager.list(
            status=status,
            queue=self.queue,
            type=self.type,
            arguments=self.arguments,
            since=self.since,
            until=self.until,
            text=self.text,
            limit=limit,
            after=after,
            is_replayed=is_replayed,
            newest_first=newest_first,
            types=self.types,
            queues=self.queues,
        )

    def query(self, manager: JobManager, status: JobStatus | None, *, is_replayed: bool | None = None) -> Query:
        """Return the filters as an engine's query, without the filters by arguments and text.

        The query finds jobs with the given `status`, whatever `self.status`; with None, jobs of any status.
        """
        return Query(
            status=status,
            queue=self.queue,
            type=None if self.type is None else manager.registry.full_name(self.type),
            created_since=None if self.since is None else to_instant(self.since, "since"),
            created_until=None if self.until is None else to_instant(self.until, "until"),
            ids=self.ids,
            is_replayed=is_replayed,
            types=None if self.types is None else tuple(sorted(self.types)),
            queues=None if self.queues is None else tuple(sorted(self.queues)),
        )

    def audit_details(self) -> dict[str, Any]:
        """Return the filters for an audit entry, with the names of arguments but not their values.

        A text to search for may be a value of an argument: the entry only says that there was one.
        """
        given = {
            "status": None if self.status is None else str(self.status),
            "queue": self.queue,
            "type": self.type,
            "arguments": clip_names(self.arguments or {}) or None,
            "text": True if self.text else None,
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "selected": None if self.ids is None else len(self.ids),
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCount:
    """How many jobs match the filters of a bulk change."""

    number: int
    is_exact: bool = True
    """False if `number` is a lower bound: the count stopped early, or a search has not read all jobs."""
    scanned: int = 0
    """How many jobs a search by arguments or text has read."""

    def __add__(self, other: JobCount) -> JobCount:
        return JobCount(
            number=self.number + other.number,
            is_exact=self.is_exact and other.is_exact,
            scanned=self.scanned + other.scanned,
        )

    def __str__(self) -> str:
        return f"{self.number:,}" if self.is_exact else f"≥ {self.number:,}"


NO_JOBS = JobCount(number=0)


def count_jobs(manager: JobManager, selection: JobSelection, action: BulkAction | None = None) -> JobCount:
    """Count the jobs that the filters choose and that the action can change; without an action, all that they
    choose.

    The count stops at `MAX_COUNTED` jobs of each status.
    """
    if action is None:
        return _count(manager, selection, selection.status)
    is_replayed = _is_replayed(action)
    counts = [_count(manager, selection, status, is_replayed=is_replayed) for status in _chosen(selection, action)]
    return sum(counts, NO_JOBS)


def _count(
    manager: JobManager, selection: JobSelection, status: JobStatus | None, *, is_replayed: bool | None = None
) -> JobCount:
    if selection.is_search:
        page = selection.page(manager, status, limit=MAX_COUNTED, is_replayed=is_replayed)
        return JobCount(number=len(page), is_exact=page.next is None, scanned=page.scanned)
    query = selection.query(manager, status, is_replayed=is_replayed)
    if selection.ids is not None:
        return JobCount(number=len(manager.engine.find(query).records))
    number = manager.engine.count_up_to(query, MAX_COUNTED + 1)
    return JobCount(number=min(number, MAX_COUNTED), is_exact=number <= MAX_COUNTED)


def preview_jobs(manager: JobManager, selection: JobSelection, action: BulkAction, limit: int) -> list[JobInfo]:
    """Return the first `limit` jobs that an action would change. A selection by ids may return more."""
    found: list[JobInfo] = []
    for status in _chosen(selection, action):
        if len(found) < limit:
            wanted = limit - len(found)
            found += selection.page(manager, status, limit=wanted, is_replayed=_is_replayed(action))
    return found


def _chosen(selection: JobSelection, action: BulkAction) -> tuple[JobStatus, ...]:
    """Return the statuses of the jobs to change: those of the action that the status filter does not exclude."""
    return tuple(status for status in action.statuses if selection.status in (None, status))


def _is_replayed(action: BulkAction) -> bool | None:
    return False if action is BulkAction.RETRY else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStep:
    """The result of one call of `change_jobs`: how many jobs it changed, and where the next call continues."""

    changed: int = 0
    asked_to_stop: int = 0
    """How many jobs are running, and were asked to stop."""
    left: int = 0
    """How many jobs stayed as they are: they started or ended meanwhile, or, for `RUN_NOW`, are due already."""
    after: str | None = None
    """The cursor for the next call; None if there are no more jobs to change."""


def change_jobs(
    manager: JobManager,
    selection: JobSelection,
    action: BulkAction,
    *,
    due: int | None = None,
    after: str | None = None,
    limit: int = STEP,
) -> BulkStep:
    """Change at most `limit` of the jobs that the filters choose, beginning at the cursor `after`.

    A search may stop earlier, and a selection by ids is changed at once: `BulkStep.after` says whether to go on.
    Raises `ValueError` for an invalid cursor, and for `RESCHEDULE` without `due`.

    - `due`: the new due time for `RESCHEDULE`, in microseconds since 1970
    - `after`: `BulkStep.after` of the previous call; None for the first
    """
    statuses = _chosen(selection, action)
    if not statuses:
        return BulkStep()
    cursor: str | None = f"{statuses[0]}:" if after is None else after
    change = _change_for(manager, selection, action, due)
    changed = asked = seen = scanned = 0
    while cursor is not None and seen < limit and scanned < MAX_COUNTED:
        status, position = _parse(cursor, statuses)
        page = selection.page(
            manager, status, limit=min(CHUNK, limit - seen), after=position, is_replayed=_is_replayed(action)
        )
        answers = [
            answer for start in range(0, len(page), CHUNK) for answer in change(page[start : start + CHUNK])
        ]
        seen += len(page)
        scanned += page.scanned
        changed += sum(answer.is_done for answer in answers)
        if action is BulkAction.CANCEL:
            asked += sum(not answer.is_done and answer.status is JobStatus.RUNNING for answer in answers)
        cursor = _next(statuses, status, page.next)
    return BulkStep(changed=changed, asked_to_stop=asked, left=seen - changed - asked, after=cursor)


def check_filters(
    manager: JobManager, selection: JobSelection, action: BulkAction, after: str | None = None
) -> None:
    """Raise `ValueError` if the filters or ids are invalid, or if `after` is no cursor of `change_jobs`."""
    check_ids(selection)
    statuses = _chosen(selection, action)
    if statuses:
        status, position = (statuses[0], None) if after is None else _parse(after, statuses)
        selection.page(manager, status, limit=1, after=position)


def check_ids(selection: JobSelection) -> None:
    """Raise `ValueError` if a selection has invalid ids, more than `STEP` ids, or ids together with a search."""
    if selection.ids is None:
        return
    if selection.is_search:
        raise ValueError("ids cannot be combined with a search by arguments or text; give either")
    if len(selection.ids) > STEP:
        raise ValueError(f"{len(selection.ids):,} ids are given, the limit is {STEP:,}; send them in parts")
    for job_id in selection.ids:
        require_id(job_id)


def _change_for(
    manager: JobManager, selection: JobSelection, action: BulkAction, due: int | None
) -> Callable[[Sequence[JobInfo]], list[Changed]]:
    """Return a function that applies the action to the jobs it is given. All its calls share one audit entry."""
    now = manager.engine.now()
    note = AuditNote(
        action="job.run_now" if action is BulkAction.RUN_NOW else None, details=selection.audit_details()
    )
    draft = manager.begin_audit(STEP, note)
    if action is BulkAction.RESCHEDULE and due is None:
        raise ValueError("the action 'reschedule' needs the new due time of the jobs; pass due=")

    def change(jobs: Sequence[JobInfo]) -> list[Changed]:
        ids = [job.id for job in jobs if action is not BulkAction.RUN_NOW or to_instant(job.due, "due") > now]
        match action:
            case _ if not ids:
                return []
            case BulkAction.CANCEL:
                return manager.cancel_many(ids, audit=draft)
            case BulkAction.RETRY:
                return manager.change_all([Reopen(job_id, now) for job_id in ids], audit=draft)
            case _:  # a job that is due already keeps its place among the due jobs
                if action is BulkAction.RUN_NOW:
                    manager.lift_pauses(ids)
                chosen = now if due is None else due
                return manager.change_all([Reschedule(job_id, chosen) for job_id in ids], audit=draft)

    return change


def _parse(cursor: str, statuses: tuple[JobStatus, ...]) -> tuple[JobStatus, str | None]:
    name, _, position = cursor.partition(":")
    for status in statuses:
        if status == name:
            return status, position or None
    raise invalid_cursor(cursor)


def _next(statuses: tuple[JobStatus, ...], status: JobStatus, position: str | None) -> str | None:
    if position is not None:
        return f"{status}:{position}"
    later = statuses[statuses.index(status) + 1 :]
    return f"{later[0]}:" if later else None
