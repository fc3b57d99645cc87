"""`Cron.next` and `Cron.upcoming`: datetimes in, datetimes in the zone of the rule out."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring import Cron, SystemClock

TAIPEI, BERLIN, NEW_YORK = (ZoneInfo(name) for name in ("Asia/Taipei", "Europe/Berlin", "America/New_York"))
NIGHTLY = Cron("0 2 * * *", tz="Asia/Taipei")


def test_the_next_occurrence_is_in_the_zone_of_the_rule() -> None:
    found = NIGHTLY.next(datetime(2026, 1, 5, 12, tzinfo=UTC))
    assert found == datetime(2026, 1, 5, 18, tzinfo=UTC)
    assert (found.tzinfo, found.hour) == (TAIPEI, 2)


@pytest.mark.parametrize("zone", [UTC, BERLIN, NEW_YORK])
def test_the_instant_counts_and_not_the_zone_in_which_it_is_given(zone: Any) -> None:
    after = datetime(2026, 1, 5, 18, tzinfo=UTC)
    assert NIGHTLY.next((after - timedelta(microseconds=1)).astimezone(zone)) == after
    assert NIGHTLY.next(after.astimezone(zone)) == after + timedelta(days=1)


def test_a_rule_that_has_ended_has_no_next_occurrence() -> None:
    yearly = Cron("@yearly")
    last = datetime(9999, 12, 30, tzinfo=UTC)
    assert yearly.next(last) is None
    assert yearly.upcoming(3, last) == []


def test_occurrences_follow_each_other_through_a_change_of_the_clocks() -> None:
    rule = Cron("30 2 * * *", tz="Europe/Berlin", dst_fold="both")
    found = rule.upcoming(4, after=datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert [f"{moment:%d %H:%M %z}" for moment in found] == [
        "25 02:30 +0200",
        "25 02:30 +0100",
        "26 02:30 +0100",
        "27 02:30 +0100",
    ]
    assert [rule.next(found[0]), rule.next(found[1])] == found[1:3]


def test_without_an_instant_upcoming_begins_now() -> None:
    rule = Cron("* * * * * *")
    before = SystemClock().now()
    found = rule.upcoming(3)
    after = SystemClock().now()
    assert before < found[0] <= after + timedelta(seconds=1)
    assert [later - found[0] for later in found] == [timedelta(seconds=number) for number in range(3)]


def test_none_are_asked_for() -> None:
    assert NIGHTLY.upcoming(0) == []


@pytest.mark.parametrize("n", [-1, 1.5, "3", True])
def test_a_number_that_counts_nothing_is_refused(n: Any) -> None:
    with pytest.raises(ValueError, match=r"whole number of occurrences, got .*; give 0 or more"):
        NIGHTLY.upcoming(n)


def test_a_naive_datetime_is_refused_with_the_remedy() -> None:
    naive = datetime(2026, 1, 5, 12)  # noqa: DTZ001 - on purpose
    with pytest.raises(ValueError, match=r"after must be an aware datetime.*add one: datetime\.now\(UTC\)"):
        NIGHTLY.next(naive)
    with pytest.raises(ValueError, match="after must be an aware datetime"):
        NIGHTLY.upcoming(0, naive)


@pytest.mark.parametrize("after", [1_700_000_000_000_000, "2026-01-05", None])
def test_what_is_no_datetime_is_refused(after: Any) -> None:
    with pytest.raises(TypeError, match="after must be an aware datetime, got"):
        NIGHTLY.next(after)
