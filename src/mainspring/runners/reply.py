"""Run there, reply here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.traits import TaskTraits

R = TypeVar("R")


def run_and_reply(
    function: Callable[[], R], reply: Callable[[R], object], target: TaskRunner, traits: TaskTraits | None
) -> Coroutine[Any, Any, None] | None:
    """Run `function` and post its result to `target`; a coroutine is left for the event loop to await."""
    result = function()
    if iscoroutine(result):
        return _await_and_reply(result, reply, target, traits)
    target.post(reply, result, traits=traits)
    return None


async def _await_and_reply(
    coroutine: Coroutine[Any, Any, R],
    reply: Callable[[R], object],
    target: TaskRunner,
    traits: TaskTraits | None,
) -> None:
    target.post(reply, await coroutine, traits=traits)
