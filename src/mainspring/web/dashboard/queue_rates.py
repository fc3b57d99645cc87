"""Rates of queues: how many jobs were submitted and ended in the last minutes, from the counts in the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from mainspring.jobs.activity_rows import ActivityRow
from mainspring.jobs.histogram import Histogram
from mainspring.jobs.timestamps import MICROSECONDS

MINUTES = 60
"""The number of minutes, up to now, that charts and sums of a queue cover."""
RECENT = 5
"""The number of full minutes over which a rate per minute is averaged."""
_MINUTE = timedelta(minutes=1)


@dataclass(slots=True)
class QueueRates:
    """The activity of one queue, or of all queues, in the last hour: submits, ended attempts and lateness."""

    submitted: list[int] = field(default_factory=lambda: [0] * MINUTES)
    """Submitted jobs by minute, the last minute at the end."""
    ended: list[int] = field(default_factory=lambda: [0] * MINUTES)
    """Attempts that completed, by minute."""
    failed: list[int] = field(default_factory=lambda: [0] * MINUTES)
    """Attempts that failed, timed out or crashed, and jobs that expired, by minute."""
    lateness: Histogram = field(default_factory=Histogram)
    """The times from the due time of a job to the begin of its handler, in microseconds, over the whole hour."""

    @property
    def ended_per_minute(self) -> float:
        """How many attempts completed per minute, on average over the last five full minutes."""
        return _recent(self.ended)

    @property
    def submitted_per_minute(self) -> float:
        """How many jobs were submitted per minute, on average over the last five full minutes."""
        return _recent(self.submitted)

    @property
    def failed_in_hour(self) -> int:
        """How many attempts failed, timed out or crashed, and how many jobs expired, within the last hour."""
        return sum(self.failed)

    def lateness_at(self, share: float) -> float | None:
        """Return the lateness in seconds that this share of the attempts did not exceed; None without attempts."""
        found = self.lateness.quantile(share)
        return None if found is None else found / MICROSECONDS

    @property
    def is_empty(self) -> bool:
        """Whether no jobs were submitted and no attempts completed or failed in the last hour."""
        return not (any(self.submitted) or any(self.ended) or any(self.failed))


def _recent(counts: list[int]) -> float:
    """Return the average of the last five full minutes; the current minute, the last element, is left out."""
    return sum(counts[-RECENT - 1 : -1]) / RECENT


def rates_by_queue(rows: Iterable[ActivityRow], now: datetime) -> dict[str, QueueRates]:
    """Add up rows of activity by queue, for each minute of the last hour. Older and longer rows are left out."""
    found: dict[str, QueueRates] = {}
    first = now.replace(second=0, microsecond=0) - _MINUTE * (MINUTES - 1)
    for row in rows:
        place = (row.start - first) // _MINUTE
        if row.length > _MINUTE or not 0 <= place < MINUTES:
            continue
        rates = found.setdefault(row.queue, QueueRates())
        rates.submitted[place] += row.submitted
        rates.ended[place] += row.attempts.get("completed", 0)
        rates.failed[place] += sum(
            row.attempts.get(name, 0) for name in ("failed", "timeout", "crashed", "expired")
        )
        for histogram in row.lateness.values():
            rates.lateness.add(histogram)
    return found
