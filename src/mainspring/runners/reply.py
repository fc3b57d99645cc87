"""Run there, reply here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.runners.task import Wrapper

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.task import Origin
    from mainspring.runners.traits import TaskTraits

R = TypeVar("R")


class RunAndReply(Wrapper, Generic[R]):
    """Runs a function and posts its result; a coroutine is left for the event loop to await."""

    def __init__(
        self,
        function: Callable[[], R],
        reply: Callable[[R], object],
        target: TaskRunner,
        traits: TaskTraits | None,
        origin: Origin,
    ) -> None:
        self._function = function
        self._reply = reply
        self._target = target
        self._traits = traits
        self._origin = origin

    def wrapped(self) -> Callable[..., object]:
        return self._function

    def __call__(self) -> Coroutine[Any, Any, None] | None:
        result = self._function()
        if iscoroutine(result):
            return self._await(result)
        self._post_reply(result)
        return None

    async def _await(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._post_reply(await coroutine)

    def _post_reply(self, result: R) -> None:
        reply = self._target.services.watched(self._reply)
        self._target.post_at(None, self._origin, reply, (result,), self._traits)
