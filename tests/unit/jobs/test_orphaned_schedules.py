"""Schedules whose code is gone: a worker says so once, and how to remove them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from mainspring import Cron, JobFunction, Mainspring
from mainspring.jobs.engine import Engine
from mainspring.jobs.records import WorkerInfo, WorkerRecord
from mainspring.jobs.recurrence.orphaned_schedules import WORKERS_KNOWN_FOR, OrphanReporter, was_declared
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.testing import ManualClock, time_travel
from tests.unit.jobs.schedule_engine import ScheduleEngine

Warnings = Callable[[], list[str]]


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Warnings:
    """Return the warnings about schedules since the last call."""
    caplog.set_level(logging.WARNING, logger="mainspring.schedules")

    def messages() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name == "mainspring.schedules"]
        caplog.clear()
        return found

    return messages


def run_shop(
    path: Path,
    day: int,
    declare: Callable[[Mainspring], object],
    at_start: Callable[[Mainspring], object] = lambda _app: None,
) -> Mainspring:
    """Run a version of an application for a day, beginning at noon of a day of March."""
    with Mainspring(f"sqlite:///{path / 'shop.db'}", durability="normal", grace=0) as app:
        declare(app)
        with time_travel(app, start=datetime(2026, 3, day, 12, tzinfo=UTC), isolated=False) as travel:
            at_start(app)
            travel.fast_forward(days=1)
    return app


def report() -> None: ...


def declares(app: Mainspring) -> None:
    app.cron("0 * * * *", name="hourly")(app.job(name="shop.report")(report))


def has_handler(app: Mainspring) -> None:
    app.job(name="shop.report")(report)


def test_a_schedule_whose_function_was_deleted_is_reported_once_and_not_at_each_occurrence(
    tmp_path: Path, warnings: Warnings
) -> None:
    run_shop(tmp_path, 1, declares)
    assert warnings() == []
    run_shop(tmp_path, 2, lambda app: app.job(name="shop.other")(report))
    (warning,) = warnings()
    assert warning == (
        "schedule 'hourly' fires, but no running worker has its handler 'shop.report', so its jobs wait; if its "
        "code is gone, remove it: mainspring schedules remove hourly"
    )


def test_a_schedule_whose_decorator_was_deleted_is_reported_once(tmp_path: Path, warnings: Warnings) -> None:
    run_shop(tmp_path, 1, declares)
    app = run_shop(tmp_path, 2, has_handler)
    (warning,) = warnings()
    assert warning == (
        "schedule 'hourly' fires, but its declaration is gone from the code; if it is not needed, remove it: "
        "mainspring schedules remove hourly"
    )
    with app:
        assert len(app.schedules.jobs("hourly")) == 48  # it goes on
        app.schedules.remove("hourly")
    run_shop(tmp_path, 4, has_handler)
    assert warnings() == []


def put(app: Mainspring, *names: str, expression: str = "0 * * * *") -> None:
    job: JobFunction[[], None] = JobFunction(app.registry.get("shop.report"), report, app)
    for name in names:
        app.schedules.put(name, job, expression)


def origins(app: Mainspring) -> dict[str, bool | None]:
    with app:
        return {schedule.name: schedule.is_declared for schedule in app.schedules.list()}


def test_a_schedule_that_was_put_at_run_time_needs_no_declaration(tmp_path: Path, warnings: Warnings) -> None:
    run_shop(tmp_path, 1, declares)
    run_shop(tmp_path, 2, has_handler, lambda app: put(app, "shop.report", "hourly"))  # equal to the declared one
    app = run_shop(tmp_path, 3, has_handler)
    assert warnings() == []
    assert origins(app) == {"hourly": False, "shop.report": False}


def test_a_declared_schedule_that_is_changed_at_run_time_stays_declared(
    tmp_path: Path, warnings: Warnings
) -> None:
    app = run_shop(tmp_path, 1, declares, lambda app: put(app, "hourly", expression="30 * * * *"))
    assert (origins(app), warnings()) == ({"hourly": True}, [])


def test_a_declaration_takes_over_an_equal_schedule_that_was_put(tmp_path: Path) -> None:
    app = run_shop(tmp_path, 1, has_handler, lambda app: put(app, "hourly"))
    assert origins(app) == {"hourly": False}
    assert origins(run_shop(tmp_path, 2, declares)) == {"hourly": True}


# -- the reporter itself


class EngineWithWorkers(ScheduleEngine):
    """An engine in memory with a list of workers."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.types: list[tuple[str, bool]] = []  # the job type of each worker, and whether the worker is gone
        self.reads = 0

    def workers(self) -> list[WorkerRecord]:
        self.reads += 1
        return [
            WorkerRecord(number, WorkerInfo("host:1", 1, (name,)), 0, is_gone)
            for number, (name, is_gone) in enumerate(self.types)
        ]


@pytest.fixture
def engine(clock: ManualClock) -> EngineWithWorkers:
    return EngineWithWorkers(clock)


def reporter(engine: EngineWithWorkers, registry: Any = (), declared: Any = ()) -> OrphanReporter:
    return OrphanReporter(cast(Engine, engine), registry, declared)


def record(engine: EngineWithWorkers, name: str = "shop.report", **changes: Any) -> ScheduleRecord:
    return engine.put(name, Cron("@hourly"), **changes)


def test_a_schedule_of_another_application_is_no_orphan_while_a_worker_of_it_runs(
    engine: EngineWithWorkers, warnings: Warnings
) -> None:
    engine.types = [("shop.other", False), ("shop.report", False)]
    orphans = reporter(engine)
    assert [orphans.check(record(engine, is_declared=True)) for _ in range(3)] == [False] * 3
    assert (warnings(), engine.reads) == ([], 1)
    engine.types = [("shop.report", True)]
    engine.clock.advance(timedelta(microseconds=WORKERS_KNOWN_FOR))
    assert not orphans.check(record(engine))
    engine.clock.advance(timedelta(microseconds=1))
    assert orphans.check(record(engine))
    assert (len(warnings()), engine.reads) == (1, 2)


def test_an_orphan_is_reported_again_when_its_definition_has_changed(
    engine: EngineWithWorkers, warnings: Warnings
) -> None:
    orphans = reporter(engine)
    first = record(engine)
    assert [orphans.check(first), orphans.check(first)] == [True, True]
    assert orphans.check(record(engine, jitter=5))
    assert len(warnings()) == 2


def test_a_handler_that_is_registered_later_ends_the_state(engine: EngineWithWorkers, warnings: Warnings) -> None:
    handlers: set[str] = set()
    orphans = reporter(engine, handlers, {"shop.report"})
    assert orphans.check(record(engine))
    handlers.add("shop.report")
    assert not orphans.check(record(engine))
    assert len(warnings()) == 1


def test_a_name_with_spaces_can_be_pasted_into_a_shell(engine: EngineWithWorkers, warnings: Warnings) -> None:
    reporter(engine).check(record(engine, "digest of ann"))
    assert warnings()[0].endswith("remove it: mainspring schedules remove 'digest of ann'")


@pytest.mark.parametrize(
    ("name", "is_declared", "expected"),
    [
        ("shop.report", None, True),  # version 0.1 did not store it: a declaration is named after its handler
        ("hourly", None, False),
        ("shop.report", False, False),
        ("hourly", True, True),
    ],
)
def test_a_declared_schedule_is_known_by_its_record_or_by_its_name(
    engine: EngineWithWorkers, name: str, is_declared: Any, expected: Any
) -> None:
    assert was_declared(record(engine, name, is_declared=is_declared)) is expected
