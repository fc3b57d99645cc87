"""Workers: the state of one thread that runs tasks. `blocking` tells the pool that the running task waits.

Only the thread itself writes its counters and its current task; other threads read them. `gate` is the lock that a
sleeping worker waits for: the thread that removes the worker from the idle list opens the gate, once.
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
"""The result of a task whose wrapper delivered the exception elsewhere.

The task counts as failed, and the exception is not reported to the error hook.
"""


class WorkerThread:
    """The state of one thread of a group, of the thread of an event loop, or of a coroutine (`is_stand_in`)."""

    awaits = False  # whether this worker awaits coroutines that tasks return

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
        self.is_stand_in = is_stand_in  # this worker represents a coroutine, which occupies no thread
        self.group = group
        self.home = home  # the runner of tasks that belong to no sequence
        self.runner = home
        self.outer_runners: list[TaskRunner] = []  # the runners of the tasks in which the running task is nested
        self.gate = Lock()
        self.gate.acquire()
        self.wake: Callable[[], object] = self.gate.release
        self.thread: Thread | None = None
        self.ident: int | None = None
        self.task: Task | None = None
        self.completed = 0
        self.failed = 0
        self.completed_before_slice = 0  # the counts at the start of the current slice
        self.failed_before_slice = 0
        self.parked = False
        self.wakes = 0
        self.leaving = False
        self.reap_entry: TimerEntry | None = None  # the timer that ends this thread if it stays in the reserve
        self.blocked = 0  # how many `blocking()` blocks are nested
        self.waits_for: TaskRunner | None = None  # the sequence whose task the running task waits for
        # set while the running task waits for other tasks or for time
        self.wait_is_over: Callable[[], bool] | None = None
        # whether the running task is inside shutdown() of its own pool, which must not wait for it
        self.is_shutting_down = False

    def bind_current_thread(self) -> None:
        """Make `current_worker()` return this worker on the calling thread."""
        self.ident = get_ident()
        _current.worker = self

    def current_runner(self) -> TaskRunner | None:
        """Return the runner of the task that runs on this thread; None if no task runs."""
        return None if self.task is None else self.runner

    def occupies(self, runner: TaskRunner) -> bool:
        """Return whether the running task, or a task in which it is nested, belongs to `runner`."""
        return self.current_runner() is runner or runner in self.outer_runners

    def has_tasks_behind(self) -> bool:
        """Return whether tasks of the same sequence wait behind the running task."""
        return self.runner is not self.home and any(task.is_live() for task in self.runner.queued_tasks())

    def describe_task(self) -> str:
        """Return the name of the running task; `nothing` if none runs."""
        task = self.task
        return "nothing" if task is None else task.name

    def is_parked(self) -> bool:
        """Return whether this thread sleeps because it has nothing to run."""
        return self.parked

    @contextmanager
    def waiting(self, is_over: Callable[[], bool]) -> Iterator[None]:
        """Mark the running task as waiting during the block, so that a manual clock may advance.

        `is_over` returns whether what the task waits for has happened.
        """
        outer = self.wait_is_over
        self.wait_is_over = is_over
        self.home.idle_condition.announce()
        try:
            yield
        finally:
            self.wait_is_over = outer

    def calling_worker(self) -> WorkerThread:
        """Return the worker of the calling code: this one, or the one that represents the calling coroutine."""
        return self

    def coroutine_waiting(self, is_over: Callable[[], bool]) -> AbstractContextManager[None]:
        """Return a context manager that marks the calling coroutine as waiting; on threads without a loop, it does
        nothing.
        """
        return nullcontext()

    def blocking(self) -> AbstractContextManager[None]:
        """Return a context manager.

        In its `with` block, this thread waits, and another one of its group may take tasks.
        """
        return nullcontext() if self.group is None else self.group.blocking(self)

    def is_waiting(self) -> bool:
        """Return whether the running task waits for something that has not happened yet."""
        is_over = self.wait_is_over
        return is_over is not None and not is_over()

    def canceller_of_current_coroutine(self) -> Callable[[], object]:
        """Return a function that cancels the calling coroutine, from any thread.

        Raises `TypeError` if the calling code is not a coroutine on this thread's event loop.
        """
        raise TypeError("a thread runs no coroutines")

    def take_result(self, task: Task, result: object) -> None:
        """Count a task that returned a value.

        If the value is a coroutine, a thread without an event loop counts the task as failed and reports an error;
        a thread with a loop runs the coroutine.
        """
        if iscoroutine(result):
            result.close()
            self.failed += 1
            self.report(task, coroutine_refused(task.function))
        elif result is RAISED:
            self.failed += 1
        else:
            self.completed += 1

    def report(self, task: Task, error: BaseException) -> None:
        """Pass the exception of a task to the error hook of its pool. This method must not raise."""
        task.runner.services.report(TaskFailure.of(task, error))

    @contextmanager
    def nested(self, runner: TaskRunner) -> Iterator[None]:
        """Let this thread run tasks of `runner` in the `with` block, in the middle of its running task.

        After the block, the worker has its running task, its runner and its counts of the slice again.
        """
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
                # Nested tasks do not count as tasks of the sequence whose slice this worker runs.
                self.completed_before_slice += self.completed - completed
                self.failed_before_slice += self.failed - failed


def coroutine_refused(function: object) -> TypeError:
    """Return the error for a task that returned a coroutine to a thread without an event loop."""
    return TypeError(
        f"{describe_function(function)} returned a coroutine, which a thread cannot await; "
        "post it to a runner made by pool.asyncio()"
    )


class _Current(local):
    worker: WorkerThread | None = None


_current = _Current()


def current_worker() -> WorkerThread | None:
    """Return the worker of the calling thread, or None outside of every pool."""
    return _current.worker


@contextmanager
def blocking() -> Iterator[None]:
    """Let the pool run other tasks on another thread while the code in this block waits.

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
    """Act as `blocking` if one of `runners` uses the threads of the caller's pool; else do nothing.

    A caller that waits for a runner of its own pool could keep it from running. A pool whose threads the runners
    do not use need not grow.
    """
    worker = current_worker()
    if worker is None or not any(runner.shares_threads_with(worker) for runner in runners):
        yield
    else:
        with worker.blocking():
            yield
