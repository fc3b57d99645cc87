"""Instants outside are aware datetimes, inside whole microseconds; nothing is rounded to an earlier time."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring.jobs.timestamps import (
    describe_distance,
    describe_duration,
    to_datetime,
    to_instant,
    to_microseconds,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_the_epoch_is_zero() -> None:
    assert to_instant(datetime(1970, 1, 1, tzinfo=UTC), "at") == 0


def test_an_instant_before_the_epoch_is_negative() -> None:
    assert to_instant(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), "at") == -1_000_000


def test_equal_instants_of_different_zones_are_equal() -> None:
    zones = [UTC, ZoneInfo("Asia/Taipei"), ZoneInfo("America/St_Johns"), timezone(timedelta(hours=-3))]
    assert len({to_instant(NOON.astimezone(zone), "at") for zone in zones}) == 1


@pytest.mark.parametrize("moment", [NOON, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_an_instant_survives_the_way_there_and_back(moment: datetime) -> None:
    assert to_datetime(to_instant(moment, "at")) == moment


def test_what_comes_back_is_in_utc() -> None:
    assert to_datetime(to_instant(NOON.astimezone(ZoneInfo("Asia/Taipei")), "at")).tzinfo is UTC


def test_a_naive_datetime_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match=r"at must be an aware datetime, got .*add one: datetime\.now\(UTC\)"):
        to_instant(datetime(2026, 3, 1), "at")  # noqa: DTZ001 - naive on purpose


@pytest.mark.parametrize("moment", ["2026-03-01", 1_800_000_000, NOON.date(), None])
def test_what_is_no_datetime_is_refused(moment: Any) -> None:
    with pytest.raises(TypeError, match="at must be an aware datetime, got"):
        to_instant(moment, "at")


@pytest.mark.parametrize(
    ("duration", "microseconds"),
    [
        (0, 0),
        (2, 2_000_000),
        (0.5, 500_000),
        (timedelta(minutes=30), 1_800_000_000),
        (timedelta(microseconds=1), 1),
        (1e-9, 1),
        (0.000_000_500_1, 1),
        (1.000_000_001, 1_000_001),
    ],
)
def test_a_duration_is_rounded_up_never_down(duration: timedelta | float, microseconds: int) -> None:
    assert to_microseconds(duration, "delay") == microseconds


@pytest.mark.parametrize("duration", [-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf")])
def test_a_duration_that_no_clock_can_count_is_refused(duration: timedelta | float) -> None:
    with pytest.raises(ValueError, match="delay must"):
        to_microseconds(duration, "delay")


@pytest.mark.parametrize("duration", ["5", None, True])
def test_what_is_no_duration_is_refused(duration: Any) -> None:
    with pytest.raises(TypeError, match="delay must be a timedelta or a number of seconds, got"):
        to_microseconds(duration, "delay")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "now"),
        (-0.4, "now"),
        (1, "in 1 s"),
        (59.6, "in 1 min"),
        (-90, "1 min 30 s ago"),
        (725, "in 12 min"),
        (-3_600, "1 h ago"),
        (11_100, "in 3 h 5 min"),
        (-86_400 * 2.5, "2 d 12 h ago"),
        (86_400 * 400, "in 400 d"),
    ],
)
def test_a_distance_is_told_in_one_or_two_units(seconds: float, words: str) -> None:
    now = to_instant(NOON, "now")
    assert describe_distance(now + round(seconds * 1_000_000), now) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (1, "in 1 s"),
        (-119, "119 s ago"),
        (120, "in 2 min"),
        (-7_199, "119 min ago"),
        (7_200, "in 2 h"),
    ],
)
def test_in_short_a_distance_is_told_in_one_unit(seconds: int, words: str) -> None:
    now = to_instant(NOON, "now")
    assert describe_distance(now + seconds * 1_000_000, now, in_short=True) == words
    assert describe_distance(now - 172_800_000_000, now, in_short=True) == "2 d ago"


def test_a_duration_is_told_in_one_or_two_units() -> None:
    durations = (1_500, 250_000, 1_000_000, 5_400_000_000, 172_800_000_000)
    assert [describe_duration(duration) for duration in durations] == [
        "1.5 ms",
        "250 ms",
        "1 s",
        "1 h 30 min",
        "2 d",
    ]
