"""Misfire policies: decides which due occurrences of a schedule get a job, and which are only recorded.

The functions are pure: every worker that sees the same schedule at the same instant makes the same decision,
including jitter.

- `once`: the latest due occurrence gets a job, for all of them.
- `skip` and `all`: occurrences no older than `GRACE` are on time and get a job, however many there are, so that a
  busy worker drops no runs. Of the older ones, `skip` runs none, and `all` runs the latest, up to `catch_up` jobs
  in total.
- The other occurrences become one record, with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import islice

from mainspring.jobs.records import NewJob
from mainspring.jobs.recurrence.rules import Rule
from mainspring.jobs.recurrence.schedule_records import Firing, Occurrence, OccurrenceKind, Overlap, ScheduleRecord
from mainspring.jobs.timestamps import LAST_INSTANT, MICROSECONDS, to_datetime

GRACE = 60 * MICROSECONDS
"""The age up to which an occurrence is on time."""
MAX_OCCURRENCES = 10_000
"""How many occurrences one firing counts, or makes jobs for, at most."""

_KINDS = {
    "skip": OccurrenceKind.SKIPPED,
    "once": OccurrenceKind.COALESCED,
    "all": OccurrenceKind.MISSED,
}


def plan_firing(record: ScheduleRecord, rule: Rule, now: int, new_id: Callable[[int], str]) -> Firing:
    """Decide about all occurrences from the schedule's next one, which must be due, until now."""
    first = record.next_due
    if first is None or first > now:
        raise ValueError(f"schedule {record.name!r} is not due at {now}: its next occurrence is {first}")
    following = first_due(rule, record.start, record.end, first)
    is_alone = following is None or following > now  # nearly always
    latest = first if is_alone else rule.last_until(_end_of_span(record, now), first) or first
    chosen = _choose(record, rule, first, latest, now)
    is_serial = record.overlap in (Overlap.QUEUE, Overlap.REPLACE) or (
        record.overlap is Overlap.SKIP and len(chosen) > 1
    )
    sequence = f"schedule {record.name}" if is_serial else None
    kind = _KINDS[record.misfire]
    records: tuple[Occurrence, ...] = ()
    if chosen[:1] != [first]:
        last, count = _left_out(rule, first, latest, chosen)
        records = (Occurrence(first, last, count, kind, _note(kind, count, chosen), decided=now),)
    return Firing(
        schedule=record.name,
        revision=record.revision,
        expected=first,
        next_due=following if is_alone else first_due(rule, record.start, record.end, now),
        last_due=latest,
        jobs=tuple(_job(record, occurrence, new_id(now), sequence) for occurrence in chosen),
        overlap=record.overlap,
        records=records,
    )


def first_due(rule: Rule, start: int | None, end: int | None, after: int) -> int | None:
    """Return the first occurrence after an instant and between `start` and `end`, both included."""
    found = rule.next_after(after if start is None else max(after, start - 1))
    return None if found is None or (end is not None and found > end) else found


def _end_of_span(record: ScheduleRecord, now: int) -> int:
    return now if record.end is None else min(now, record.end)


def _choose(record: ScheduleRecord, rule: Rule, first: int, latest: int, now: int) -> list[int]:
    """Return the occurrences that get a job, in order."""
    on_time = now - GRACE
    if record.misfire == "once":
        return [latest]
    made_up = record.catch_up if record.misfire == "all" else 0
    chosen: list[int] = []
    for occurrence in islice(_backwards(rule, first, latest), MAX_OCCURRENCES):
        if occurrence < on_time and len(chosen) >= made_up:
            break
        chosen.append(occurrence)
    return chosen[::-1]


def _backwards(rule: Rule, first: int, latest: int) -> Iterator[int]:
    # The first occurrence is yielded as it was stored: the rules of its time zone may have changed since.
    found: int | None = latest
    while found is not None and found > first:
        yield found
        found = rule.last_until(found - 1, first)
    yield first


def _job(record: ScheduleRecord, occurrence: int, job_id: str, sequence: str | None) -> NewJob:
    due = min(LAST_INSTANT, occurrence + _delay(record, occurrence))
    return NewJob(
        id=job_id,
        type=record.type,
        queue=record.queue,
        priority=record.priority,
        due=due,
        payload=record.payload,
        codec=record.codec,
        sequence=sequence,
        steps_aside=record.steps_aside,
        limits=record.limits,
        expires=None if record.expires is None else min(LAST_INSTANT, due + record.expires),
        schedule=record.name,
        occurrence=occurrence,
        follow_up=record.follow_up,
    )


def _delay(record: ScheduleRecord, occurrence: int) -> int:
    """Return the jitter of an occurrence: pseudo-random, but the same on every worker."""
    if not record.jitter:
        return 0
    digest = blake2b(f"{occurrence} {record.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (record.jitter + 1)


def _left_out(rule: Rule, first: int, latest: int, chosen: list[int]) -> tuple[int, int]:
    """Return the last occurrence without a job, and the number of them. They are the oldest occurrences."""
    last = (rule.last_until(chosen[0] - 1, first) or first) if chosen else latest
    return last, 1 + rule.count_between(first, last, MAX_OCCURRENCES - 1)


def _note(kind: OccurrenceKind, count: int, chosen: list[int]) -> str:
    number = f"at least {MAX_OCCURRENCES:,}" if count >= MAX_OCCURRENCES else f"{count:,}"
    what = f"{number} occurrence{'' if count == 1 else 's'}"
    match kind:
        case OccurrenceKind.SKIPPED:
            return f"{what} found too late, and left out"
        case OccurrenceKind.COALESCED:
            return f"{what} made up for by the one of {to_datetime(chosen[-1]).isoformat(sep=' ')}"
        case OccurrenceKind.MISSED:
            return f"{what} too many to be made up for"
