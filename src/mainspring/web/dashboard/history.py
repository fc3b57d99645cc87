"""Adds up the activity of all processes for pages: counts and lateness over a time, as totals and as charts.

The store has the activity by minute, and for older times by the hour. A thread reads it and adds it up, so that
the event loop does not wait, and browsers with the same rights share the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from mainspring.jobs.activity_rows import ActivityRow
from mainspring.jobs.histogram import Histogram
from mainspring.jobs.timestamps import MICROSECONDS, to_datetime
from mainspring.security.permissions import Permissions, Scope
from mainspring.web.dashboard.snapshots import Source

if TYPE_CHECKING:
    from mainspring.app import Mainspring

FAILURES = frozenset({"failed", "timeout", "crashed", "expired"})
"""The outcomes of attempts that count as failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRange:
    """A range of time that a page can show, such as the last six hours."""

    name: str
    """The name of the range in the URL: `6h`."""
    label: str
    span: timedelta
    step: timedelta
    """The length of a period, which becomes a column of a chart."""
    seconds: float
    """For how many seconds a result is reused before the store is read again."""


RANGES = (
    HistoryRange(name="1h", label="1 hour", span=timedelta(hours=1), step=timedelta(minutes=1), seconds=3),
    HistoryRange(name="6h", label="6 hours", span=timedelta(hours=6), step=timedelta(minutes=5), seconds=10),
    HistoryRange(name="24h", label="24 hours", span=timedelta(days=1), step=timedelta(minutes=20), seconds=30),
    HistoryRange(name="7d", label="7 days", span=timedelta(days=7), step=timedelta(hours=2), seconds=120),
    HistoryRange(name="30d", label="30 days", span=timedelta(days=30), step=timedelta(hours=8), seconds=300),
)
RECENT = HistoryRange(
    name="recent", label="15 minutes", span=timedelta(minutes=15), step=timedelta(minutes=15), seconds=2
)
"""The range of the numbers at the top of the overview: the last 15 minutes."""


def range_of(name: str | None) -> HistoryRange:
    """Return the range with a name, such as `6h`; one hour for an unknown name."""
    return next((each for each in RANGES if each.name == name), RANGES[0])


@dataclass(slots=True)
class Period:
    """The activity in a period: submitted jobs, ended attempts by outcome, retries, lateness and duration."""

    start: datetime
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    retries: int = 0
    other: int = 0
    """Attempts that were canceled, interrupted or snoozed."""
    lateness: Histogram = field(default_factory=Histogram)
    duration: Histogram = field(default_factory=Histogram)

    def add(self, row: ActivityRow) -> None:
        """Add a row of activity, which is that of one queue and job type, to this period."""
        self.submitted += row.submitted
        self.retries += row.retries
        for outcome, count in row.attempts.items():
            if outcome == "completed":
                self.completed += count
            elif outcome in FAILURES:
                self.failed += count
            else:
                self.other += count
        for histogram in row.lateness.values():
            self.lateness.add(histogram)
        for histogram in row.duration.values():
            self.duration.add(histogram)

    @property
    def attempts(self) -> int:
        """How many attempts ended in this period, whatever their outcome; an expired job counts as one."""
        return self.completed + self.failed + self.other

    def lateness_at(self, q: float) -> float | None:
        """Return the quantile `q` of the lateness of job starts, in seconds; None if no job began."""
        value = self.lateness.quantile(q)
        return None if value is None else value / MICROSECONDS

    def duration_at(self, q: float) -> float | None:
        """Return the quantile `q` of the duration of attempts, in seconds; None if no job ran."""
        value = self.duration.quantile(q)
        return None if value is None else value / MICROSECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The activity within a range of time: for each period, which is a column of a chart, and in total."""

    since: datetime
    until: datetime
    periods: Sequence[Period]
    total: Period


def add_up(
    rows: Iterable[ActivityRow], since: datetime, until: datetime, step: timedelta, permissions: Permissions
) -> History:
    """Add up the rows of activity that a caller may read, in periods of length `step`.

    A row of a whole hour is added to the period in which the hour begins. Rows before or after the range are added
    to its first or last period.
    """
    length = step.total_seconds()
    first = since.timestamp() // length
    number = int((until.timestamp() - 1e-6) // length - first) + 1
    periods = [Period(datetime.fromtimestamp((first + place) * length, tz=UTC)) for place in range(number)]
    total = Period(since)
    for row in rows:
        if not permissions.allows(Scope.READ, type=row.type, queue=row.queue):
            continue
        place = int(row.start.timestamp() // length - first)
        periods[min(number - 1, max(0, place))].add(row)
        total.add(row)
    return History(since=periods[0].start, until=until, periods=periods, total=total)


def history_source(wanted: HistoryRange, permissions: Permissions, *, queue: str | None = None) -> Source[History]:
    """Return a source that reads the history of a range that a caller may see, of all queues or of one."""
    key = (sorted(permissions.types or ()), sorted(permissions.queues or ()), sorted(permissions.scopes))
    is_restricted = permissions.types is not None, permissions.queues is not None
    return Source(
        name=f"history {wanted.name} {queue!r} {is_restricted} {key}",
        read=partial(_read, wanted=wanted, permissions=permissions, queue=queue),
        seconds=wanted.seconds,
    )


async def _read(app: Mainspring, *, wanted: HistoryRange, permissions: Permissions, queue: str | None) -> History:
    return await app.off_loop.write(_read_and_add_up, app, wanted, permissions, queue)


def _read_and_add_up(
    app: Mainspring, wanted: HistoryRange, permissions: Permissions, queue: str | None
) -> History:
    manager = app.manager()
    until = to_datetime(manager.engine.now())
    since = until - wanted.span
    begin = since - timedelta(seconds=since.timestamp() % wanted.step.total_seconds())  # of the first period
    rows = manager.activity(begin, step=wanted.step // timedelta(microseconds=1))
    chosen = rows if queue is None else [row for row in rows if row.queue == queue]
    return add_up(chosen, since, until, wanted.step, permissions)
