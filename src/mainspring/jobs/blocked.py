"""Due jobs that wait for other jobs to end: which sequence or limit holds them up, and which jobs are in front.

Engines list due jobs under sequences and limits; the `Situation` of one job of a group says what the group waits
for. Jobs that wait for a token of a rate are not among them: time frees these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mainspring.jobs.engine import Engine, Situation
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus

PAGE = 1_000
MOST_READ = 20_000
"""Due jobs under sequences and limits that are looked at."""
MOST_GROUPS = 200
"""Sequences and limits whose situation is asked for: those with the jobs that have waited longest."""


class Blocked(Struct, frozen=True):
    """Due jobs that wait for the same jobs."""

    sequence: str | None
    """The sequence that they wait in; or"""
    bucket: str | None
    """the bucket of the limit that they wait for."""
    count: int
    """How many wait."""
    oldest: str
    """The one that has been due longest,"""
    since: int
    """and since when."""
    by: tuple[str, ...]
    """The jobs that they wait for: the one in front, or some of those that occupy the limit."""


Group: TypeAlias = list[JobRecord]


def find_blocked(engine: Engine) -> list[Blocked]:
    """Return what waits for other jobs, the longest waiting first."""
    due = list(_due(engine, engine.now()))
    waiting = {record.id for record in due}
    found: dict[tuple[str | None, str | None], Blocked] = {}
    for group in _groups(due):
        blocked = _look_at(engine, group, waiting)
        if blocked is not None:
            key = (blocked.sequence, blocked.bucket)
            found[key] = _together(found[key], blocked) if key in found else blocked
    return sorted(found.values(), key=lambda blocked: blocked.since)


def _due(engine: Engine, now: int) -> Iterator[JobRecord]:
    """Return the due jobs under sequences and limits that no worker has, some of them if there are very many."""
    query = Query(status=JobStatus.PENDING, due_until=now, is_bound=True, limit=PAGE)
    for _ in range(MOST_READ // PAGE):
        page = engine.find(query)
        yield from (record for record in page.records if record.owner is None)
        if page.end is None:
            return
        query = replace(query, after=page.end)


def _groups(records: Iterable[JobRecord]) -> list[Group]:
    """Divide jobs into those of one sequence, or under the same limits; those that have waited longest first."""
    groups: dict[object, Group] = {}
    for record in records:
        key = (record.queue, record.sequence) if record.sequence is not None else (record.queue, record.limits)
        groups.setdefault(key, []).append(record)
    for group in groups.values():
        group.sort(key=lambda record: record.due)
    return sorted(groups.values(), key=lambda group: group[0].due)[:MOST_GROUPS]


def _look_at(engine: Engine, group: Group, waiting: set[str]) -> Blocked | None:
    """Return what a group waits for; None if that is a worker, a token, or the end of a pause."""
    last = engine.situation(group[-1].id)
    if last is None or last.record.status is not JobStatus.PENDING or last.is_queue_paused:
        return None
    if last.behind is None:
        return _at_limit(group, last, waiting)
    if last.behind not in waiting:  # it runs, or is to run again later
        return _blocked(group, sequence=last.record.sequence, bucket=None, by=(last.behind,))
    front = engine.situation(last.behind)
    return None if front is None else _at_limit(group, front, waiting)


def _at_limit(group: Group, situation: Situation, waiting: set[str]) -> Blocked | None:
    """Return what keeps a limit occupied; an engine may keep places for jobs that only need a worker."""
    holders = situation.bucket_holders
    if situation.full_bucket is None or situation.limited_until is not None or not waiting.isdisjoint(holders):
        return None
    return _blocked(group, sequence=None, bucket=situation.full_bucket, by=holders) if holders else None


def _blocked(group: Group, *, sequence: str | None, bucket: str | None, by: tuple[str, ...]) -> Blocked:
    return Blocked(sequence, bucket, len(group), group[0].id, group[0].due, by)


def _together(one: Blocked, other: Blocked) -> Blocked:
    older = min(one, other, key=lambda blocked: blocked.since)
    return replace(older, count=one.count + other.count, by=tuple(dict.fromkeys(one.by + other.by)))
