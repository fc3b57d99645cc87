"""Rows of activity: what all processes did in each minute, or in each hour, as a store keeps it.

A process stores what it counted as flat counts, which an engine adds to those of other processes. `rows_of` joins
the counts of a period into one row for each queue and type, for `app.activity()`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct

from mainspring.jobs.activity import MINUTE, Tally
from mainspring.jobs.histogram import BOUNDS, Histogram
from mainspring.jobs.timestamps import to_datetime

HOUR = 60 * MINUTE
MINUTES_KEPT = 2 * 24 * HOUR
"""How long a store keeps the counts of each minute. After that they are added up by the hour."""
HOURS_KEPT = 30 * 24 * HOUR
"""How long a store keeps the counts of each hour."""
UNBOUNDED = 0
"""The bound of the last bucket of a histogram, which has none."""

SUBMITTED, ATTEMPTS, RETRIES, LATENESS, DURATION = "submitted", "attempts", "retries", "lateness", "duration"
LATENESS_SUM, DURATION_SUM = "lateness sum", "duration sum"


class ActivityCount(Struct, frozen=True, array_like=True, gc=False):
    """One count of a minute or of an hour."""

    start: int
    """The begin of the minute or hour, in microseconds since 1970."""
    queue: str
    type: str
    measure: str
    """`submitted`, `attempts`, `retries`, `lateness`, `duration`, `lateness sum` or `duration sum`."""
    label: str
    """The outcome of attempts, the kind of jobs for lateness and duration, otherwise empty."""
    bucket: int
    """The upper bound of the bucket of a histogram, in microseconds; 0 for the last bucket and other measures."""
    count: int
    length: int = MINUTE
    """The length of the period, in microseconds."""


class ActivityBatch(Struct, frozen=True, array_like=True, gc=False):
    """Counts that a process stores together. A store counts a batch once, even if it gets the batch twice."""

    sender: str
    """An id of the process, which no other process has."""
    number: int
    """The number of the batch. A later batch of the same process has a greater number."""
    counts: tuple[ActivityCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityRow:
    """What all processes of a store did in one minute or hour with the jobs of one queue and type.

    Lateness and duration are histograms in microseconds, by the kind of job: immediate, delayed or recurring.
    """

    start: datetime
    """The begin of the minute or hour."""
    length: timedelta
    """A minute, or an hour for rows that are older than two days."""
    queue: str
    """The queue; `other` for all jobs beyond the largest number of pairs of queue and type."""
    type: str
    submitted: int
    """How many jobs were stored."""
    attempts: Mapping[str, int]
    """How many attempts ended, by outcome: completed, failed, timeout, crashed, interrupted, canceled, snoozed,
    expired."""
    retries: int
    """After how many of the attempts the job waited for a retry."""
    lateness: Mapping[str, Histogram]
    """From the due time to the begin of the handler."""
    duration: Mapping[str, Histogram]
    """From the begin to the end of the handler."""


def counts_of(minutes: Mapping[int, Tally]) -> Iterator[ActivityCount]:
    """Return the counts of a process, by minute, as flat counts without zeros."""
    for minute, tally in minutes.items():
        start = minute * MINUTE
        for (queue, type_), count in tally.submitted.items():
            yield ActivityCount(start, queue, type_, SUBMITTED, "", UNBOUNDED, count)
        for (queue, type_, outcome), count in tally.attempts.items():
            yield ActivityCount(start, queue, type_, ATTEMPTS, outcome, UNBOUNDED, count)
        for (queue, type_), count in tally.retries.items():
            yield ActivityCount(start, queue, type_, RETRIES, "", UNBOUNDED, count)
        yield from _histogram_counts(start, LATENESS, LATENESS_SUM, tally.lateness)
        yield from _histogram_counts(start, DURATION, DURATION_SUM, tally.duration)


def _histogram_counts(
    start: int, measure: str, sum_measure: str, histograms: Mapping[tuple[str, str, str], Histogram]
) -> Iterator[ActivityCount]:
    for (queue, type_, kind), histogram in histograms.items():
        for bound, count in zip((*BOUNDS, UNBOUNDED), histogram.counts, strict=True):
            if count:
                yield ActivityCount(start, queue, type_, measure, kind, bound, count)
        if histogram.sum:
            yield ActivityCount(start, queue, type_, sum_measure, kind, UNBOUNDED, histogram.sum)


class _Row(Struct):
    """A row that is not complete yet."""

    submitted: int = 0
    retries: int = 0
    attempts: dict[str, int] = {}
    lateness: dict[str, Histogram] = {}
    duration: dict[str, Histogram] = {}

    def add(self, count: ActivityCount) -> None:
        """Add a count. A measure of a later version is left out."""
        match count.measure:
            case "submitted":
                self.submitted += count.count
            case "retries":
                self.retries += count.count
            case "attempts":
                self.attempts[count.label] = self.attempts.get(count.label, 0) + count.count
            case "lateness" | "lateness sum":
                _add_to_histogram(self.lateness, count)
            case "duration" | "duration sum":
                _add_to_histogram(self.duration, count)
            case _:
                pass


def _add_to_histogram(histograms: dict[str, Histogram], count: ActivityCount) -> None:
    histogram = histograms.get(count.label)
    if histogram is None:
        histogram = histograms[count.label] = Histogram()
    if count.measure in (LATENESS_SUM, DURATION_SUM):
        histogram.sum += count.count
    else:
        place = len(BOUNDS) if count.bucket == UNBOUNDED else bisect_left(BOUNDS, count.bucket)
        histogram.counts[place] += count.count


def rows_of(counts: Iterable[ActivityCount]) -> list[ActivityRow]:
    """Join flat counts into rows, ordered by time, queue and type."""
    rows: dict[tuple[int, int, str, str], _Row] = {}
    for count in counts:
        key = (count.start, count.length, count.queue, count.type)
        row = rows.get(key)
        if row is None:
            row = rows[key] = _Row()
        row.add(count)
    return [
        ActivityRow(
            start=to_datetime(start),
            length=timedelta(microseconds=length),
            queue=queue,
            type=type_,
            submitted=row.submitted,
            attempts=row.attempts,
            retries=row.retries,
            lateness=row.lateness,
            duration=row.duration,
        )
        for (start, length, queue, type_), row in sorted(rows.items())
    ]
