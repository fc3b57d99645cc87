"""Arguments that no annotation covers arrive with the type that they were submitted with, or are refused."""

import dataclasses
import enum
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring import InvalidArguments, Mainspring
from mainspring.jobs.arguments import Arguments
from mainspring.jobs.serializers import JsonSerializer, MsgpackSerializer, Serializer
from mainspring.jobs.type_changes import check_for, find_change

NAN = float("nan")
INSTANT = datetime(2026, 3, 29, 2, 30, tzinfo=UTC)
UUID_42 = UUID(int=42)
Point = namedtuple("Point", "x y")


class Color(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


@dataclasses.dataclass
class Order:
    id: int
    extra: dict = dataclasses.field(default_factory=dict)  # type: ignore[type-arg]
    parts: "list[Order]" = dataclasses.field(default_factory=list)


class Parcel(msgspec.Struct, rename="upper"):
    content: Any = None


class Row(TypedDict):
    value: Any


def bare(value):  # type: ignore[no-untyped-def]
    return value


def anything(value: Any) -> Any:
    return value


def plain_dict(value: dict) -> Any:  # type: ignore[type-arg]
    return value


def plain_list(value: list) -> Any:  # type: ignore[type-arg]
    return value


def plain_tuple(value: tuple) -> Any:  # type: ignore[type-arg]
    return value


def plain_set(value: set) -> Any:  # type: ignore[type-arg]
    return value


def by_name(value: dict[str, Any]) -> Any:
    return value


def by_number(value: dict[int, Any]) -> Any:
    return value


def any_keys(value: dict[Any, int]) -> Any:
    return value


def pair(value: tuple[int, Any]) -> Any:
    return value


def rows(value: list[dict[str, Any]] | None) -> Any:
    return value


def described(value: Annotated[list[Any], msgspec.Meta(min_length=1)]) -> Any:
    return value


def order(value: Order) -> Any:
    return value


def orders(value: list[Order]) -> Any:
    return value


def parcel(value: Parcel | None) -> Any:
    return value


def row(value: Row) -> Any:
    return value


def price(value: float | None) -> Any:
    return value


def prices(value: list[float | None]) -> Any:
    return value


def submit(function: Callable[..., Any], value: Any, serializer: Serializer | None = None) -> Any:
    """Return the value that a handler gets."""
    chosen = serializer or JsonSerializer()
    arguments = Arguments("shop.handler", function, chosen)
    positional, named = arguments.decode(arguments.encode((value,), {}), chosen.name)
    return function(*positional, **named)


PLAIN = [None, True, 0, -7, 2**70, 1.5, -0.0, "", "é", [], {}, [1, [2, {"a": None}]], {"a": {"b": [True, 1, 1.0]}}]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_passes_without_an_annotation(value: Any) -> None:
    arrived = submit(bare, value)
    assert (arrived, type(arrived)) == (value, type(value))


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (b"a", "str"),
        (bytearray(b"a"), "str"),
        ({1}, "list"),
        (frozenset({1}), "list"),
        ((1, 2), "list"),
        (Point(1, 2), "list"),
        (Decimal("1.50"), "str"),
        (INSTANT, "str"),
        (date(2026, 1, 1), "str"),
        (timedelta(days=1), "str"),
        (UUID_42, "str"),
        (Color.RED, "str"),
        (Size.LARGE, "int"),
        (Order(1), "dict"),
        (Parcel(1), "dict"),
        (OrderedDict(a=1), "dict"),
        (Counter("aab"), "dict"),
        (NAN, "None"),
        (float("inf"), "None"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("function", [bare, anything])
def test_a_value_that_json_would_change_is_refused(function: Callable[..., Any], value: Any, becomes: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        submit(function, value)
    assert refused.value.parameter == "value"
    assert f"({type(value).__qualname__}), and the handler would get" in str(refused.value)
    assert becomes in str(refused.value)


@pytest.mark.parametrize("value", [b"a", INSTANT, NAN, {1: "a"}, {(1, 2): [b"x"]}, [NAN]], ids=repr)
def test_a_value_that_msgpack_keeps_is_accepted_with_msgpack(value: Any) -> None:
    arrived = submit(bare, value, MsgpackSerializer())
    assert find_change(value, arrived) is None


@pytest.mark.parametrize("value", [{1}, (1,), Decimal(1), Color.RED, bytearray(b"a"), Order(1)], ids=repr)
def test_a_value_that_msgpack_would_change_is_refused_with_msgpack(value: Any) -> None:
    with pytest.raises(InvalidArguments):
        submit(bare, value, MsgpackSerializer())


@pytest.mark.parametrize(
    ("function", "value", "place"),
    [
        (bare, {"a": [1, {"b": (1, 2)}]}, "value['a'][1]['b'] is (1, 2) (tuple)"),
        (bare, {"a": [1, {"b": Color.RED}]}, "value['a'][1]['b'] is"),
        (bare, {"a": {1: 2}}, "a key of value['a'] is 1 (int), and the handler would get '1' (str)"),
        (bare, {Color.RED: 1}, "a key of value is"),
        (bare, [1, NAN], "value[1] is nan (float), and the handler would get None"),
        (anything, [b"x"], "value[0] is b'x' (bytes)"),
        (plain_dict, {1: 1}, "a key of value is 1 (int)"),
        (plain_dict, {"a": (1,)}, "value['a'] is (1,) (tuple)"),
        (plain_list, [(1,)], "value[0] is (1,) (tuple)"),
        (plain_tuple, ([1], (1,)), "value[1] is (1,) (tuple)"),
        (plain_set, {Color.RED}, "(Color)"),
        (by_name, {"a": b"x"}, "value['a'] is b'x' (bytes)"),
        (by_number, {1: b"x"}, "value[1] is b'x' (bytes)"),
        (any_keys, {1: 1}, "a key of value is 1 (int)"),
        (pair, (1, b"x"), "value[1] is b'x' (bytes)"),
        (rows, [{}, {"a": Color.RED}], "value[1]['a'] is"),
        (described, [b"x"], "value[0] is b'x' (bytes)"),
        (order, Order(1, {1: 1}), "a key of value.extra is 1 (int)"),
        (order, {"id": 1, "extra": {"a": (1,)}}, "value.extra['a'] is (1,) (tuple)"),
        (order, Order(1, {}, [Order(2, {"a": b"x"})]), "value.parts[0].extra['a'] is b'x' (bytes)"),
        (orders, [Order(1), Order(2, {"a": b"x"})], "value[1].extra['a'] is b'x' (bytes)"),
        (parcel, Parcel({1: 2}), "a key of value.content is 1 (int)"),
        (parcel, {"CONTENT": (1,)}, "value.content is (1,) (tuple)"),
        (row, {"value": b"x"}, "value.value is b'x' (bytes)"),
        (price, NAN, "value is nan (float), and the handler would get None"),
        (prices, [1.0, None, NAN], "value[2] is nan (float), and the handler would get None"),
    ],
)
def test_the_error_names_the_place_inside_of_the_argument(
    function: Callable[..., Any], value: Any, place: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        submit(function, value)
    assert place in refused.value.problem


@pytest.mark.parametrize(
    ("function", "value", "arrives"),
    [
        (plain_list, (1, 2), [1, 2]),
        (plain_list, {1}, [1]),
        (plain_tuple, [1, 2], (1, 2)),
        (plain_set, [1, 2, 2], {1, 2}),
        (plain_dict, OrderedDict(a=1), {"a": 1}),
        (by_number, {1: [2]}, {1: [2]}),
        (pair, [1, "a"], (1, "a")),
        (rows, None, None),
        (rows, [{"a": 1}], [{"a": 1}]),
        (order, {"id": 1, "extra": {"a": 1}}, Order(1, {"a": 1})),
        (order, Order(1, {}, [Order(2, {"a": [1]})]), Order(1, {}, [Order(2, {"a": [1]})])),
        (parcel, {"CONTENT": 1}, Parcel(1)),
        (parcel, None, None),
        (row, {"value": 1}, {"value": 1}),
        (price, None, None),
        (price, 1.5, 1.5),
        (prices, (1.5, None), [1.5, None]),
    ],
)
def test_a_container_becomes_what_its_annotation_says(
    function: Callable[..., Any], value: Any, arrives: Any
) -> None:
    assert submit(function, value) == arrives


def test_the_arguments_of_variable_parameters_are_checked_one_by_one() -> None:
    def many(*values, **named):  # type: ignore[no-untyped-def]
        return values, named

    arguments = Arguments("shop.many", many, JsonSerializer())
    arguments.encode((1, "a"), {"x": [1]})
    with pytest.raises(InvalidArguments, match=r"values\[1\] is \(2,\) \(tuple\)"):
        arguments.encode((1, (2,)), {})
    with pytest.raises(InvalidArguments, match=r"named\['x'\] is \(2,\) \(tuple\)"):
        arguments.encode((), {"x": (2,)})


@pytest.mark.parametrize(
    ("function", "value", "remedy"),
    [
        (bare, Decimal(1), "annotate the parameter (value: Decimal), or pass plain data"),
        (anything, Decimal(1), "name the type in its annotation (value: Decimal), or pass plain data"),
        (by_name, {"a": Decimal(1)}, "such as dict[str, Decimal] or list[Decimal], or pass plain data"),
        (plain_dict, {1: 1}, "such as dict[int, int], or pass plain data"),
        (bare, NAN, "because JSON has no such number, or use Mainspring(serializer='msgpack')"),
    ],
)
def test_the_error_says_what_to_do(function: Callable[..., Any], value: Any, remedy: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        submit(function, value)
    assert str(refused.value).endswith(remedy)


def test_an_annotation_is_the_remedy() -> None:
    def typed(value: Decimal, when: datetime, keys: dict[int, str], pair: tuple[int, int], data: bytes) -> Any:
        return value, when, keys, pair, data

    values = (Decimal("1.50"), INSTANT, {1: "a"}, (1, 2), b"x")
    arguments = Arguments("shop.typed", typed, JsonSerializer())
    positional, _ = arguments.decode(arguments.encode(values, {}), "json")
    assert tuple(positional) == values


@pytest.mark.parametrize(
    "annotation", [int, str | None, list[int], dict[str, Decimal], tuple[int, str], float, Color, set[UUID]]
)
def test_a_complete_annotation_needs_no_check(annotation: Any) -> None:
    assert check_for(annotation) is None


def test_raw_json_is_passed_as_the_caller_encoded_it() -> None:
    assert submit(bare, [msgspec.Raw(b'{"a":1}')]) == [{"a": 1}]


json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@pytest.mark.long
@given(json_data)
def test_all_plain_data_is_accepted(value: Any) -> None:
    assert submit(bare, value) == value


def test_a_submit_refuses_what_would_change_and_stores_nothing() -> None:
    app = Mainspring("memory://")

    @app.job(name="pay")
    def pay(amount): ...  # type: ignore[no-untyped-def]

    with app:
        with pytest.raises(InvalidArguments, match=r"pay, parameter 'amount': amount is Decimal\('9.99'\)"):
            pay.submit(Decimal("9.99"))
        with pytest.raises(InvalidArguments, match=r"item 1 of this submit_many: amount is \{1\} \(set\)"):
            pay.submit_many([(1,), ({1},)])
        assert app.counts()["PENDING"] == 0


def test_a_bound_argument_of_a_follow_up_is_checked_too() -> None:
    app = Mainspring("memory://")

    @app.job(name="notify")
    def notify(channel): ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidArguments, match=r"notify, parameter 'channel': channel is \('mail',\) \(tuple\)"):
        notify.bind(channel=("mail",)).follow_up()
    assert notify.bind(channel="mail").follow_up().bound == b'{"channel":"mail"}'
