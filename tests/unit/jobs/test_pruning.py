"""Forgetting what has ended: by age and by count, results by their own time; never what is alive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from mainspring import JobFunction, JobStatus, Keep, Mainspring, Retry
from mainspring.jobs.engine import Retention
from mainspring.testing import ManualClock, TimeTravel, time_travel
from tests.unit.jobs.call_log import START
from tests.unit.jobs.manager_fixture import running_manager
from tests.unit.jobs.scripted_engines import ScriptedEngine

DAY = 86_400


@pytest.fixture
def keep() -> Keep:
    return Keep(completed=DAY, canceled=2 * DAY, failed=3 * DAY)


@pytest.fixture
def app(url: str, keep: Keep) -> Iterator[Mainspring]:
    with Mainspring(url, durability="normal", grace=0, keep=keep) as app:
        yield app


@pytest.fixture
def work(app: Mainspring) -> JobFunction[..., int]:
    @app.job(retry=Retry(max_attempts=1))
    def work(*, fails: bool = False) -> int:
        if fails:
            raise ValueError("no")
        return 42

    return work


@pytest.fixture
def travel(app: Mainspring, work: JobFunction[..., int]) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


def total(app: Mainspring) -> int:
    return sum(app.counts().values())


# -- what is to be kept


def test_by_default_dead_letters_stay_and_the_rest_a_week() -> None:
    week = 7 * DAY * 1_000_000
    ninety_days = 90 * week // 7
    assert Keep().retention() == Retention(week, week, None, 1_000_000, ninety_days, 10_000)


def test_everything_may_be_kept_for_ever() -> None:
    for_ever = Keep(completed=None, canceled=None, most=None, audit=None, most_audited=None)
    assert for_ever.retention() == Retention(None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"completed": -1}, ValueError, "completed must not be negative, got -1"),
        ({"canceled": "a week"}, TypeError, "canceled must be a timedelta or a number of seconds, got 'a week'"),
        ({"failed": float("nan")}, ValueError, "failed must be a finite number of seconds, got nan"),
        ({"most": 0}, ValueError, "most must be a positive number of jobs, got 0"),
        ({"most": 1.5}, TypeError, r"most must be a positive whole number of jobs, got 1\.5"),
    ],
    ids=repr,
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Keep(**options)


# -- by age


def test_jobs_are_forgotten_when_their_time_is_over_each_kind_by_its_own(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., int]
) -> None:
    completed, failed = work.submit(), work.submit(fails=True)
    canceled = work.after(60).submit()
    canceled.cancel()
    travel.settle()
    left = []
    for _ in range(3):
        travel.fast_forward(DAY - 1)
        assert app.prune() == 0
        travel.fast_forward(1)
        assert app.prune() == 1
        left.append({info.id for info in app.jobs()})
    assert left == [{canceled.id, failed.id}, {failed.id}, set()]
    assert completed.id not in left[0]


def test_what_is_alive_is_never_forgotten(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., int]
) -> None:
    app.queue("default").pause()
    work.submit()
    work.after(timedelta(days=30)).submit()
    travel.fast_forward(days=20)
    assert app.prune() == 0
    assert app.counts()[JobStatus.PENDING] == 2


def test_the_age_counts_from_the_end_and_not_from_the_submit(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., int]
) -> None:
    work.after(timedelta(days=5)).submit()
    travel.fast_forward(days=5)
    assert app.prune() == 0
    travel.fast_forward(days=1)
    assert app.prune() == 1


def test_more_than_one_portion_is_forgotten_in_one_call(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., int]
) -> None:
    for handle in [work.after(60).submit() for _ in range(3)]:
        handle.cancel()
    work.submit_many([{}] * 1_200)
    travel.settle()
    travel.fast_forward(days=3)
    assert app.prune() == 1_203
    assert total(app) == 0


# -- by count


@pytest.mark.parametrize("keep", [Keep(most=3)], ids=["at most three"])
def test_beyond_a_number_the_oldest_go_first_and_dead_letters_stay(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., int]
) -> None:
    letter = work.submit(fails=True)
    handles = [work.submit() for _ in range(5)]
    last = work.after(60).submit()
    last.cancel()
    travel.settle()
    assert app.prune() == 3
    assert {info.id for info in app.jobs()} == {letter.id, handles[3].id, handles[4].id, last.id}
    assert app.prune() == 0


# -- results


def test_a_result_may_be_forgotten_before_its_job(app: Mainspring) -> None:
    @app.job(keep_result=timedelta(hours=1))
    def short() -> int:
        return 42

    with time_travel(app, start=START) as travel:
        handle = short.submit()
        travel.fast_forward(minutes=59)
        app.prune()
        before = handle.info().result
        travel.fast_forward(minutes=1)
        assert app.prune() == 0
        assert (before, handle.info().result, handle.status()) == (42, None, JobStatus.COMPLETED)


def test_a_result_that_is_not_kept_is_never_stored(app: Mainspring) -> None:
    @app.job(keep_result=False)
    def silent() -> int:
        return 42

    with time_travel(app, start=START) as travel:
        handle = silent.submit()
        travel.settle()
        assert (handle.status(), handle.info().result) == (JobStatus.COMPLETED, None)


def test_a_result_that_is_kept_stays_as_long_as_its_job(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., int]
) -> None:
    handle = work.submit()
    travel.fast_forward(DAY - 1)
    app.prune()
    assert handle.result() == 42


# -- by itself


def test_a_worker_forgets_by_itself(clock: ManualClock) -> None:
    engine = ScriptedEngine(clock=clock)
    with running_manager(clock, engine, has_maintenance=True, keep=Keep(completed=60)) as shop:
        shop.manager.register("work", lambda: None)
        shop.manager.start()
        shop.manager.submit("work")
        clock.settle()
        clock.advance(minutes=5)
        assert sum(shop.manager.counts().values()) == 0
