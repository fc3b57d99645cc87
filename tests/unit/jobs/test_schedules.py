"""Schedules as users see them: put, changed by a deploy, paused, looked at; and those declared in code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from mainspring import (
    ArgumentsTooLarge,
    Cron,
    Every,
    InvalidArguments,
    JobFunction,
    Priority,
    ScheduleInvalid,
    ScheduleNotFound,
)
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.policies import CatchUp, Concurrency
from mainspring.jobs.recurrence.declared_schedules import DeclaredSchedules
from mainspring.jobs.recurrence.planning import plan_firing
from mainspring.jobs.recurrence.rules import decode_rule
from mainspring.jobs.recurrence.schedule_records import Firing, OccurrenceKind, Overlap
from mainspring.jobs.recurrence.schedules import Schedules
from mainspring.jobs.timestamps import MICROSECONDS, to_instant
from mainspring.testing import ManualClock
from tests.support import amount
from tests.unit.jobs.schedule_engine import FakeApp, ScheduleEngine, every

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = 60 * MICROSECONDS
HOUR = 60 * MINUTE
FIVE_MINUTES = Every(timedelta(minutes=5))


def after(**duration: float) -> datetime:
    return START + timedelta(**duration)


@pytest.fixture
def schedule_store(clock: ManualClock) -> ScheduleEngine:
    return ScheduleEngine(clock)


@pytest.fixture
def source(schedule_store: ScheduleEngine) -> FakeApp:
    return FakeApp(schedule_store)


@pytest.fixture
def schedules(source: FakeApp) -> Schedules:
    return Schedules(cast(ManagerProvider, source))


@pytest.fixture
def report(source: FakeApp) -> JobFunction[..., None]:
    def report(day: int = 0, *, note: str = "") -> None: ...

    return source.job(report, queue="reports", priority=Priority.BEST_EFFORT)


# -- putting


def test_a_schedule_is_shown_as_it_was_put(schedules: Schedules, report: JobFunction[..., None]) -> None:
    rule = Cron("0 2 * * *", tz="Asia/Taipei", dst_fold="both")
    shown = schedules.put(
        "nightly",
        report,
        rule,
        arguments=(7,),
        misfire=CatchUp(3),
        overlap="queue",
        jitter=timedelta(minutes=1),
        start=after(days=1),
        end=after(days=9),
    )
    assert (shown.name, shown.type, shown.queue) == ("nightly", "shop.report", "reports")
    assert (shown.priority, shown.rule, shown.arguments) == (Priority.BEST_EFFORT, rule, {"day": 7})
    assert (shown.misfire, shown.overlap, shown.jitter) == (CatchUp(3), Overlap.QUEUE, timedelta(minutes=1))
    assert (shown.start, shown.end, shown.created) == (after(days=1), after(days=9), START)
    assert (shown.next_due, shown.last_due, shown.is_paused) == (after(days=1, hours=18), None, False)
    assert schedules.get("nightly") == shown
    assert schedules.list() == [shown]


def test_a_schedule_has_sensible_defaults(schedules: Schedules, report: JobFunction[..., None]) -> None:
    shown = schedules.put("nightly", report, "@daily")
    assert (shown.rule, shown.misfire, shown.overlap) == (Cron("@daily"), "once", Overlap.SKIP)
    assert (shown.jitter, shown.start, shown.end, shown.arguments) == (timedelta(), None, None, {})


def test_arguments_may_be_named(schedules: Schedules, report: JobFunction[..., None]) -> None:
    shown = schedules.put("nightly", report, "@daily", arguments={"note": "for the board"})
    assert shown.arguments == {"note": "for the board"}


def test_options_of_the_job_are_kept(
    schedules: Schedules, schedule_store: ScheduleEngine, source: FakeApp, report: JobFunction[..., None]
) -> None:
    variant = report.options(queue="urgent", priority=Priority.USER_BLOCKING, expires=timedelta(minutes=10))
    shown = schedules.put("nightly", variant, "@daily")
    assert (shown.queue, shown.priority) == ("urgent", Priority.USER_BLOCKING)
    assert shown.record.expires == 10 * MINUTE
    limited = source.job(lambda tenant="a": None, name="shop.limited", concurrency=Concurrency(1, by="tenant"))
    (limit,) = schedules.put("limited", limited, "@daily").record.limits
    assert limit.startswith("concurrency of handler shop.limited")


@pytest.mark.parametrize(
    "option",
    [
        {"id": "report-1"},
        {"delay": 5},
        {"at": START},
        {"unique": "a"},
        {"sequence": "a"},
        {"headers": {"user": "1"}},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_that_a_schedule_cannot_keep_are_refused(
    schedules: Schedules, report: JobFunction[..., None], option: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"cannot store {next(iter(option))} of .*; leave it out"):
        schedules.put("nightly", report.options(**option), "@daily")


def test_what_follows_the_job_is_kept(
    schedules: Schedules, source: FakeApp, report: JobFunction[..., None]
) -> None:
    first = source.job(lambda: None, name="shop.first", then=report, steps_aside=True)
    shown = schedules.put("nightly", first, "@daily")
    assert (shown.record.follow_up, shown.record.steps_aside) == (report.follow_up(), True)
    changed = schedules.put("nightly", first.options(steps_aside=False), "@daily")
    assert (changed.record.revision, changed.record.steps_aside) == (2, False)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"misfire": "always"}, ValueError, "misfire must be 'skip', 'once' or CatchUp"),
        ({"misfire": CatchUp(10_001)}, ValueError, "10,000 occurrences at most, got 10,001"),
        (
            {"overlap": "stack"},
            ValueError,
            "one of 'skip', 'queue', 'replace', 'allow', got 'stack'",
        ),
        ({"jitter": -1}, ValueError, "jitter must not be negative"),
        ({"start": START.replace(tzinfo=None)}, ValueError, "start must be an aware datetime"),
        ({"end": 5}, TypeError, "end must be an aware datetime"),
        ({"start": after(days=2), "end": after(days=1)}, ValueError, "end must not be before start"),
        ({"rule": "0 25 * * *"}, ScheduleInvalid, "25"),
        ({"rule": 60}, TypeError, "rule must be a cron expression, a Cron or an Every, got 60"),
        ({"name": ""}, ValueError, "name must be a non-empty"),
        ({"job": print}, TypeError, "job must be a job function, as @app.job returns it"),
        ({"arguments": (1, 2)}, InvalidArguments, "too many positional"),
        ({"arguments": {"week": 1}}, InvalidArguments, "week"),
    ],
)
def test_what_makes_no_sense_is_refused(
    schedules: Schedules,
    report: JobFunction[..., None],
    wrong: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    given: dict[str, Any] = {"name": "nightly", "job": report, "rule": "@daily"} | wrong
    with pytest.raises(error, match=message):
        schedules.put(given.pop("name"), given.pop("job"), given.pop("rule"), **given)
    assert schedules.list() == []


def test_arguments_that_are_too_large_are_refused(schedules: Schedules, report: JobFunction[..., None]) -> None:
    with pytest.raises(ArgumentsTooLarge):
        schedules.put("nightly", report, "@daily", arguments={"note": "x" * 2_000})
    assert schedules.list() == []


# -- putting again


def test_an_equal_definition_changes_nothing(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    first = schedules.put("nightly", report, "@daily", arguments=(1,))
    schedule_store.clock.advance(days=3)
    assert schedules.put("nightly", report, Cron("@daily"), arguments={"day": 1}) == first
    assert (schedule_store.calls["arrange"], schedule_store.calls["fire"]) == (1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"rule": Cron("@daily", tz="Asia/Taipei")},
        {"arguments": (2,)},
        {"misfire": "skip"},
        {"overlap": "allow"},
        {"jitter": 1},
        {"start": after(days=1)},
        {"end": after(days=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_definition_replaces_the_stored_one(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None], change: dict[str, Any]
) -> None:
    before = schedules.put("nightly", report, "@daily", arguments=(1,))
    schedule_store.clock.advance(hours=1)
    given: dict[str, Any] = {"rule": "@daily", "arguments": (1,)} | change
    changed = schedules.put("nightly", report, given.pop("rule"), **given)
    assert (changed.record.revision, changed.created) == (2, START)
    assert not changed.record.has_definition_of(before.record)


def test_a_changed_definition_does_first_what_the_old_one_owes(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1), misfire=CatchUp(2), arguments=(1,))
    schedule_store.clock.advance(hours=3, minutes=30)  # no worker
    changed = schedules.put("hourly", report, every(minutes=20), arguments=(2,))
    assert schedule_store.due_times() == [after(hours=2), after(hours=3)]
    assert {job.payload for job in schedule_store.jobs} == {b'{"day":1}'}
    assert [(record.count, record.kind) for record in schedules.history("hourly")] == [(1, OccurrenceKind.MISSED)]
    assert (changed.last_due, changed.next_due) == (after(hours=3), after(hours=3, minutes=40))


def test_an_occurrence_that_was_fired_ahead_of_its_time_is_not_repeated_by_the_new_definition(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    record = schedules.put("hourly", report, every(hours=1)).record
    schedule_store.clock.advance(hours=1, milliseconds=-5)
    (fired,) = schedule_store.fire([_firing(schedule_store, record.name)])
    assert fired.is_done
    changed = schedules.put("hourly", report, every(minutes=30))
    assert (changed.last_due, changed.next_due) == (after(hours=1), after(hours=1, minutes=30))


def _firing(schedule_store: ScheduleEngine, name: str) -> Firing:
    (record,) = schedule_store.schedules(names=[name])
    return plan_firing(
        record, decode_rule(record.rule), schedule_store.now() + schedule_store.start_lead, lambda _now: "early"
    )


def test_a_definition_that_another_process_stored_meanwhile_is_replaced_in_turn(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1))
    schedule_store.before_arrange = lambda: cast(None, schedules.put("hourly", report, every(hours=2)))
    changed = schedules.put("hourly", report, every(hours=3))
    assert (changed.rule, changed.record.revision) == (every(hours=3), 3)


def test_a_definition_that_another_process_stored_meanwhile_and_is_equal_stays(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedule_store.before_arrange = lambda: cast(None, schedules.put("hourly", report, every(hours=1)))
    assert schedules.put("hourly", report, every(hours=1)).record.revision == 1


def test_what_another_process_has_fired_meanwhile_is_not_fired_again(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1))
    schedule_store.clock.advance(hours=1)

    def be_quicker() -> None:
        schedule_store.before_fire = lambda: None
        schedule_store.fire([_firing(schedule_store, "hourly")])

    schedule_store.before_fire = be_quicker
    changed = schedules.put("hourly", report, every(hours=2))
    assert [job.id for job in schedule_store.jobs] == ["early"]
    assert changed.next_due == after(hours=2)


def test_what_another_process_has_left_over_is_still_fired(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1), overlap="allow")
    schedule_store.clock.advance(hours=1)
    decided = _firing(schedule_store, "hourly")  # by a process that is slow from now on
    schedule_store.clock.advance(hours=1)

    def be_quicker() -> None:
        schedule_store.before_fire = lambda: None
        schedule_store.fire([decided])

    schedule_store.before_fire = be_quicker
    schedules.put("hourly", report, every(hours=2), overlap="allow")
    assert schedule_store.due_times() == [after(hours=1), after(hours=2)]


def test_a_changed_definition_of_a_paused_schedule_stays_paused_and_owes_nothing(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1))
    schedules.pause("hourly")
    schedule_store.clock.advance(hours=5)
    assert schedules.put("hourly", report, every(hours=2)).is_paused
    assert schedule_store.jobs == []


def test_a_rule_that_cannot_be_read_can_be_replaced(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedule_store.put("hourly", '{"kind":"moon"}', next_due=schedule_store.now())
    shown = schedules.get("hourly")
    assert (shown.rule, shown.upcoming()) == (None, [])
    assert schedules.put("hourly", report, every(hours=1)).next_due == after(hours=1)


def test_deploys_at_any_time_neither_lose_nor_double_an_occurrence(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    random = Random(7)
    rules: list[Every | Cron] = [every(minutes=1), every(seconds=90), every(minutes=5), Cron("*/2 * * * *")]
    policy = CatchUp(10_000)
    rule = rules[0]
    schedules.put("report", report, rule, misfire=policy, overlap="allow")
    expected: list[int] = []
    for _ in range(100):
        began = schedule_store.now()
        schedule_store.clock.advance(seconds=random.choice([0, 1, 30, 60, 300, 301.5]))
        if random.random() < 0.5:  # a worker had a look just before
            while (schedule_store.next_firing or 0) <= schedule_store.now() + schedule_store.start_lead:
                schedule_store.fire([_firing(schedule_store, "report")])
        occurrence = rule.next_after(began)
        while occurrence is not None and occurrence <= schedule_store.now():
            expected.append(occurrence)
            occurrence = rule.next_after(occurrence)
        rule = random.choice(rules)
        schedules.put("report", report, rule, misfire=policy, overlap="allow")
    assert [job.occurrence for job in schedule_store.jobs] == expected
    assert schedules.history("report") == []
    assert len(expected) > 50


# -- intervals without an anchor


def test_an_interval_begins_with_the_moment_it_is_put(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedule_store.clock.advance(seconds=7)
    assert schedules.put("sync", report, FIVE_MINUTES).next_due == after(minutes=5, seconds=7)


def test_an_interval_keeps_its_place_when_it_is_put_again(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("sync", report, FIVE_MINUTES)
    schedule_store.clock.advance(minutes=3)
    assert schedules.put("sync", report, FIVE_MINUTES).record.revision == 1
    changed = schedules.put("sync", report, FIVE_MINUTES, overlap="allow")
    assert (changed.record.revision, changed.next_due) == (2, after(minutes=5))


def test_another_interval_begins_anew(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("sync", report, "*/5 * * * *")
    schedule_store.clock.advance(minutes=3)
    assert schedules.put("sync", report, FIVE_MINUTES).next_due == after(minutes=8)
    schedule_store.clock.advance(minutes=1)
    assert schedules.put("sync", report, Every(timedelta(minutes=10))).next_due == after(minutes=14)


def test_an_interval_with_a_start_begins_there(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    shown = schedules.put("sync", report, FIVE_MINUTES, start=after(hours=1, seconds=1))
    assert shown.upcoming(2) == [after(hours=1, seconds=1), after(hours=1, minutes=5, seconds=1)]
    schedule_store.clock.advance(minutes=3)
    assert schedules.put("sync", report, FIVE_MINUTES, start=after(hours=1, seconds=1)) == shown


def test_a_start_that_is_given_later_moves_an_interval(
    schedules: Schedules, report: JobFunction[..., None]
) -> None:
    schedules.put("sync", report, FIVE_MINUTES)
    assert schedules.put("sync", report, FIVE_MINUTES, start=after(minutes=7)).next_due == after(minutes=7)


def test_an_anchor_of_its_own_is_kept(schedules: Schedules, report: JobFunction[..., None]) -> None:
    anchored = Every(timedelta(minutes=5), anchor=to_instant(after(seconds=3), "anchor"))
    assert schedules.put("sync", report, anchored).next_due == after(seconds=3)


# -- looking


def test_the_next_dates_are_shown_in_the_zone_of_the_rule(
    schedules: Schedules, report: JobFunction[..., None]
) -> None:
    dates = schedules.put("nightly", report, Cron("0 2 * * *", tz="Asia/Taipei")).upcoming()
    assert len(dates) == 5
    assert dates[0] == datetime(2026, 1, 2, 2, tzinfo=ZoneInfo("Asia/Taipei"))
    assert {date.hour for date in dates} == {2}


def test_the_next_dates_end_with_the_schedule(schedules: Schedules, report: JobFunction[..., None]) -> None:
    shown = schedules.put("nightly", report, "@daily", end=after(days=2))
    assert shown.upcoming(9) == [after(days=1), after(days=2)]
    over = schedules.put("over", report, "@daily", end=START)
    assert (over.next_due, over.upcoming()) == (None, [])


def test_a_number_of_dates_or_records_must_be_positive(
    schedules: Schedules, report: JobFunction[..., None]
) -> None:
    shown = schedules.put("nightly", report, "@daily")
    with pytest.raises(ValueError, match="count"):
        shown.upcoming(0)
    with pytest.raises(ValueError, match="limit"):
        schedules.history("nightly", limit=0)


def test_history_shows_the_latest_first(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1), misfire="skip")
    for _ in range(3):
        schedule_store.clock.advance(hours=1, minutes=30)
        schedule_store.fire([_firing(schedule_store, "hourly")])
    first, second = schedules.history("hourly", limit=2)
    assert (first.first, first.last, first.count) == (after(hours=4), after(hours=4), 1)
    assert (first.kind, first.decided) == (OccurrenceKind.SKIPPED, after(hours=4, minutes=30, milliseconds=10))
    assert second.first == after(hours=2)


# -- pausing and removing


def test_a_schedule_is_paused_and_goes_on_with_its_next_occurrence(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1))
    assert schedules.pause("hourly")
    assert not schedules.pause("hourly")
    paused = schedules.get("hourly")
    assert (paused.is_paused, paused.upcoming()) == (True, [])
    schedule_store.clock.advance(hours=5, minutes=1)
    assert schedules.resume("hourly")
    assert not schedules.resume("hourly")
    resumed = schedules.get("hourly")
    assert (resumed.is_paused, resumed.next_due) == (False, after(hours=6))


def test_a_schedule_that_is_resumed_does_not_repeat_what_was_fired_ahead(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("hourly", report, every(hours=1))
    schedule_store.clock.advance(hours=1, milliseconds=-5)
    schedule_store.fire([_firing(schedule_store, "hourly")])
    schedules.pause("hourly")
    schedules.resume("hourly")
    assert schedules.get("hourly").next_due == after(hours=2)


def test_a_schedule_that_is_removed_is_gone(schedules: Schedules, report: JobFunction[..., None]) -> None:
    schedules.put("nightly", report, "@daily")
    schedules.remove("nightly")
    assert schedules.list() == []


@pytest.mark.parametrize("verb", ["get", "remove", "pause", "resume", "trigger", "history"])
def test_a_schedule_that_is_not_there_is_not_found(
    schedules: Schedules, report: JobFunction[..., None], verb: str
) -> None:
    with pytest.raises(
        ScheduleNotFound, match=r"'nightly'; check the name, app\.schedules\.list\(\) shows them all"
    ):
        getattr(schedules, verb)("nightly")
    schedules.put("shop.nightly_report", report, "@daily")
    with pytest.raises(ScheduleNotFound, match=r"'nightly_reprot'; did you mean 'shop\.nightly_report'\?"):
        getattr(schedules, verb)("nightly_reprot")


def test_a_trigger_tries_again_when_another_process_has_changed_the_schedule(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("nightly", report, "@daily", arguments=(1,))

    def change() -> None:
        schedule_store.before_fire = lambda: None
        schedules.put("nightly", report, "@daily", arguments=(2,))

    schedule_store.before_fire = change
    handle = schedules.trigger("nightly")
    assert [(job.id, job.payload) for job in schedule_store.jobs] == [(handle.id, b'{"day":2}')]


def test_a_trigger_of_a_schedule_that_is_removed_meanwhile_says_so(
    schedules: Schedules, schedule_store: ScheduleEngine, report: JobFunction[..., None]
) -> None:
    schedules.put("nightly", report, "@daily")
    schedule_store.before_fire = lambda: schedules.remove("nightly")
    with pytest.raises(ScheduleNotFound, match="'nightly'"):
        schedules.trigger("nightly")
    assert schedule_store.jobs == []


# -- declared in code


@pytest.fixture
def declared(source: FakeApp) -> DeclaredSchedules:
    return DeclaredSchedules(source.limits)


def test_declared_schedules_are_stored(
    declared: DeclaredSchedules, schedules: Schedules, source: FakeApp, report: JobFunction[..., None]
) -> None:
    declared.add("nightly", report, Cron("@daily"), misfire="skip", overlap="allow", jitter=5)
    declared.add("sync", report, FIVE_MINUTES)
    declared.store(source.manager())
    nightly, sync = schedules.list()
    assert (nightly.misfire, nightly.overlap, nightly.next_due) == ("skip", Overlap.ALLOW, after(days=1))
    assert (sync.next_due, len(declared)) == (after(minutes=5), 2)


def test_a_declaration_that_names_no_policies_replaces_those_that_an_earlier_version_stored(
    schedules: Schedules,
    schedule_store: ScheduleEngine,
    declared: DeclaredSchedules,
    source: FakeApp,
    report: JobFunction[..., None],
) -> None:
    old = {"dst_gap": "shift", "dst_fold": "first"}  # the defaults of version 0.1
    for name, expression in (("poll", "*/15 * * * *"), ("nightly", "30 2 * * *")):
        rule = Cron(expression, tz="Europe/Berlin", **cast(Any, old))
        schedule_store.put(name, rule, queue="reports", priority=0, overlap=Overlap.SKIP)
        declared.add(name, report, Cron(expression, tz="Europe/Berlin"))
    declared.store(source.manager())
    changed = {shown.name: (shown.rule, shown.record.revision) for shown in schedules.list()}
    assert changed == {
        "poll": (Cron("*/15 * * * *", tz="Europe/Berlin", dst_gap="skip", dst_fold="both"), 2),
        "nightly": (Cron("30 2 * * *", tz="Europe/Berlin", **cast(Any, old)), 1),
    }


def test_thousands_of_declared_schedules_cost_one_read_and_no_write_when_nothing_has_changed(
    declared: DeclaredSchedules, schedule_store: ScheduleEngine, source: FakeApp, report: JobFunction[..., None]
) -> None:
    for number in range(amount(2_000, thorough=10_000)):
        declared.add(f"report {number}", report, FIVE_MINUTES if number % 2 else Cron(f"{number % 60} 2 * * *"))
    declared.store(source.manager())
    schedule_store.clock.advance(minutes=1)
    schedule_store.calls.clear()
    declared.store(source.manager())
    assert schedule_store.calls == {"schedules": 1}


def test_only_what_differs_is_written(
    declared: DeclaredSchedules, schedule_store: ScheduleEngine, source: FakeApp, report: JobFunction[..., None]
) -> None:
    for number in range(10):
        declared.add(f"report {number}", report, "@daily")
    declared.store(source.manager())
    changed = DeclaredSchedules(source.limits)
    for number in range(10):
        changed.add(f"report {number}", report, "@hourly" if number == 3 else "@daily")
    changed.store(source.manager())
    revisions = {record.name: record.revision for record in schedule_store.schedules()}
    assert [name for name, revision in revisions.items() if revision == 2] == ["report 3"]


def test_two_workers_that_start_together_agree(
    declared: DeclaredSchedules, schedule_store: ScheduleEngine, source: FakeApp, report: JobFunction[..., None]
) -> None:
    declared.add("nightly", report, "@daily")
    declared.add("sync", report, FIVE_MINUTES)
    schedule_store.before_arrange = lambda: declared.store(source.manager())
    declared.store(source.manager())
    assert [record.revision for record in schedule_store.schedules()] == [1, 1]


def test_without_declared_schedules_the_store_is_not_asked(
    declared: DeclaredSchedules, schedule_store: ScheduleEngine, source: FakeApp
) -> None:
    declared.store(source.manager())
    assert schedule_store.calls == {}


def test_a_handler_with_required_parameters_cannot_be_declared(
    declared: DeclaredSchedules, source: FakeApp
) -> None:
    def cancel_order(order_id: int, reason: str) -> None: ...

    with pytest.raises(TypeError, match=r"no caller would pass order_id, reason; .* app\.schedules\.put"):
        declared.add("nightly", source.job(cancel_order), "@daily")


def test_a_name_is_declared_once(
    declared: DeclaredSchedules, source: FakeApp, report: JobFunction[..., None]
) -> None:
    declared.add("nightly", report, "@daily")
    with pytest.raises(ValueError, match=r"'nightly': one of shop\.report and one of shop\.other; give one"):
        declared.add("nightly", source.job(lambda: None, name="shop.other"), "@daily")
    with pytest.raises(ValueError, match="give one of them another name="):
        declared.add("nightly", report.options(queue="other"), "@hourly")


def test_a_module_that_is_loaded_again_declares_again(declared: DeclaredSchedules, source: FakeApp) -> None:
    for rule in ("@daily", "@hourly"):
        declared.add("nightly", source.job(lambda: None), rule)
    declared.store(source.manager())
    (record,) = source.manager().engine.schedules()
    assert decode_rule(record.rule) == Cron("@hourly")
