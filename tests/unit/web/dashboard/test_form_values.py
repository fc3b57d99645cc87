"""Values of form fields are checked, and errors say what to write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mainspring.errors import EngineUnavailable
from mainspring.web.dashboard.form_values import (
    MAX_JSON,
    FormError,
    json_object,
    names_list,
    optional_instant,
    optional_number,
    sentence_of,
)
from mainspring.web.problems import refuse


def test_empty_fields_have_no_value() -> None:
    assert json_object(" \n", "it") == {}
    assert names_list(" , ,") == []
    assert optional_number(" ", "it") is None
    assert optional_instant("", "it") is None


def test_values_are_read() -> None:
    assert json_object('{"a": [1]}', "it") == {"a": [1]}
    assert names_list("a, b c") == ["a", "b", "c"]
    assert optional_number(" 2.5 ", "it") == 2.5
    assert optional_number("3", "it", whole=True) == 3
    assert optional_instant("2027-03-28T01:00", "it") == datetime(2027, 3, 28, 1, tzinfo=UTC)
    assert optional_instant("2027-03-28T01:00+02:00", "it") == datetime(2027, 3, 27, 23, tzinfo=UTC)


@pytest.mark.parametrize("text", ["[1]", '"x"', "1", "{", "{'a': 1}", "[" * 10_000, "x" * (MAX_JSON + 1)])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(FormError, match=r"^the values "):
        json_object(text, "the values")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e999", "x", "1 2", "0x10"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(FormError, match=r"^it is .*; write a positive number$"):
        optional_number(text, "it")


def test_a_part_is_no_whole_number() -> None:
    with pytest.raises(FormError, match="write a positive whole number"):
        optional_number("1.5", "it", whole=True)


def test_other_instants_are_refused() -> None:
    with pytest.raises(FormError, match=r"^the start is 'soon'; write a time in UTC"):
        optional_instant("soon", "the start")


def test_errors_are_sentences_without_the_place_of_the_store() -> None:
    assert sentence_of(FormError("it is wrong")) == "It is wrong."
    assert sentence_of(refuse(422, "invalid-value", "no such queue")) == "No such queue."
    store = EngineUnavailable(engine="SQLite file /srv/secret.db", reason="locked", remedy="wait")
    assert "/srv/secret.db" not in sentence_of(store)
