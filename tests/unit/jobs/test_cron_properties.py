"""Cron against an oracle that walks minute by minute, over every change of the clocks in some years."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from itertools import product
from typing import TypeAlias
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from mainspring import Cron, ScheduleInvalid
from mainspring.jobs.recurrence.cron import DstFoldOption, DstGapOption
from tests.support import amount
from tests.unit.jobs.cron_oracle import (
    Minute,
    PlainCron,
    changes_of,
    first_after,
    in_span,
    instant_of,
    last_until,
    minutes_between,
)

Policies: TypeAlias = tuple[DstGapOption, DstFoldOption]
YEARS = amount(2, thorough=11)
BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026 + YEARS, 1, 1, tzinfo=UTC)
CHANGING_ZONES = [
    "Africa/Cairo",
    "America/New_York",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Gaza",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Europe/Dublin",
    "Europe/London",
    "Pacific/Chatham",
]
# Cronsim steps by whole hours, and takes a day to begin at midnight.
ZONES_THAT_CRONSIM_KNOWS = ["America/New_York", "Antarctica/Troll", "Europe/Berlin", "Europe/Dublin"]
STEADY_ZONES = ["America/Sao_Paulo", "Asia/Taipei", "Asia/Tehran", "UTC"]
# The date line forwards and back, half an hour, changes that reach over the end of a UTC year, and a Ramadan: the
# data of a machine may or may not know that Morocco stopped setting its clocks for it in 2026.
PAST_CHANGES = [
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("Pacific/Kwajalein", datetime(1969, 9, 30, 13, tzinfo=UTC)),
    ("Pacific/Kwajalein", datetime(1993, 8, 21, 12, tzinfo=UTC)),
    ("Asia/Pyongyang", datetime(2015, 8, 14, 15, tzinfo=UTC)),
    ("America/Caracas", datetime(2007, 12, 9, 7, tzinfo=UTC)),
    ("Pacific/Kiritimati", datetime(1994, 12, 31, 10, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(1985, 12, 31, 23, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2025, 2, 23, 2, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2025, 4, 6, 2, tzinfo=UTC)),
    ("Africa/Tripoli", datetime(1958, 12, 31, 23, tzinfo=UTC)),
]
POLICIES: list[Policies] = [
    ("shift", "first"),
    ("shift", "second"),
    ("shift", "both"),
    ("skip", "first"),
    ("skip", "second"),
    ("skip", "both"),
    ("auto", "auto"),
    ("auto", "second"),
    ("skip", "auto"),
]
# each way with a gap and with a fold, in four pairs
EACH_OPTION = [POLICIES[0], POLICIES[4], POLICIES[2], POLICIES[6]]
SPAN = timedelta(days=2)
HOUR = 3_600_000_000
# Each with the hours either side of a change that are walked through, next_after by next_after.
EXPRESSIONS = {
    "30 2 * * *": 48,
    "0 0 * * *": 48,
    "15 1-3 * * *": 48,
    "59 23 L * *": 48,
    "20 */3 * * SUN": 48,
    "0 3 * 3,10 5L,SUN#1,SUN#2": 48,
    "20 * * * *": 5,
    "*/20 1-3 * * *": 5,
    "*/15 * * * *": 3,
    "*/5 * * * *": 1,
}


@cache
def changes(tz: str) -> list[datetime]:
    return changes_of(tz, BEGIN, END)


@lru_cache(maxsize=40)  # each has thousands of minutes
def minutes_around(tz: str, change: datetime) -> list[Minute]:
    return minutes_between(tz, change - SPAN, change + SPAN)


def check(rule: Cron, expected: list[int], begin: int, end: int) -> None:
    """Walk there and back through (begin, end]; the oracle knows all of it."""
    inside = in_span(expected, begin, end)
    walked, at = [], begin
    while (found := rule.next_after(at)) is not None and found <= end:
        walked.append(found)
        at = found
    assert walked == inside, f"{rule}: forwards"
    back, until = [], end
    while (found := rule.last_until(until, begin)) is not None:
        back.append(found)
        until = found - 1
    assert back[::-1] == inside, f"{rule}: backwards"
    assert rule.count_between(begin, end, 3) == min(3, len(inside)), f"{rule}: count"


def check_instants(rule: Cron, expected: list[int], change: int) -> None:
    """Ask from instants that are no occurrences, on and beside the change."""
    for minutes in (-90, -60, -29, 0, 1, 30, 60, 119):
        for beside in (-1, 0, 1):
            at = change + minutes * 60_000_000 + beside
            assert rule.next_after(at) == first_after(expected, at)
            assert rule.last_until(at, at - 3 * HOUR) == last_until(expected, at, at - 3 * HOUR)


def check_change(
    expression: str, tz: str, change: datetime, hours: int, policies: list[Policies] = POLICIES
) -> None:
    plain = PlainCron(expression)
    at = instant_of(change)
    hits = [hit for hit in plain.hits(minutes_around(tz, change)) if abs(hit.instant - at) <= hours * HOUR]
    for dst_gap, dst_fold in policies:
        rule = Cron(expression, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold)
        expected = plain.occurrences(hits, dst_gap, dst_fold)
        check(rule, expected, at - hours * HOUR, at + hours * HOUR - 60_000_000)


@pytest.mark.parametrize("tz", CHANGING_ZONES)
def test_the_clocks_of_these_zones_change_about_twice_a_year(tz: str) -> None:
    assert len(changes(tz)) >= 2 * YEARS


@pytest.mark.parametrize("tz", STEADY_ZONES)
def test_the_clocks_of_these_zones_do_not_change(tz: str) -> None:
    assert changes(tz) == []


@pytest.mark.parametrize("tz", CHANGING_ZONES)
def test_every_change_of_these_years_is_as_the_oracle_says(tz: str) -> None:
    for index, change in enumerate(changes(tz)):
        policies = POLICIES if index < 2 else EACH_OPTION
        for expression, hours in EXPRESSIONS.items():
            check_change(expression, tz, change, hours, policies)


@pytest.mark.parametrize(("tz", "change"), PAST_CHANGES)
def test_unusual_changes_of_the_past_are_as_the_oracle_says(tz: str, change: datetime) -> None:
    assert change in changes_of(tz, change - SPAN, change + SPAN)
    for expression, hours in EXPRESSIONS.items():
        check_change(expression, tz, change, hours)


@pytest.mark.parametrize("tz", STEADY_ZONES)
def test_a_zone_without_changes_is_as_the_oracle_says(tz: str) -> None:
    for expression, hours in EXPRESSIONS.items():
        for day in (datetime(2027, 12, 31, tzinfo=UTC), datetime(2028, 2, 29, 15, tzinfo=UTC)):
            check_change(expression, tz, day, hours, amount(EACH_OPTION, thorough=POLICIES))


@pytest.mark.parametrize("tz", CHANGING_ZONES)
def test_seconds_are_as_the_oracle_says(tz: str) -> None:
    for change in changes(tz)[:2]:
        check_change("*/20 59,0,30 * * * *", tz, change, 4, amount(EACH_OPTION, thorough=POLICIES))


@pytest.mark.parametrize("tz", ["America/New_York", "Australia/Lord_Howe", "Antarctica/Troll"])
def test_any_instant_may_be_asked_about(tz: str) -> None:
    for change, (dst_gap, dst_fold) in product(changes(tz)[:2], POLICIES):
        for expression in ("*/10 * * * *", "30 1,2 * * *", "0 2,3 * * *"):
            plain = PlainCron(expression)
            rule = Cron(expression, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold)
            expected = plain.occurrences(plain.hits(minutes_around(tz, change)), dst_gap, dst_fold)
            check_instants(rule, expected, instant_of(change))


def terms(low: int, high: int, *special: str) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    pair = st.tuples(number, number).map(sorted)
    step = st.integers(1, high)
    return st.one_of(
        number.map(str),
        pair.map(lambda p: f"{p[0]}-{p[1]}"),
        st.tuples(pair, step).map(lambda t: f"{t[0][0]}-{t[0][1]}/{t[1]}").filter(is_range),
        st.tuples(number, step).map(lambda t: f"{t[0]}/{t[1]}"),
        *([st.sampled_from(special)] if special else []),
    )


def is_range(term: str) -> bool:
    """Cronsim takes `5-5/2` for `5/2`; no author means that."""
    start, end = term.partition("/")[0].split("-")
    return start != end


def fields(low: int, high: int, *special: str) -> st.SearchStrategy[str]:
    lists = st.lists(terms(low, high, *special), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), st.integers(1, high + 1).map(lambda n: f"*/{n}"), lists)


DAYS = fields(1, 31, "L", "LW")
MONTHS = st.one_of(st.just("*"), fields(1, 12, "JAN", "MAR-MAY", "OCT", "NOV"))
WEEKDAYS = fields(0, 7, "MON", "MON-FRI", "SUN", "5L", "0L", "7#1", "SUN#2", "3#5")


EXPRESSION = st.builds(
    lambda *parts: " ".join(filter(None, parts)),
    st.one_of(st.just(""), fields(0, 59)),
    fields(0, 59),
    st.one_of(fields(0, 23), fields(0, 4)),
    st.one_of(st.just("*"), DAYS),
    MONTHS,
    st.one_of(st.just("*"), WEEKDAYS),
)


@settings(max_examples=amount(25, thorough=60))
@given(EXPRESSION, st.sampled_from(CHANGING_ZONES), st.integers(0, 2), st.sampled_from(POLICIES))
def test_any_expression_is_as_the_oracle_says_around_a_change(
    expression: str, tz: str, which: int, policy: Policies
) -> None:
    change = changes(tz)[which]
    rule = make(expression, tz, policy)
    plain = PlainCron(expression)
    expected = plain.occurrences(plain.hits(minutes_around(tz, change)), *policy)
    at, around = instant_of(change), 47 * HOUR
    while len(in_span(expected, at - around, at + around)) > 200:
        around //= 2
    check(rule, expected, at - around, at + around)


@settings(max_examples=amount(25, thorough=200))
@given(EXPRESSION, st.sampled_from(ZONES_THAT_CRONSIM_KNOWS), st.integers(0, 2))
def test_a_rule_that_goes_on_in_real_time_is_as_cronsim_says(expression: str, tz: str, which: int) -> None:
    """Cronsim follows Debian's cron as well. Mainspring does not use its treatment of zones."""
    assume(PlainCron(expression).follows_the_clock)
    rule = make(expression, tz, ("auto", "auto"))
    begin = changes(tz)[which] - timedelta(hours=4)
    found, expected = begin, CronSim(expression, begin.astimezone(ZoneInfo(tz)))
    for _ in range(30):
        found = rule.next(found) or END
        assert found.astimezone(UTC) == next(expected, END).astimezone(UTC)


def make(expression: str, tz: str, policy: Policies) -> Cron:
    """Make the rule, or have Hypothesis look for another if it rightly says that it never occurs."""
    try:
        return Cron(expression, tz=tz, dst_gap=policy[0], dst_fold=policy[1])
    except ScheduleInvalid as error:
        problem = error.problem
    assert "never occurs" in problem
    assert PlainCron(expression).days_between(date(1970, 1, 1), date(2010, 1, 1)) == []
    return reject()


def check_days(expression: str, begin: date, end: date) -> None:
    """Compare whole days, over years: the times of day are seen to elsewhere."""
    expected = [instant_of(midnight(day)) for day in PlainCron(expression).days_between(begin, end)]
    rule = make(expression, "UTC", ("shift", "first"))
    check(rule, expected, instant_of(midnight(begin)) - 1, instant_of(midnight(end)) - 1)


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


@pytest.mark.parametrize(
    "expression",
    ["0 0 29 2 *", "0 0 L 2 *", "0 0 LW * *", "0 0 L,LW,15 * *", "0 0 31 * *", "0 0 * * 5L", "0 0 * * MON#5"],
)
def test_leap_days_and_ends_of_months_are_as_the_oracle_says(expression: str) -> None:
    check_days(expression, date(2027, 1, 1), date(2033, 1, 1))
    check_days(expression, date(2096, 1, 1), date(2105, 1, 1))


@pytest.mark.parametrize("weekday", ["*/8", "*/7,1L"])
def test_forty_years_may_lie_between_two_occurrences(weekday: str) -> None:
    check_days(f"0 0 29 2 {weekday}", date(2070, 1, 1), date(2120, 1, 1))


@settings(max_examples=amount(25, thorough=50))
@given(DAYS, MONTHS, WEEKDAYS, st.integers(1990, 2090))
def test_any_days_are_as_the_oracle_says(day: str, month: str, weekday: str, year: int) -> None:
    check_days(f"0 0 {day} {month} {weekday}", date(year, 1, 15), date(year + 1, 3, 10))
