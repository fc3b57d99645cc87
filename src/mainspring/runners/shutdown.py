"""The shutdown of runners: bounded in time, with a report that counts every task.

1. Runners accept no new tasks, except BLOCK tasks posted by tasks of the pool.
2. Unstarted tasks are dropped and counted, except BLOCK tasks that are due.
3. The caller waits until the only running tasks are those that need no waiting: CONTINUE tasks, and tasks that
   have called shutdown themselves.
4. After the timeout, unstarted tasks are dropped and running ones are left behind: both count as abandoned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mainspring.runners.idle_condition import IdleCondition
from mainspring.runners.statistics import ShutdownReport
from mainspring.runners.task import ShutdownBehavior
from mainspring.runners.worker import WorkerThread, current_worker

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner


class RunnerShutdown:
    """The one shutdown of a runner, together with the runners that end with it. The first caller runs it."""

    def __init__(self, runners: list[TaskRunner]) -> None:
        self._runners = runners
        self._first = runners[0]
        self._over = IdleCondition(self._first.services.clock)
        self._finished_before = self._finished()
        self._skipped = 0
        self._report: ShutdownReport | None = None

    def run(self, deadline: int | None) -> ShutdownReport:
        """Shut the runners down, waiting until the deadline at most, and return the report.

        If Ctrl-C interrupts the waiting, the shutdown is completed before the exception is raised.
        """
        is_quiet = False
        with self._exempting_caller():
            try:
                for runner in self._runners:
                    runner.begin_closing()
                self._skipped = sum(runner.drop_unstarted(keep_blocking=True) for runner in self._runners)
                for runner in self._runners:  # time for BLOCK tasks that were accepted before the shutdown
                    runner.wake_for_queued()
                is_quiet = self._first.wait_quiet(_needs_no_waiting, deadline)
            finally:  # an interrupt (Ctrl-C) ends the waiting, not the shutdown
                report = self._finish(is_quiet=is_quiet)
            return report

    def _finish(self, *, is_quiet: bool) -> ShutdownReport:
        late = 0 if is_quiet else sum(runner.drop_unstarted(keep_blocking=False) for runner in self._runners)
        for runner in self._runners:
            runner.finish_closing()
        self._report = self._count(late)
        self._over.announce()
        return self._report

    def wait(self, deadline: int | None) -> ShutdownReport:
        """Wait for the shutdown that another caller carries out, and return its report.

        If the deadline passes first, return the counts so far.
        """
        with self._exempting_caller():
            self._over.wait(lambda: self._report is not None, deadline)
        return self._report or self._count(late=0)

    def _count(self, late: int) -> ShutdownReport:
        ran = self._finished() - self._finished_before
        running = sum(not worker.is_shutting_down for worker, _ in self._first.running_tasks())
        # Unstarted tasks are left only behind a task that called shutdown itself; they run when it returns.
        waiting = sum(task.is_live() for runner in self._runners for task in runner.queued_tasks())
        return ShutdownReport(ran=ran, skipped=self._skipped, abandoned=late + running + waiting)

    def _finished(self) -> int:
        return sum(self._first.totals())

    @contextmanager
    def _exempting_caller(self) -> Iterator[None]:
        """Mark the calling task during the block, if it is one of this pool, so that no shutdown waits for it."""
        worker = current_worker()
        if worker is None or worker.home.services is not self._first.services or worker.is_shutting_down:
            yield
            return
        calling_worker = worker.calling_worker()
        worker.is_shutting_down = calling_worker.is_shutting_down = True
        worker.home.idle_condition.announce()
        worker.runner.idle_condition.announce()
        try:
            yield
        finally:
            worker.is_shutting_down = calling_worker.is_shutting_down = False


def _needs_no_waiting(worker: WorkerThread) -> bool:
    task = worker.task
    if worker.parked or worker.is_shutting_down:
        return True
    if task is None or task.traits.shutdown is not ShutdownBehavior.CONTINUE:
        return False
    return not worker.has_tasks_behind()  # a BLOCK task behind the calling task in its sequence must run
