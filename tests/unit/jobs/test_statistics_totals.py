"""Totals of statistics, ages of jobs, and what makes a slot hot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mainspring import GroupStatistics, ProcessStatistics, Statistics, UpcomingSlot
from mainspring.jobs.histogram import COMMIT_BOUNDS, SIZE_BOUNDS, Histogram
from mainspring.jobs.statistics import CommitStatistics, to_commits, to_groups, to_slot
from mainspring.jobs.store_statistics import JobGroup, JobsInSlot

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
IDLE = ProcessStatistics(slots=(), timers=None, pools=(), commits=None)


def group(queue: str, type_: str = "ping", **counts: object) -> GroupStatistics:
    none = {"due": 0, "blocked": 0, "scheduled": 0, "running": 0, "dead_letters": 0}
    ages = {"oldest_due": None, "oldest_blocked": None, "is_exact": True}
    return GroupStatistics(queue=queue, type=type_, **(none | ages | counts))  # type: ignore[arg-type]


def snapshot(*groups: GroupStatistics, paused: tuple[str, ...] = ()) -> Statistics:
    return Statistics(at=START, groups=groups, paused_queues=paused, workers=0, fullest_slot=None, process=IDLE)


def test_totals_are_the_sums_of_the_groups() -> None:
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    found = snapshot(
        group("mail", due=2, blocked=3, oldest_due=minute, oldest_blocked=hour),
        group("mail", "pong", scheduled=5, running=1, is_exact=False),
        group("orders", due=7, dead_letters=11, oldest_due=hour),
        paused=("mail",),
    )
    assert (found.due, found.blocked, found.scheduled, found.running, found.dead_letters) == (9, 3, 5, 1, 11)
    assert (found.oldest_due, found.oldest_blocked, found.is_exact) == (hour, hour, False)
    assert found.queues == ("mail", "orders")
    mail, orders = found.queue("mail"), found.queue("orders")
    assert (mail.queue, orders.queue) == ("mail", "orders")
    assert (mail.due, mail.blocked, mail.scheduled, mail.running, mail.dead_letters) == (2, 3, 5, 1, 0)
    assert (mail.oldest_due, mail.oldest_blocked, mail.is_exact, mail.is_paused) == (minute, hour, False, True)
    assert (orders.due, orders.dead_letters, orders.is_exact, orders.is_paused) == (7, 11, True, False)


def test_a_queue_without_jobs_has_none() -> None:
    found = snapshot(paused=("quiet",)).queue("quiet")
    assert (found.due, found.blocked, found.scheduled, found.oldest_due, found.is_exact) == (0, 0, 0, None, True)
    assert found.is_paused
    assert snapshot().oldest_due is None


def test_instants_of_an_engine_become_ages() -> None:
    found = to_groups([JobGroup("q", "t", 1, 2, 3, 4, 5, 700, 200, is_exact=False)], 1_000)
    assert found == (
        GroupStatistics(
            queue="q",
            type="t",
            due=1,
            blocked=2,
            scheduled=3,
            running=4,
            dead_letters=5,
            oldest_due=timedelta(microseconds=300),
            oldest_blocked=timedelta(microseconds=800),
            is_exact=False,
        ),
    )
    (later,) = to_groups([JobGroup("q", "t", 1, 0, 0, 0, 0, 1_005, None, is_exact=True)], 1_000)
    assert (later.oldest_due, later.oldest_blocked) == (timedelta(0), None)


@pytest.mark.parametrize(
    ("jobs", "average", "is_hot"),
    [(999, 0.0, False), (1_000, 0.0, True), (1_000, 100.0, True), (1_000, 100.1, False), (5_000, 400.0, True)],
)
def test_a_slot_is_hot_if_it_has_many_jobs_and_far_more_than_others(
    jobs: int,
    average: float,
    is_hot: bool,  # noqa: FBT001
) -> None:
    slot = to_slot(JobsInSlot("q", "t", 0, jobs, 3, average))
    assert slot == UpcomingSlot(
        queue="q", type="t", at=datetime(1970, 1, 1, tzinfo=UTC), jobs=jobs, at_once=3, average=average
    )
    assert slot.is_hot is is_hot
    assert to_slot(None) is None


def test_commits_are_summed_up_in_seconds() -> None:
    durations, sizes = Histogram(bounds=COMMIT_BOUNDS), Histogram(bounds=SIZE_BOUNDS)
    for microseconds, operations in ((1_500_000, 1), (500_000, 7)):
        durations.observe(microseconds)
        sizes.observe(operations)
    assert to_commits(durations, sizes) == CommitStatistics(commits=2, seconds=2.0, operations=8)
