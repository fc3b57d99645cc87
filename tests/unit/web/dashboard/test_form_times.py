"""Times that users write into forms."""

from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring.web.dashboard.form_times import parse_due, to_past
from mainspring.web.problems import Refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" Now ", {}),
        ("90", {"delay": 90.0}),
        ("10m", {"delay": 600.0}),
        ("1h30m", {"delay": 5_400.0}),
        ("in 1.5 h", {"delay": 5_400.0}),
        ("2 d", {"delay": 172_800.0}),
        ("250ms", {"delay": 0.25}),
        ("2031-01-02T03:04Z", {"at": datetime(2031, 1, 2, 3, 4, tzinfo=UTC)}),
        ("2031-01-02 03:04 UTC", {"at": datetime(2031, 1, 2, 3, 4, tzinfo=UTC)}),
        ("2031-01-02T11:04+08:00", {"at": datetime(2031, 1, 2, 3, 4, tzinfo=UTC)}),
    ],
)
def test_a_due_time_is_a_delay_or_an_instant(text: str, expected: dict[str, Any]) -> None:
    assert parse_due(text) == expected


@pytest.mark.parametrize("text", ["soon", "10 parsecs", "-5m", "1h-", "2031-13-01", "9" * 400, "²m"])
def test_other_text_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(Refused, match=r"which is no time; write 10m"):
        parse_due(text)


def test_times_of_filters_have_a_zone() -> None:
    assert to_past("2031-01-02T03:04") == to_past("2031-01-02 03:04") == "2031-01-02T03:04:00Z"
    assert to_past("2031-01-02T03:04+08:00") == "2031-01-02T03:04:00+08:00"
    assert (to_past("2h"), to_past("2 h ago"), to_past("soon")) == ("2h", "2h", "soon")
