"""Texts of times and durations on pages and on the axes of charts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainspring.web.dashboard.formats import axis_duration, short

NOW = datetime(2026, 11, 17, 14, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(2026, 11, 17, 6, 40, 4, tzinfo=UTC), "06:40:04 UTC"),
        (datetime(2026, 11, 16, 6, 40, 4, tzinfo=UTC), "11-16 06:40 UTC"),
        (datetime(2027, 1, 2, 6, 40, 4, tzinfo=UTC), "2027-01-02 06:40 UTC"),
    ],
)
def test_a_time_has_the_parts_that_differ_from_now(at: datetime, text: str) -> None:
    assert short(at, NOW) == text


def test_durations_of_an_axis_have_room_beside_it() -> None:
    texts = [axis_duration(0.001 * 10.0**step) for step in range(12)]
    assert texts == [
        "1 ms",
        "10 ms",
        "100 ms",
        "1 s",
        "10 s",
        "100 s",
        "1,000 s",
        "2.8 h",
        "28 h",
        "12 d",
        "116 d",
        "1,157 d",
    ]
    assert max(map(len, texts)) <= 7
