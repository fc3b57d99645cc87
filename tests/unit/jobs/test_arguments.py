"""Arguments are bound by the signature, checked at submit and at run, and only what was given is stored."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from mainspring import InvalidArguments
from mainspring.jobs.arguments import Arguments
from mainspring.jobs.serializers import JsonSerializer, MsgpackSerializer


def make(function: Callable[..., Any]) -> Arguments:
    return Arguments("shop.handler", function, JsonSerializer())


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with what its arguments become on their way through the store."""
    arguments = make(function)
    positional, named = arguments.decode(arguments.encode(args, kwargs), "json")
    return function(*positional, **named)


def echo(order_id: int, reason: str = "unpaid") -> tuple[int, str]:
    return order_id, reason


def positional_only(a: int, b: int = 2, /, c: int = 3) -> tuple[int, int, int]:
    return a, b, c


def keyword_only(*, a: int, b: int = 2) -> tuple[int, int]:
    return a, b


def many(first: int, *rest: int) -> tuple[int, tuple[int, ...]]:
    return first, rest


def named(first: int, **others: str) -> tuple[int, dict[str, str]]:
    return first, others


def everything(a: int, /, b: int, *c: int, d: int, e: int = 5, **f: int) -> Any:
    return a, b, c, d, e, f


def untyped(a, b=2, *c, **d):  # type: ignore[no-untyped-def]
    return a, b, c, d


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (echo, (42,), {}),
        (echo, (42, "late"), {}),
        (echo, (), {"order_id": 42}),
        (echo, (42,), {"reason": "late"}),
        (echo, (), {"reason": "late", "order_id": 42}),
        (positional_only, (1,), {}),
        (positional_only, (1, 5), {}),
        (positional_only, (1,), {"c": 9}),
        (positional_only, (1, 5, 9), {}),
        (keyword_only, (), {"a": 1}),
        (keyword_only, (), {"b": 7, "a": 1}),
        (many, (1,), {}),
        (many, (1, 2, 3), {}),
        (named, (1,), {}),
        (named, (1,), {"x": "y", "z": "w"}),
        (everything, (1, 2), {"d": 4}),
        (everything, (1, 2, 3, 4), {"d": 5, "e": 6, "g": 7}),
        (untyped, (1,), {}),
        (untyped, ({"a": [1, None]}, "b", 3), {"x": 1.5}),
        (lambda: "nothing", (), {}),
    ],
)
def test_a_call_arrives_as_it_was_made(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert there_and_back(function, *args, **kwargs) == function(*args, **kwargs)


def test_a_named_argument_may_have_any_name_that_options_have() -> None:
    def handler(delay: int, id: str, at: str, queue: str, timeout: int) -> Any:
        return delay, id, at, queue, timeout

    call = {"delay": 1, "id": "a", "at": "b", "queue": "c", "timeout": 2}
    assert there_and_back(handler, **call) == (1, "a", "b", "c", 2)


def test_a_parameter_may_be_called_self() -> None:
    def handler(self: int, cls: int) -> tuple[int, int]:
        return self, cls

    assert there_and_back(handler, 1, 2) == (1, 2)


def test_only_what_was_given_is_stored() -> None:
    assert make(echo).encode((42,), {}) == b'{"order_id":42}'


def test_a_default_that_was_changed_meanwhile_holds_at_run() -> None:
    payload = make(echo).encode((42,), {})

    def after_a_deploy(order_id: int, reason: str = "timeout") -> tuple[int, str]:
        return order_id, reason

    positional, options = make(after_a_deploy).decode(payload, "json")
    assert after_a_deploy(*positional, **options) == (42, "timeout")


def test_a_parameter_added_meanwhile_gets_its_default() -> None:
    payload = make(echo).encode((42,), {})

    def after_a_deploy(order_id: int, reason: str = "unpaid", tries: int = 3) -> int:
        return tries

    positional, options = make(after_a_deploy).decode(payload, "json")
    assert after_a_deploy(*positional, **options) == 3


def test_a_default_that_could_not_be_stored_is_fine() -> None:
    marker = object()

    def handler(number: int, hook: Any = marker) -> object:
        return hook

    assert there_and_back(handler, 1) is marker


def test_a_positional_default_before_given_ones_is_kept() -> None:
    def handler(a: int = 1, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    assert there_and_back(handler, b=7, c=8) == (1, 7, 8)


@pytest.mark.parametrize(
    ("args", "kwargs", "parameter"),
    [
        ((), {}, "order_id"),
        (("42",), {}, "order_id"),
        ((None,), {}, "order_id"),
        ((1.5,), {}, "order_id"),
        ((42, 7), {}, "reason"),
        ((42,), {"reason": None}, "reason"),
        ((42,), {"reasn": "late"}, "reasn"),
        ((42,), {"order_id": 43}, "order_id"),
        ((42, "late", "extra"), {}, None),
        pytest.param((object(),), {}, "order_id", id="an object-order_id"),
        pytest.param((42,), {"reason": object()}, "reason", id="42-an object-reason"),
    ],
    ids=repr,
)
def test_a_call_that_does_not_fit_names_the_parameter(
    args: tuple[Any, ...], kwargs: dict[str, Any], parameter: str | None
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        make(echo).encode(args, kwargs)
    assert caught.value.parameter == parameter
    assert caught.value.handler == "shop.handler"


@pytest.mark.parametrize("args", [(), (1, 2), ("42",)])
def test_the_message_names_the_handler_and_what_to_give(args: tuple[Any, ...]) -> None:
    def handler(number: int) -> None: ...

    with pytest.raises(InvalidArguments, match=r"shop\.handler.*pass a value that matches the signature"):
        make(handler).encode(args, {})


def test_a_wrong_value_is_shown() -> None:
    with pytest.raises(InvalidArguments, match=r"Expected `int`, got `str` \('forty-two'\)"):
        make(echo).encode(("forty-two",), {})


def test_a_huge_wrong_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidArguments) as caught:
        make(echo).encode(("x" * 100_000,), {})
    assert len(str(caught.value)) < 1_000


def test_a_wrong_value_deep_inside_names_the_parameter() -> None:
    def handler(orders: dict[str, list[int]]) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        make(handler).encode(({"a": [1, "two"]},), {})
    assert caught.value.parameter == "orders"


@pytest.mark.parametrize(("args", "kwargs", "parameter"), [((1, "2"), {}, "rest"), ((1, 2), {"x": 3}, "others")])
def test_collected_arguments_are_checked_too(
    args: tuple[Any, ...], kwargs: dict[str, Any], parameter: str
) -> None:
    def handler(first: int, *rest: int, **others: str) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        make(handler).encode(args, kwargs)
    assert caught.value.parameter == parameter


def test_a_positional_only_argument_cannot_be_named() -> None:
    with pytest.raises(InvalidArguments) as caught:
        make(positional_only).encode((), {"a": 1})
    assert caught.value.parameter == "a"


def test_an_endless_structure_is_refused() -> None:
    def handler(data: Any) -> None: ...

    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArguments) as caught:
        make(handler).encode((endless,), {})
    assert caught.value.parameter == "data"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_refuses_what_it_cannot_write_as_a_number(number: float) -> None:
    def handler(price: float) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        make(handler).encode((number,), {})
    assert caught.value.parameter == "price"
    assert repr(number) in str(caught.value)


def test_msgpack_carries_infinity() -> None:
    def handler(price: float) -> None: ...

    arguments = Arguments("shop.handler", handler, MsgpackSerializer())
    (price,), _ = arguments.decode(arguments.encode((float("inf"),), {}), "msgpack")
    assert price == float("inf")


def test_json_carries_numbers_of_any_size() -> None:
    assert there_and_back(echo, 2**80) == (2**80, "unpaid")


def test_msgpack_refuses_numbers_that_it_has_no_room_for() -> None:
    with pytest.raises(InvalidArguments) as caught:
        Arguments("shop.handler", echo, MsgpackSerializer()).encode((2**80,), {})
    assert caught.value.parameter == "order_id"


@pytest.mark.parametrize(
    ("payload", "parameter"),
    [
        (b"{}", "order_id"),
        (b'{"order_id":"42"}', "order_id"),
        (b'{"order_id":42,"gone":1}', "gone"),
        (b"", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[42]", None),
    ],
    ids=repr,
)
def test_what_was_stored_and_does_not_fit_is_refused_at_run(payload: bytes, parameter: str | None) -> None:
    with pytest.raises(InvalidArguments) as caught:
        make(echo).decode(payload, "json")
    assert caught.value.parameter == parameter


def test_arguments_of_another_serializer_are_read_all_the_same() -> None:
    payload = Arguments("shop.handler", echo, MsgpackSerializer()).encode((42,), {"reason": "late"})
    positional, options = make(echo).decode(payload, "msgpack")
    assert echo(*positional, **options) == (42, "late")


def test_an_unknown_serializer_is_named_at_run() -> None:
    with pytest.raises(InvalidArguments, match="'pickle', and this process has only json, msgpack; give"):
        make(echo).decode(b"", "pickle")


def test_one_of_many_may_be_a_dict_or_a_tuple_or_a_list() -> None:
    calls = [{"order_id": 42}, (42,), [42], MappingProxyType({"order_id": 42})]
    assert make(echo).encode_many(calls) == [b'{"order_id":42}'] * 4


@pytest.mark.parametrize("given", [42, "42", None, {42}], ids=repr)
def test_one_of_many_that_is_neither_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArguments, match="each job of submit_many is a dict or a tuple"):
        make(echo).encode_many([(1,), given])


def test_a_dict_with_keys_that_are_no_strings_is_refused() -> None:
    with pytest.raises(InvalidArguments):
        make(echo).encode_many([{1: 2}])


def test_arguments_show_the_signature() -> None:
    assert str(make(echo)) == "shop.handler(order_id: int, reason: str = 'unpaid') -> tuple[int, str]"
