"""An object that is bound to a sequence: only tasks of that sequence create, use and release it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from mainspring.errors import RunnerClosed
from mainspring.runners.future import TaskFuture
from mainspring.runners.runner import TaskRunner
from mainspring.runners.task import Origin
from mainspring.runners.validation import require_callable

T = TypeVar("T")
P = ParamSpec("P")


class SequenceBound(Generic[T]):
    """A proxy that calls each method of its object as a task of a sequence: `bound.method(1)` returns a future.

    A task of the sequence creates the object with `factory(*arguments)`. If that fails, every call fails with the
    same exception. When the last reference to the `SequenceBound` is gone, a task releases the object.
    """

    def __init__(self, runner: TaskRunner, factory: Callable[..., T], *arguments: Any) -> None:
        require_callable(factory, "the factory of a SequenceBound")
        if not runner.is_exclusive:
            raise ValueError(
                f"SequenceBound needs a runner of one task at a time, such as pool.sequenced(), got {runner!r}"
            )
        self._runner = runner
        self._holder: list[T] = []
        self._made: TaskFuture[None] = runner.submit(_make, self._holder, factory, arguments)

    def __getattr__(self, name: str) -> Callable[..., TaskFuture[Any]]:
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, /, *arguments: Any, **options: Any) -> TaskFuture[Any]:
        call = partial(_call, self._made, self._holder, name, arguments, options)
        return self._runner.submit(call)

    def __repr__(self) -> str:
        return f"<SequenceBound on {self._runner!r}>"

    def __del__(self) -> None:
        holder = self.__dict__.get("_holder")
        if holder is None:
            return  # the constructor has failed, so there is nothing to release
        with suppress(RunnerClosed):  # the runner is closed, so no other code can reach the object
            self._runner.post_at(None, Origin(_make.__code__, None), holder.clear, (), None, has_place=True)


def _make(holder: list[T], factory: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    holder.append(factory(*arguments))


def _call(
    made: TaskFuture[None], holder: list[Any], name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    error = made.exception()
    if error is not None:
        raise error
    return getattr(holder[0], name)(*arguments, **options)
