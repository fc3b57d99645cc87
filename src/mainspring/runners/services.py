"""Services that all runners of a pool share: the clock, the delay manager, the error hook and the observer."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.clock import Clock
from mainspring.runners.delay_manager import DelayManager
from mainspring.runners.observer import LongTaskAlarm, ObservedCall, TaskEvent, TaskObserver, describe
from mainspring.runners.task import TaskFailure, TracedTask

if TYPE_CHECKING:
    from mainspring.timing.wheel import TimerEntry

logger = logging.getLogger("mainspring.runners")

C = TypeVar("C", bound=Callable[..., Any])


class PoolCounters:
    """The counts of refused, canceled and skipped tasks of a whole pool, which must outlive its runners."""

    def __init__(self) -> None:
        self._lock = RLock()  # re-entrant for signal handlers and finalizers; guards the counts
        self.rejected = 0
        self.canceled = 0
        self.skipped = 0

    def add(self, *, rejected: int = 0, canceled: int = 0, skipped: int = 0) -> None:
        """Add to the pool's counts. Negative numbers subtract."""
        with self._lock:
            self.rejected += rejected
            self.canceled += canceled
            self.skipped += skipped


class Services:
    """The services that a pool shares with all runners made from it."""

    def __init__(
        self,
        *,
        clock: Clock,
        delays: DelayManager,
        on_error: Callable[[TaskFailure], object] | None,
        observer: TaskObserver | None,
        long_task_ns: int | None,
        trace_posts: bool,
    ) -> None:
        self.clock = clock
        self.delays = delays
        self._on_error = on_error
        self._observer = observer
        self._long_task_ns = long_task_ns
        self.counters = PoolCounters()
        self.is_observed = observer is not None or long_task_ns is not None
        self.records_posts = (
            self.is_observed or trace_posts
        )  # every post takes the slow path, which records the line of code that posted

    def report(self, failure: TaskFailure) -> None:
        """Pass a failure of a task to the error hook; log it if there is no hook or if the hook raises.

        This method never raises, because workers rely on that.
        """
        try:
            self._report(failure)
        except BaseException:  # logging has failed, too, so write to stderr
            with suppress(BaseException):
                traceback.print_exception(failure.error, file=sys.stderr)
                traceback.print_exc(file=sys.stderr)

    def _report(self, failure: TaskFailure) -> None:
        if self._on_error is not None:
            try:
                self._on_error(failure)
            except BaseException:  # a user's hook must not end a worker thread
                logger.exception("the error hook failed while it handled: %s", failure)
            else:
                return
        logger.error("%s", failure, exc_info=failure.error)

    def observed(self, function: C) -> C:
        """Return a callable that also tells the observer and watches long tasks; the same callable if the pool has
        neither.
        """
        return ObservedCall(self, function) if self.is_observed else function  # type: ignore[return-value]

    def notify_observer(self, what: str, event: TaskEvent) -> None:
        """Call the observer's method `what` with an event, if the pool has an observer; log its exceptions."""
        if self._observer is None:
            return
        try:
            getattr(self._observer, what)(event)
        except BaseException:  # an observer must not end the thread of a task or of the timer
            logger.exception("observer %r failed in its method %s; the task is not affected", self._observer, what)

    def arm_long_task_alarm(self, event: TaskEvent, started: int) -> TimerEntry | None:
        """Set the timer that warns about a long task, for a task that starts now.

        Return None if the pool has no limit for long tasks, or its timer is closed.
        """
        if self._long_task_ns is None:
            return None
        return self.delays.call_after(self._long_task_ns, LongTaskAlarm(self, event, started))

    def notify_rejected(self, task: TracedTask, error: Exception) -> None:
        """Tell the observer that a runner has refused a task."""
        if self._observer is not None:
            self.notify_observer("task_rejected", describe(task, error=error))
