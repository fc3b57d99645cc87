"""Names of time zones: what is accepted, and what is suggested for a name that does not exist."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from mainspring import ScheduleInvalid
from mainspring.jobs.recurrence.zones import start_of, to_second, to_wall, year_of, zone_name


def refusal(tz: object) -> tuple[str, str, str]:
    """The rule, the problem and the remedy of the error for a zone."""
    with pytest.raises(ScheduleInvalid) as caught:
        zone_name(tz, "cron @daily")
    return caught.value.rule, caught.value.problem, caught.value.remedy


@pytest.mark.parametrize("tz", ["Asia/Taipei", ZoneInfo("Asia/Taipei")])
def test_a_zone_has_a_name(tz: str | ZoneInfo) -> None:
    assert zone_name(tz, "cron @daily") == "Asia/Taipei"


def test_what_is_no_name_is_refused_with_examples() -> None:
    remedy = "give a name such as tz='Asia/Taipei' or tz='UTC', or a ZoneInfo that has a key"
    problem = "tz is datetime.timezone.utc, which is not the name of a time zone"
    assert refusal(UTC) == ("cron @daily", problem, remedy)


def test_a_name_that_is_like_no_other_is_refused_with_examples() -> None:
    remedy = "give a name such as 'Asia/Taipei' or 'UTC'"
    assert refusal("Mars/Base") == ("cron @daily", "there is no time zone 'Mars/Base'", remedy)


@pytest.mark.parametrize(
    ("tz", "suggested"),
    [
        ("Taipeh", "'Asia/Taipei'"),
        (" New york ", "'America/New_York'"),
        ("san juan", "'America/Argentina/San_Juan'"),
        ("Etc/GMT+15", "'Etc/GMT+5', 'Etc/GMT+1', 'Etc/GMT+12'"),
        ("Europ/Berlin", "'Europe/Berlin', 'Europe/Lisbon', 'Europe/Dublin'"),
    ],
)
def test_names_that_are_spelt_alike_are_suggested_three_at_most(tz: str, suggested: str) -> None:
    assert refusal(tz)[2] == f"did you mean {suggested}?"


def test_the_usual_name_of_a_zone_is_suggested() -> None:
    assert refusal("buenos aires")[2] == "did you mean 'America/Buenos_Aires'?"  # and not America/Argentina/...


@pytest.mark.parametrize(
    ("year", "second"), [(1970, 0), (1971, 31_536_000), (1969, -31_536_000), (2000, 946_684_800)]
)
def test_a_year_begins_at_a_second(year: int, second: int) -> None:
    assert start_of(year) == second
    assert (year_of(second), year_of(second - 1)) == (year, year - 1)


def test_a_wall_time_is_a_number_of_seconds() -> None:
    wall = datetime(2026, 3, 1, 2, 30, 5)  # noqa: DTZ001 - the time on a wall clock
    assert to_wall(to_second(wall)) == wall
    assert to_second(wall) - to_second(wall.replace(hour=0, minute=0, second=0)) == 2 * 3_600 + 30 * 60 + 5
