"""Recurring jobs from the decorator to the run, on every engine and on manual time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Every, JobStatus, Mainspring, ScheduleBusy, current_job
from mainspring.jobs.policies import CatchUp
from mainspring.testing import TimeTravel, time_travel

START = datetime(2026, 3, 28, tzinfo=UTC)  # the day before clocks change in Berlin


class CallLog:
    """Records the due times of the jobs whose handlers were called."""

    def __init__(self) -> None:
        self.entries: list[datetime] = []

    def record(self) -> None:
        self.entries.append(current_job().due)


@pytest.fixture
def call_log() -> CallLog:
    return CallLog()


@pytest.fixture
def travel(app: Mainspring) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 3, day, hour, minute, tzinfo=UTC)


def test_a_cron_runs_by_the_wall_clock_of_its_zone(app: Mainspring, call_log: CallLog) -> None:
    @app.cron("30 2 * * *", tz="Europe/Berlin")
    def nightly() -> None:
        call_log.record()

    with time_travel(app, start=START) as travel:
        travel.fast_forward(days=3)
        assert {job.lateness for job in app.jobs()} == {0}
    assert call_log.entries == [
        at(28, 1, 30),
        at(29, 1, 30),
        at(30, 0, 30),
    ]  # 02:30, 03:30 for want of 02:30, 02:30


@pytest.mark.parametrize("day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
def test_a_cron_of_every_quarter_of_an_hour_does_not_pause_when_clocks_change(
    app: Mainspring, call_log: CallLog, day: datetime
) -> None:
    @app.cron("*/15 * * * *", tz="Europe/Berlin")
    def poll() -> None:
        call_log.record()

    with time_travel(app, start=day) as travel:
        travel.fast_forward(hours=4)
    assert call_log.entries == [day + k * timedelta(minutes=15) for k in range(1, 17)]


def test_an_interval_runs_from_the_start_of_the_first_worker_on(app: Mainspring, call_log: CallLog) -> None:
    @app.every(timedelta(minutes=5))
    async def sync() -> None:
        call_log.record()

    with time_travel(app, start=START + timedelta(seconds=7)) as travel:
        travel.fast_forward(minutes=11)
    assert call_log.entries == [START + timedelta(minutes=minutes, seconds=7) for minutes in (5, 10)]


def test_a_function_may_recur_by_several_rules_and_stays_a_job(app: Mainspring, call_log: CallLog) -> None:
    @app.cron("0 12 * * *", name="at noon")
    @app.every(timedelta(hours=9))
    @app.job(queue="reports")
    def report() -> None:
        call_log.record()

    with time_travel(app, start=START) as travel:
        report.submit()
        travel.fast_forward(hours=20)
        assert [schedule.queue for schedule in app.schedules.list()] == ["reports"] * 2
    assert call_log.entries == [START, at(28, 9), at(28, 12), at(28, 18)]


def test_a_schedule_is_made_changed_and_removed_while_a_worker_runs(
    app: Mainspring, travel: TimeTravel, call_log: CallLog
) -> None:
    @app.job
    def report() -> None:
        call_log.record()

    travel.fast_forward(minutes=30)
    app.schedules.put("report", report, Every(timedelta(hours=1)))
    travel.fast_forward(hours=2)
    app.schedules.put("report", report, "0 * * * *")
    travel.fast_forward(hours=2)
    app.schedules.remove("report")
    travel.fast_forward(hours=9)
    assert call_log.entries == [at(28, 1, 30), at(28, 2, 30), at(28, 3), at(28, 4)]


def test_a_restart_keeps_the_place_of_an_interval_and_makes_up_for_what_was_missed(
    tmp_path: Path, call_log: CallLog
) -> None:
    with Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}", durability="normal", grace=0) as app:

        @app.every(timedelta(hours=1), misfire=CatchUp(2))
        def sync() -> None:
            call_log.record()

        with time_travel(app, start=at(28, 0, 10), isolated=False) as travel:
            travel.fast_forward(hours=2)
        with time_travel(app, start=at(28, 8), isolated=False) as travel:
            travel.settle()
            travel.fast_forward(minutes=10)
            (left_out,) = app.schedules.history(app.schedules.list()[0].name)
    assert call_log.entries == [at(28, 1, 10), at(28, 2, 10), at(28, 6, 10), at(28, 7, 10), at(28, 8, 10)]
    assert (left_out.first, left_out.last, left_out.count) == (at(28, 3, 10), at(28, 5, 10), 3)


@pytest.mark.parametrize(
    ("overlap", "statuses"),
    [
        ("skip", ["COMPLETED", "COMPLETED"]),  # those of 1:00 and 3:00
        ("queue", ["COMPLETED", "COMPLETED", "COMPLETED"]),
        ("allow", ["COMPLETED", "COMPLETED", "COMPLETED"]),
    ],
)
def test_an_occurrence_that_finds_the_earlier_one_waiting(
    app: Mainspring, travel: TimeTravel, call_log: CallLog, overlap: str, statuses: list[str]
) -> None:
    @app.job
    def report() -> None:
        call_log.record()

    app.schedules.put("report", report, Every(timedelta(hours=1)), overlap=overlap)  # type: ignore[arg-type]
    app.queue("default").pause()
    travel.fast_forward(hours=2)
    app.queue("default").resume()
    travel.fast_forward(hours=1)
    assert [str(job.status) for job in app.jobs()] == statuses
    expected = [at(28, 1), at(28, 3)] if overlap == "skip" else [at(28, 1), at(28, 2), at(28, 3)]
    assert call_log.entries == expected


def test_an_occurrence_replaces_the_earlier_one_that_waits(
    app: Mainspring, travel: TimeTravel, call_log: CallLog
) -> None:
    @app.job
    def report() -> None:
        call_log.record()

    app.schedules.put("report", report, Every(timedelta(hours=1)), overlap="replace")
    app.queue("default").pause()
    travel.fast_forward(hours=2)
    app.queue("default").resume()
    travel.settle()
    assert [job.status for job in app.jobs()] == [JobStatus.CANCELED, JobStatus.COMPLETED]
    assert call_log.entries == [at(28, 2)]


def test_a_schedule_is_triggered_by_hand_and_its_occurrences_stay(app: Mainspring, call_log: CallLog) -> None:
    @app.cron("0 12 * * *", jitter=3_600, name="noon")
    @app.job(queue="reports")
    def report(day: str = "today") -> str:
        call_log.record()
        return day

    with time_travel(app, start=START) as travel:
        next_due = app.schedules.get("noon").next_due
        handle = app.schedules.trigger("noon")
        travel.settle()
        job = handle.info()
        assert (handle.result(), job.queue, job.schedule, job.occurrence) == ("today", "reports", "noon", None)
        assert app.schedules.get("noon").next_due == next_due
        assert app.schedules.get("noon").last_due is None
        travel.fast_forward(days=1)
        assert app.counts()["COMPLETED"] == 2
        assert app.schedules.history("noon") == []
    assert call_log.entries[0] == START
    assert call_log.entries[1] >= at(28, 12)


def test_a_trigger_with_an_id_makes_one_job_however_often_it_is_repeated(
    app: Mainspring, call_log: CallLog
) -> None:
    @app.every(timedelta(days=1), name="sync")
    def sync() -> str:
        call_log.record()
        return "done"

    with time_travel(app, start=START) as travel:
        first = app.schedules.trigger("sync", id="by hand")  # repeated while it is PENDING, and after its end
        assert app.schedules.trigger("sync", id="by hand").id == first.id == "by hand"
        travel.settle()
        assert app.schedules.trigger("sync", id="by hand").result() == "done"
        travel.settle()
        with pytest.raises(ValueError, match="non-empty printable string"):
            app.schedules.trigger("sync", id="")
    assert call_log.entries == [START]


def test_a_paused_schedule_is_triggered_by_hand_any_number_of_times(app: Mainspring, call_log: CallLog) -> None:
    @app.every(timedelta(hours=1), name="sync")
    def sync() -> None:
        call_log.record()

    with time_travel(app, start=START) as travel:
        app.schedules.pause("sync")
        for _ in range(3):
            app.schedules.trigger("sync")
            travel.settle()
        assert app.schedules.get("sync").is_paused
    assert call_log.entries == [START] * 3


@pytest.mark.parametrize(
    ("overlap", "statuses"),
    [("queue", ["COMPLETED", "COMPLETED"]), ("replace", ["CANCELED", "COMPLETED"]), ("allow", ["COMPLETED"] * 2)],
)
def test_a_trigger_keeps_the_overlap_policy(
    app: Mainspring, travel: TimeTravel, overlap: Any, statuses: list[str]
) -> None:
    @app.job
    def report() -> None: ...

    app.queue("default").pause()
    app.schedules.put("noon", report, "0 12 * * *", overlap=overlap)
    handles = [app.schedules.trigger("noon") for _ in statuses]
    app.queue("default").resume()
    travel.settle()
    assert [handle.status() for handle in handles] == statuses
    sequences = {handle.info().sequence for handle in handles}
    assert sequences == ({None} if overlap == "allow" else {"schedule noon"})


def test_a_trigger_is_refused_while_a_job_of_a_schedule_that_skips_has_not_ended(
    app: Mainspring, travel: TimeTravel
) -> None:
    @app.job
    def report() -> None: ...

    app.queue("default").pause()
    app.schedules.put("noon", report, "0 12 * * *")
    first = app.schedules.trigger("noon")
    with pytest.raises(
        ScheduleBusy, match=f"'noon' was not triggered: its job '{first.id}' has not ended"
    ) as refused:
        app.schedules.trigger("noon")
    assert refused.value.job_id == first.id
    travel.fast_forward(hours=12)  # the occurrence finds the triggered job
    assert [entry.note for entry in app.schedules.history("noon")] == [
        f"job {first.id} of an earlier occurrence has not ended"
    ] * 2
    app.queue("default").resume()
    travel.settle()
    assert app.schedules.trigger("noon").id != first.id


def test_a_triggered_job_is_found_by_its_arguments(app: Mainspring, travel: TimeTravel) -> None:
    @app.job(search=("customer",))
    def digest(customer: str) -> None: ...

    app.schedules.put("ann", digest, "0 12 * * *", arguments=("ann",))
    by_hand = app.schedules.trigger("ann")
    assert [job.id for job in app.jobs(arguments={"customer": "ann"})] == [by_hand.id]
    assert list(app.jobs(arguments={"customer": "bob"})) == []


def test_the_jobs_of_a_schedule_are_listed_with_the_newest_first(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.jobs.recurrence.schedules.JOB_PAGE", 2)

    @app.every(timedelta(hours=2), name="other")
    @app.every(timedelta(hours=1), name="hourly")
    def report() -> None: ...

    with time_travel(app, start=START) as travel:
        travel.fast_forward(hours=3, minutes=30)
        by_hand = app.schedules.trigger("hourly")
        travel.settle()
        found = app.schedules.jobs("hourly")
        assert [job.occurrence for job in found] == [None, at(28, 3), at(28, 2), at(28, 1)]
        assert found[0] == by_hand.info()
        assert app.schedules.jobs("hourly", limit=2) == found[:2]
        assert [job.occurrence for job in app.schedules.jobs("other")] == [at(28, 2)]
        with pytest.raises(ValueError, match="limit must be"):
            app.schedules.jobs("hourly", limit=0)


def test_a_handler_with_required_parameters_cannot_recur_by_a_decorator(app: Mainspring) -> None:
    with pytest.raises(TypeError, match=r"no caller would pass order_id; .* app\.schedules\.put"):

        @app.cron("@daily")
        def cancel(order_id: int) -> None: ...
