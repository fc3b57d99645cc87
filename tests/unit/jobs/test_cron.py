"""Cron: what it accepts, what it means when clocks change, what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import Cron, ScheduleInvalid
from mainspring.jobs.recurrence.rules import upcoming
from mainspring.jobs.recurrence.wall_times import WallTimes
from mainspring.jobs.timestamps import LAST_INSTANT, to_instant
from tests.unit.jobs.cron_oracle import at

DAY = 86_400_000_000  # in microseconds


def next_walls(rule: Cron, after: str, count: int) -> list[str]:
    """The next occurrences as the wall clock of the rule shows them, with the offset from UTC."""
    return [f"{up.local:%m-%d %H:%M:%S %z}" for up in upcoming(rule, at(after, rule.tz), count)]


# ---- expressions ----


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 2 * * *", ["01-02 02:00:00", "01-03 02:00:00"]),
        ("*/30 * * * *", ["01-01 12:30:00", "01-01 13:00:00"]),
        ("5/30 * * * *", ["01-01 12:05:00", "01-01 12:35:00"]),
        ("50-50/5 * * * *", ["01-01 12:50:00", "01-01 12:55:00"]),
        ("15 * * * * *", ["01-01 12:00:15", "01-01 12:01:15"]),
        ("0 9 * * mon-fri", ["01-04 09:00:00", "01-05 09:00:00"]),
        ("0 0 1 JUL,dec *", ["07-01 00:00:00", "12-01 00:00:00"]),
        ("0 0 L * *", ["01-31 00:00:00", "02-28 00:00:00"]),
        ("0 0 L/2 * *", ["01-31 00:00:00", "02-28 00:00:00"]),
        ("0 0 LW * *", ["01-29 00:00:00", "02-26 00:00:00"]),
        ("0 0 * * 5L", ["01-29 00:00:00", "02-26 00:00:00"]),
        ("0 0 * * 5#2", ["01-08 00:00:00", "02-12 00:00:00"]),
        ("0 0 * * 0", ["01-03 00:00:00", "01-10 00:00:00"]),
        ("0 0 * * 7", ["01-03 00:00:00", "01-10 00:00:00"]),
        ("  0\t2  * * * ", ["01-02 02:00:00", "01-03 02:00:00"]),
        ("@hourly", ["01-01 13:00:00", "01-01 14:00:00"]),
        ("@daily", ["01-02 00:00:00", "01-03 00:00:00"]),
        ("@midnight", ["01-02 00:00:00", "01-03 00:00:00"]),
        ("@weekly", ["01-03 00:00:00", "01-10 00:00:00"]),
        ("@Monthly", ["02-01 00:00:00", "03-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00", "01-01 00:00:00"]),
        ("@annually", ["01-01 00:00:00", "01-01 00:00:00"]),
    ],
)
def test_an_expression_means_these_times(expression: str, expected: list[str]) -> None:
    found = next_walls(Cron(expression), "2027-01-01 12:00", 2)  # a Friday
    assert found == [f"{wall} +0000" for wall in expected]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 13 * FRI", ["01-08", "01-13", "01-15"]),  # neither begins with a star: either will do
        ("0 0 */2 * FRI", ["01-15", "01-29", "02-05"]),  # a step begins with a star: odd days that are Fridays
        ("0 0 L * */2", ["01-31", "02-28", "07-31"]),  # last days that are Sun, Tue, Thu or Sat
        ("0 0 */40 * *", ["02-01", "03-01", "04-01"]),  # a step beyond the end leaves the first
    ],
)
def test_days_are_combined_as_debian_does(expression: str, expected: list[str]) -> None:
    found = [wall[:5] for wall in next_walls(Cron(expression), "2027-01-01 12:00", 3)]
    assert found == expected


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("0 25 * * *", ["hour is '25'", "0 to 23", "'9-17'"]),
        ("1,2,99 * * * *", ["minute is '1,2,99'", "'99' is not allowed", "0 to 59"]),
        ("77 0 0 * * *", ["second is '77'", "0 to 59"]),
        ("0 0 32 * *", ["day of month is '32'", "1 to 31", "LW"]),
        ("0 0 15W * *", ["day of month is '15W'", "1 to 31"]),
        ("0 0 ?/2 * *", ["day of month is '?/2'", "1 to 31"]),
        ("0 0 1,? * *", ["day of month is '1,?'", "'?' is not allowed"]),
        ("? 0 * * *", ["minute is '?'", "0 to 59"]),
        ("0 ? * * *", ["hour is '?'"]),
        ("0 0 ? ? *", ["cron '0 0 ? ? *'", "month is '?'"]),
        ("0 0 ? *", ["4 fields"]),
        ("0 0 1 13 *", ["month is '13'", "JAN to DEC"]),
        ("0 0 * * MOON", ["day of week is 'MOON'", "SUN to SAT", "5#2"]),
        ("0 0 * * FRIL", ["day of week is 'FRIL'", "5L"]),
        ("0 0 * * 5#6", ["day of week is '5#6'"]),
        ("0 22-2 * * *", ["hour is '22-2'", "from low to high"]),
        ("*/0 * * * *", ["minute is '*/0'"]),
        ("9" * 5_000 + " * * * *", ["minute is '99"]),
        ("0 2 * *", ["4 fields", "5 (minute, hour", "'30 2 * * MON-FRI'"]),
        ("", ["0 fields"]),
        ("0 0 0 1 1 * 2027", ["7 fields"]),
        ("@dayly", ["'@dayly'", "no such alias", "@daily", "@hourly", "@annually"]),
        ("0 0 30 2 *", ["never occurs", "'30'", "'2'"]),
        ("0 0 31 4,6,9,11 *", ["never occurs"]),
        ("0 0 */30 2 MON#5", ["never occurs", "'MON#5'"]),
        (None, ["None", "not text"]),
        (5, ["the expression is 5"]),
    ],
)
def test_a_bad_expression_is_refused_with_its_field_and_what_is_allowed(expression: Any, named: list[str]) -> None:
    with pytest.raises(ScheduleInvalid) as caught:
        Cron(expression)
    assert [name for name in named if name not in str(caught.value)] == []


HOW_MANY_FIELDS = (
    "give 5 (minute, hour, day of month, month, day of week) or 6 with seconds first, "
    "such as '30 2 * * MON-FRI', or an alias such as @daily"
)
WHAT_A_MINUTE_MAY_BE = (
    "give 0 to 59, as *, a list (1,3), a range from low to high (1-5) or steps (*/5); for example '*/5'"
)


@pytest.mark.parametrize(
    ("expression", "rule", "problem", "remedy"),
    [
        (
            5,
            "cron",
            "the expression is 5, which is not text",
            "give one such as '30 2 * * MON-FRI' or '@daily'",
        ),
        (
            "* * *",
            "cron '* * *'",
            "the expression has 3 fields",
            HOW_MANY_FIELDS,
        ),
        (
            "@noon",
            "cron '@noon'",
            "there is no such alias",
            "give one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly",
        ),
        ("61 * * * *", "cron '61 * * * *'", "minute is '61'", WHAT_A_MINUTE_MAY_BE),
        (
            "1,61 * * * *",
            "cron '1,61 * * * *'",
            "minute is '1,61', where '61' is not allowed",
            WHAT_A_MINUTE_MAY_BE,
        ),
        (
            "0 0 31 2 *",
            "cron '0 0 31 2 *'",
            "the rule never occurs: no year has a day with day of month '31', month '2' and day of week '*'",
            "give a day that exists, such as L for the last day of a month",
        ),
    ],
)
def test_an_error_names_the_rule_the_problem_and_the_remedy(
    expression: Any, rule: str, problem: str, remedy: str
) -> None:
    with pytest.raises(ScheduleInvalid) as caught:
        Cron(expression)
    assert (caught.value.rule, caught.value.problem, caught.value.remedy) == (rule, problem, remedy)


def test_a_store_keeps_these_fields_of_a_rule() -> None:
    rule = Cron("0 2 * * mon", tz="Asia/Taipei", dst_gap="skip", dst_fold="both")
    assert rule.describe() == {
        "kind": "cron",
        "expression": "0 2 * * MON",
        "tz": "Asia/Taipei",
        "dst_gap": "skip",
        "dst_fold": "both",
    }


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("0 9 ? * MON", "0 9 * * MON"),
        ("0 9 1 * ?", "0 9 1 * *"),
        ("0 9 ? * ?", "0 9 * * *"),
        ("30 0 9 ? * 5L", "30 0 9 * * 5L"),
    ],
)
def test_a_question_mark_for_a_day_means_any_day(expression: str, same: str) -> None:
    rule = Cron(expression)
    assert (rule, rule.expression) == (Cron(same), same)
    assert next_walls(rule, "2027-01-01 12:00", 5) == next_walls(Cron(same), "2027-01-01 12:00", 5)


def test_one_rule_has_one_spelling() -> None:
    assert Cron(" 0  2 * * mon ") == Cron("0 2 * * MON")
    assert hash(Cron("0 2 * * mon")) == hash(Cron("0 2 * * MON"))
    assert Cron("@DAILY") == Cron("@daily") != Cron("0 0 * * *")


# ---- zones and policies ----


@pytest.mark.parametrize("tz", ["Asia/Taipei", ZoneInfo("Asia/Taipei"), ZoneInfo.no_cache("Asia/Taipei")])
def test_a_zone_is_given_by_name_or_as_zone_info(tz: str | ZoneInfo) -> None:
    rule = Cron("0 2 * * *", tz=tz)
    assert rule.tz == "Asia/Taipei"
    assert rule.next_after(at("2027-01-01 00:00")) == at("2027-01-01 18:00")


@pytest.mark.parametrize(
    ("tz", "named"),
    [
        ("Asia/Taipeh", ["no time zone 'Asia/Taipeh'", "did you mean 'Asia/Taipei'"]),
        ("new york", ["'new york'", "did you mean 'America/New_York'"]),
        ("europe/berlin", ["did you mean 'Europe/Berlin'"]),
        ("America", ["no time zone 'America'"]),
        ("../passwd", ["no time zone '../passwd'", "'UTC'"]),
        ("", ["no time zone ''"]),
        (UTC, ["tz is datetime.timezone.utc", "tz='UTC'"]),
        (None, ["tz is None", "tz='Asia/Taipei'"]),
        (8, ["tz is 8"]),
    ],
)
def test_a_zone_that_does_not_exist_is_refused_with_those_that_are_spelt_alike(tz: Any, named: list[str]) -> None:
    with pytest.raises(ScheduleInvalid) as caught:
        Cron("@daily", tz=tz)
    assert [name for name in ["cron '@daily'", *named] if name not in str(caught.value)] == []


def test_a_zone_info_without_a_key_is_refused() -> None:
    data = files("tzdata").joinpath("zoneinfo", "Asia", "Taipei").read_bytes()
    with pytest.raises(ScheduleInvalid, match="a ZoneInfo that has a key"):
        Cron("@daily", tz=ZoneInfo.from_file(BytesIO(data)))


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"dst_gap": "later"}, "^cron '@daily': dst_gap is 'later'; give 'auto' or 'shift' or 'skip'$"),
        ({"dst_fold": None}, "^cron '@daily': dst_fold is None; give 'auto' or 'first' or 'second' or 'both'$"),
        ({"dst_fold": ["first"]}, r"dst_fold is \['first'\]"),
    ],
)
def test_an_unknown_policy_is_refused(option: Any, named: str) -> None:
    with pytest.raises(ScheduleInvalid, match=named):
        Cron("@daily", **option)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dst_gap": "shift"}, ["03-13 02:30:00 -0500", "03-14 03:30:00 -0400", "03-15 02:30:00 -0400"]),
        ({"dst_gap": "skip"}, ["03-13 02:30:00 -0500", "03-15 02:30:00 -0400", "03-16 02:30:00 -0400"]),
    ],
)
def test_a_time_in_a_gap_is_shifted_by_the_gap_or_skipped(options: Any, expected: list[str]) -> None:
    assert next_walls(Cron("30 2 * * *", tz="America/New_York", **options), "2027-03-13 00:00", 3) == expected


@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        ("first", ["11-07 01:30:00 -0400", "11-08 01:30:00 -0500"]),
        ("second", ["11-07 01:30:00 -0500", "11-08 01:30:00 -0500"]),
        ("both", ["11-07 01:30:00 -0400", "11-07 01:30:00 -0500"]),
    ],
)
def test_of_a_time_that_comes_twice_the_first_the_second_or_both_count(fold: Any, expected: list[str]) -> None:
    assert next_walls(Cron("30 1 * * *", tz="America/New_York", dst_fold=fold), "2027-11-07 00:00", 2) == expected


def test_two_wall_times_on_one_instant_are_one_occurrence() -> None:
    rule = Cron("*/5 * * * *", tz="Europe/Berlin")
    begin = at("2027-03-28 00:00")  # an hour before the gap
    assert [up.instant for up in upcoming(rule, begin, 48)] == [begin + k * 300_000_000 for k in range(1, 49)]


def test_with_the_first_of_two_only_a_frequent_rule_pauses_during_the_second_pass() -> None:
    begin = at("2027-10-31 00:00")  # 02:00 in Berlin, for the first time
    gaps = []
    for fold in ("first", "both"):
        found = [up.instant for up in upcoming(Cron("*/5 * * * *", tz="Europe/Berlin", dst_fold=fold), begin, 30)]
        gaps.append({(later - one) // 60_000_000 for one, later in pairwise(found)})
    assert gaps == [{5, 65}, {5}]


@pytest.mark.parametrize(
    ("expression", "policies"),
    [
        ("*/15 * * * *", ("skip", "both")),
        ("* 2 * * *", ("skip", "both")),
        ("*/5,7 2 * * *", ("skip", "both")),
        ("0 * * * *", ("skip", "both")),
        ("0 */2 * * *", ("skip", "both")),
        ("30 */10 2 * * *", ("skip", "both")),
        ("30 10 * * * *", ("skip", "both")),
        ("@hourly", ("skip", "both")),
        ("30 2 * * *", ("shift", "first")),
        ("0,30 1-3 * * *", ("shift", "first")),
        ("0 0-23/2 */2 * *", ("shift", "first")),
        ("0 0-23 * */2 *", ("shift", "first")),
        ("*/10 30 2 * * *", ("shift", "first")),
        ("@daily", ("shift", "first")),
    ],
)
def test_auto_is_chosen_by_the_minute_and_the_hour(expression: str, policies: tuple[str, str]) -> None:
    rule = Cron(expression, tz="Europe/Berlin")
    assert (rule.dst_gap, rule.dst_fold) == policies
    assert rule == Cron(expression, tz="Europe/Berlin", dst_gap="auto", dst_fold="auto")


@pytest.mark.parametrize("expression", ["*/15 * * * *", "30 2 * * *"])
def test_one_policy_can_be_named_and_the_other_left_to_auto(expression: str) -> None:
    auto = Cron(expression)
    gap, fold = Cron(expression, dst_gap="skip"), Cron(expression, dst_fold="second")
    assert (gap.dst_gap, gap.dst_fold) == ("skip", auto.dst_fold)
    assert (fold.dst_gap, fold.dst_fold) == (auto.dst_gap, "second")


@pytest.mark.parametrize(
    ("tz", "night"),
    [
        ("Europe/Berlin", "2027-10-30 22:00"),
        ("Europe/Berlin", "2027-03-27 22:00"),
        ("America/New_York", "2027-11-07 03:00"),
        ("America/New_York", "2027-03-14 04:00"),
        ("Australia/Lord_Howe", "2027-04-03 12:00"),
        ("Australia/Lord_Howe", "2027-10-02 13:00"),
        ("Antarctica/Troll", "2027-10-30 22:00"),
        ("Antarctica/Troll", "2027-03-27 22:00"),
        ("Africa/Casablanca", "2025-02-22 23:00"),
        ("Africa/Casablanca", "2025-04-05 23:00"),
        ("Pacific/Apia", "2011-12-30 07:00"),
    ],
)
def test_every_quarter_of_an_hour_stays_one_in_the_night_in_which_clocks_change(tz: str, night: str) -> None:
    begin = at(night)
    found = [up.instant for up in upcoming(Cron("*/15 * * * *", tz=tz), begin, 32)]
    assert found == [begin + k * 15 * 60_000_000 for k in range(1, 33)]


@pytest.mark.parametrize(
    ("expression", "tz", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2027-03-27 12:00", ["03-28 03:30:00 +0200", "03-29 02:30:00 +0200"]),
        ("30 2 * * *", "Europe/Berlin", "2027-10-30 12:00", ["10-31 02:30:00 +0200", "11-01 02:30:00 +0100"]),
        ("0 */2 * * *", "Europe/Berlin", "2027-03-28 00:00", ["03-28 04:00:00 +0200", "03-28 06:00:00 +0200"]),
        ("0 */2 * * *", "Europe/Berlin", "2027-10-31 00:00", ["10-31 02:00:00 +0200", "10-31 02:00:00 +0100"]),
        (
            "10 2 * * *",
            "Australia/Lord_Howe",
            "2027-10-02 12:00",
            ["10-03 02:40:00 +1100", "10-04 02:10:00 +1100"],
        ),
        ("0 8 * * *", "Pacific/Apia", "2011-12-29 12:00", ["12-31 08:00:00 +1400", "01-01 08:00:00 +1400"]),
    ],
)
def test_auto_does_this_when_clocks_change(expression: str, tz: str, after: str, expected: list[str]) -> None:
    assert next_walls(Cron(expression, tz=tz), after, 2) == expected


def test_occurrences_come_in_the_order_of_instants_when_wall_times_do_not() -> None:
    rule = Cron("30,50 1-3 * * *", tz="Europe/Berlin")
    assert next_walls(rule, "2027-03-28 01:40", 4) == [
        "03-28 01:50:00 +0100",
        "03-28 03:30:00 +0200",  # of itself, and moved from 02:30
        "03-28 03:50:00 +0200",
        "03-29 01:30:00 +0200",
    ]
    mixed = Cron("45 2 * * *", tz="Australia/Lord_Howe"), Cron("15,40 2 * * *", tz="Australia/Lord_Howe")
    assert next_walls(mixed[0], "2027-10-03 00:00", 1) == ["10-03 02:45:00 +1100"]
    assert next_walls(mixed[1], "2027-10-03 00:00", 2) == ["10-03 02:40:00 +1100", "10-03 02:45:00 +1100"]


def test_a_day_that_the_date_line_swallowed_is_shifted_as_a_whole() -> None:
    rule = Cron("0 8 30 12 *", tz="Pacific/Apia")
    found = upcoming(rule, at("2011-12-29 00:00"), 1)[0]
    assert (found.local.isoformat(), found.note) == (
        "2011-12-31T08:00:00+14:00",
        "moved by a DST gap from 2011-12-30 08:00",
    )
    assert next_walls(replace(rule, dst_gap="skip"), "2011-12-29 00:00", 1) == ["12-30 08:00:00 +1400"]  # of 2012


def test_what_is_always_in_the_gap_and_skipped_never_occurs() -> None:
    rule = Cron("30 2 * 3 SUN#2", tz="America/New_York", dst_gap="skip")
    assert rule.next_after(at("2027-01-01 00:00")) is None
    assert rule.last_until(at("2060-01-01 00:00"), at("2027-01-01 00:00")) is None
    assert rule.count_between(at("2027-01-01 00:00"), LAST_INSTANT, 5) == 0


# ---- spans and costs ----


def walk_back(rule: Cron, until: int, after: int) -> list[int]:
    """The occurrences in (after, until], found one by one from the end."""
    found: list[int] = []
    while (last := rule.last_until(until, after)) is not None:
        assert after < last <= until
        found.insert(0, last)
        until = last - 1
    return found


@pytest.mark.long
@pytest.mark.parametrize("expression", ["*/20 * * * *", "59 59 * * * *", "0 0 * * * *", "30 2 * * *", "0 2 * * *"])
@pytest.mark.parametrize("day", ["2027-03-14", "2027-11-07", "2027-12-31"])
@pytest.mark.parametrize("dst_gap", ["auto", "shift", "skip"])
@pytest.mark.parametrize("dst_fold", ["auto", "first", "second", "both"])
def test_the_way_back_meets_the_same_occurrences(expression: str, day: str, dst_gap: Any, dst_fold: Any) -> None:
    rule = Cron(expression, tz="America/New_York", dst_gap=dst_gap, dst_fold=dst_fold)
    after = at(f"{day} 00:00", "America/New_York")
    until = after + 2 * DAY
    forth = [up.instant for up in upcoming(rule, after, 200) if up.instant <= until]
    assert walk_back(rule, until, after) == forth
    assert rule.count_between(after, until, 1_000) == len(forth)


def test_the_way_back_follows_instants_where_wall_times_are_out_of_order() -> None:
    rule = Cron("10,50 2 * * *", tz="Australia/Lord_Howe")  # 02:10 is moved by half an hour, and 02:50 stays
    after = at("2027-10-03 00:00", "Australia/Lord_Howe")
    forth = [up.instant for up in upcoming(rule, after, 4)]
    assert walk_back(rule, forth[-1], after) == forth
    assert rule.last_until(forth[1] + 1, after) == forth[1]


def test_fractions_of_a_second_belong_to_the_second_before() -> None:
    rule = Cron("* * * * * *")
    assert [rule.next_after(instant) for instant in (0, 1, 999_999)] == [1_000_000] * 3
    assert [rule.last_until(instant, -1) for instant in (1_000_000, 1_000_001, 1_999_999)] == [1_000_000] * 3
    assert rule.last_until(1_999_999, 1_000_000) is None


def test_the_last_second_of_time_is_reached() -> None:
    rule = Cron("59 59 23 31 12 *")
    last = at("9990-12-31 23:59:59")
    assert rule.next_after(last - 1) == rule.last_until(LAST_INSTANT, 0) == last
    assert rule.next_after(last) is None


def test_a_year_is_not_passed_over_from_its_last_hours_or_its_first() -> None:
    assert Cron("0 0 1 1 *").next_after(at("2027-12-31 12:00")) == at("2028-01-01 00:00")
    assert Cron("0 0 31 12 *").last_until(at("2028-01-01 12:00"), 0) == at("2027-12-31 00:00")


def test_counting_leaves_out_its_beginning_includes_its_end_and_stops_at_the_limit() -> None:
    rule = Cron("@hourly")
    hour = DAY // 24
    assert [rule.count_between(0, until, 10) for until in (hour - 1, hour, 3 * hour)] == [0, 1, 3]
    assert rule.count_between(0, DAY, 3) == 3


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every step that is taken along wall times."""
    taken: list[int] = []
    for name in ("first_from", "last_until"):
        step = getattr(WallTimes, name)

        def counted(walls: WallTimes, second: int, step: Callable[..., int | None] = step) -> int | None:
            taken.append(second)
            return step(walls, second)

        monkeypatch.setattr(WallTimes, name, counted)
    return taken


@pytest.mark.parametrize("expression", ["* * * * * *", "*/5 * * * *", "0 0 1 1 *", "0 0 29 2 */8"])
def test_a_long_span_costs_few_steps(expression: str, steps: list[int]) -> None:
    rule = Cron(expression, tz="America/New_York")
    until, after = at("2095-06-01 12:00:00"), at("2027-01-01 00:00")
    assert rule.last_until(until, after) is not None
    assert rule.next_after(until) is not None
    assert len(steps) < 15


def test_counting_stops_at_the_limit(steps: list[int]) -> None:
    assert Cron("* * * * * *").count_between(0, 365 * DAY, 100) == 100
    assert len(steps) <= 101


def test_before_all_time_cron_begins_with_what_a_datetime_can_express() -> None:
    first = Cron("@yearly").next_after(-(10**30))
    assert first == at("0003-01-01 00:00")
    assert Cron("@yearly").last_until(first, -(10**30)) == first


def test_asking_changes_nothing() -> None:
    rule = Cron("*/7 3 * * *", tz="Europe/Dublin")
    assert {rule.next_after(at("2027-01-01 00:00")) for _ in range(3)} == {at("2027-01-01 03:00")}
    with pytest.raises(FrozenInstanceError):
        rule.tz = "UTC"  # type: ignore[misc]


# ---- previews ----


@pytest.mark.parametrize(
    ("rule", "after", "expected"),
    [
        (
            Cron("30 2 * * *", tz="America/New_York"),
            "2027-03-13 12:00",
            [("03:30", "moved by a DST gap from 02:30"), ("02:30", None)],
        ),
        (
            Cron("0 2 * * *", tz="America/New_York"),
            "2027-03-13 12:00",
            [("03:00", "moved by a DST gap from 02:00"), ("02:00", None)],
        ),
        (
            Cron("15 30 2 * * *", tz="America/New_York"),
            "2027-03-13 12:00",
            [("03:30", "moved by a DST gap from 02:30:15"), ("02:30", None)],
        ),
        (
            Cron("30 2,3 * * *", tz="America/New_York"),
            "2027-03-13 12:00",
            [("03:30", None), ("02:30", None)],  # 03:30 would have occurred anyway
        ),
        (
            Cron("30 1 * * *", tz="America/New_York", dst_fold="both"),
            "2027-11-06 12:00",
            [("01:30", "first of two 01:30"), ("01:30", "second of two 01:30"), ("01:30", None)],
        ),
        (
            Cron("45 1 * * *", tz="Australia/Lord_Howe", dst_fold="second"),
            "2027-04-03 12:00",
            [("01:45", "second of two 01:45"), ("01:45", None)],
        ),
    ],
)
def test_a_preview_tells_what_a_change_of_the_clocks_does(rule: Cron, after: str, expected: list[object]) -> None:
    found = upcoming(rule, at(after, rule.tz), len(expected))
    assert [(f"{up.local:%H:%M}", up.note) for up in found] == expected
    assert all(to_instant(up.local, "local") == up.instant for up in found)
