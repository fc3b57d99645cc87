"""Tasks, their traits, their handles and the reports of their failures. A task is a callable posted to a runner.

The traits define the priority of a task, whether the task may block, and how a shutdown treats the task.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mainspring.runners.validation import require_instance

if TYPE_CHECKING:
    from mainspring.runners.task_acceptor import TaskAcceptor
    from mainspring.runners.worker import WorkerThread
    from mainspring.timing import TimerEntry


class Priority(IntEnum):
    """How urgent a task or a job is.

    A thread pool runs tasks in the order of priority, then of arrival. For jobs on SQLite, each step is a head
    start of 30 seconds; on NATS, workers divide their slots among the priorities by the weights 6, 3 and 1.
    """

    BEST_EFFORT = 0
    """No user waits for the result, as in prefetching or cleaning up.

    In a pool, a task that has waited for half a second takes turns with more urgent ones, so it does not starve.
    """
    USER_VISIBLE = 1
    """A user will see the result. The default."""
    USER_BLOCKING = 2
    """A user waits for the result right now."""


class ShutdownBehavior(Enum):
    """How the shutdown of a runner treats a task that it has not run yet, or that runs."""

    CONTINUE = "continue"
    """Shutdown drops and counts the task if it has not started, and does not wait for it if it runs."""
    SKIP = "skip"
    """Shutdown drops and counts the task if it has not started, and waits for it if it runs. The default."""
    BLOCK = "block"
    """Shutdown waits until the task has run, even if it has not started, as long as the timeout allows.

    A delayed task that is not due yet is dropped and counted.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTraits:
    """The attributes of a task: its priority, its category, whether it may block, and what a shutdown does to
    it.
    """

    priority: Priority = Priority.USER_VISIBLE
    may_block: bool = False
    """Whether the task may wait for slow operations. The pool may start another thread while the task runs."""
    category: str | None = None
    """A free label that observers and error hooks receive."""
    shutdown: ShutdownBehavior = ShutdownBehavior.SKIP

    def __post_init__(self) -> None:
        if not isinstance(self.priority, Priority):
            raise TypeError(f"priority must be a Priority such as Priority.USER_BLOCKING, got {self.priority!r}")
        if not isinstance(self.shutdown, ShutdownBehavior):
            raise TypeError(f"shutdown must be a ShutdownBehavior such as BLOCK, got {self.shutdown!r}")


DEFAULT_TRAITS = TaskTraits()


def require_traits(value: object) -> TaskTraits:
    """Return `value` if it is a `TaskTraits`; raise `TypeError` otherwise, for example for a bare priority."""
    return require_instance(value, TaskTraits, "traits", "TaskTraits(priority=Priority.USER_BLOCKING)")


def stamp_for(priority: int, now: Callable[[], int]) -> int | None:
    """Return the time that a BEST_EFFORT task records when it is queued, for ageing; None for other priorities."""
    return now() if priority < Priority.USER_VISIBLE else None


class TaskHandle(Protocol):
    """The handle of a posted task that `post` returns, to cancel it."""

    def cancel(self) -> bool:
        """Cancel the task and release its references.

        Return True if this call canceled it; False if it has started, has ended or was canceled before.
        """


class PostedFrom(NamedTuple):
    """The place in the code that posted a task: function, file and line.

    The line is always known with `trace_posts=True`, and for a post with a delay or traits; else it may be None.
    """

    file: str
    line: int | None
    function: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} in {self.function}"


class Origin(NamedTuple):
    """The caller of a post, in the form that is cheapest to record."""

    code: CodeType
    line: int | None

    @classmethod
    def of(cls, frame: FrameType) -> Origin:
        return cls(frame.f_code, frame.f_lineno)


class Task(list[tuple[Any, ...]]):
    """A posted callable with default traits. It is created empty and then filled, because this is fastest."""

    __slots__ = ("context", "function", "origin", "runner")

    runner: TaskAcceptor
    origin: CodeType
    context: Context | None
    function: Any  # the callable, until the task has ended; then None

    traits: TaskTraits = DEFAULT_TRAITS
    priority: int = Priority.USER_VISIBLE
    runs_made: int = 0  # only pooled runners count their tasks; a task runs once
    queued_at: int | None = None  # set only on BEST_EFFORT tasks and in observed pools

    # Tasks compare by identity, because the contents of the list change. With all six methods, CPython compares
    # them without a call of a method: `task_queue` relies on that.
    __hash__ = object.__hash__  # type: ignore[assignment]  # a list is not hashable
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __lt__ = object.__lt__  # type: ignore[operator]
    __le__ = object.__le__  # type: ignore[operator]
    __gt__ = object.__gt__  # type: ignore[operator]
    __ge__ = object.__ge__  # type: ignore[operator]

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {'waiting' if self.is_live() else 'claimed'}>"

    @property
    def name(self) -> str:
        """The qualified name of the function; `(finished)` after the task has ended, was canceled or dropped."""
        function = self.function
        return "(finished)" if function is None else describe_function(function)

    def run_on(self, worker: WorkerThread) -> bool:
        """Claim and run the task on the calling thread; return False if the task was claimed already.

        An exception of the task goes to the error hook of its pool and is not raised.
        """
        try:
            arguments = self.pop()
        except IndexError:
            return False
        worker.task = self
        try:
            context = self.context or Context()
            result = context.run(self.function, *arguments) if arguments else context.run(self.function)
        except BaseException as error:  # no task may end its worker
            worker.failed += 1
            worker.report(self, error)
        else:
            if result is None:
                worker.completed += 1
            else:
                worker.take_result(self, result)
        self.function = self.context = worker.task = None
        return True

    def is_live(self) -> bool:
        """Return whether the task can still run: it has neither started nor been canceled."""
        return len(self) > 0

    def is_tombstone(self) -> bool:
        """Return whether the task was claimed, to be run or canceled, so that a queue that has it can drop it."""
        return not len(self)

    def peek_traits(self) -> TaskTraits | None:
        """Return the traits of the task if it can still run; otherwise None."""
        return self.traits if self.is_live() else None

    def claim(self) -> bool:
        """Claim the task, so that it never runs, and release its references.

        Return False if the task was claimed already.
        """
        try:
            self.pop()
        except IndexError:
            return False
        self.function = self.context = None
        return True

    def cancel(self) -> bool:
        """Cancel the task and release its references.

        Return True if this call canceled it; False if it has started, has ended or was canceled before.
        """
        if not self.claim():
            return False
        self.runner.forget(self)
        return True

    def posted_from(self) -> PostedFrom:
        """Return the place where the task was posted, without the line."""
        code = self.origin
        return PostedFrom(code.co_filename, None, code.co_qualname)

    def copy_for_coroutine(self) -> TracedTask:
        """Return a copy of a running task. The copy represents the coroutine that the task has returned."""
        copy = TracedTask()
        copy.runner, copy.origin, copy.context, copy.function = (
            self.runner,
            self.origin,
            self.context,
            self.function,
        )
        copy.traits, copy.priority, copy.queued_at = self.traits, self.priority, self.queued_at
        copy.line = getattr(self, "line", None)
        return copy


class DelayedTask(Task):
    """A task with default traits that may be delayed. It is small, because a pool may have a million such tasks.

    When the task is due, the timer calls the task itself. So no further object is needed for the call.
    """

    __slots__ = ("line", "queued", "timer_entry")

    queued: bool  # whether the task is in a queue, even if it was claimed meanwhile; guarded by the runner's lock
    timer_entry: TimerEntry  # unset if the task has no delay
    line: int | None

    def __call__(self) -> None:
        """Pass the task to its runner, because it is due now."""
        self.runner.enqueue_due(self)

    def cancel(self) -> bool:
        try:
            self.pop()  # as `claim` does
        except IndexError:
            return False
        self.function = self.context = None
        self.runner.forget_delayed(self)
        return True

    def posted_from(self) -> PostedFrom:
        return Task.posted_from(self)._replace(line=self.line)


class TracedTask(DelayedTask):
    """A task with its own traits and, if it is BEST_EFFORT or observed, the time at which it was queued."""

    __slots__ = ("priority", "queued_at", "traits")

    traits: TaskTraits
    priority: int
    queued_at: int | None

    def run_on(self, worker: WorkerThread) -> bool:
        if self.traits.shutdown is ShutdownBehavior.CONTINUE:
            worker.task = self  # before the task starts, so that no shutdown waits for it
            if worker.home.idle_condition.waiters:
                worker.home.idle_condition.announce()
        if self.traits.may_block and worker.group is not None:
            with worker.group.blocking(worker):
                has_run = Task.run_on(self, worker)
        else:
            has_run = Task.run_on(self, worker)
        worker.task = None
        return has_run


class Wrapper:
    """Base class of the objects that this package posts in place of a user's callable, which they call."""

    __slots__ = ()

    def wrapped(self) -> Callable[..., object] | None:
        """Return the user's callable, or None if the wrapper has released it."""
        return None

    def dropped(self) -> None:
        """Called after a shutdown has dropped the task. The task will never run."""


def wrapper_of(function: object) -> Wrapper | None:
    """Return the wrapper of a user's callable if `function` is a `Wrapper` or a method of one; otherwise None."""
    owner = getattr(function, "__self__", function) if callable(function) else None
    return owner if isinstance(owner, Wrapper) else None


def describe_function(function: object) -> str:
    """Return a readable name for any callable. This must never raise."""
    try:
        wrapper = wrapper_of(function)
        if wrapper is not None:
            return describe_function(wrapper.wrapped())
        if isinstance(function, partial):
            return describe_function(function.func)  # no arguments, because their repr would run user code
        name = getattr(function, "__qualname__", None)
        if isinstance(name, str):
            return f"{getattr(function, '__module__', None) or 'builtins'}.{name}"
        return f"{type(function).__module__}.{type(function).__qualname__} object"
    except Exception:
        return object.__repr__(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """An exception that a task raised, and the place where the task was posted."""

    error: BaseException
    task: str
    """The qualified name of the callable."""
    runner: str
    posted_from: PostedFrom | None
    """The function that posted the task, and the line if known, as with `ThreadPool(trace_posts=True)`.

    It is None for the handler of a `FuncQueue`.
    """
    traits: TaskTraits

    @classmethod
    def of(cls, task: Task, error: BaseException) -> TaskFailure:
        """Describe the failure of a task that is still running."""
        return cls(
            error=error,
            task=task.name,
            runner=task.runner.name,
            posted_from=task.posted_from(),
            traits=task.traits,
        )

    def __str__(self) -> str:
        try:
            text = str(self.error)
        except Exception:
            text = "(the text of the error cannot be read)"
        return (
            f"task {self.task} on runner {self.runner!r} failed: {type(self.error).__name__}: {text}"
            f" (posted from {self.posted_from})"
        )
