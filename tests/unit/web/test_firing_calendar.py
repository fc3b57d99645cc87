"""The calendar of a schedule, the marks of its coming dates, and the strips of last outcomes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from mainspring import Cron, Every, Mainspring, Retry
from mainspring.jobs.recurrence.preview import BoundedRule, next_dates
from mainspring.jobs.recurrence.schedule_history import HistoryEntry
from mainspring.jobs.timestamps import to_instant
from mainspring.security.permissions import ALL_PERMISSIONS
from mainspring.testing import time_travel
from mainspring.web.dashboard.firing_calendar import (
    DAYS_AFTER,
    DAYS_BEFORE,
    HOURS,
    CalendarDay,
    calendar_of,
    clock_change,
)
from mainspring.web.dashboard.schedule_outcomes import coming_dates, find_zone, outcome_strips, outcomes_of

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
NOW = datetime(2027, 3, 27, 12, 30, tzinfo=UTC)


def entry(at: datetime, status: str | None = "COMPLETED", count: int = 1) -> HistoryEntry:
    return HistoryEntry(
        at, "occurrence" if status else "skipped", "x" if status else None, status, at, count, None
    )


def days(*entries: HistoryEntry, planned: tuple[datetime, ...] = ()) -> dict[date, CalendarDay]:
    found = calendar_of(entries, planned, zone=BERLIN, now=NOW, known_since=None, known_until=None)
    return {each.day: each for each in found}


def test_occurrences_are_in_the_hour_of_the_zone() -> None:
    found = days(
        entry(NOW), entry(NOW, "FAILED"), entry(NOW - timedelta(days=1)), planned=(NOW + timedelta(hours=20),)
    )
    assert len(found) == DAYS_BEFORE + 1 + DAYS_AFTER
    assert all(len(day.cells) == HOURS for day in found.values())
    today = found[date(2027, 3, 27)]
    assert (today.cells[13].outcome, today.cells[13].text) == ("failed", "1 failed, 1 completed")
    assert today.cells[12].outcome == "none"
    assert found[date(2027, 3, 26)].cells[13].outcome == "completed"
    assert found[date(2027, 3, 28)].cells[10].text == "1 planned"  # 08:30 UTC is 10:30 after the change of clocks


def test_the_shade_follows_the_number() -> None:
    found = days(*[entry(NOW)] * 8, entry(NOW - timedelta(hours=1)), entry(NOW - timedelta(hours=2), None, 4))
    cells = found[date(2027, 3, 27)].cells
    assert [cells[hour].level for hour in (13, 12, 11, 10)] == [4, 1, 2, 0]
    assert (cells[11].outcome, cells[11].text) == ("left-out", "4 left out")


def test_hours_that_were_not_read_are_unknown() -> None:
    found = calendar_of(
        [entry(NOW)],
        [],
        zone=UTC,
        now=NOW,
        known_since=NOW - timedelta(hours=3),
        known_until=NOW + timedelta(hours=2),
    )
    today = next(day for day in found if day.day == NOW.date())
    assert [cell.outcome for cell in today.cells[7:16]] == [
        *("unknown", "unknown", "none", "none", "none", "completed", "none", "none", "unknown")
    ]
    assert today.cells[7].text == "not read"


@pytest.mark.parametrize(
    ("zone", "day", "expected"),
    [
        (BERLIN, date(2027, 3, 28), "clocks go forward 1 h"),
        (BERLIN, date(2027, 10, 31), "clocks go back 1 h"),
        (BERLIN, date(2027, 6, 1), None),
        (ZoneInfo("Australia/Lord_Howe"), date(2027, 4, 4), "clocks go back 30 min"),
        (UTC, date(2027, 3, 28), None),
    ],
)
def test_days_with_a_change_of_clocks_are_marked(zone: ZoneInfo, day: date, expected: str | None) -> None:
    assert clock_change(day, zone) == expected


def preview(expression: str, zone: str, start: datetime, count: int = 3, **options: str) -> list[tuple[str, ...]]:
    rule = Cron(expression, tz=zone, **options)  # type: ignore[arg-type]
    dates = next_dates(BoundedRule(rule), to_instant(start, "start"), count)
    return [each.marks for each in coming_dates(dates, NEW_YORK)]


def test_coming_dates_are_marked_where_clocks_change() -> None:
    start = datetime(2027, 3, 27, 0, tzinfo=UTC)
    moved, after = preview("30 2 * * *", "Europe/Berlin", start)[1:]
    assert moved == ("moved by a DST gap from 02:30", "clocks go forward 1 h before this date")
    assert after == ()
    assert preview("0 12 * * *", "UTC", datetime(2027, 3, 12, 15, tzinfo=UTC))[1] == (
        "clocks go forward 1 h in your time zone before this date",
    )


def test_a_skipped_date_is_shown() -> None:
    rule = Cron("30 2 * * *", tz="Europe/Berlin", dst_gap="skip")
    dates = next_dates(BoundedRule(rule), to_instant(datetime(2027, 3, 27, 12, tzinfo=UTC), "start"), 2)
    first = coming_dates(dates, UTC)[0]
    assert first.is_skipped
    assert first.marks[0].startswith("skipped: there is no 02:30")


def test_a_date_has_the_time_of_the_viewer() -> None:
    dates = next_dates(BoundedRule(Cron("0 * * * *")), to_instant(NOW, "now"), 1)
    (found,) = coming_dates(dates, NEW_YORK)
    assert found.here == found.at
    assert found.here.utcoffset() == timedelta(hours=-4)


@pytest.mark.parametrize("name", [None, "", "No/Where", "../../etc/passwd", "/etc", "a\0b", "x" * 5000, "Europe"])
def test_an_unknown_zone_is_none(name: str | None) -> None:
    assert find_zone(name) is None
    assert find_zone("Europe/Berlin") == BERLIN


def test_strips_have_the_outcomes_of_each_schedule() -> None:
    with Mainspring("memory://") as app:
        fails = [False]

        @app.every(60, name="often")
        @app.job(name="tick", retry=Retry(max_attempts=1))
        def tick(who: str = "") -> None:
            if fails[0]:
                raise ValueError(who)

        with time_travel(app, start=datetime(2027, 1, 4, 12, tzinfo=UTC)) as travel:
            app.schedules.put("rare", tick, Every(3600), arguments={"who": "rare"})
            tick.submit("by hand")
            travel.fast_forward(minutes=3)
            fails[0] = True
            travel.fast_forward(minutes=1)
            manager = app.manager()
            listed = app.schedules.list()
            strips = outcome_strips(manager, listed, ALL_PERMISSIONS)
            assert {schedule.name for schedule in listed} == set(strips)
            often = strips["often"]
            assert [each.status for each in often.entries] == ["FAILED", "COMPLETED", "COMPLETED", "COMPLETED"]
            assert often.known_since is None
            assert strips["rare"].entries == []
            assert outcomes_of(manager, app.schedules.get("often"), ALL_PERMISSIONS).entries == often.entries
