"""Stores submitted jobs in batches, and looks up unique keys for a whole batch at once.

Most batches are passed to SQLite as JSON. Up to `FEW` plain jobs, such as the jobs of several submitters that
share a commit, are passed as bound values instead, because SQLite takes longer to parse JSON. Bound values need
one statement for each number of rows, so larger batches do not use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.codec import (
    STATUSES,
    alike_rows,
    are_alike,
    equal_rows,
    headers_column,
    new_rows,
    number_of,
    plain_rows,
    searchable_rows,
    shared_columns,
    strings,
    to_group,
    to_json,
    to_stored,
)
from mainspring.engines.sqlite.lanes import indexed_parameters, lane_of
from mainspring.engines.sqlite.store import Store
from mainspring.engines.sqlite.waiting_groups import Memberships
from mainspring.jobs.events import Event, EventKind
from mainspring.jobs.records import Conflict, ConflictKind, NewJob, UniqueKey, conflict_of
from mainspring.jobs.status import JobStatus

FEW = 32


def are_few(jobs: Sequence[NewJob]) -> bool:
    """Return whether these jobs are at most `FEW` and plain, so that the statement of `insert_few` can store them.

    A plain job has no policies, headers, schedule or origin.
    """
    return len(jobs) <= FEW and all(job.is_plain for job in jobs)


@cache
def insert_few(count: int) -> str:
    """Return the statement that inserts `count` jobs without policies or headers, but none whose id is stored.

    The first binding is the current time. Then come the id, the row number of the lane (queue, type and priority),
    the due time, payload and codec of each job.
    """
    rows = [f"(?{n}, ?{n + 1}, ?{n + 2}, ?{n + 2}, ?1, ?{n + 3}, ?{n + 4})" for n in range(2, 2 + 5 * count, 5)]
    return f"""
INSERT INTO jobs (id, lane, due, ready, created, payload, codec) VALUES {", ".join(rows)}
ON CONFLICT (id) DO NOTHING
"""


INSERT_ONE = insert_few(1)


def few_rows(jobs: Iterable[NewJob], lanes: Iterable[int], now: int) -> tuple[Any, ...]:
    """Return the bindings for the statement of `insert_few`: `now`, and the values of each job with the row number
    of its lane (queue, type and priority).
    """
    values: list[Any] = [now]
    for job, lane in zip(jobs, lanes, strict=True):
        values += (job.id, lane, job.due, to_stored(job.payload, job.codec), job.codec)
    return tuple(values)


MAX_SEQ = 1 << 62  # greater than any seq

_holders = msgspec.json.Decoder(list[tuple[str, int, str, int, int]]).decode
_occurrence_rows = msgspec.json.Decoder(list[tuple[str, int, str]]).decode


class UniqueKeyHolder(msgspec.Struct):
    """A job with a unique key: a stored one, or one that is earlier in the batch of a submit.

    Whether the job still holds the key depends on its status and its age.
    """

    status: JobStatus
    id: str
    created: int
    has_started: bool = False


class JobInserter:
    """Stores jobs. Methods must be called inside a unit (one transaction)."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._lanes = store.lanes
        self._heads = store.heads
        self._parked_groups = store.parked_groups
        self._groups = store.groups
        self._events = store.events
        self._now = store.now

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store jobs; return for each job its conflict with another job, or None if the job was stored.

        A job whose conflict is REPLACED was not stored: the existing job has its values now.
        """
        if len(jobs) == 1 and jobs[0].is_plain:
            return [self._submit_plain(jobs[0])]
        if are_few(jobs):
            return self._submit_few(jobs)
        last = self._database.write(sql.LAST_JOB)
        if any(job.unique is not None or job.schedule is not None for job in jobs):
            answers = self._submit_unique(jobs, last)
        else:
            answers = [None] * len(jobs) if self._insert(jobs, last) else self._taken_ids(jobs, last)
        if self._events.has_listener():
            self._write_events(jobs, answers)
        return answers

    def _submit_plain(self, job: NewJob) -> Conflict | None:
        """Store one job without policies or headers.

        Return a conflict if a job with its id is stored already, else None. This method takes as few steps as
        possible, because most submits store one such job.
        """
        kind = (job.queue, job.type, job.priority)
        lane = self._lanes.plain.get(kind)
        if lane is None:
            lane = self._lanes.plain[kind] = self._lanes.number(lane_of(job))
        now = self._now()
        payload = to_stored(job.payload, job.codec)
        self._database.write(INSERT_ONE, (now, job.id, lane, job.due, payload, job.codec))
        conflict = None if self._database.changes() else Conflict(job.id, ConflictKind.ID)
        if self._events.has_listener():
            self._write_events((job,), [conflict])
        return conflict

    def _submit_few(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store up to `FEW` plain jobs, usually those of several submitters.

        Return for each job a conflict if its id is stored already or occurs earlier in the batch, else None.
        """
        self._database.write(insert_few(len(jobs)), few_rows(jobs, self._lanes_of(jobs), self._now()))
        inserted = self._database.changes()
        if inserted == len(jobs):
            answers: list[Conflict | None] = [None] * inserted
        else:
            answers = self._taken_ids(jobs, self._database.write(sql.LAST_JOB_BEFORE, (inserted,)))
        if self._events.has_listener():
            self._write_events(jobs, answers)
        return answers

    def _insert(self, jobs: Sequence[NewJob], last: int) -> bool:
        """Insert jobs, but none whose id is stored already; return whether all were inserted.

        `last` is the largest row number before the insert.
        """
        write = self._database.write
        first = jobs[0]
        keys: dict[str, tuple[str, ...]] = {}
        if not first.search and are_alike(jobs):
            lane = self._lanes.number(lane_of(first))
            common = (self._now(), lane, first.due, first.codec)
            if first.is_plain:
                write(sql.INSERT_EQUAL, (equal_rows(jobs), *common))
                return self._database.changes() == len(jobs)
            write(sql.INSERT_ALIKE, (alike_rows(jobs, lane), *common, *shared_columns(first)))
        else:
            numbers = self._lanes_of(jobs)
            if all(job.is_plain for job in jobs):
                write(sql.INSERT_PLAIN, (plain_rows(jobs, numbers), self._now()))
                return self._database.changes() == len(jobs)
            if any(job.search for job in jobs):  # of two jobs with the same id, the first is stored
                keys = {job.id: job.search for job in reversed(jobs)}
            if keys:
                write(sql.INSERT_WITH_SEARCH_KEYS, (searchable_rows(jobs, numbers), self._now()))
            else:
                write(sql.INSERT, (new_rows(jobs, numbers), self._now()))
        is_complete = self._database.changes() == len(jobs)
        if keys:
            write(sql.ADD_SEARCH_KEYS, (to_json(list(keys.items())), last))
        memberships = [
            (job.sequence, to_group(self._lanes.number(lane_of(job)), job.limits))
            for job in jobs
            if job.sequence is not None or job.limits
        ]
        if memberships:
            self._add_to_groups([group for _, group in memberships if group is not None], last, is_complete)
            self._heads.select_heads(Memberships(memberships))
        return is_complete

    def _add_to_groups(self, groups: list[str], last: int, is_complete: bool) -> None:  # noqa: FBT001
        if is_complete and groups:
            self._groups.add_jobs(Counter(groups))
        elif groups:
            self._groups.add_jobs_since(last, groups)

    def _lanes_of(self, jobs: Sequence[NewJob]) -> list[int]:
        known: dict[Any, int] = {}  # jobs share few lanes, and a `Lane` is slow to create
        numbers: list[int] = []
        for job in jobs:
            kind: tuple[Any, ...] = (job.queue, job.type, job.priority, job.sequence is None and not job.limits)
            if job.search:
                kind += (indexed_parameters(job.search),)
            if kind not in known:
                known[kind] = self._lanes.number(lane_of(job))
            numbers.append(known[kind])
        return numbers

    def _taken_ids(self, jobs: Sequence[NewJob], last: int) -> list[Conflict | None]:
        """Return a conflict for each job whose id was stored before or occurs earlier in the batch, else None."""
        taken = self._existing_ids(jobs, last)
        answers: list[Conflict | None] = []
        for job in jobs:
            answers.append(Conflict(job.id, ConflictKind.ID) if job.id in taken else None)
            taken.add(job.id)
        return answers

    def _existing_ids(self, jobs: Sequence[NewJob], last: int) -> set[str]:
        return set(strings(self._database.write(sql.EXISTING_IDS, (to_json([job.id for job in jobs]), last))))

    # -- unique keys and occurrences

    def _submit_unique(self, jobs: Sequence[NewJob], last: int) -> list[Conflict | None]:
        """Store a batch with unique keys or occurrences of schedules; return the conflict of each job, or None.

        A job may conflict with a stored job, or with an earlier job of the batch. If its unique key says so, its
        values replace those of that job.
        """
        taken = self._existing_ids(jobs, MAX_SEQ)
        holders = self._holders({job.unique.key for job in jobs if job.unique is not None})
        occurrences = self._occurrences(jobs)
        kept: dict[str, NewJob] = {}
        answers: list[Conflict | None] = []
        for job in jobs:
            conflict = self._conflict(job, taken, holders, occurrences)
            answers.append(conflict)
            if conflict is None:
                kept[job.id] = job
                taken.add(job.id)
                occurrences[job.schedule, job.occurrence] = job.id
                if job.unique is not None:
                    holders.setdefault(job.unique.key, []).append(
                        UniqueKeyHolder(JobStatus.PENDING, job.id, self._now())
                    )
            elif conflict.kind is ConflictKind.REPLACED:
                if conflict.existing_id in kept:
                    kept[conflict.existing_id] = _replaced(kept[conflict.existing_id], job)
                else:
                    self._replace(conflict.existing_id, job)
        if kept:
            self._insert(list(kept.values()), last)
        return answers

    def _conflict(
        self,
        job: NewJob,
        taken: set[str],
        holders: dict[str, list[UniqueKeyHolder]],
        occurrences: dict[tuple[str | None, int | None], str],
    ) -> Conflict | None:
        return conflict_of(
            job,
            same_id=job.id in taken,
            same_occurrence=None if job.occurrence is None else occurrences.get((job.schedule, job.occurrence)),
            holder=None if job.unique is None else _newest_holder(holders, job.unique, self._now()),
        )

    def _occurrences(self, jobs: Sequence[NewJob]) -> dict[tuple[str | None, int | None], str]:
        asked = [(job.schedule, job.occurrence) for job in jobs if job.occurrence is not None]
        if not asked:
            return {}
        rows = _occurrence_rows(self._database.write(sql.EXISTING_OCCURRENCES, (to_json(asked),)))
        return {(schedule, occurrence): job_id for schedule, occurrence, job_id in rows}

    def _holders(self, keys: set[str]) -> dict[str, list[UniqueKeyHolder]]:
        found: dict[str, list[UniqueKeyHolder]] = {}
        rows = _holders(self._database.write(sql.HOLDERS, (to_json(sorted(keys)),)))
        for key, status, job_id, created, has_started in rows:
            holder = UniqueKeyHolder(STATUSES[status], job_id, created, bool(has_started))
            found.setdefault(key, []).append(holder)
        return found

    def _replace(self, job_id: str, job: NewJob) -> None:
        lane = self._lanes.lane_under(job_id, job.limits, job.search)  # queue, type and priority stay as they are
        group = to_group(lane, job.limits)
        if group is not None:
            self._groups.add_jobs({group: 0})
        memberships = self._heads.memberships_of_jobs([job_id])
        self._database.write(
            sql.REPLACE,
            (
                job_id,
                job.due,
                to_stored(job.payload, job.codec),
                job.codec,
                headers_column(job.headers),
                job.expires,
                number_of(group),
                lane,
            ),
        )
        self._database.write(sql.SET_SEARCH_KEYS, (job_id, to_json(job.search) if job.search else None))
        before = set(memberships.groups)
        memberships.add([(None, group)])
        self._heads.select_heads(memberships)
        self._parked_groups.unpark_sharing_buckets(before)

    # -- events

    def _write_events(self, jobs: Sequence[NewJob], answers: list[Conflict | None]) -> None:
        now = self._now()
        for job, conflict in zip(jobs, answers, strict=True):
            if conflict is None:
                self._events.write([Event(EventKind.SUBMITTED, now, job.id, job.type, job.queue)])
            elif conflict.kind is ConflictKind.UNIQUE:
                self._events.write_for([conflict.existing_id], EventKind.DEDUPLICATED)
            elif conflict.kind is ConflictKind.REPLACED:
                self._events.write_for([conflict.existing_id], EventKind.RESCHEDULED)


def _replaced(job: NewJob, by: NewJob) -> NewJob:
    """Return a job of a batch with the arguments, headers, times, limits and search keys of the job `by`."""
    changes = {"payload": by.payload, "codec": by.codec, "due": by.due, "expires": by.expires}
    return replace(job, **changes, headers=by.headers, limits=by.limits, search=by.search)


def _newest_holder(holders: dict[str, list[UniqueKeyHolder]], unique: UniqueKey, now: int) -> str | None:
    """Return the id of the newest job that holds a unique key, which no other job may have; None if none does.

    The holders of each key are in the order of submission.
    """
    same_key = holders.get(unique.key, ())
    found = [
        holder.id
        for holder in same_key
        if unique.is_held_by(holder.status, holder.created, now, has_started=holder.has_started)
    ]
    return found[-1] if found else None
