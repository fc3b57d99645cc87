"""Time travel: days in milliseconds, in order, on a store of its own."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Cron, JobFunction, JobStatus, Mainspring, Retry, Snooze
from mainspring.clock import SystemClock
from mainspring.testing import TimeTravel, time_travel
from tests.support import PATIENCE

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def cancel_order(app: Mainspring) -> JobFunction[..., None]:
    @app.job(queue="orders")
    def cancel_order(order_id: int, reason: str = "unpaid") -> None: ...

    return cancel_order


def test_the_example_of_the_manual_runs_as_it_stands(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    with time_travel(app, start=NOON) as travel:
        cancel_order.after(timedelta(minutes=30)).submit(42)
        travel.fast_forward(minutes=30)  # runs everything due on the way, in order, in milliseconds
        assert app.counts()["COMPLETED"] == 1  # type: ignore[index, unused-ignore]


def test_thirty_days_with_retries_run_to_their_end(app: Mainspring) -> None:
    attempts: list[int] = []

    @app.job(retry=Retry(max_attempts=6, base=3_600, factor=3, max_delay=timedelta(days=10), jitter=0))
    def flaky() -> None:
        attempts.append(1)
        raise ConnectionError("away")

    @app.job
    def daily(number: int) -> None: ...

    with time_travel(app, start=NOON) as travel:
        for _ in range(3):
            flaky.submit()
        for number in range(30):
            daily.after(timedelta(days=number)).submit(number)
        travel.fast_forward(days=30)
        assert app.counts()[JobStatus.COMPLETED] == 30
        assert app.counts()[JobStatus.FAILED] == 3
    assert len(attempts) == 18


def test_everything_on_the_way_runs_at_its_own_instant_and_in_order(app: Mainspring) -> None:
    seen: list[tuple[str, timedelta]] = []

    with time_travel(app, start=NOON) as travel:

        @app.job
        def note(name: str) -> None:
            seen.append((name, travel.now - NOON))

        for name, hours in (("third", 72), ("first", 1), ("second", 24)):
            note.after(timedelta(hours=hours)).submit(name)
        travel.fast_forward(days=4)
    assert seen == [
        ("first", timedelta(hours=1)),
        ("second", timedelta(hours=24)),
        ("third", timedelta(hours=72)),
    ]


def test_jobs_submitted_on_the_way_run_too(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job
    def hourly(number: int) -> None:
        seen.append(number)
        hourly.after(3_600).submit(number + 1)

    with time_travel(app, start=NOON) as travel:
        hourly.submit(0)
        travel.fast_forward(hours=10)
    assert seen == list(range(11))


def test_retries_wait_exactly_as_their_policy_says(app: Mainspring) -> None:
    seen: list[float] = []

    with time_travel(app, start=NOON) as travel:

        @app.job(retry=Retry(max_attempts=6, base=2, factor=2, max_delay=32, jitter=0))
        def flaky() -> None:
            seen.append((travel.now - NOON).total_seconds())
            raise ConnectionError("away")

        handle = flaky.submit()
        travel.fast_forward(minutes=2)
        info = handle.info()
    assert seen == [0, 2, 6, 14, 30, 62]
    assert (info.status, info.failures, len(info.history)) == (JobStatus.FAILED, 6, 6)


def test_a_snoozed_job_comes_again_and_uses_up_no_attempt(app: Mainspring) -> None:
    seen: list[float] = []

    with time_travel(app, start=NOON) as travel:

        @app.job(retry=Retry(max_attempts=1))
        def patient() -> None:
            seen.append((travel.now - NOON).total_seconds())
            if len(seen) < 4:
                raise Snooze(timedelta(minutes=10))

        handle = patient.submit()
        travel.fast_forward(hours=1)
        info = handle.info()
    assert seen == [0, 600, 1_200, 1_800]
    assert (info.status, info.attempts, info.starts) == (JobStatus.COMPLETED, 0, 4)


def test_retry_later_uses_up_attempts_and_chooses_its_wait(app: Mainspring) -> None:
    seen: list[float] = []

    with time_travel(app, start=NOON) as travel:

        @app.job(retry=Retry(max_attempts=3, base=1, jitter=0))
        def later() -> None:
            seen.append((travel.now - NOON).total_seconds())
            raise Retry.Later(60)

        handle = later.submit()
        travel.fast_forward(hours=1)
        assert handle.status() is JobStatus.FAILED
    assert seen == [0, 60, 120]


def test_coroutines_travel_too(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job
    async def handler(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(number)

    with time_travel(app, start=NOON) as travel:
        for number in (3, 1, 2):
            handler.after(number * 60).submit(number)
        travel.fast_forward(minutes=3)
    assert seen == [1, 2, 3]


def test_a_canceled_job_does_not_run_on_the_way(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with time_travel(app, start=NOON) as travel:
        handles = [cancel_order.after(60).submit(number) for number in range(4)]
        assert all(handle.cancel() for handle in handles[:3])
        travel.fast_forward(minutes=2)
        assert [handle.status() for handle in handles] == ["CANCELED", "CANCELED", "CANCELED", "COMPLETED"]


# -- the wall clock


def test_a_wall_clock_set_forward_by_an_hour_makes_jobs_due(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    with time_travel(app, start=NOON) as travel:
        near = cancel_order.after(60).submit(1)
        far = cancel_order.after(7_200).submit(2)
        travel.step_wall_clock(timedelta(hours=1))
        assert (near.status(), far.status()) == (JobStatus.COMPLETED, JobStatus.PENDING)
        travel.fast_forward(hours=1)
        assert far.status() is JobStatus.COMPLETED


@pytest.mark.parametrize("delay", [0.5, 5, 60])
def test_a_wall_clock_set_back_by_an_hour_puts_jobs_off_and_loses_none(
    app: Mainspring, cancel_order: JobFunction[..., None], delay: float
) -> None:
    with time_travel(app, start=NOON) as travel:
        handle = cancel_order.after(delay).submit(1)
        travel.settle()
        travel.step_wall_clock(timedelta(hours=-1))
        travel.fast_forward(timedelta(hours=1, seconds=delay, milliseconds=-20))
        before = handle.status()
        travel.fast_forward(milliseconds=20)
        assert (before, handle.status()) == (JobStatus.PENDING, JobStatus.COMPLETED)


def test_a_wall_clock_set_back_and_forth_runs_each_job_once(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job
    def handler(number: int) -> None:
        seen.append(number)

    with time_travel(app, start=NOON) as travel:
        for number in range(10):
            handler.after(number * 300).submit(number)
        for hours in (-1, 1, 1, -1):
            travel.step_wall_clock(timedelta(hours=hours))
            travel.fast_forward(minutes=10)
        travel.fast_forward(hours=2)
    assert seen == list(range(10))


# -- the journey itself


def test_a_journey_starts_where_it_is_told_to(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with time_travel(app, start=NOON) as travel:
        info = cancel_order.after(60).submit(1).info()
        assert (travel.now, info.created, info.due) == (NOON, NOON, NOON + timedelta(minutes=1))


def test_a_journey_without_a_start_begins_at_the_next_full_second(app: Mainspring) -> None:
    before = SystemClock().now()
    with time_travel(app, start=None) as travel:
        assert before < travel.now <= SystemClock().now() + timedelta(seconds=1)
        assert travel.now.microsecond == 0


def test_time_moves_only_when_it_is_told_to(app: Mainspring) -> None:
    with time_travel(app, start=NOON) as travel:
        travel.fast_forward(1.5)
        travel.fast_forward(timedelta(minutes=1))
        travel.fast_forward(days=1, hours=1, minutes=1, seconds=1, milliseconds=500)
        assert travel.now == NOON + timedelta(days=1, hours=1, minutes=2, seconds=3)


def test_a_naive_start_is_refused(app: Mainspring) -> None:
    with pytest.raises(ValueError, match="aware"), time_travel(app, start=datetime(2026, 3, 1)):  # noqa: DTZ001 - on purpose
        pass


def test_a_negative_journey_is_refused(app: Mainspring) -> None:
    with time_travel(app, start=NOON) as travel, pytest.raises(ValueError, match="negative"):
        travel.fast_forward(-1)


def test_a_journey_neither_sees_nor_touches_the_real_store(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    before = cancel_order.submit(1)
    with time_travel(app, start=NOON) as travel:
        cancel_order.submit(2)
        travel.settle()
        assert app.counts()[JobStatus.COMPLETED] == 1
        assert len(app.jobs()) == 1
    assert [info.id for info in app.jobs()] == [before.id]
    assert before.status() is JobStatus.PENDING


def test_a_journey_makes_no_file_of_its_application(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path / 'orders.db'}")
    job = app.job(name="ping")(lambda: None)
    with time_travel(app, start=NOON) as travel:
        job.submit()
        travel.settle()
    assert list(tmp_path.iterdir()) == []


def test_a_journey_may_use_the_store_of_its_application(tmp_path: Path) -> None:
    with Mainspring(f"sqlite:///{tmp_path / 'orders.db'}") as app:
        job = app.job(name="ping")(lambda: None)
        handle = job.after(60).submit()
        with time_travel(app, start=handle.info().created, isolated=False) as travel:
            travel.fast_forward(minutes=2)
        assert handle.status() is JobStatus.COMPLETED


def test_after_a_journey_the_application_is_as_before(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    with time_travel(app, start=NOON):
        pass
    with app.running():
        assert cancel_order.submit(1).wait(PATIENCE) is JobStatus.COMPLETED


def test_two_journeys_know_nothing_of_each_other(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    for _ in range(2):
        with time_travel(app, start=NOON) as travel:
            cancel_order.submit(1)
            travel.settle()
            assert app.counts()[JobStatus.COMPLETED] == 1


def test_an_error_on_the_way_ends_the_journey(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(ZeroDivisionError), time_travel(app, start=NOON):
        _ = 1 // 0
    cancel_order.submit(1)
    assert app.counts()[JobStatus.PENDING] == 1


def test_a_handler_that_exits_does_not_end_the_journey(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=2, base=1, jitter=0))
    def leave() -> None:
        raise SystemExit(3)

    with time_travel(app, start=NOON) as travel:
        handle = leave.submit()
        travel.fast_forward(minutes=1)
        assert (handle.status(), handle.info().failures) == (JobStatus.FAILED, 2)


# -- schedules


def test_a_cron_fires_at_every_occurrence_on_the_way(app: Mainspring) -> None:
    seen: list[datetime] = []

    with time_travel(app, start=NOON) as travel:

        @app.job(name="report")
        def report() -> None:
            seen.append(travel.now)

        app.schedules.put("nightly", report, Cron("0 2 * * *", tz="Asia/Taipei"))
        travel.fast_forward(days=3)
    assert seen == [datetime(2026, 3, day, 18, tzinfo=UTC) for day in (1, 2, 3)]


def test_a_declared_schedule_begins_with_the_journey(app: Mainspring) -> None:
    seen: list[float] = []
    clocks: list[TimeTravel] = []

    @app.every(timedelta(minutes=5))
    def sync() -> None:
        seen.append((clocks[0].now - NOON).total_seconds())

    with time_travel(app, start=NOON) as travel:
        clocks.append(travel)
        travel.fast_forward(hours=1)
    assert seen == [minutes * 60 for minutes in range(5, 65, 5)]


def test_schedules_and_jobs_run_in_the_order_of_their_due_times(app: Mainspring) -> None:
    seen: list[str] = []
    note = app.job(name="note")(seen.append)
    report = app.job(name="report")(lambda: seen.append("report"))

    with time_travel(app, start=NOON) as travel:
        app.schedules.put("hourly", report, "@hourly")
        note.after(timedelta(minutes=90)).submit("between")
        note.after(timedelta(minutes=30)).submit("before")
        travel.fast_forward(hours=2)
    assert seen == ["before", "report", "between", "report"]
