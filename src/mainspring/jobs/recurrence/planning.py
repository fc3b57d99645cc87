"""Misfire policies: decide which due occurrences of a schedule get a job, and which occurrences are only recorded.

The functions are pure: every worker that reads the same schedule at the same instant makes the same decision, also
about jitter.

- `once`: only the latest due occurrence gets a job. This job stands for all due occurrences.
- `skip` and `all`: every occurrence that is at most `GRACE` old is on time and gets a job, however many there are.
  So a busy worker drops no runs. With `skip`, older occurrences get no jobs. With `all`, the latest of the older
  occurrences get jobs, up to `catch_up` jobs in total.
- The occurrences without a job become one record, which has their number.
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
"""The age in microseconds up to which an occurrence counts as on time."""
MAX_OCCURRENCES = 10_000
"""The largest number of occurrences that one firing counts, and the largest number of jobs that it makes."""

_KINDS = {
    "skip": OccurrenceKind.SKIPPED,
    "once": OccurrenceKind.COALESCED,
    "all": OccurrenceKind.MISSED,
}


def plan_firing(record: ScheduleRecord, rule: Rule, now: int, new_id: Callable[[int], str]) -> Firing:
    """Return the firing for all occurrences from the schedule's `next_due` until now: which of them get a job.

    Raises `ValueError` if the schedule has no further occurrence (`next_due` is None), or none until now.
    """
    first = record.next_due
    if first is None:
        raise ValueError(f"schedule {record.name!r} is not due: it has no further occurrence; do not fire it")
    if first > now:
        raise ValueError(
            f"schedule {record.name!r} is not due: its next occurrence is {first}, now is {now}, in microseconds "
            "since 1970; fire it when it is due"
        )
    following = first_due(rule, record.start, record.end, first)
    is_alone = following is None or following > now  # the usual case
    latest = first if is_alone else rule.last_until(_end_of_span(record, now), first) or first
    chosen = _choose(record, rule, first, latest, now)
    is_serial = record.overlap in (Overlap.QUEUE, Overlap.REPLACE) or (
        record.overlap is Overlap.SKIP and len(chosen) > 1
    )
    sequence = _sequence_of(record) if is_serial else None
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
        jobs=tuple(
            _job(record, occurrence, occurrence + _delay(record, occurrence), new_id(now), sequence)
            for occurrence in chosen
        ),
        overlap=record.overlap,
        records=records,
    )


def plan_trigger(record: ScheduleRecord, now: int, job_id: str) -> Firing:
    """Return the firing that makes one job of a schedule now, beside its occurrences.

    The job has no occurrence and no jitter.
    """
    sequence = _sequence_of(record) if record.overlap in (Overlap.QUEUE, Overlap.REPLACE) else None
    return Firing(
        schedule=record.name,
        revision=record.revision,
        expected=None,
        next_due=None,
        last_due=None,
        jobs=(_job(record, None, now, job_id, sequence),),
        overlap=record.overlap,
        records=(),
    )


def first_due(rule: Rule, start: int | None, end: int | None, after: int) -> int | None:
    """Return the first occurrence after an instant that is between `start` and `end`, both included.

    Return None if there is no such occurrence.
    """
    found = rule.next_after(after if start is None else max(after, start - 1))
    return None if found is None or (end is not None and found > end) else found


def _end_of_span(record: ScheduleRecord, now: int) -> int:
    return now if record.end is None else min(now, record.end)


def _choose(record: ScheduleRecord, rule: Rule, first: int, latest: int, now: int) -> list[int]:
    """Return the occurrences from `first` to `latest` that get a job by the misfire policy, in order."""
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
    # The first occurrence is yielded as it was stored, because the rules of its time zone may have changed since.
    found: int | None = latest
    while found is not None and found > first:
        yield found
        found = rule.last_until(found - 1, first)
    yield first


def _sequence_of(record: ScheduleRecord) -> str:
    return f"schedule {record.name}"


def _job(record: ScheduleRecord, occurrence: int | None, due: int, job_id: str, sequence: str | None) -> NewJob:
    due = min(LAST_INSTANT, due)
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
    """Return the jitter of an occurrence in microseconds.

    The delay is pseudo-random, but the same on every worker.
    """
    if not record.jitter:
        return 0
    digest = blake2b(f"{occurrence} {record.name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (record.jitter + 1)


def _left_out(rule: Rule, first: int, latest: int, chosen: list[int]) -> tuple[int, int]:
    """Return the last occurrence without a job, and the number of occurrences without one, at most 10,000.

    These occurrences are from `first` on and before the first one that was chosen for a job; if none was chosen,
    up to `latest`.
    """
    last = (rule.last_until(chosen[0] - 1, first) or first) if chosen else latest
    return last, 1 + rule.count_between(first, last, MAX_OCCURRENCES - 1)


def _note(kind: OccurrenceKind, count: int, chosen: list[int]) -> str:
    number = f"at least {MAX_OCCURRENCES:,}" if count >= MAX_OCCURRENCES else f"{count:,}"
    what = f"{number} occurrence{'' if count == 1 else 's'}"
    match kind:
        case OccurrenceKind.SKIPPED:
            return f"{what} found too late; no job was submitted"
        case OccurrenceKind.COALESCED:
            return f"{what} covered by the job of {to_datetime(chosen[-1]).isoformat(sep=' ')}"
        case OccurrenceKind.MISSED:
            return f"{what} beyond the limit of CatchUp; no job was submitted"
