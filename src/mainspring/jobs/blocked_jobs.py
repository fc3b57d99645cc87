"""Finds due jobs that wait for other jobs to end, with the sequence or limit and the jobs that block them.

The engine lists the due jobs in sequences and under limits. The `Situation` of one job of a group shows what the
whole group waits for. Jobs that wait for a token of a rate are left out, because they start as time passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mainspring.jobs.engine import Engine, Situation
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus

PAGE = 1_000
MAX_READ = 20_000
"""The largest number of due jobs in sequences and under limits that one search reads."""
MAX_GROUPS = 200
"""The largest number of groups that one search examines; it examines those that have waited longest."""


class BlockedGroup(Struct, frozen=True):
    """Due jobs of one sequence, or under one limit, that wait for the same jobs to end."""

    sequence: str | None
    """The key of the sequence in which the jobs wait; None if they wait for a limit."""
    bucket: str | None
    """The limit that the jobs wait for, with its key (a bucket); None if they wait in a sequence."""
    count: int
    """How many due jobs of this sequence or limit wait."""
    oldest: str
    """The id of the waiting job that has been due longest."""
    since: int
    """The instant since which the oldest waiting job has been due."""
    by: tuple[str, ...]
    """The ids of the blocking jobs: the job in front in the sequence, or some of those that occupy the limit."""


Group: TypeAlias = list[JobRecord]


def find_blocked(engine: Engine) -> list[BlockedGroup]:
    """Return the due jobs that wait for other jobs to end, in groups: of one sequence, or under the same limits.

    The groups that have waited longest come first.

    At most `MAX_READ` due jobs and `MAX_GROUPS` groups are examined, so that groups may be missing.
    """
    due = list(_due(engine, engine.now()))
    waiting = {record.id for record in due}
    found: dict[tuple[str | None, str | None], BlockedGroup] = {}
    for group in _groups(due):
        blocked = _find_blocker(engine, group, waiting)
        if blocked is not None:
            key = (blocked.sequence, blocked.bucket)
            found[key] = _merge(found[key], blocked) if key in found else blocked
    return sorted(found.values(), key=lambda blocked: blocked.since)


def _due(engine: Engine, now: int) -> Iterator[JobRecord]:
    """Yield due jobs in sequences and under limits that no worker has leased, from at most `MAX_READ` records."""
    query = Query(status=JobStatus.PENDING, due_until=now, is_bound=True, limit=PAGE)
    for _ in range(MAX_READ // PAGE):
        page = engine.find(query)
        yield from (record for record in page.records if record.owner is None)
        if page.end is None:
            return
        query = replace(query, after=page.end)


def _groups(records: Iterable[JobRecord]) -> list[Group]:
    """Group jobs by their sequence, or else by their limits; return at most `MAX_GROUPS`, the longest waiting
    first.
    """
    groups: dict[object, Group] = {}
    for record in records:
        key = (record.queue, record.sequence) if record.sequence is not None else (record.queue, record.limits)
        groups.setdefault(key, []).append(record)
    for group in groups.values():
        group.sort(key=lambda record: record.due)
    return sorted(groups.values(), key=lambda group: group[0].due)[:MAX_GROUPS]


def _find_blocker(engine: Engine, group: Group, waiting: set[str]) -> BlockedGroup | None:
    """Return waiting jobs of one sequence, or under the same limits, with the jobs that block them; else None.

    Jobs that wait for a worker, for a token of a rate or for the end of a pause are not blocked by jobs.
    """
    last = engine.situation(group[-1].id)
    if last is None or last.record.status is not JobStatus.PENDING or last.is_queue_paused:
        return None
    if last.behind is None:
        return _at_limit(group, last, waiting)
    if last.behind not in waiting:  # the job in front runs, or waits for a later due time
        return _make_blocked(group, sequence=last.record.sequence, bucket=None, by=(last.behind,))
    front = engine.situation(last.behind)
    return None if front is None else _at_limit(group, front, waiting)


def _at_limit(group: Group, situation: Situation, waiting: set[str]) -> BlockedGroup | None:
    """Return a group of jobs under the same limits with the full limit that blocks it; None if no limit does.

    An engine may reserve places of a limit for jobs that only wait for a worker. These do not block the group.
    """
    holders = situation.bucket_holders
    if situation.full_bucket is None or situation.limited_until is not None or not waiting.isdisjoint(holders):
        return None
    return _make_blocked(group, sequence=None, bucket=situation.full_bucket, by=holders) if holders else None


def _make_blocked(group: Group, *, sequence: str | None, bucket: str | None, by: tuple[str, ...]) -> BlockedGroup:
    return BlockedGroup(sequence, bucket, len(group), group[0].id, group[0].due, by)


def _merge(one: BlockedGroup, other: BlockedGroup) -> BlockedGroup:
    older = min(one, other, key=lambda blocked: blocked.since)
    return replace(older, count=one.count + other.count, by=tuple(dict.fromkeys(one.by + other.by)))
