"""Submitting: jobs are stored in batches; unique keys are looked up for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.lines import Places
from mainspring.engines.sqlite.rows import (
    STATUSES,
    are_equal,
    equal_rows,
    new_rows,
    strings,
    to_group,
    to_json,
    to_optional_json,
    to_stored,
)
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.engine import Conflict, ConflictKind, Event, EventKind, NewJob, UniqueKey
from mainspring.jobs.status import JobStatus

_holders = msgspec.json.Decoder(list[tuple[str, int, str, int]]).decode


class Holder(msgspec.Struct):
    """A job that has a unique key."""

    status: JobStatus
    id: str
    created: int

    def is_in_the_way(self, unique: UniqueKey, now: int) -> bool:
        """Answer whether it keeps a new one out."""
        is_young = unique.window is None or now - self.created < unique.window
        return self.status in unique.states and is_young


class Submitting:
    """Stores jobs, inside of units."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._lanes = store.lanes
        self._lines = store.lines
        self._journal = store.journal
        self._now = store.now

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store jobs and say what was in the way of which."""
        conflicts: dict[str, Conflict] = {}
        kept = jobs
        if any(job.unique is not None for job in jobs):
            kept, conflicts = self._without_duplicates(jobs)
        last = self._database.write(sql.LAST_SEQ)
        if kept and not self._insert(kept):
            conflicts |= self._taken_ids(kept, last)
        answers = self._answers(jobs, conflicts)
        self._tell(jobs, answers)
        return answers

    def _answers(self, jobs: Sequence[NewJob], conflicts: dict[str, Conflict]) -> list[Conflict | None]:
        answers: list[Conflict | None] = []
        seen: set[str] = set()
        for job in jobs:
            is_second = job.id in seen and not conflicts
            answers.append(Conflict(job.id, ConflictKind.ID) if is_second else conflicts.get(job.id))
            seen.add(job.id)
        return answers

    def _insert(self, jobs: Sequence[NewJob]) -> bool:
        """Store them; False if some ids are taken."""
        write = self._database.write
        lanes = self._lanes.numbers({(job.queue, job.type, job.priority) for job in jobs})
        if are_equal(jobs):
            first = jobs[0]
            lane = lanes[first.queue, first.type, first.priority]
            write(sql.INSERT_EQUAL, (equal_rows(jobs), self._now(), lane, first.due, first.codec))
            return self._database.changes() == len(jobs)
        write(sql.INSERT, (new_rows(jobs, lanes), self._now()))
        is_complete = self._database.changes() == len(jobs)
        lines = [
            (job.sequence, to_group(lanes[job.queue, job.type, job.priority], job.limits))
            for job in jobs
            if job.sequence is not None or job.limits
        ]
        if lines:
            self._lines.put_in_order(Places(lines))
        return is_complete

    def _taken_ids(self, jobs: Sequence[NewJob], last: int) -> dict[str, Conflict]:
        ids = [job.id for job in jobs]
        taken = strings(self._database.write(sql.IN_THE_WAY, (to_json(ids), last)))
        return {job_id: Conflict(job_id, ConflictKind.ID) for job_id in taken}

    # -- unique jobs

    def _without_duplicates(self, jobs: Sequence[NewJob]) -> tuple[list[NewJob], dict[str, Conflict]]:
        """Return the jobs to be stored, and what keeps the others out."""
        taken = set(strings(self._database.write(sql.IN_THE_WAY, (to_json([job.id for job in jobs]), 1 << 62))))
        holders = self._holders({job.unique.key for job in jobs if job.unique is not None})
        kept: dict[str, NewJob] = {}
        conflicts: dict[str, Conflict] = {}
        now = self._now()
        for job in jobs:
            if job.id in taken or job.id in kept:
                conflicts[job.id] = Conflict(job.id, ConflictKind.ID)
                continue
            holder = _find(holders, job.unique, now)
            if holder is None:
                kept[job.id] = job
                if job.unique is not None:
                    holders.setdefault(job.unique.key, []).append(Holder(JobStatus.PENDING, job.id, now))
                continue
            replaces = job.unique is not None and job.unique.replaces
            conflicts[job.id] = Conflict(holder.id, ConflictKind.REPLACED if replaces else ConflictKind.UNIQUE)
            if replaces and holder.id in kept:
                kept[holder.id] = replace(job, id=holder.id)
            elif replaces:
                self._replace(holder.id, job)
        return list(kept.values()), conflicts

    def _holders(self, keys: set[str]) -> dict[str, list[Holder]]:
        found: dict[str, list[Holder]] = {}
        for key, status, job_id, created in _holders(self._database.write(sql.HOLDERS, (to_json(sorted(keys)),))):
            found.setdefault(key, []).append(Holder(STATUSES[status], job_id, created))
        return found

    def _replace(self, job_id: str, job: NewJob) -> None:
        lane = self._lanes.numbers({(job.queue, job.type, job.priority)})[job.queue, job.type, job.priority]
        places = self._lines.of_ids([job_id])
        self._database.write(
            sql.REPLACE,
            (
                job_id,
                job.due,
                to_stored(job.payload, job.codec),
                job.codec,
                to_optional_json(job.headers),
                job.expires,
                to_group(lane, job.limits),
                to_optional_json(job.follow_up),
            ),
        )
        places.add([(None, to_group(lane, job.limits))])
        self._lines.put_in_order(places)

    # -- events

    def _tell(self, jobs: Sequence[NewJob], answers: list[Conflict | None]) -> None:
        if not self._journal.is_listened():
            return
        now = self._now()
        kinds = {
            ConflictKind.UNIQUE: EventKind.DEDUPLICATED,
            ConflictKind.REPLACED: EventKind.RESCHEDULED,
        }
        events = []
        for job, conflict in zip(jobs, answers, strict=True):
            if conflict is None:
                events.append(Event(EventKind.SUBMITTED, now, job.id, job.type, job.queue))
            elif conflict.kind in kinds:
                kind = kinds[conflict.kind]
                events.append(Event(kind, now, conflict.existing_id, job.type, job.queue))
        self._journal.write(events)


def _find(holders: dict[str, list[Holder]], unique: UniqueKey | None, now: int) -> Holder | None:
    """Return the newest job in the way."""
    if unique is None:
        return None
    found = [holder for holder in holders.get(unique.key, ()) if holder.is_in_the_way(unique, now)]
    return max(found, key=lambda holder: holder.created, default=None)
