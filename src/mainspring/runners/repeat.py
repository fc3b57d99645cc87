"""Repeated tasks, at a fixed rate or with a fixed delay.

The next run is scheduled when the previous one has ended, so runs never overlap and never pile up. At a fixed rate
they keep their phase: the next run is due at the first multiple of the interval that is in the future.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import copy_context
from inspect import iscoroutine
from threading import Lock
from typing import TYPE_CHECKING, Any

from mainspring.clock import NANOSECONDS
from mainspring.errors import RunnerClosed
from mainspring.runners.task import Wrapper, describe_function

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.task import Origin, TaskTraits, TracedTask


class Repetition(Wrapper):
    """The handle of a repeated task, which `runner.repeat` returns."""

    def __init__(
        self,
        runner: TaskRunner,
        function: Callable[..., object],
        arguments: tuple[Any, ...],
        every_ns: int,
        *,
        fixed_delay: bool,
        traits: TaskTraits | None,
    ) -> None:
        self._runner = runner
        self._function = runner.services.observed(function)
        self._arguments = arguments
        self._every_ns = every_ns
        self._fixed_delay = fixed_delay
        self._traits = traits
        self._context = copy_context()
        self._origin: Origin
        self._due = 0
        self._lock = Lock()  # guards the following attributes
        self._is_stopped = False
        self._next: TracedTask | None = None

    def wrapped(self) -> Callable[..., object]:
        return self._function

    def dropped(self) -> None:
        self._is_stopped = True

    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else f"every {self._every_ns / NANOSECONDS:g} s"
        return f"<Repetition of {describe_function(self._function)}, {state}>"

    @property
    def is_stopped(self) -> bool:
        """Whether no further run will start: `stop` was called, or the runner was shut down."""
        return self._is_stopped

    def stop(self) -> None:
        """Start no further run. A run in progress continues to its end."""
        with self._lock:
            self._is_stopped = True
            waiting, self._next = self._next, None
        if waiting is not None:
            waiting.cancel()

    def begin(self, delay_ns: int, origin: Origin) -> None:
        """Schedule the first run, after `delay_ns` nanoseconds.

        Errors name `origin` as the line of code that posted the task.
        """
        self._origin = origin
        self._arm(self._runner.services.clock.monotonic_ns() + delay_ns, has_place=False)

    def _arm(self, due: int, *, has_place: bool) -> None:
        self._due = due
        task = self._runner.post_at(
            due,
            self._origin,
            self._run,
            (),
            self._traits,
            context=self._context.copy(),  # every run gets the context variables of the call of `repeat`
            has_place=has_place,
        )
        with self._lock:
            self._next = task
            is_late = self._is_stopped
        if is_late:
            task.cancel()

    def _run(self) -> Coroutine[Any, Any, None] | None:
        awaited = False
        try:
            result = self._function(*self._arguments)
            if iscoroutine(result):
                awaited = True
                return self._await(result)
            return None
        finally:
            if not awaited:
                self._run_again()

    async def _await(self, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        finally:
            self._run_again()

    def _run_again(self) -> None:
        if self._is_stopped:
            return
        now = self._runner.services.clock.monotonic_ns()
        if self._fixed_delay:
            due = now + self._every_ns
        else:
            missed = max(0, now - self._due) // self._every_ns
            due = self._due + (missed + 1) * self._every_ns
        try:
            self._arm(due, has_place=True)
        except RunnerClosed:
            self._is_stopped = True
