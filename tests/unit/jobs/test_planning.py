"""Planning: which of the occurrences that are due get a job, which are left out, and what is written down."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from mainspring.jobs.records import FollowUp
from mainspring.jobs.recurrence.cron import Cron
from mainspring.jobs.recurrence.planning import GRACE, MAX_OCCURRENCES, first_due, plan_firing, plan_trigger
from mainspring.jobs.recurrence.rules import Every, Rule
from mainspring.jobs.recurrence.schedule_records import Firing, Occurrence, OccurrenceKind, Overlap, ScheduleRecord
from mainspring.jobs.timestamps import LAST_INSTANT, MICROSECONDS, to_instant

TAIPEI = ZoneInfo("Asia/Taipei")
MINUTE = 60 * MICROSECONDS
HOUR = 60 * MINUTE
HOURLY = Every(timedelta(hours=1), anchor=0)
OFTEN = Every(timedelta(seconds=10), anchor=0)
NOON = to_instant(datetime(2026, 3, 1, 12, tzinfo=TAIPEI), "noon")

MODEL = ScheduleRecord(
    name="report",
    type="shop.report",
    queue="reports",
    priority=2,
    payload=b'{"day":1}',
    codec="json",
    rule="",
    misfire="once",
    catch_up=0,
    overlap=Overlap.SKIP,
    jitter=0,
    start=None,
    end=None,
    expires=None,
    limits=("rate of handler shop.report",),
    next_due=NOON,
    revision=7,
)


def numbered() -> Callable[[int], str]:
    numbers = count(1)
    return lambda _now: f"job-{next(numbers)}"


def planned(late: int = 0, rule: Rule = HOURLY, **changes: Any) -> Firing:
    """Plan what is due some microseconds after noon."""
    return plan_firing(replace(MODEL, **changes), rule, NOON + late, numbered())


def occurrences(firing: Firing) -> list[int | None]:
    return [job.occurrence for job in firing.jobs]


def test_an_occurrence_that_is_due_gets_a_job_with_everything_that_the_schedule_says() -> None:
    following = FollowUp("shop.mail", "default", 1)
    firing = planned(expires=5 * MINUTE, steps_aside=True, follow_up=following)
    (job,) = firing.jobs
    assert (job.id, job.type, job.queue, job.priority) == ("job-1", "shop.report", "reports", 2)
    assert (job.payload, job.codec, job.limits) == (b'{"day":1}', "json", ("rate of handler shop.report",))
    assert (job.steps_aside, job.follow_up) == (True, following)
    assert (job.due, job.expires) == (NOON, NOON + 5 * MINUTE)
    assert (job.schedule, job.occurrence, job.sequence) == ("report", NOON, None)
    assert (firing.schedule, firing.revision, firing.expected) == ("report", 7, NOON)
    assert (firing.next_due, firing.last_due, firing.records) == (NOON + HOUR, NOON, ())
    assert firing.overlap is Overlap.SKIP


def test_the_id_of_a_job_is_made_for_the_instant_of_the_firing() -> None:
    firing = plan_firing(MODEL, HOURLY, NOON + 5, lambda now: f"made at {now - NOON}")
    assert [job.id for job in firing.jobs] == ["made at 5"]


def test_occurrences_that_are_a_microsecond_apart_are_told_apart() -> None:
    rule = Every(timedelta(microseconds=1), anchor=0)
    assert occurrences(planned(3, rule, misfire="all")) == [NOON, NOON + 1, NOON + 2, NOON + 3]
    (record,) = planned(3, rule, misfire="once").records
    assert (record.due, record.until, record.count) == (NOON, NOON + 2, 3)


def test_a_schedule_that_is_not_due_is_refused() -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole text is compared
        planned(-1)
    assert str(error.value) == (
        f"schedule 'report' is not due: its next occurrence is {NOON}, now is {NOON - 1}, in microseconds "
        "since 1970; fire it when it is due"
    )
    with pytest.raises(ValueError, match="'report' is not due: it has no further occurrence; do not fire it"):
        planned(next_due=None)


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_an_occurrence_within_the_grace_is_on_time(misfire: str) -> None:
    firing = planned(GRACE, misfire=misfire)
    assert occurrences(firing) == [NOON]
    assert firing.records == ()


def test_once_is_once_however_late() -> None:
    firing = planned(35 * MICROSECONDS, OFTEN, misfire="once")
    assert occurrences(firing) == [NOON + 30 * MICROSECONDS]
    (record,) = firing.records
    assert (record.kind, record.due, record.count) == (OccurrenceKind.COALESCED, NOON, 3)


@pytest.mark.parametrize("misfire", ["skip", "all"])
def test_a_busy_worker_drops_no_run_of_the_last_minute(misfire: str) -> None:
    firing = planned(35 * MICROSECONDS, OFTEN, misfire=misfire, catch_up=1)
    assert occurrences(firing) == [NOON + seconds * MICROSECONDS for seconds in (0, 10, 20, 30)]
    assert (firing.records, firing.next_due) == ((), NOON + 40 * MICROSECONDS)


def test_skip_runs_nothing_that_is_late() -> None:
    firing = planned(2 * HOUR + 5 * MINUTE, misfire="skip")
    assert firing.jobs == ()
    assert firing.records == (
        Occurrence(
            NOON,
            NOON + 2 * HOUR,
            3,
            OccurrenceKind.SKIPPED,
            "3 occurrences found too late; no job was submitted",
            NOON + 2 * HOUR + 5 * MINUTE,
        ),
    )
    assert (firing.next_due, firing.last_due) == (NOON + 3 * HOUR, NOON + 2 * HOUR)


def test_skip_runs_what_is_on_time_beside_what_is_late() -> None:
    firing = planned(2 * HOUR, misfire="skip")
    assert occurrences(firing) == [NOON + 2 * HOUR]
    (record,) = firing.records
    assert (record.due, record.until, record.count) == (NOON, NOON + HOUR, 2)


def test_once_runs_the_latest_for_all() -> None:
    firing = planned(2 * HOUR + 5 * MINUTE)
    assert occurrences(firing) == [NOON + 2 * HOUR]
    (record,) = firing.records
    assert (record.due, record.until, record.count) == (NOON, NOON + HOUR, 2)
    assert record.kind is OccurrenceKind.COALESCED
    assert record.note == "2 occurrences covered by the job of 2026-03-01 06:00:00+00:00"


def test_once_runs_a_single_late_one_and_has_nothing_to_write_down() -> None:
    firing = planned(30 * MINUTE)
    assert (occurrences(firing), firing.records) == ([NOON], ())


def test_catching_up_runs_the_latest_and_writes_down_those_before() -> None:
    firing = planned(4 * HOUR + 5 * MINUTE, misfire="all", catch_up=2)
    assert occurrences(firing) == [NOON + 3 * HOUR, NOON + 4 * HOUR]
    (record,) = firing.records
    assert (record.due, record.until, record.count) == (NOON, NOON + 2 * HOUR, 3)
    assert record.kind is OccurrenceKind.MISSED
    assert record.note == "3 occurrences beyond the limit of CatchUp; no job was submitted"


def test_catching_up_with_fewer_than_the_limit_leaves_nothing_out() -> None:
    firing = planned(2 * HOUR, misfire="all", catch_up=100)
    assert (len(firing.jobs), firing.records) == (3, ())


def test_catching_up_never_drops_what_is_on_time() -> None:
    firing = planned(90 * MICROSECONDS, OFTEN, misfire="all", catch_up=1)
    assert occurrences(firing) == [NOON + seconds * MICROSECONDS for seconds in range(30, 91, 10)]
    assert firing.records[0].count == 3


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_counting_ends_and_says_so(misfire: str) -> None:
    firing = planned(400 * 24 * HOUR, Cron("* * * * *"), misfire=misfire, catch_up=3)
    (record,) = firing.records
    assert (record.count, record.due) == (MAX_OCCURRENCES, NOON)
    assert record.note.startswith("at least 10,000 occurrences ")


def test_no_more_jobs_are_made_at_once_than_are_counted() -> None:
    firing = planned(GRACE, Every(timedelta(milliseconds=1), anchor=0), misfire="skip")
    assert len(firing.jobs) == MAX_OCCURRENCES
    assert occurrences(firing)[-1] == NOON + GRACE == firing.last_due
    (record,) = firing.records
    assert (record.count, record.until) == (MAX_OCCURRENCES, NOON + GRACE - MAX_OCCURRENCES * 1_000)


def test_one_left_out_is_written_down_in_the_singular() -> None:
    (record,) = planned(5 * MINUTE, misfire="skip").records
    assert record.note == "1 occurrence found too late; no job was submitted"


# -- start and end


def test_the_end_of_a_schedule_is_its_last_occurrence() -> None:
    on_the_end = planned(end=NOON + HOUR)
    assert on_the_end.next_due == NOON + HOUR
    last = planned(HOUR, end=NOON + HOUR, misfire="all", catch_up=9)
    assert (occurrences(last), last.next_due) == ([NOON, NOON + HOUR], None)


def test_nothing_after_the_end_is_made_up_for() -> None:
    firing = planned(24 * HOUR, end=NOON + 90 * MINUTE, misfire="all", catch_up=9)
    assert occurrences(firing) == [NOON, NOON + HOUR]
    assert (firing.last_due, firing.next_due) == (NOON + HOUR, None)


@pytest.mark.parametrize(
    ("start", "after", "expected"),
    [
        (None, NOON, NOON + HOUR),
        (None, NOON - 1, NOON),
        (NOON, 0, NOON),
        (NOON + 1, 0, NOON + HOUR),
        (NOON - HOUR, NOON, NOON + HOUR),
    ],
)
def test_the_first_occurrence_is_not_before_the_start(start: int | None, after: int, expected: int) -> None:
    assert first_due(HOURLY, start, None, after) == expected


def test_there_is_no_occurrence_after_the_end() -> None:
    assert first_due(HOURLY, None, NOON, NOON - 1) == NOON
    assert first_due(HOURLY, None, NOON - 1, NOON - 1) is None
    assert first_due(HOURLY, None, None, LAST_INSTANT) is None


# -- overlap


@pytest.mark.parametrize(
    ("overlap", "late", "sequence"),
    [
        (Overlap.SKIP, 0, None),
        (Overlap.SKIP, HOUR, "schedule report"),
        (Overlap.QUEUE, 0, "schedule report"),
        (Overlap.REPLACE, 0, "schedule report"),
        (Overlap.ALLOW, HOUR, None),
    ],
)
def test_jobs_that_must_not_overlap_share_a_sequence(overlap: Overlap, late: int, sequence: str | None) -> None:
    firing = planned(late, overlap=overlap, misfire="all", catch_up=5)
    assert {job.sequence for job in firing.jobs} == {sequence}
    assert len(firing.jobs) == 1 + late // HOUR
    assert firing.overlap is overlap


# -- jitter


def test_jitter_delays_the_job_and_not_the_schedule() -> None:
    firing = planned(24 * HOUR, misfire="all", catch_up=99, jitter=MINUTE, expires=MINUTE)
    delays = [job.due - (job.occurrence or 0) for job in firing.jobs]
    assert all(0 <= delay <= MINUTE for delay in delays)
    assert len(set(delays)) > 20
    assert [job.expires for job in firing.jobs] == [job.due + MINUTE for job in firing.jobs]
    assert firing.next_due == NOON + 25 * HOUR


def test_jitter_is_the_same_for_every_worker_and_another_for_every_schedule() -> None:
    assert planned(jitter=HOUR).jobs == planned(jitter=HOUR).jobs
    assert planned(jitter=HOUR).jobs[0].due == NOON + 2_850_871_070  # in every version: two may run side by side
    assert planned(jitter=HOUR).jobs[0].due != planned(jitter=HOUR, name="other").jobs[0].due


def test_jitter_reaches_both_of_its_ends() -> None:
    firing = planned(24 * HOUR, misfire="all", catch_up=99, jitter=1)
    assert {job.due - (job.occurrence or 0) for job in firing.jobs} == {0, 1}


# -- the rules of a time zone that changed


def test_an_occurrence_that_was_promised_is_kept_although_the_rule_has_another_opinion_now() -> None:
    promised = NOON - 30 * MINUTE
    firing = planned(next_due=promised, misfire="all", catch_up=9)
    assert occurrences(firing) == [promised, NOON]
    assert firing.next_due == NOON + HOUR


# -- everything together, against an enumeration


def test_every_occurrence_gets_a_job_or_is_counted_and_none_gets_both() -> None:
    random = Random(4)
    rules: list[Rule] = [
        OFTEN,
        HOURLY,
        Cron("*/7 3-9 * * *", tz="Europe/Berlin"),
        Cron("30 2 * * *", tz="America/New_York"),
    ]
    kinds = {"skip": OccurrenceKind.SKIPPED, "once": OccurrenceKind.COALESCED, "all": OccurrenceKind.MISSED}
    for _ in range(300):
        rule = random.choice(rules)
        first = rule.next_after(NOON + random.randrange(365 * 24) * HOUR)
        assert first is not None
        now = first + random.choice([0, MINUTE, HOUR, 12 * HOUR]) * random.randrange(3) + random.randrange(MINUTE)
        end = random.choice([None, first + random.randrange(HOUR)])
        misfire, catch_up = random.choice(list(kinds)), random.randrange(1, 5)
        record = replace(MODEL, next_due=first, misfire=misfire, catch_up=catch_up, end=end)
        firing = plan_firing(record, rule, now, numbered())
        due = [first]
        while (following := rule.next_after(due[-1])) is not None and following <= min(now, end or now):
            due.append(following)
        ran = [job.occurrence for job in firing.jobs]
        assert ran == due[len(due) - len(ran) :]
        left_out = due[: len(due) - len(ran)]
        period = [(left_out[0], left_out[-1], len(left_out), kinds[misfire])] if left_out else []
        assert [(r.due, r.until, r.count, r.kind) for r in firing.records] == period
        assert firing.last_due == due[-1]
        assert firing.next_due == first_due(rule, None, end, now)
        on_time = [occurrence for occurrence in due if occurrence >= now - GRACE]
        wanted = {"skip": len(on_time), "once": 1, "all": max(len(on_time), min(len(due), catch_up))}
        assert len(ran) == wanted[misfire]


def test_a_trigger_makes_a_job_that_is_due_now_and_advances_nothing() -> None:
    following = FollowUp("shop.mail", "default", 1)
    record = replace(MODEL, expires=5 * MINUTE, jitter=HOUR, steps_aside=True, follow_up=following)
    firing = plan_trigger(record, NOON + 1, "by-hand")
    (job,) = firing.jobs
    assert (job.id, job.type, job.queue, job.priority) == ("by-hand", "shop.report", "reports", 2)
    assert (job.payload, job.codec, job.limits) == (b'{"day":1}', "json", ("rate of handler shop.report",))
    assert (job.steps_aside, job.follow_up) == (True, following)
    assert (job.due, job.expires) == (NOON + 1, NOON + 1 + 5 * MINUTE)
    assert (job.schedule, job.occurrence, job.sequence) == ("report", None, None)
    assert firing == Firing("report", 7, None, None, None, (job,), Overlap.SKIP, ())


@pytest.mark.parametrize("overlap", list(Overlap))
def test_triggers_run_one_after_another_if_the_overlap_policy_says_so(overlap: Overlap) -> None:
    firing = plan_trigger(replace(MODEL, overlap=overlap), NOON, "by-hand")
    is_serial = overlap in (Overlap.QUEUE, Overlap.REPLACE)
    assert (firing.overlap, firing.jobs[0].sequence) == (overlap, "schedule report" if is_serial else None)
