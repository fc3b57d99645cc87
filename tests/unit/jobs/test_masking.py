"""Masks of values in texts."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.jobs import masking
from mainspring.jobs.masking import REDACTED, TextMask


class Kind(Enum):
    GOLD = "of gold"


@dataclass
class Card:
    number: str
    cvc: int = 12


@dataclass(slots=True)
class SlottedCard:
    number: str


class Owner(msgspec.Struct):
    name: str
    card: Card


class Plain:
    def __init__(self, secret: str) -> None:
        self.secret = secret


class Broken:
    def __init__(self) -> None:
        self.secret = "hidden"

    def __repr__(self) -> str:
        raise ValueError


class Surrogate:
    __slots__ = ()

    def __str__(self) -> str:
        return "\udc80abcd"


class LateList(Mapping[str, list[str]]):
    """A mapping that makes its value when it is read."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __getitem__(self, key: str) -> list[str]:
        return [self._secret]

    def __iter__(self) -> Iterator[str]:
        return iter(["key"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("4111", "card 4111 was declined"),
        ("4111", "x4111y"),
        ("a\nlong secret\nof lines", "only the line 'long secret' is here"),
        ('it\'s "é"\n', repr('it\'s "é"\n')),
        ('it\'s "é"\n', '"it\'s \\"\\u00e9\\"\\n"'),
        ("\udc80abcd", "\\udc80abcd"),
        (1234, "1234"),
        (-1234, "minus 1234"),
        (1234567, "1,234,567"),
        (12.75, "12.75"),
        (Decimal("12.750"), "Decimal('12.750')"),
        (b"\x00secret", "b'\\x00secret'"),
        (b"secret", "secret"),
        (b"secret", "736563726574"),
        (b"secret", "c2VjcmV0"),
        (date(2026, 1, 5), "on 2026-01-05"),
        (datetime(2026, 1, 5, tzinfo=UTC), "datetime.datetime(2026, 1, 5, 0, 0, tzinfo=datetime.timezone.utc)"),
        (UUID(int=7), UUID(int=7).hex),
        (Kind.GOLD, "<Kind.GOLD: 'of gold'>"),
        (Kind.GOLD, "GOLD"),
        ({"key": ["item", ("deep", {"deeper"})]}, "item, deep, deeper"),
        ({"secret key": 1}, "KeyError: 'secret key'"),
        (Card("4111"), "Card(number='4111', cvc=12)"),
        (Card("4111"), '{"number":"4111","cvc":12}'),
        (Owner("Ann", Card("4111")), "the card of Ann is 4111"),
        (Plain("hidden"), "hidden"),
        (Broken(), "hidden"),
        ("abc", "is abc, or (abc)"),
    ],
)
def test_a_value_is_masked_in_all_its_forms(value: Any, text: str) -> None:
    masked = TextMask([value])(text)
    assert REDACTED in masked
    for part in ("4111", "1234", "secret", "hidden", "item", "deep", "Ann", "12.75", "2026", "gold", "abc", "736"):
        assert part not in masked
    assert len(masked) >= len(REDACTED)


QUOTED = 'it\'s "é"\n'


@pytest.mark.parametrize(
    ("value", "text", "masked"),
    [
        (QUOTED, repr(QUOTED), "'*'"),
        (QUOTED, json.dumps(QUOTED), '"*"'),
        (QUOTED, json.dumps(QUOTED, ensure_ascii=False), '"*"'),
        (b"\xff\x01secret\xfe", r"b'\xff\x01secret\xfe'", "b'*'"),
        (Card("4111", 7), '[{"number":"4111","cvc":7}]', "[*]"),
        (SlottedCard("4111"), "number 4111", "number *"),
        (Surrogate(), r"<\udc80abcd>", "<*>"),
        ("12345678\nx", "12345678 x", "* x"),
        ("1234567\nx", "1234567 x", "1234567 x"),
        ("aaaa", "baaaaab", "b*b"),
    ],
)
def test_exactly_the_value_is_masked(value: Any, text: str, masked: str) -> None:
    assert TextMask([value])(text) == masked.replace("*", REDACTED)


def test_a_value_that_cannot_be_read_hides_no_other_value() -> None:
    broken = Card("4111")
    del broken.number
    for value in (broken, Decimal("sNaN"), Broken()):
        assert TextMask(["secret", value])("a secret") == f"a {REDACTED}"
        assert TextMask([value, "secret"])("a secret") == f"a {REDACTED}"


def test_parts_that_are_made_when_they_are_read_are_masked() -> None:
    """The parts do not exist at the same time, so they might have the same `id()`."""
    secrets = [f"secret {number}" for number in range(10, 60)]
    mask = TextMask([LateList(secret) for secret in secrets])
    assert [mask(secret) for secret in secrets] == [REDACTED] * 50


@pytest.mark.parametrize("value", [None, True, 1, "", "x", 42, "ab", {}, [], "abc"])
def test_short_values_leave_other_texts_alone(value: Any) -> None:
    text = "None of True, line 42: ab {} [] abcd fabc"
    assert TextMask([value])(text) == text


def test_a_short_part_is_masked_inside_of_its_container() -> None:
    assert TextMask([Card("4111", 7)])("bad Card(number='4111', cvc=7)") == "bad [redacted]".replace(
        "[redacted]", REDACTED
    )
    assert TextMask([[1, 2]])("[1, 2] of 1, 2") == f"{REDACTED} of 1, 2"


def test_occurrences_that_overlap_or_touch_are_one() -> None:
    assert TextMask(["abcd", "cdef"])("-abcdef-abcdcdef-") == f"-{REDACTED}-{REDACTED}-"
    assert TextMask(["aaaa"])("aaaaaa") == REDACTED


def test_without_values_texts_stay_the_same() -> None:
    assert TextMask([])("text") == "text"
    assert TextMask([]).optional(None) is None
    assert TextMask(["text"]).optional("text") == REDACTED
    assert TextMask(["text"]).optional(None) is None


def test_a_value_that_contains_itself_is_masked() -> None:
    items: list[Any] = ["secret"]
    items.append(items)
    assert TextMask([items])("a secret") == f"a {REDACTED}"


def test_too_many_parts_mask_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "MAX_PARTS", 3)
    assert TextMask([["one", "two"]])("text") == "text"
    assert TextMask([["one", "two", "three"]])("text") == REDACTED


LETTERS = st.text(alphabet="abcxyz0123.,'\"\\\n é", min_size=4, max_size=12)
VALUES = st.recursive(
    LETTERS | st.integers(min_value=1000) | st.decimals(allow_nan=False, allow_infinity=False, min_value=1000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LETTERS, inner, max_size=3),
    max_leaves=5,
)


def leaves_of(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(leaf for each in value.values() for leaf in leaves_of(each))]
    if isinstance(value, list):
        return [leaf for each in value for leaf in leaves_of(each)]
    return [value]


@given(st.lists(VALUES, max_size=3), st.data())
def test_no_value_is_left_in_any_text(values: list[Any], data: st.DataObject) -> None:
    leaves = leaves_of(values)
    shown = [*map(str, leaves), *map(repr, leaves), *map(str, values), "text", " ", "=", "["]
    text = "".join(data.draw(st.lists(st.sampled_from(shown), max_size=8)))
    masked = TextMask(values)(text)
    rest = masked.split(REDACTED)
    for leaf in leaves:
        assert all(str(leaf) not in part for part in rest)


@given(st.lists(VALUES, max_size=3), st.text(alphabet="ABC[] "))
def test_texts_without_a_value_stay_the_same(values: list[Any], text: str) -> None:
    assert TextMask(values)(text) == text
