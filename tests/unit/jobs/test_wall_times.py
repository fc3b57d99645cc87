"""Wall times of cron expressions: the same as cronsim finds, whether or not anything is remembered."""

from __future__ import annotations

import pickle
from calendar import monthrange
from contextlib import suppress
from datetime import date, datetime, timedelta

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from mainspring.jobs.recurrence import wall_times
from mainspring.jobs.recurrence.wall_times import DayPattern, NeverOccurs, WallTimes
from mainspring.jobs.recurrence.zones import to_second, to_wall
from tests.support import amount
from tests.unit.jobs.test_cron_properties import EXPRESSION

FIRST, LAST = to_second(datetime(1, 1, 1)), to_second(datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001
MOMENTS = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)).map(to_second)  # noqa: DTZ001
NEAR_MOMENTS = st.datetimes(datetime(1960, 1, 1), datetime(2110, 1, 1)).map(to_second)  # noqa: DTZ001


def forget() -> None:
    """Empty the caches of the module."""
    wall_times._items.cache_clear()
    wall_times._mask.cache_clear()
    wall_times._day_pattern.cache_clear()


def cronsim_first(expression: str, second: int) -> int | None:
    try:
        return to_second(next(CronSim(expression, to_wall(second - 1))))
    except (StopIteration, OverflowError):
        return None


def cronsim_last(expression: str, second: int) -> int | None:
    try:
        return to_second(next(CronSim(expression, to_wall(second + 1), reverse=True)))
    except (StopIteration, OverflowError, ValueError):  # ValueError: before the year 1
        return None


def walls_of(expression: str) -> WallTimes:
    """Return the wall times, or have Hypothesis look for another expression, if cronsim finds none as well."""
    try:
        return WallTimes(expression.split())
    except NeverOccurs:
        with suppress(CronSimError):  # cronsim may notice it while parsing
            assert cronsim_first(expression, 0) is None
    return reject()


@pytest.mark.long
@settings(max_examples=amount(150, thorough=2_000))
@given(EXPRESSION, st.lists(st.one_of(MOMENTS, NEAR_MOMENTS), min_size=1, max_size=5))
def test_any_wall_time_is_the_one_that_cronsim_finds(expression: str, seconds: list[int]) -> None:
    walls = walls_of(expression)
    for second in seconds:
        assert walls.first_from(second) == cronsim_first(expression, second)
        assert walls.last_until(second) == cronsim_last(expression, second)


@settings(max_examples=amount(50, thorough=500))
@given(EXPRESSION, NEAR_MOMENTS)
def test_a_walk_through_wall_times_meets_all_of_them_there_and_back(expression: str, begin: int) -> None:
    walls = walls_of(expression)
    expected, found = CronSim(expression, to_wall(begin)), [begin]
    for _ in range(20):
        at = walls.first_from(found[-1] + 1)
        assert at is not None
        assert at == to_second(next(expected))
        found.append(at)
    back = [found[-1]]
    while len(back) < 20:
        at = walls.last_until(back[-1] - 1)
        assert at is not None
        back.append(at)
    assert back[::-1] == found[1:]


@pytest.mark.long
@settings(max_examples=amount(50, thorough=500))
@given(st.lists(st.tuples(EXPRESSION, NEAR_MOMENTS), min_size=2, max_size=8))
def test_remembered_answers_are_the_ones_of_a_process_that_remembers_nothing(asked: list[tuple[str, int]]) -> None:
    def answer(expression: str, second: int) -> tuple[int | None, int | None] | None:
        try:
            walls = WallTimes(expression.split())
        except NeverOccurs:
            return None
        return walls.first_from(second), walls.last_until(second)

    fresh = []
    for expression, second in asked:
        forget()
        fresh.append(answer(expression, second))
    forget()
    for questions in (asked, asked[::-1], asked):
        remembered = {question: answer(*question) for question in questions}
        assert [remembered[question] for question in asked] == fresh


@pytest.mark.parametrize(
    ("day", "weekday", "month", "days"),
    [
        ("L", "*", 2, [28]),
        ("L", "*", 4, [30]),
        ("LW", "*", 1, [30]),  # the 31st is a Saturday
        ("LW", "*", 5, [29]),  # the 31st is a Sunday
        ("LW", "*", 6, [30]),  # a Tuesday
        ("1,31", "*", 3, [1, 31]),
        ("*", "SUN", 3, [1, 8, 15, 22, 29]),
        ("*", "7", 3, [1, 8, 15, 22, 29]),
        ("*", "6", 3, [7, 14, 21, 28]),
        ("*", "SUN#1", 3, [1]),
        ("*", "SAT#2", 3, [14]),  # the first one is the 7th
        ("*", "MON#5", 3, [30]),
        ("*", "MON#5", 4, []),
        ("*", "2L", 3, [31]),
        ("*", "3L", 3, [25]),
        ("13", "FRI", 3, [6, 13, 20, 27]),  # one of both is enough
        ("*/10", "SUN", 3, [1]),  # a field with a star: it needs both
        ("L", "*/2", 2, [28]),
    ],
)
def test_the_days_of_a_month(day: str, weekday: str, month: int, days: list[int]) -> None:
    pattern = DayPattern(day, "*", weekday)
    every = [date(2026, month, number) for number in range(1, 1 + monthrange(2026, month)[1])]
    assert [one.day for one in every if pattern.first_from(one) == one] == days
    assert [one.day for one in every if pattern.last_until(one) == one] == days


def test_other_months_are_passed_over_in_both_directions() -> None:
    pattern = DayPattern("10,20", "3,5", "*")
    for day, first, last in [
        (date(2026, 3, 10), date(2026, 3, 10), date(2026, 3, 10)),
        (date(2026, 3, 11), date(2026, 3, 20), date(2026, 3, 10)),
        (date(2026, 3, 21), date(2026, 5, 10), date(2026, 3, 20)),
        (date(2026, 4, 15), date(2026, 5, 10), date(2026, 3, 20)),
        (date(2026, 5, 9), date(2026, 5, 10), date(2026, 3, 20)),
        (date(2026, 12, 31), date(2027, 3, 10), date(2026, 5, 20)),
        (date(2027, 1, 1), date(2027, 3, 10), date(2026, 5, 20)),
    ]:
        assert (pattern.first_from(day), pattern.last_until(day)) == (first, last)


def test_a_day_that_is_years_away_is_found_in_both_directions() -> None:
    sunday = DayPattern("29", "2", "*/7")  # 29 February on a Sunday: 1880, 1920, …, 2004, 2032
    assert sunday.first_from(date(2004, 3, 1)) == date(2032, 2, 29)
    assert sunday.last_until(date(2032, 2, 28)) == date(2004, 2, 29)
    assert sunday.first_from(date(1880, 3, 1)) == date(1920, 2, 29)  # there was none in 1900
    assert sunday.last_until(date(1920, 2, 28)) == date(1880, 2, 29)


def test_times_of_a_day_are_found_from_both_sides() -> None:
    walls = WallTimes(["10,20", "5,15", "8,18", "*", "*", "*"])
    times = [
        day * 86_400 + hour * 3_600 + minute * 60 + second
        for day in range(-1, 3)
        for hour in (8, 18)
        for minute in (5, 15)
        for second in (10, 20)
    ]
    for time in times[8:-8]:
        minute, hour, day = (time // length * length for length in (60, 3_600, 86_400))
        around = (time - 1, time, time + 1, minute, minute + 59, hour, hour + 3_599, day, day + 86_399)
        for moment in around:
            assert walls.first_from(moment) == min(each for each in times if each >= moment)
            assert walls.last_until(moment) == max(each for each in times if each <= moment)


def test_the_last_second_of_a_day_is_found_from_the_next_day() -> None:
    walls = WallTimes(["59", "59", "23", "*", "*", "*"])
    assert walls.last_until(86_400 + 43_200) == 86_399
    assert walls.last_until(86_399) == 86_399
    assert walls.last_until(86_398) == -1


FIELDS = ["second", "minute", "hour", "day-of-month", "month", "day-of-week"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_cannot_be_read_is_named(name: str) -> None:
    with pytest.raises(CronSimError, match=f"Bad {name}"):
        WallTimes(["99" if each == name else "*" for each in FIELDS])


def test_a_pattern_works_out_each_kind_of_month_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[tuple[int, int]] = []
    days_of_kind = DayPattern._days_of_kind

    def counted(pattern: DayPattern, first: int, length: int) -> int:
        kinds.append((first, length))
        return days_of_kind(pattern, first, length)

    monkeypatch.setattr(DayPattern, "_days_of_kind", counted)
    pattern = DayPattern("13", "*", "FRI")
    day = to_wall(0).date()
    for _ in range(400 * 12):  # as long as the calendar repeats itself
        pattern.first_from(day)
        pattern.last_until(day)
        day = (day + timedelta(days=31)).replace(day=1)
    assert sorted(kinds) == [(first, length) for first in range(7) for length in range(28, 32)]


def test_expressions_with_the_same_days_share_them() -> None:
    forget()
    one, other, third = (WallTimes(text.split()) for text in ("5 4 13 * FRI", "6 * 13 * FRI", "6 * 14 * FRI"))
    assert one._days is other._days
    assert one._days is not third._days


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */30 2 MON#5", "0 0 31 2 */2"])
def test_days_that_no_year_has_are_refused(expression: str) -> None:
    with pytest.raises(NeverOccurs):
        WallTimes(expression.split())


@pytest.mark.parametrize("second", [FIRST - 1, LAST + 1, 10**15, -(10**15)])
def test_there_are_no_wall_times_beyond_the_range_of_dates(second: int) -> None:
    walls = WallTimes(["*", "*", "*", "*", "*", "*"])
    assert walls.first_from(second) is None
    assert walls.last_until(second) is None


def test_the_range_of_dates_is_used_up_to_its_ends() -> None:
    walls = WallTimes(["*", "*", "*", "*", "*", "*"])
    assert (walls.first_from(FIRST), walls.last_until(FIRST)) == (FIRST, FIRST)
    assert (walls.first_from(LAST), walls.last_until(LAST)) == (LAST, LAST)
    noon = WallTimes(["0", "12", "*", "*", "*"])
    assert noon.last_until(FIRST + 43_199) is None
    assert noon.first_from(LAST - 43_198) is None
    june = WallTimes(["0", "0", "1", "6", "*"])
    assert june.last_until(FIRST) is None
    assert june.first_from(LAST) is None


def test_wall_times_can_be_pickled() -> None:
    walls = WallTimes(["30", "2", "*", "*", "MON#1"])
    assert pickle.loads(pickle.dumps(walls)).first_from(0) == walls.first_from(0)
