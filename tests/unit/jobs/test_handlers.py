"""Handlers, their names, and the registry in which they are found."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mainspring import LimitExceeded, Priority, Retry, UnknownHandler
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry, default_name
from mainspring.jobs.serializers import JsonSerializer


def cancel_order(order_id: int) -> str:
    return str(order_id)


async def ship_order(order_id: int) -> None: ...


def make(function: Callable[..., Any] = cancel_order, name: str = "shop.cancel_order", **options: Any) -> Handler:
    return Handler(name, function, HandlerOptions(**options), JsonSerializer())


def load(path: Path) -> ModuleType:
    """Import a file once more, as a reload does."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- names


def test_the_default_name_is_module_and_qualified_name() -> None:
    assert default_name(cancel_order) == f"{__name__}.cancel_order"


def test_a_method_is_named_with_its_class() -> None:
    class Shop:
        @staticmethod
        def cancel() -> None: ...

    assert default_name(Shop.cancel).endswith("<locals>.Shop.cancel")


def test_a_function_in_main_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel() -> None: ...

    main = ModuleType("__main__")
    main.__file__ = "/srv/shop/shop.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    cancel.__module__ = "__main__"
    cancel.__qualname__ = "cancel"
    assert default_name(cancel) == "shop.cancel"


@pytest.mark.parametrize(
    ("spec", "expected"), [("shop.orders", "shop.orders.cancel"), ("shop.__main__", "shop.cancel")]
)
def test_a_function_run_with_dash_m_is_named_by_its_module(
    monkeypatch: pytest.MonkeyPatch, spec: str, expected: str
) -> None:
    def cancel() -> None: ...

    main = ModuleType("__main__")
    main.__file__ = "/srv/shop/whatever.py"
    main.__spec__ = spec_from_file_location(spec, "/srv/shop/whatever.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    cancel.__module__ = "__main__"
    cancel.__qualname__ = "cancel"
    assert default_name(cancel) == expected


def test_a_function_typed_at_a_prompt_has_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancel() -> None: ...

    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    cancel.__module__ = "__main__"
    cancel.__qualname__ = "cancel"
    assert default_name(cancel) == "__main__.cancel"


def test_a_callable_object_is_named_by_its_class() -> None:
    class Greeter:
        def __call__(self) -> None: ...

    assert default_name(Greeter()).endswith("Greeter")


# -- what can be a handler


def test_a_generator_function_is_refused() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="is a generator function, which a worker cannot run"):
        make(numbers)


def test_an_asynchronous_generator_function_is_refused() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="is a generator function"):
        make(numbers)


@pytest.mark.parametrize(("function", "is_async"), [(cancel_order, False), (ship_order, True)])
def test_a_handler_knows_whether_it_is_a_coroutine_function(
    function: Callable[..., Any], *, is_async: bool
) -> None:
    assert make(function).is_async is is_async


def test_a_callable_object_with_an_async_call_is_a_coroutine_function() -> None:
    class Ship:
        async def __call__(self) -> None: ...

    assert make(Ship()).is_async


@pytest.mark.parametrize("timeout", [30, timedelta(seconds=30)])
def test_a_timeout_is_a_duration(timeout: timedelta | float) -> None:
    assert make(timeout=timeout).timeout == 30_000_000


def test_without_a_timeout_there_is_none() -> None:
    assert make().timeout is None


def test_the_defaults_are_those_of_the_manual() -> None:
    options = HandlerOptions()
    assert (options.queue, options.priority, options.timeout) == ("default", Priority.USER_VISIBLE, None)
    assert options.retry == Retry()


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"queue": ""}, {"queue": "a\nb"}], ids=repr)
def test_values_that_make_no_sense_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must"):
        make(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "30"},
        {"queue": 7},
        {"priority": 1},
        {"priority": "high"},
        {"retry": 3},
        {"aliases": "shop.old"},
        {"aliases": (7,)},
    ],
    ids=repr,
)
def test_values_of_another_type_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))} must"):
        make(**options)


def test_a_queue_with_a_very_long_name_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="queue"):
        make(queue="q" * 1_000)


# -- results


def test_a_result_becomes_what_the_handler_says_it_returns() -> None:
    def when() -> timedelta:
        return timedelta(seconds=5)

    handler = make(when)
    assert handler.result.decode(JsonSerializer().encode(timedelta(seconds=5)), "json") == timedelta(seconds=5)


def test_a_result_that_does_not_fit_any_more_is_plain_data() -> None:
    def count() -> int:
        return 1

    assert make(count).result.decode(b'"seven"', "json") == "seven"


# -- the registry


def test_a_handler_is_found_by_its_name() -> None:
    registry = HandlerRegistry()
    handler = make()
    registry.add(handler)
    assert registry.get("shop.cancel_order") is handler
    assert "shop.cancel_order" in registry


def test_an_unknown_handler_is_named_with_those_that_are_known() -> None:
    registry = HandlerRegistry()
    registry.add(make())
    with pytest.raises(UnknownHandler, match=r"'shop\.gone' \(registered: shop\.cancel_order\)") as caught:
        registry.get("shop.gone")
    assert (caught.value.name, caught.value.known) == ("shop.gone", ("shop.cancel_order",))


def test_a_handler_is_found_by_its_aliases() -> None:
    registry = HandlerRegistry()
    handler = make(aliases=("shop.old", "shop.older"))
    registry.add(handler)
    assert registry.get("shop.old") is registry.get("shop.older") is handler


def test_a_handler_with_aliases_is_listed_once() -> None:
    registry = HandlerRegistry()
    registry.add(make(aliases=("shop.old",)))
    assert [handler.name for handler in registry.all()] == ["shop.cancel_order"]


def test_handlers_are_listed_by_name() -> None:
    registry = HandlerRegistry()
    registry.add(make(ship_order, "b"))
    registry.add(make(cancel_order, "a"))
    assert [handler.name for handler in registry.all()] == ["a", "b"]


def test_names_include_aliases() -> None:
    registry = HandlerRegistry()
    registry.add(make(ship_order, "ship", aliases=("send",)))
    registry.add(make(cancel_order, "cancel"))
    assert sorted(registry.names()) == ["cancel", "send", "ship"]


def test_a_second_function_under_one_name_is_refused_with_both_places() -> None:
    registry = HandlerRegistry()
    registry.add(make())
    with pytest.raises(
        ValueError, match=r"two handlers are named.*test_handlers\.py:\d+ and .*test_handlers\.py:\d+"
    ):
        registry.add(make(ship_order))


def test_an_alias_that_is_the_name_of_another_is_refused() -> None:
    registry = HandlerRegistry()
    registry.add(make())
    with pytest.raises(ValueError, match="two handlers are named"):
        registry.add(make(ship_order, "shop.ship_order", aliases=("shop.cancel_order",)))


def test_a_refused_handler_leaves_nothing_behind() -> None:
    registry = HandlerRegistry()
    registry.add(make())
    with pytest.raises(ValueError, match="two handlers"):
        registry.add(make(ship_order, "shop.ship_order", aliases=("shop.cancel_order",)))
    assert "shop.ship_order" not in registry


def test_a_reloaded_module_replaces_its_handlers(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text("def cancel(): return 1\n")
    registry = HandlerRegistry()
    registry.add(make(load(file).cancel, "shop.cancel"))
    again = make(load(file).cancel, "shop.cancel")
    registry.add(again)
    assert registry.get("shop.cancel") is again
