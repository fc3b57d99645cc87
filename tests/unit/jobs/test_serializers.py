"""What becomes of values on their way through the store."""

from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from mainspring.jobs import JsonSerializer, MsgpackSerializer, Serializer


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Line(msgspec.Struct):
    start: Point
    end: Point


class Pair(NamedTuple):
    left: int
    right: str


class Model:
    """Looks like a pydantic model."""

    def __init__(self, number: int) -> None:
        self.number = number

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        return {"number": self.number, "mode": mode}

    @classmethod
    def model_validate(cls, data: Any) -> "Model":
        if not isinstance(data.get("number"), int):
            raise ValueError("number must be an integer")
        return cls(data["number"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"Model({self.number})"


VALUES: list[tuple[Any, Any]] = [
    (int, 42),
    (int, 2**63 - 1),
    (float, 0.1),
    (str, "ä\u20ac\U0001f600\x00"),
    (bool, True),
    (type(None), None),
    (bytes, b"\x00\xff"),
    (list[int], [1, 2, 3]),
    (dict[str, list[int]], {"a": [1]}),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
    (datetime, datetime(2026, 3, 1, 12, 30, 15, 123_456, tzinfo=UTC)),
    (date, date(2026, 3, 1)),
    (timedelta, timedelta(hours=2, microseconds=7)),
    (Decimal, Decimal("0.1000000000000000000000000001")),
    (UUID, UUID("12345678-1234-5678-1234-567812345678")),
    (Color, Color.RED),
    (Size, Size.LARGE),
    (Point, Point(1, 2)),
    (Line, Line(Point(0), Point(1, 1))),
    (Pair, Pair(1, "b")),
    (Model, Model(7)),
    (list[Model], [Model(7), Model(8)]),
    (int | None, None),
]

each_serializer = pytest.mark.parametrize(
    "serializer", [JsonSerializer(), MsgpackSerializer()], ids=["json", "msgpack"]
)


@each_serializer
@pytest.mark.parametrize(("kind", "value"), VALUES, ids=repr)
def test_a_value_arrives_as_what_it_was(serializer: Serializer, kind: Any, value: Any) -> None:
    arrived = serializer.decoder(kind).decode(serializer.encode(value))
    assert arrived == value
    assert type(arrived) is type(value)


@each_serializer
@pytest.mark.parametrize(
    "value", [object(), lambda: None, 1j, open, Point], ids=["object", "lambda", "complex", "open", "Point"]
)
def test_what_cannot_be_stored_is_refused_by_its_type(serializer: Serializer, value: object) -> None:
    with pytest.raises(TypeError, match=rf"a {type(value).__qualname__} cannot be stored; pass plain data"):
        serializer.encode(value)


@each_serializer
def test_a_model_is_dumped_in_json_mode(serializer: Serializer) -> None:
    assert serializer.decoder(Any).decode(serializer.encode(Model(7))) == {"number": 7, "mode": "json"}


@each_serializer
def test_a_model_that_refuses_its_data_is_a_validation_error(serializer: Serializer) -> None:
    with pytest.raises(msgspec.ValidationError, match="number must be an integer"):
        serializer.decoder(Model).decode(serializer.encode({"number": "seven"}))


@each_serializer
def test_an_unreadable_type_is_refused(serializer: Serializer) -> None:
    unreadable = type("Unreadable", (), {})
    with pytest.raises((TypeError, msgspec.ValidationError), match="cannot be read from the store"):
        serializer.decoder(unreadable).decode(serializer.encode({}))


@each_serializer
def test_a_decimal_keeps_its_trailing_zeros(serializer: Serializer) -> None:
    arrived = serializer.decoder(Decimal).decode(serializer.encode(Decimal("1.50")))
    assert str(arrived) == "1.50"


@each_serializer
def test_strings_are_not_taken_for_numbers(serializer: Serializer) -> None:
    with pytest.raises(msgspec.ValidationError):
        serializer.decoder(int).decode(serializer.encode("42"))


def test_json_is_readable_in_the_store() -> None:
    assert (
        JsonSerializer().encode({"order_id": 42, "at": date(2026, 3, 1)}) == b'{"order_id":42,"at":"2026-03-01"}'
    )


def test_msgpack_carries_bytes_as_they_are() -> None:
    assert len(MsgpackSerializer().encode(bytes(1_000))) < 1_010


def test_serializers_are_found_by_the_name_that_is_stored() -> None:
    assert (JsonSerializer().name, MsgpackSerializer().name) == ("json", "msgpack")


def test_a_named_tuple_of_no_types_arrives_too() -> None:
    untyped = namedtuple("untyped", "a b")
    serializer = JsonSerializer()
    assert serializer.decoder(untyped).decode(serializer.encode(untyped(1, "x"))) == untyped(1, "x")
