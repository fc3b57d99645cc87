"""How durations, instants and values are written on a command line."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from mainspring import Mainspring
from mainspring.cli.argument_parsing import parse_arguments, parse_value, split_pairs
from mainspring.cli.options import parse_duration, parse_instant
from mainspring.cli.output import escape_control


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("30m", 1_800),
        ("1h30m", 5_400),
        ("1d 2h", 93_600),
        ("2W", 1_209_600),
    ],
)
def test_a_duration_is_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 x", "m", "1h soon", "inf", "nan", "1e99", "9999999999w"])
def test_what_is_no_duration_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no duration; write seconds, or 250ms, 90s, 30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2037-01-01T02:00:00+01:00", datetime(2037, 1, 1, 1, tzinfo=UTC)),
        (" 2037-01-01 02:00Z ", datetime(2037, 1, 1, 2, tzinfo=UTC)),
        ("2037-01-01t02z", datetime(2037, 1, 1, 2, tzinfo=UTC)),
        ("20370101T020000.5-0500", datetime(2037, 1, 1, 7, 0, 0, 500_000, tzinfo=UTC)),
        ("2037-01-01", datetime(2037, 1, 1, tzinfo=UTC)),
        ("20370101", datetime(2037, 1, 1, tzinfo=UTC)),
        ("2037-01-01Z", datetime(2037, 1, 1, tzinfo=UTC)),
        ("2037-01-01+01:00", datetime(2036, 12, 31, 23, tzinfo=UTC)),
        ("2037-01-01 -05:30", datetime(2037, 1, 1, 5, 30, tzinfo=UTC)),
        ("2037-01-01-05", datetime(2037, 1, 1, 5, tzinfo=UTC)),
        ("20370101+0100", datetime(2036, 12, 31, 23, tzinfo=UTC)),
    ],
)
def test_an_instant_is_a_time_with_a_zone_or_a_date(text: str, instant: datetime) -> None:
    assert parse_instant(text) == instant


@pytest.mark.parametrize("text", ["2037-01-01T02:00", "2037-01-01 02:00", "2037-01-01T02", "20370101t0200"])
def test_a_time_without_a_zone_is_refused_and_the_advice_can_be_pasted(text: str) -> None:
    with pytest.raises(click.BadParameter, match="could mean any time zone; add one: ") as refused:
        parse_instant(text)
    advice = refused.value.message.partition("add one: ")[2].removesuffix(" for UTC").split(", or ")
    assert [parse_instant(form) for form in advice] == [
        datetime(2037, 1, 1, 1, tzinfo=UTC),
        datetime(2037, 1, 1, 2, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    "text",
    ["tomorrow", "", "2037-02-30", "2037-01-01+25:00", "2037-01-01+01:00+01:00", "2037-01-01T25:00Z", "2037"],
)
def test_text_that_is_no_instant_is_refused_and_the_advice_can_be_pasted(text: str) -> None:
    with pytest.raises(
        click.BadParameter, match=f"^{re.escape(repr(text))} is no instant; write 2027-"
    ) as refused:
        parse_instant(text)
    forms = re.findall(r"2027-\S+\d", refused.value.message)
    assert [parse_instant(form) for form in forms] == [
        datetime(2027, 1, 1, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=b=c", "b=c"), ('a={"b":[]}', {"b": []}), ("a=", "")],
)
def test_a_value_is_json_or_a_text(text: str, value: Any) -> None:
    assert {name: parse_value(part) for name, part in split_pairs([text]).items()} == {"a": value}


def test_the_signature_decides_what_a_value_is() -> None:
    app = Mainspring("memory://")

    @app.job
    def pay(amount: int, code: str, note: str | None = None, tags: list[str] = []) -> None: ...  # noqa: B006

    given = ["amount=5", "code=0123", "note=null", 'tags=["a"]']
    assert parse_arguments(pay.handler, given, None) == (
        (),
        {"amount": 5, "code": "0123", "note": None, "tags": ["a"]},
    )
    assert parse_arguments(pay.handler, [], '[5, "x"]') == ((5, "x"), {})
    for pairs, text, said in (
        (["amount=1", "amount=2"], None, "amount is given twice"),
        (["amount=1"], "{}", "give --args or name=value, not both"),
        ([], "[1", "--args: this is not JSON"),
        ([], "7", "arguments must be a JSON object or list, got 7"),
    ):
        with pytest.raises(click.BadParameter, match=said):
            parse_arguments(pay.handler, list(pairs), text)


def test_control_characters_become_visible() -> None:
    assert escape_control("\x1b[31m\x9b\x07 ä\n") == r"\x1b[31m\x9b\x07 ä\n"
    assert escape_control("a\nb\r", keep="\n") == "a\nb\\r"
