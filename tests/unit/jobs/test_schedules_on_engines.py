"""Schedules on every engine: fired once whatever the number of workers, and stored without a loss by deploys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import cast

import pytest

from mainspring import Cron, Every, JobFunction, Priority, ThreadPool
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Engine
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.ids import JobIds
from mainspring.jobs.io_layer import IoLayer
from mainspring.jobs.policies import CatchUp, Concurrency
from mainspring.jobs.records import Query
from mainspring.jobs.recurrence.schedule_firer import ScheduleFirer
from mainspring.jobs.recurrence.schedule_records import OccurrenceKind
from mainspring.jobs.recurrence.schedules import Schedules
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.testing import ManualClock
from tests.support import PATIENCE
from tests.unit.jobs.schedule_engine import FakeApp, every


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Engine]:
    engine: Engine = MemoryEngine(clock=clock)
    if request.param == "sqlite":
        engine = SqliteEngine(tmp_path / "jobs.db", clock=clock, durability="normal", is_shared=False)
    engine.open(lambda: None)
    yield engine
    engine.close()


@pytest.fixture
def io(engine: Engine, clock: ManualClock) -> Iterator[IoLayer]:
    pool = ThreadPool(1, name="io", clock=clock)
    yield IoLayer(engine, pool)
    pool.shutdown(timeout=PATIENCE)


@pytest.fixture
def source(engine: Engine, io: IoLayer) -> FakeApp:
    return FakeApp(engine, io)


@pytest.fixture
def schedules(source: FakeApp) -> Schedules:
    return Schedules(cast(ManagerProvider, source))


@pytest.fixture
def report(source: FakeApp) -> JobFunction[..., None]:
    def report(day: int = 0) -> None: ...

    return source.job(report, concurrency=Concurrency(2, by="day"), steps_aside=True)


@pytest.fixture
def workers(engine: Engine, io: IoLayer, clock: ManualClock) -> Iterator[list[ScheduleFirer]]:
    """Three firing threads on one store."""
    ids = JobIds()
    with ExitStack() as stack:
        made = [
            ScheduleFirer(
                engine=engine, io=io, clock=clock, new_id=lambda now: ids.make(now)[0], add_keys=lambda job: job
            )
            for _ in range(3)
        ]
        for firer in made:
            stack.enter_context(closing(firer))
            firer.start()
        yield made


def pairs(engine: Engine) -> list[tuple[str | None, int]]:
    """The occurrences that have a job."""
    return [(job.schedule, job.occurrence or 0) for job in engine.find(Query(limit=10_000)).records]


def test_several_workers_fire_every_occurrence_once(
    engine: Engine,
    clock: ManualClock,
    workers: list[ScheduleFirer],
    schedules: Schedules,
    report: JobFunction[..., None],
) -> None:
    began = engine.now()
    rules = {f"report {number}": every(minutes=1 + number % 3) for number in range(12)}
    for name, rule in rules.items():
        schedules.put(name, report, rule, overlap="allow")
    for firer in workers:
        firer.expect(min(rule.next_after(began) or 0 for rule in rules.values()))
    clock.advance(minutes=30)
    expected = []
    for name, rule in rules.items():
        step = rule.interval // timedelta(microseconds=1)
        expected += [(name, instant) for instant in range(began + step, engine.now() + 1, step)]
    assert sorted(pairs(engine)) == sorted(expected)


def test_an_equal_definition_is_equal_after_it_was_stored(
    engine: Engine, schedules: Schedules, source: FakeApp, report: JobFunction[..., None]
) -> None:
    def put() -> int:
        variant = report.options(queue="größer", priority=Priority.BEST_EFFORT, expires=90.5, then=report)
        return schedules.put(
            "nightly",
            variant,
            Cron("0 2 * * *", tz="Asia/Taipei"),
            arguments=(7,),
            misfire=CatchUp(5),
            overlap="replace",
            jitter=0.25,
        ).record.revision

    assert [put(), put()] == [1, 1]


def test_deploys_at_any_time_neither_lose_nor_double_an_occurrence(
    engine: Engine,
    clock: ManualClock,
    workers: list[ScheduleFirer],
    schedules: Schedules,
    report: JobFunction[..., None],
) -> None:
    random = Random(11)
    rules: list[Every | Cron] = [every(minutes=1), every(seconds=90), every(minutes=5), Cron("*/2 * * * *")]
    rule = rules[0]
    schedules.put("report", report, rule, misfire=CatchUp(100), overlap="allow")
    expected: list[tuple[str | None, int]] = []
    for _ in range(40):
        began = engine.now()
        clock.advance(seconds=random.choice([0, 1, 30, 60, 300, 301.5]))
        occurrence = rule.next_after(began)
        while occurrence is not None and occurrence <= engine.now():
            expected.append(("report", occurrence))
            occurrence = rule.next_after(occurrence)
        rule = random.choice(rules)
        schedules.put("report", report, rule, misfire=CatchUp(100), overlap="allow")
        if random.random() < 0.5:  # a worker is told, or has to find out in its next round
            random.choice(workers).expect(engine.schedules()[0].next_due)
    assert pairs(engine) == expected
    assert len(expected) > 30


def test_what_was_left_out_is_found_in_the_history(
    engine: Engine,
    clock: ManualClock,
    workers: list[ScheduleFirer],
    schedules: Schedules,
    report: JobFunction[..., None],
) -> None:
    shown = schedules.put("report", report, every(hours=1))
    clock.jump(timedelta(hours=5, minutes=30))
    workers[0].expect(shown.record.next_due)
    clock.settle()
    (found,) = schedules.history("report")
    assert (found.count, found.kind) == (4, OccurrenceKind.COALESCED)
    clock.advance(hours=1)
    skipped = schedules.history("report")[0]
    (job,) = engine.find(Query()).records
    assert (skipped.kind, skipped.count) == (OccurrenceKind.SKIPPED, 1)
    assert skipped.note == f"job {job.id} of an earlier occurrence has not ended"


def test_a_paused_schedule_is_not_fired_and_goes_on_when_it_is_resumed(
    engine: Engine,
    clock: ManualClock,
    workers: list[ScheduleFirer],
    schedules: Schedules,
    report: JobFunction[..., None],
) -> None:
    due = schedules.put("report", report, every(hours=1), overlap="allow").record.next_due
    workers[0].expect(due)
    schedules.pause("report")
    clock.advance(hours=2, minutes=30)
    assert pairs(engine) == []
    schedules.resume("report")
    workers[0].expect(schedules.get("report").record.next_due)
    clock.advance(hours=1)
    assert pairs(engine) == [("report", (due or 0) + 2 * 3_600 * MICROSECONDS)]
