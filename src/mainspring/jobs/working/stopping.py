"""The end of a worker: what a shutdown reports, and the last call to the store.

A shutdown waits for handlers within its grace, and for the store no longer than `PATIENCE_FOR_ANSWERS` after that.
What the store has not confirmed by then is named in the report. Nothing of it is lost: the requests stay queued,
and if this process ends before they are carried out, other workers rescue the jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from mainspring.clock import Clock, Duration, SystemClock, deadline_after, to_nanoseconds
from mainspring.jobs.control import Control
from mainspring.jobs.io_layer import Callback, IoLayer, SingleOperation
from mainspring.jobs.working.active import ActiveJob
from mainspring.runners.rest import Rest

PATIENCE_FOR_ANSWERS = 10.0  # real seconds, after the grace, that a stop waits for the store
MOST_NAMED = 5  # jobs, in the text of a report

logger = logging.getLogger("mainspring.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """The result of `JobManager.shutdown`."""

    interrupted: int = 0
    """How many jobs ran when the grace was over: they were handed back and run again."""
    left: tuple[str, ...] = ()
    """The ids of jobs whose end or return the store did not confirm in time: other workers rescue them."""
    has_left: bool = True
    """Whether the store confirmed that the worker is gone; if not, other workers find out by its silence."""
    was_running: bool = True
    """False if there was no worker to stop: the manager was not started, or it was shut down already."""
    already_shut_down: bool = False
    """True if an earlier shutdown stopped the worker: the other fields are those of its report."""

    @property
    def is_clean(self) -> bool:
        """Whether every handler finished and the store confirmed everything."""
        return self.interrupted == 0 and not self.left and self.has_left

    def __str__(self) -> str:
        if self.already_shut_down:
            return "the worker was shut down already"
        if not self.was_running:
            return "there was no worker to shut down"
        parts = [f"{self.interrupted} jobs were interrupted and run again"] if self.interrupted else []
        if self.left:
            parts.append(
                f"the store did not confirm the end of {len(self.left)} jobs in time ("
                f"{', '.join(self.left[:MOST_NAMED])}{', ...' if len(self.left) > MOST_NAMED else ''}), "
                "other workers rescue them"
            )
        if not self.has_left:
            parts.append("the store did not confirm in time that the worker is gone")
        return "the worker is shut down" + (f": {'; '.join(parts)}" if parts else "")


class Stopping:
    """The one stop of a worker. A second caller waits for the first one and gets the same report."""

    def __init__(
        self,
        io: IoLayer,
        control: Control,
        clock: Clock,
        rest: Rest,
        *,
        begin: Callable[[], None],
        is_at_rest: Callable[[], bool],
        interrupt: Callable[[], list[ActiveJob]],
        has_answers: Callable[[], bool],
        close: Callable[[], None],
        jobs: Callable[[], list[ActiveJob]],
    ) -> None:
        self._io = io
        self._control = control
        self._clock = clock
        self._rest = rest  # announced whenever something changes that a stop waits for
        self._end_fetching = begin
        self._is_at_rest = is_at_rest
        self._interrupt = interrupt
        self._has_answers = has_answers
        self._close = close
        self._jobs = jobs
        self._tokens = [None]  # taken by the caller who carries the stop out
        self._is_hurried = False
        self._is_over = False
        # what follows is written in the control sequence
        self._has_begun = False
        self._interrupted: int | None = None
        self._has_left = False
        self._error: Exception | None = None

    def hurry(self) -> None:
        """Wait for handlers no longer. From any thread."""
        self._is_hurried = True
        self._rest.announce()

    def begin(self) -> None:
        """Begin the stop, and wait until control has ended the fetching of jobs: none is taken from then on."""
        self._control.post(self._begin_stopping)
        real = SystemClock()
        self._rest.wait(lambda: self._has_begun, deadline_after(real, PATIENCE_FOR_ANSWERS), real)

    def stop(self, grace: Duration, worker: Callable[[], int]) -> StopReport:
        """Let handlers finish within `grace`, hand back the rest, and leave the store. Takes no longer than
        `grace` and `PATIENCE_FOR_ANSWERS` together.
        """
        try:
            self._tokens.pop()
        except IndexError:
            return self._wait_for_first(grace)
        try:
            return self._carry_out(grace, worker)
        finally:
            self._is_over = True
            self._rest.announce()

    def _wait_for_first(self, grace: Duration) -> StopReport:
        real = SystemClock()
        deadline = deadline_after(real, to_nanoseconds(grace, "grace") / 1e9 + PATIENCE_FOR_ANSWERS)
        self._rest.wait(lambda: self._is_over, deadline, real)
        return replace(self._report(), already_shut_down=True)

    def _carry_out(self, grace: Duration, worker: Callable[[], int]) -> StopReport:
        # Control is told, not asked: a pool whose threads are all taken must not keep a shutdown from its end.
        self._control.post(self._begin_stopping)
        deadline = deadline_after(self._clock, grace, "grace")
        self._rest.wait(lambda: self._is_hurried or (self._has_begun and self._is_at_rest()), deadline)
        self._control.post(self._interrupt_all)
        real = SystemClock()  # the store answers in real time, whatever the clock of the worker says
        patience = deadline_after(real, PATIENCE_FOR_ANSWERS)
        self._rest.wait(lambda: self._interrupted is not None and self._has_answers(), patience, real)
        self._close()
        reply: Callback[None] = Callback(
            lambda _answer: self._control.post(self._confirm), lambda error: self._control.post(self._fail, error)
        )
        number = worker()
        self._io.dispatch(SingleOperation(lambda engine: engine.leave(number), reply))
        self._rest.wait(lambda: self._has_left or self._error is not None, patience, real)
        if self._error is not None:
            raise self._error
        report = self._report()
        if report.left or not report.has_left:
            logger.error("%s", report)
        return report

    def _report(self) -> StopReport:
        left = tuple(job.lease.id for job in self._jobs())
        return StopReport(interrupted=self._interrupted or 0, left=left, has_left=self._has_left)

    def _begin_stopping(self) -> None:
        if not self._has_begun:
            self._end_fetching()
            self._has_begun = True
            self._rest.announce()

    def _interrupt_all(self) -> None:
        self._interrupted = len(self._interrupt())
        self._rest.announce()

    def _confirm(self) -> None:
        self._has_left = True
        self._rest.announce()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._rest.announce()
