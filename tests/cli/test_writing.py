"""How durations, instants and values are written on a command line."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from mainspring import Mainspring
from mainspring.cli.argument_parsing import parse_arguments, parse_pair
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


@pytest.mark.parametrize("text", ["", "soon", "5 x", "m", "1h soon", "inf", "nan", "1e99"])
def test_what_is_no_duration_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no duration; write seconds, or 250ms, 90s, 30m"):
        parse_duration(text)


def test_an_instant_has_a_time_zone() -> None:
    assert parse_instant("2037-01-01T02:00:00+01:00") == datetime(2037, 1, 1, 1, tzinfo=UTC)
    with pytest.raises(click.BadParameter, match="could mean any time zone; add one"):
        parse_instant("2037-01-01T02:00")
    with pytest.raises(click.BadParameter, match="is no instant; write 2027-"):
        parse_instant("tomorrow")


@pytest.mark.parametrize(
    ("text", "pair"),
    [("a=1", ("a", 1)), ("a=b=c", ("a", "b=c")), ('a={"b":[]}', ("a", {"b": []})), ("a=", ("a", ""))],
)
def test_a_value_is_json_or_a_text(text: str, pair: tuple[str, Any]) -> None:
    assert parse_pair(text) == pair


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
