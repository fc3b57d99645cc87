"""Rates of queues are added up from the counts of each minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mainspring.jobs.activity_rows import ActivityRow
from mainspring.jobs.histogram import Histogram
from mainspring.web.dashboard.queue_rates import MINUTES, rates_by_queue

NOW = datetime(2027, 1, 4, 12, 30, 20, tzinfo=UTC)


def row(minutes_ago: int, *, queue: str = "orders", length: int = 1, **attempts: int) -> ActivityRow:
    lateness = Histogram()
    lateness.observe(2_000_000)
    return ActivityRow(
        start=NOW.replace(second=0) - timedelta(minutes=minutes_ago),
        length=timedelta(minutes=length),
        queue=queue,
        type="pay",
        submitted=10,
        attempts=attempts,
        retries=0,
        lateness={"immediate": lateness},
        duration={},
    )


def test_rates_are_averages_of_the_last_full_minutes() -> None:
    found = rates_by_queue(
        [row(0, completed=1000), row(1, completed=5, failed=2), row(3, completed=10, timeout=1)], NOW
    )
    rates = found["orders"]
    assert rates.ended_per_minute == 3
    assert rates.submitted_per_minute == 4
    assert rates.failed_in_hour == 3
    assert rates.ended[-4:] == [10, 0, 5, 1000]
    assert len(rates.ended) == MINUTES
    late = rates.lateness_at(0.5)
    assert late is not None
    assert 1 < late <= 2.5
    assert not rates.is_empty


def test_rows_outside_of_the_hour_do_not_count() -> None:
    found = rates_by_queue([row(60, completed=5), row(0, queue="mail", length=60, completed=9)], NOW)
    assert found == {}
    edge = rates_by_queue([row(59, completed=5)], NOW)["orders"]
    assert edge.ended[0] == 5
    assert edge.lateness_at(1) is not None


def test_queues_are_apart() -> None:
    found = rates_by_queue([row(1, completed=5), row(1, queue="mail", failed=1)], NOW)
    assert {name: (sum(rates.ended), rates.failed_in_hour) for name, rates in found.items()} == {
        "orders": (5, 0),
        "mail": (0, 1),
    }
