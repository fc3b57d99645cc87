"""Task observers: the events that they receive, and the wrapper that reports them.

A pool wraps and timestamps its tasks only if it has an observer or a limit for long tasks; otherwise this costs
nothing. Observers run without a lock, on the thread of the task, of the caller (`task_rejected`) or of the timer
(`task_runs_long`). The pool logs their exceptions, which never reach the task.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import iscoroutine
from threading import get_ident
from typing import TYPE_CHECKING, Any

from mainspring.clock import NANOSECONDS
from mainspring.runners.task import PostedFrom, Task, TaskTraits, Wrapper, describe_function
from mainspring.runners.worker import current_worker

if TYPE_CHECKING:
    from mainspring.runners.services import Services

logger = logging.getLogger("mainspring.runners")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent:
    """An event of a task that an observer receives: its start, end or refusal, or a run that takes too long."""

    task: str
    runner: str
    traits: TaskTraits
    posted_from: PostedFrom | None
    queue_seconds: float = 0.0
    """Seconds from the post, or from the due time, to the start."""
    run_seconds: float | None = None
    """Seconds from start to end, or until now for a task that runs too long."""
    error: BaseException | None = None


class TaskObserver:
    """Base class for observers: override the methods of the events that you need."""

    def task_started(self, event: TaskEvent) -> None:
        """Called before a task runs."""

    def task_finished(self, event: TaskEvent) -> None:
        """Called after a task has returned."""

    def task_failed(self, event: TaskEvent) -> None:
        """Called after a task has raised `event.error`."""

    def task_rejected(self, event: TaskEvent) -> None:
        """Called when a runner has refused a task with `event.error`."""

    def task_runs_long(self, event: TaskEvent) -> None:
        """Called when a task has run for longer than the pool's `long_task` and still runs."""


class ObservedCall(Wrapper):
    """Wraps a callable, tells the observer when it starts and ends, and sets the alarm for long tasks.

    Outside of a task, it only calls the callable.
    """

    __slots__ = ("_function", "_services")

    def __init__(self, services: Services, function: Callable[..., Any]) -> None:
        self._services = services
        self._function = function

    def wrapped(self) -> Callable[..., Any]:
        return self._function

    def __call__(self, *arguments: Any) -> Any:
        worker = current_worker()
        if worker is None or worker.task is None:
            return self._function(*arguments)
        started = self._services.clock.monotonic_ns()
        event = replace(describe(worker.task, started), task=describe_function(self._function))
        with self._watching(event, started) as outcome:
            result = self._function(*arguments)
            if iscoroutine(result):
                outcome.is_pending = True
                return self._await(result, event, started)
            return result

    async def _await(self, coroutine: Coroutine[Any, Any, Any], event: TaskEvent, started: int) -> Any:
        with self._watching(event, started, has_started=True):
            return await coroutine

    @contextmanager
    def _watching(self, event: TaskEvent, started: int, *, has_started: bool = False) -> Iterator[_TaskOutcome]:
        services = self._services
        outcome = _TaskOutcome()
        if not has_started:
            services.notify_observer("task_started", event)
        alarm = services.arm_long_task_alarm(event, started)
        try:
            yield outcome
        except BaseException as error:
            services.notify_observer("task_failed", self._ended(event, started, error))
            raise
        else:
            if not outcome.is_pending:
                services.notify_observer("task_finished", self._ended(event, started, None))
        finally:
            if alarm is not None:
                services.delays.cancel_call(alarm)

    def _ended(self, event: TaskEvent, started: int, error: BaseException | None) -> TaskEvent:
        elapsed = self._services.clock.monotonic_ns() - started
        return replace(event, run_seconds=elapsed / NANOSECONDS, error=error)


class _TaskOutcome:
    is_pending = False


class LongTaskAlarm:
    """A timer callback that logs a warning about a task that still runs, and tells the observer.

    The warning has the stack of the task's thread. For a coroutine, this is the stack of the event loop, which may
    run another coroutine.
    """

    def __init__(self, services: Services, event: TaskEvent, started: int) -> None:
        self._services = services
        self._event = event
        self._started = started
        self._thread = get_ident()

    def __call__(self) -> None:
        elapsed = (self._services.clock.monotonic_ns() - self._started) / NANOSECONDS
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame else "(the thread has ended)"
        event = replace(self._event, run_seconds=elapsed)
        logger.warning(
            "task %s on runner %r has been running for %.3f s (posted from %s); its thread is now at\n%s",
            event.task,
            event.runner,
            elapsed,
            event.posted_from,
            stack,
        )
        self._services.notify_observer("task_runs_long", event)


def describe(task: Task, started: int | None = None, error: BaseException | None = None) -> TaskEvent:
    """Return an event that describes a task that has not ended; one that has ended has no name any more.

    `started` is the time of its start. Without it, or if the time of queueing is unknown, `queue_seconds` is 0.
    """
    queued_at = task.queued_at
    waited = 0 if queued_at is None or started is None else started - queued_at
    return TaskEvent(
        task=task.name,
        runner=task.runner.name,
        traits=task.traits,
        posted_from=task.posted_from(),
        queue_seconds=waited / NANOSECONDS,
        error=error,
    )
