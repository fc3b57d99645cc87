"""A worker: the state of one thread that runs tasks. `blocking` tells its pool that the running task waits.

Only the thread itself writes its counters and its current task; other threads read them. `gate` is the lock that a
parked worker sleeps on: the thread that removes the worker from the idle list opens the gate, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import iscoroutine
from threading import Lock, Thread, get_ident, local
from typing import TYPE_CHECKING, Any

from mainspring.runners.task import Task, TaskFailure, describe_function

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.thread_group import ThreadGroup
    from mainspring.timing.wheel import TimerEntry


RAISED: Any = object()
"""What a wrapper returns when it has delivered an exception elsewhere: counted as failed, reported nowhere."""


class Worker:
    """One thread of a group; the thread of an event loop is one, too."""

    awaits = False  # whether coroutines that tasks return are awaited

    __slots__ = (
        "blocked",
        "completed",
        "completed_before_slice",
        "failed",
        "failed_before_slice",
        "gate",
        "group",
        "home",
        "ident",
        "is_shutting_down",
        "is_stand_in",
        "leaving",
        "outer_runners",
        "parked",
        "reap_entry",
        "runner",
        "task",
        "thread",
        "wait_is_over",
        "waits_for",
        "wake",
        "wakes",
    )

    def __init__(self, group: ThreadGroup | None, home: TaskRunner, *, is_stand_in: bool = False) -> None:
        self.is_stand_in = is_stand_in  # for a coroutine, which occupies no thread
        self.group = group
        self.home = home  # the runner that tasks belong to when no sequence is being run
        self.runner = home
        self.outer_runners: list[TaskRunner] = []  # of the tasks inside of which the running one runs
        self.gate = Lock()
        self.gate.acquire()
        self.wake: Callable[[], object] = self.gate.release
        self.thread: Thread | None = None
        self.ident: int | None = None
        self.task: Task | None = None
        self.completed = 0
        self.failed = 0
        self.completed_before_slice = 0  # what this thread had done when it began with its present sequence
        self.failed_before_slice = 0
        self.parked = False
        self.wakes = 0
        self.leaving = False
        self.reap_entry: TimerEntry | None = None  # ends the thread if it stays in the reserve
        self.blocked = 0  # depth of `blocking()` scopes
        self.waits_for: TaskRunner | None = None  # the sequence whose task the running one waits for
        self.wait_is_over: Callable[[], bool] | None = None  # set while its task waits for other tasks or time
        self.is_shutting_down = False  # inside shutdown() of its own pool, which therefore must not wait for it

    def adopt_current_thread(self) -> None:
        """Make `current_worker()` answer with this worker on the calling thread."""
        self.ident = get_ident()
        _current.worker = self

    def current_runner(self) -> TaskRunner | None:
        """Return the runner of the task that runs on this thread, if one does."""
        return None if self.task is None else self.runner

    def occupies(self, runner: TaskRunner) -> bool:
        """Answer whether the running task, or one inside of which it runs, belongs to `runner`."""
        return self.current_runner() is runner or runner in self.outer_runners

    def holds_others_up(self) -> bool:
        """Answer whether tasks of the same sequence wait behind the running one."""
        return self.runner is not self.home and any(task.is_live() for task in self.runner.queued_tasks())

    def describe_task(self) -> str:
        """Return the name of the running task."""
        task = self.task
        return "nothing" if task is None else task.name

    def is_parked(self) -> bool:
        """Answer whether the thread sleeps because there is nothing to do."""
        return self.parked

    @contextmanager
    def waiting(self, is_over: Callable[[], bool]) -> Iterator[None]:
        """Declare that the running task waits, so that time may move on meanwhile."""
        outer = self.wait_is_over
        self.wait_is_over = is_over
        self.home.rest.announce()
        try:
            yield
        finally:
            self.wait_is_over = outer

    def acting(self) -> Worker:
        """Return who stands for the code that runs now: this worker, or the stand-in of a coroutine."""
        return self

    def coroutine_waiting(self, is_over: Callable[[], bool]) -> AbstractContextManager[None]:
        """Declare that the coroutine that calls this waits; only the thread of a loop knows its coroutines."""
        return nullcontext()

    def standing_in(self) -> AbstractContextManager[None]:
        """Let another thread of the group take work while this one waits."""
        return nullcontext() if self.group is None else self.group.blocking(self)

    def is_waiting(self) -> bool:
        """Answer whether the running task waits for something that has not happened yet."""
        is_over = self.wait_is_over
        return is_over is not None and not is_over()

    def canceller_of_current_coroutine(self) -> Callable[[], object]:
        """Return what cancels the coroutine that calls this, from any thread."""
        raise TypeError("a thread runs no coroutines")

    def take_result(self, task: Task, result: object) -> None:
        """Deal with a task that returned something."""
        if iscoroutine(result):
            result.close()
            self.failed += 1
            self.report(task, coroutine_refused(task.function))
        elif result is RAISED:
            self.failed += 1
        else:
            self.completed += 1

    def report(self, task: Task, error: BaseException) -> None:
        """Hand the exception of a task to the error hook of its pool. This must not raise."""
        task.runner.services.report(TaskFailure.of(task, error))

    @contextmanager
    def nested(self, runner: TaskRunner) -> Iterator[None]:
        """Run something of `runner` inside the running task, and leave everything as it was."""
        task, outer = self.task, self.runner
        completed, failed = self.completed, self.failed
        before = self.completed_before_slice, self.failed_before_slice
        self.runner = runner
        self.outer_runners.append(outer)
        try:
            yield
        finally:
            self.outer_runners.pop()
            self.task, self.runner = task, outer
            self.completed_before_slice, self.failed_before_slice = before
            if outer is not runner:
                # What ran inside is not the work of the sequence in whose slice it happened.
                self.completed_before_slice += self.completed - completed
                self.failed_before_slice += self.failed - failed


def coroutine_refused(function: object) -> TypeError:
    """Explain that threads do not await."""
    return TypeError(
        f"{describe_function(function)} returned a coroutine, which a thread cannot await; "
        "post it to a runner made by pool.asyncio()"
    )


class _Current(local):
    worker: Worker | None = None


_current = _Current()


def current_worker() -> Worker | None:
    """Return the worker whose thread this is, or None outside of every pool."""
    return _current.worker


@contextmanager
def blocking() -> Iterator[None]:
    """Let the pool run other tasks on another thread while this block waits for something slow.

    Outside of a pool it does nothing.
    """
    worker = current_worker()
    if worker is None or worker.group is None:
        yield
    else:
        with worker.group.blocking(worker):
            yield


@contextmanager
def blocking_for(*runners: TaskRunner) -> Iterator[None]:
    """Do as `blocking` does if one of `runners` runs on the threads of the pool that the caller occupies.

    A caller that waits for them would else keep them from running. A pool that they do not need does not grow.
    """
    worker = current_worker()
    if worker is None or not any(runner.shares_threads_with(worker) for runner in runners):
        yield
    else:
        with worker.standing_in():
            yield
