"""Rules by which schedules recur: intervals, and what all rules share."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import Cron, Every, ScheduleInvalid
from mainspring.jobs.recurrence.rules import (
    UNREADABLE,
    Rule,
    Upcoming,
    decode_rule,
    encode_rule,
    rule_from,
    rule_of,
    upcoming,
)
from mainspring.jobs.recurrence.schedule_records import ScheduleRecord
from mainspring.jobs.timestamps import LAST_INSTANT
from tests.unit.jobs.cron_oracle import at

SECOND = 1_000_000
DAY = 86_400 * SECOND


@pytest.mark.parametrize(
    ("interval", "anchor", "expected"),
    [
        (timedelta(minutes=5), None, ["00:05:00", "00:10:00"]),
        (90, None, ["00:01:30", "00:03:00"]),
        (timedelta(hours=1), at("2027-01-01 00:20"), ["00:20:00", "01:20:00"]),
        (timedelta(hours=1), at("2030-01-01 00:20"), ["00:20:00", "01:20:00"]),
        (timedelta(hours=1), at("1960-01-01 00:20"), ["00:20:00", "01:20:00"]),
    ],
)
def test_an_interval_recurs_on_a_grid_through_its_anchor(interval: Any, anchor: Any, expected: list[str]) -> None:
    found = upcoming(Every(interval, anchor=anchor), at("2027-01-01 00:00"), 2)
    assert [f"{up.local:%H:%M:%S}" for up in found] == expected


@given(st.integers(1, 50), st.none() | st.integers(-100, 100), st.integers(-200, 200), st.integers(-200, 200))
def test_every_is_as_a_plain_list_says(interval: int, anchor: int | None, after: int, until: int) -> None:
    rule = Every(timedelta(microseconds=interval), anchor=anchor)
    grid = [k for k in range(-400, 401) if (k - (anchor or 0)) % interval == 0]
    between = [point for point in grid if after < point <= until]
    assert rule.next_after(after) == next(point for point in grid if point > after)
    assert rule.last_until(until, after) == (between[-1] if between else None)
    assert rule.count_between(after, until, 1_000) == len(between)
    assert rule.count_between(after, until, 3) == min(3, len(between))


@pytest.mark.parametrize(
    "interval",
    [0, -1, 1e-7, timedelta(0), timedelta(-1), True, "5", None, float("nan"), float("inf"), 1e300, 10**400],
)
def test_an_interval_that_makes_no_sense_is_refused(interval: Any) -> None:
    with pytest.raises(ScheduleInvalid, match=r"timedelta\(minutes=5\)"):
        Every(interval)


@pytest.mark.parametrize("anchor", [1.5, True, "now", datetime(2027, 1, 1, tzinfo=UTC)])
def test_an_anchor_is_an_instant(anchor: Any) -> None:
    with pytest.raises(ScheduleInvalid, match=r"anchor is .* microseconds since 1970"):
        Every(60, anchor=anchor)


def problem_of(error: ScheduleInvalid) -> tuple[str, str, str]:
    """The parts of an error: the rule, the problem, the remedy."""
    return error.rule, error.problem, error.remedy


def test_an_error_about_an_anchor_names_the_rule_and_the_remedy() -> None:
    with pytest.raises(ScheduleInvalid) as caught:
        Every(60, anchor=1.5)  # type: ignore[arg-type]
    remedy = "give microseconds since 1970 (UTC) as an int, or None"
    assert problem_of(caught.value) == ("every 0:01:00", "anchor is 1.5", remedy)


@pytest.mark.parametrize(
    ("interval", "problem"),
    [
        (1e-7, "the interval is 1e-07, less than a microsecond"),
        ("5", "interval must be a timedelta or a number of seconds, got '5'"),
    ],
)
def test_an_error_about_an_interval_names_the_rule_and_the_remedy(interval: Any, problem: str) -> None:
    with pytest.raises(ScheduleInvalid) as caught:
        Every(interval)
    remedy = "give a timedelta or seconds, such as timedelta(minutes=5) or 300"
    assert problem_of(caught.value) == (f"every {interval!r}", problem, remedy)


def test_counts_and_instants_are_whole_numbers() -> None:
    rule = Every(0.25)
    next_one, last = rule.next_after(0), rule.last_until(SECOND, 0)
    assert [type(value) for value in (next_one, last, rule.count_between(0, SECOND, 10))] == [int, int, int]


def test_the_longest_interval_survives_being_stored() -> None:
    rule = Every(timedelta.max)
    assert rule_from(rule.describe()) == rule


def test_one_interval_has_one_spelling() -> None:
    assert Every(60) == Every(60.0) == Every(timedelta(minutes=1))
    assert Every(timedelta(microseconds=1)).next_after(5) == 6
    assert Every(60) != Every(60, anchor=0)


# ---- both ----

RULES: list[Rule] = [
    Cron("*/15 * ? * *", tz="Europe/Berlin"),
    Cron("0 * * * *", tz="Europe/Berlin", dst_fold="second"),
    Cron("0 2 * * MON#1", tz="Asia/Taipei", dst_gap="skip", dst_fold="both"),
    Cron("@daily"),
    Every(0.25),
    Every(timedelta(days=400), anchor=-5),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_survives_being_stored(rule: Rule) -> None:
    arrived = rule_from(json.loads(json.dumps(rule.describe())))
    assert arrived == rule
    assert arrived.next_after(0) == rule.next_after(0)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda rule: pickle.loads(pickle.dumps(rule))])
def test_a_rule_survives_travel(rule: Rule, travel: Any) -> None:
    arrived = travel(rule)
    assert arrived == rule
    assert hash(arrived) == hash(rule)
    assert arrived.last_until(10**15, 0) == rule.last_until(10**15, 0)


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"kind": "moon"},
        {"kind": "cron", "expression": "@daily"},
        {"kind": "every", "interval": "5", "anchor": None},
        {"kind": "every", "interval": 10**40, "anchor": None},
        {"kind": "cron", "expression": "@daily", "tz": "Mars/Base", "dst_gap": "shift", "dst_fold": "first"},
    ],
)
def test_a_description_that_is_not_whole_is_refused(description: Any) -> None:
    with pytest.raises(ScheduleInvalid):
        rule_from(description)


def test_an_error_about_a_description_repeats_it() -> None:
    with pytest.raises(ScheduleInvalid) as caught:
        rule_from({"kind": "moon"})
    remedy = (
        "pass the data that describe() of a rule returned; if a newer version of Mainspring has stored this rule, "
        "update Mainspring"
    )
    problem = "it is neither a complete cron rule nor a complete every rule"
    assert problem_of(caught.value) == ("the rule described by {'kind': 'moon'}", problem, remedy)


@pytest.mark.parametrize(
    "rule", [Cron("0 2 * * *", tz="Asia/Taipei"), Every(DAY // SECOND, anchor=18 * 3_600 * SECOND)]
)
def test_spans_leave_out_their_beginning_and_include_their_end(rule: Rule) -> None:
    first = at("2027-01-01 18:00")
    assert rule.next_after(first - 1) == first
    assert rule.next_after(first) == first + DAY
    assert rule.last_until(first, first - 1) == first
    assert rule.last_until(first - 1, first - DAY) is None
    assert rule.last_until(first + DAY - 1, first - DAY) == first
    assert rule.last_until(first, first) is None
    assert rule.last_until(first - 5, first + 5) is None
    assert rule.count_between(first, first + 3 * DAY, 10) == 3
    assert rule.count_between(first - 1, first + 3 * DAY - 1, 10) == 3
    assert rule.count_between(first - 1, first + 3 * DAY, 2) == 2
    assert rule.count_between(first, first, 10) == rule.count_between(first + DAY, first - DAY, 10) == 0


@pytest.mark.parametrize("rule", [Cron("@daily", tz="Asia/Taipei"), Cron("@yearly"), Every(3_600)])
def test_time_has_an_end(rule: Rule) -> None:
    assert rule.next_after(LAST_INSTANT) is None
    assert rule.next_after(10**30) is None
    assert rule.count_between(LAST_INSTANT, 10**30, 5) == 0
    last = rule.last_until(10**30, 0)
    assert last is not None
    assert last <= LAST_INSTANT
    assert rule.next_after(last) is None
    assert rule.last_until(-(10**30), -(10**30) - 1) is None


def test_a_preview_ends_where_the_rule_ends() -> None:
    assert upcoming(Every(60), LAST_INSTANT - 60 * SECOND, 5) == [
        Upcoming(LAST_INSTANT, datetime(9999, 12, 31, tzinfo=UTC), None)
    ]
    assert upcoming(Every(60), 0, 0) == []


@pytest.mark.parametrize("rule", [Cron("0 2 * * 5L", tz="Asia/Taipei", dst_fold="both"), Every(0.5, anchor=7)])
def test_a_rule_comes_back_as_it_was(rule: Rule) -> None:
    assert decode_rule(encode_rule(rule)) == rule


def test_a_rule_that_an_earlier_version_stored_keeps_its_policies() -> None:
    stored = '{"dst_fold":"first","dst_gap":"shift","expression":"*/15 * * * *","kind":"cron","tz":"Asia/Gaza"}'
    rule = decode_rule(stored)
    assert rule == Cron("*/15 * * * *", tz="Asia/Gaza", dst_gap="shift", dst_fold="first")
    assert rule != Cron("*/15 * * * *", tz="Asia/Gaza")
    assert encode_rule(rule) == stored


def test_a_fixed_time_is_stored_as_an_earlier_version_stored_it() -> None:
    stored = '{"dst_fold":"first","dst_gap":"shift","expression":"30 2 * * *","kind":"cron","tz":"Europe/Berlin"}'
    assert encode_rule(Cron("30 2 * * *", tz="Europe/Berlin")) == stored


def test_the_text_does_not_depend_on_the_order_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Cron("@daily")
    text = encode_rule(rule)
    backwards = dict(reversed(rule.describe().items()))
    monkeypatch.setattr(Cron, "describe", lambda _: backwards)
    assert encode_rule(rule) == text


def test_a_rule_is_decoded_once() -> None:
    text = encode_rule(Every(60, anchor=123))
    assert decode_rule(text) is decode_rule(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind":"moon"}', '{"kind":"every","interval":"x","anchor":0}'])
def test_what_no_rule_can_be_made_of_is_unreadable(text: str) -> None:
    with pytest.raises(UNREADABLE):
        decode_rule(text)
    assert rule_of(stored_with(text)) is None


def test_the_rule_of_a_stored_schedule_is_decoded() -> None:
    assert rule_of(stored_with(encode_rule(Every(60, anchor=7)))) == Every(60, anchor=7)


def stored_with(rule: str) -> ScheduleRecord:
    return cast(ScheduleRecord, SimpleNamespace(rule=rule))
