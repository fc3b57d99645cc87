"""The firing thread: on time, once, whatever the store, the clocks and other workers do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, cast

import pytest

from mainspring.jobs.commands import PauseSchedule, RemoveSchedule
from mainspring.jobs.engine import Engine
from mainspring.jobs.io_layer import BatchCall, IoLayer
from mainspring.jobs.recurrence.schedule_firer import BATCH, BATCH_JOBS, MAX_BATCH, ScheduleFirer
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, OccurrenceKind, Overlap
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.testing import ManualClock
from tests.support import PATIENCE, Background, Gate, eventually
from tests.unit.jobs.schedule_engine import ScheduleEngine, every

MINUTE = 60 * MICROSECONDS


class DirectIo:
    """An io layer that calls the engine in its caller."""

    def __init__(self, engine: ScheduleEngine) -> None:
        self._engine = engine

    def call(self, call: BatchCall[Any, Any], items: Sequence[Any]) -> Any:
        return call.run(cast(Engine, self._engine), 0, items)


@pytest.fixture
def schedule_store(clock: ManualClock) -> ScheduleEngine:
    return ScheduleEngine(clock)


@contextmanager
def firing(schedule_store: ScheduleEngine) -> Iterator[ScheduleFirer]:
    numbers = count(1)
    firer = ScheduleFirer(
        engine=cast(Engine, schedule_store),
        io=cast(IoLayer, DirectIo(schedule_store)),
        clock=schedule_store.clock,
        new_id=lambda _now: f"job-{next(numbers)}",
        add_keys=lambda job: job,
    )
    firer.start()
    try:
        yield firer
    finally:
        firer.close()


@pytest.fixture
def firer(schedule_store: ScheduleEngine) -> Iterator[ScheduleFirer]:
    with firing(schedule_store) as made:
        yield made


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="mainspring.schedules")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_job_is_stored_a_start_lead_before_its_occurrence(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    due = schedule_store.put("report", every(minutes=1)).next_due
    assert due is not None
    firer.expect(due)
    schedule_store.clock.advance(60 - 0.011)
    assert schedule_store.jobs == []
    schedule_store.clock.advance(0.001)
    (job,) = schedule_store.jobs
    assert (job.schedule, job.occurrence, job.due) == ("report", due, due)
    assert schedule_store.stored_at == [due - schedule_store.start_lead]


def test_once_set_going_it_goes_on(schedule_store: ScheduleEngine, firer: ScheduleFirer) -> None:
    due = schedule_store.put("report", every(minutes=1)).next_due
    assert due is not None
    firer.expect(due)
    schedule_store.clock.advance(hours=1)
    assert [job.due for job in schedule_store.jobs] == [due + minute * MINUTE for minute in range(60)]
    assert schedule_store.stored_at == [job.due - schedule_store.start_lead for job in schedule_store.jobs]


def test_schedules_of_all_kinds_are_fired_in_order(schedule_store: ScheduleEngine, firer: ScheduleFirer) -> None:
    schedule_store.put("often", every(minutes=7))
    schedule_store.put("seldom", every(minutes=20))
    firer.expect(schedule_store.next_firing)
    schedule_store.clock.advance(hours=2)
    assert sorted(schedule_store.due_times()) == schedule_store.due_times()
    assert (len(schedule_store.due_times("often")), len(schedule_store.due_times("seldom"))) == (17, 6)


def test_without_schedules_it_sleeps(schedule_store: ScheduleEngine, firer: ScheduleFirer) -> None:
    firer.expect(None)
    schedule_store.clock.advance(days=1)
    assert (schedule_store.calls.total(), firer.next_due()) == (0, None)


def test_a_schedule_that_has_ended_lets_it_sleep(schedule_store: ScheduleEngine, firer: ScheduleFirer) -> None:
    record = schedule_store.put("report", every(minutes=1), end=schedule_store.now() + 2 * MINUTE)
    firer.expect(record.next_due)
    schedule_store.clock.advance(hours=1)
    assert len(schedule_store.jobs) == 2
    assert firer.next_due() is None


def test_being_told_what_is_known_costs_no_look_at_the_store(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    due = schedule_store.put("report", every(minutes=1)).next_due
    assert due is not None
    for told in (due, due, due + MINUTE, None):
        firer.expect(told)
    schedule_store.clock.advance(30)
    assert schedule_store.calls["schedules"] == 0


def test_an_earlier_occurrence_is_fired_earlier(schedule_store: ScheduleEngine, firer: ScheduleFirer) -> None:
    schedule_store.put("seldom", every(hours=5))
    firer.expect(schedule_store.next_firing)
    schedule_store.clock.advance(60)
    due = schedule_store.put("soon", every(minutes=1)).next_due
    firer.expect(due)
    schedule_store.clock.advance(60)
    assert [job.occurrence for job in schedule_store.jobs] == [due]


def test_a_later_occurrence_does_not_hide_the_earlier_one(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    due = schedule_store.put("report", every(minutes=1)).next_due
    assert due is not None
    firer.expect(due)
    firer.expect(due + 100 * MINUTE)
    schedule_store.clock.advance(61)
    assert len(schedule_store.jobs) == 1


def test_old_news_does_no_harm(schedule_store: ScheduleEngine, firer: ScheduleFirer) -> None:
    due = schedule_store.put("report", every(minutes=1)).next_due
    firer.expect(due)
    schedule_store.clock.advance(90)
    firer.expect(due)
    schedule_store.clock.advance(60)
    assert len(schedule_store.jobs) == 2


@pytest.mark.parametrize("arrangement", [RemoveSchedule("report"), PauseSchedule("report", True, None)])
def test_a_schedule_that_is_removed_or_paused_is_not_fired(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, arrangement: RemoveSchedule | PauseSchedule
) -> None:
    firer.expect(schedule_store.put("report", every(minutes=1)).next_due)
    schedule_store.arrange([arrangement])
    schedule_store.clock.advance(hours=1)
    assert (schedule_store.jobs, firer.next_due()) == ([], None)


def test_occurrences_that_were_due_while_no_worker_ran_are_planned_by_their_policy(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, warnings: Callable[[], list[str]]
) -> None:
    due = schedule_store.put("report", every(hours=1)).next_due
    schedule_store.clock.jump(timedelta(hours=5, minutes=30))
    firer.expect(due)
    schedule_store.clock.settle()
    assert [str(due) for due in schedule_store.due_times()] == ["2026-01-01 05:00:00+00:00"]
    (record,) = schedule_store.occurrences("report", 9)
    assert (record.kind, record.count) == (OccurrenceKind.COALESCED, 4)
    (warning,) = warnings()
    assert warning == (
        "schedule 'report' has made no job for its occurrences from 2026-01-01 01:00:00+00:00 to "
        "2026-01-01 04:00:00+00:00 (coalesced): 4 occurrences covered by the job of 2026-01-01 05:00:00+00:00"
    )


def test_an_occurrence_that_finds_an_earlier_job_alive_is_told(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, warnings: Callable[[], list[str]]
) -> None:
    schedule_store.keep_job("report", "job-0")
    firer.expect(schedule_store.put("report", every(minutes=1), overlap=Overlap.SKIP).next_due)
    schedule_store.clock.advance(60)
    assert schedule_store.jobs == []
    (warning,) = warnings()
    assert warning == (
        "schedule 'report' has made no job for 1 occurrence (2026-01-01 00:01:00+00:00), "
        "because its earlier job job-0 has not ended"
    )


def test_a_job_that_is_alive_is_not_told_of_when_there_was_nothing_to_skip_for_it(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, warnings: Callable[[], list[str]]
) -> None:
    schedule_store.keep_job("report", "job-0")
    due = schedule_store.put("report", every(hours=1), overlap=Overlap.SKIP, misfire="skip").next_due
    schedule_store.clock.jump(timedelta(hours=1, minutes=30))
    firer.expect(due)
    schedule_store.clock.settle()
    assert ["found too late" in warning for warning in warnings()] == [True]


@pytest.mark.long
def test_many_schedules_are_fired_in_a_few_commits(schedule_store: ScheduleEngine, firer: ScheduleFirer) -> None:
    sizes = [BATCH, 2 * BATCH, 4 * BATCH, MAX_BATCH, MAX_BATCH, 50]
    for number in range(sum(sizes)):
        schedule_store.put(f"report {number}", every(hours=1))
    firer.expect(schedule_store.next_firing)
    schedule_store.clock.advance(hours=1)
    assert len(schedule_store.jobs) == sum(sizes)
    assert schedule_store.fired_together == sizes


@pytest.mark.long
def test_a_commit_does_not_make_up_for_too_much_at_once(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    for number in range(3):
        schedule_store.put(f"report {number}", every(seconds=1), misfire="all", catch_up=BATCH_JOBS)
    due = schedule_store.next_firing
    schedule_store.clock.jump(timedelta(hours=2))
    firer.expect(due)
    schedule_store.clock.settle()
    assert (len(schedule_store.jobs), schedule_store.calls["fire"]) == (3 * BATCH_JOBS, 3)


# -- other workers


def test_several_workers_fire_every_occurrence_once(schedule_store: ScheduleEngine) -> None:
    for number in range(20):
        schedule_store.put(f"report {number}", every(minutes=1 + number % 3))
    with firing(schedule_store) as one, firing(schedule_store) as other, firing(schedule_store) as third:
        for firer in (one, other, third):
            firer.expect(schedule_store.next_firing)
        schedule_store.clock.advance(hours=1)
    pairs = [(job.schedule, job.occurrence) for job in schedule_store.jobs]
    assert len(set(pairs)) == len(pairs) == 7 * 60 + 7 * 30 + 6 * 20


def test_a_worker_that_fires_second_logs_nothing_and_goes_on(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, warnings: Callable[[], list[str]]
) -> None:
    due = schedule_store.put("report", every(hours=1)).next_due
    schedule_store.clock.jump(timedelta(hours=2))

    def be_quicker() -> None:
        schedule_store.before_fire = lambda: None
        with firing(schedule_store) as other:
            other.expect(schedule_store.next_firing)
            other.settle(PATIENCE)

    schedule_store.before_fire = be_quicker
    firer.expect(due)
    schedule_store.clock.advance(hours=1)
    assert (len(schedule_store.jobs), len(warnings())) == (2, 1)  # the word of the first


# -- trouble


@pytest.mark.parametrize("verb", ["schedules", "fire"])
def test_a_store_that_fails_is_asked_again_in_a_second(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, warnings: Callable[[], list[str]], verb: str
) -> None:
    due = schedule_store.put("report", every(minutes=1)).next_due
    assert due is not None
    schedule_store.errors[verb] = 2
    firer.expect(due)
    schedule_store.clock.advance(62)
    assert schedule_store.stored_at == [due - schedule_store.start_lead + 2 * MICROSECONDS]
    message = (
        f"the worker could not fire schedules and tries again in a second: schedule store: {verb} fails; try again"
    )
    assert warnings() == [message] * 2


def test_a_store_that_does_not_do_its_duty_is_not_asked_without_end(
    schedule_store: ScheduleEngine,
    firer: ScheduleFirer,
    warnings: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(firings: Sequence[Firing]) -> list[Fired]:
        return [Fired(False)] * len(firings)

    monkeypatch.setattr(schedule_store._schedules, "fire", refuse)
    firer.expect(schedule_store.put("report", every(minutes=1)).next_due)
    schedule_store.clock.advance(60)
    assert schedule_store.calls["fire"] == 1
    assert ["schedule 'report' is still due: the store" in warning for warning in warnings()] == [True]


@pytest.mark.parametrize("rule", ['{"kind":"moon"}', "no json", '{"kind":"every","interval":0,"anchor":0}', "[]"])
def test_a_rule_that_cannot_be_read_is_told_once_and_left_alone(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, warnings: Callable[[], list[str]], rule: str
) -> None:
    schedule_store.put("a moon", rule, next_due=schedule_store.now() + MINUTE)
    schedule_store.put("report", every(minutes=1))
    firer.expect(schedule_store.next_firing)
    schedule_store.clock.advance(hours=1)
    assert len(schedule_store.due_times("report")) == len(schedule_store.jobs) == 60
    (warning,) = warnings()
    assert warning.startswith("this worker does not fire schedule 'a moon', because this version of Mainspring ")


def test_many_rules_that_cannot_be_read_keep_no_other_from_firing(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    for number in range(BATCH + 1):
        schedule_store.put(f"moon {number}", "{}", next_due=schedule_store.now() + MICROSECONDS)
    schedule_store.put("report", every(minutes=1))
    firer.expect(schedule_store.next_firing)
    schedule_store.clock.advance(minutes=5)
    assert len(schedule_store.jobs) == 5


def test_a_policy_that_is_not_known_is_left_alone_too(
    schedule_store: ScheduleEngine, firer: ScheduleFirer, warnings: Callable[[], list[str]]
) -> None:
    firer.expect(schedule_store.put("report", every(minutes=1), misfire="newest").next_due)
    schedule_store.clock.advance(minutes=5)
    assert (schedule_store.jobs, len(warnings())) == ([], 1)


def test_a_schedule_that_was_puzzling_is_tried_again_when_it_was_changed(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    firer.expect(schedule_store.put("report", "{}", next_due=schedule_store.now() + MINUTE).next_due)
    schedule_store.clock.advance(minutes=5)
    firer.expect(schedule_store.put("report", every(minutes=1)).next_due)
    schedule_store.clock.advance(minutes=5)
    assert len(schedule_store.jobs) == 5


def test_a_puzzling_schedule_does_not_hide_new_ones_and_costs_a_look_a_second(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    schedule_store.put("moon", "{}", next_due=schedule_store.now() + MICROSECONDS)
    firer.expect(schedule_store.next_firing)
    schedule_store.clock.advance(5)
    schedule_store.put("report", every(minutes=1))
    before = schedule_store.calls["schedules"]
    for _ in range(9):
        firer.expect(schedule_store.next_firing)  # the moon's
        schedule_store.clock.advance(0.1)
    assert schedule_store.calls["schedules"] - before == 2  # what is due, and what comes next
    schedule_store.clock.advance(60)
    assert len(schedule_store.due_times("report")) == 1


# -- the wall clock


def test_a_wall_clock_that_was_set_forward_makes_occurrences_due(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    firer.expect(schedule_store.put("report", every(hours=1)).next_due)
    schedule_store.clock.advance(60)
    schedule_store.clock.step_wall(3_600)
    firer.retime()
    schedule_store.clock.settle()
    assert len(schedule_store.jobs) == 1


def test_a_wall_clock_that_was_set_back_puts_occurrences_off(
    schedule_store: ScheduleEngine, firer: ScheduleFirer
) -> None:
    firer.expect(schedule_store.put("report", every(hours=1)).next_due)
    schedule_store.clock.step_wall(-60)
    schedule_store.clock.advance(3_600)
    assert schedule_store.calls["schedules"] == 0  # it need not ask to know that it is too early
    schedule_store.clock.advance(60)
    assert len(schedule_store.jobs) == 1


# -- the end


def test_nothing_is_fired_after_the_end(schedule_store: ScheduleEngine) -> None:
    with firing(schedule_store) as firer:
        firer.expect(schedule_store.put("report", every(minutes=1)).next_due)
    firer.expect(schedule_store.next_firing)
    firer.retime()
    schedule_store.clock.advance(hours=1)
    assert schedule_store.jobs == []


def test_the_end_waits_for_what_is_being_fired(schedule_store: ScheduleEngine) -> None:
    gate = Gate()
    schedule_store.before_fire = gate
    with firing(schedule_store) as firer:
        firer.expect(schedule_store.put("report", every(minutes=1)).next_due)
        schedule_store.clock.jump(60)
        gate.wait_until_entered()

        def close() -> int:
            firer.close()
            return len(schedule_store.jobs)

        end = Background(close)
        assert eventually(lambda: firer._is_closed)
        assert not end.is_done
        gate.open()
        assert end.result() == 1, "it has not waited for what was being fired"


def test_a_firing_that_does_not_come_to_rest_has_a_name(schedule_store: ScheduleEngine) -> None:
    gate = Gate()
    schedule_store.before_fire = gate
    with firing(schedule_store) as firer:
        firer.expect(schedule_store.put("report", every(minutes=1)).next_due)
        schedule_store.clock.jump(60)
        gate.wait_until_entered()
        assert firer.settle(0.01) == "the schedules of a worker"
        gate.open()
        assert firer.settle(PATIENCE) is None
