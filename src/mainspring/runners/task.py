"""A task: one callable on its way through a runner, the handle that cancels it, and the report of its failure."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mainspring.runners.traits import DEFAULT_TRAITS, Priority, ShutdownBehavior, TaskTraits

if TYPE_CHECKING:
    from mainspring.runners.intake import Intake
    from mainspring.runners.worker import Worker
    from mainspring.timing import TimerEntry


class TaskHandle(Protocol):
    """What `post` returns."""

    def cancel(self) -> bool:
        """Drop the task and release what it holds; True if it will not run."""


class PostedFrom(NamedTuple):
    """Where a task was posted: the function always, the line with `trace_posts=True` or any option of a post."""

    file: str
    line: int | None
    function: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} in {self.function}"


class Origin(NamedTuple):
    """The caller of a post, as cheaply as it can be noted."""

    code: CodeType
    line: int | None

    @classmethod
    def of(cls, frame: FrameType) -> Origin:
        return cls(frame.f_code, frame.f_lineno)


class Task(list[tuple[Any, ...]]):
    """A posted callable with default traits. Made empty, then filled: that is the quickest way."""

    __slots__ = ("context", "function", "origin", "runner")

    runner: Intake
    origin: CodeType
    context: Context | None
    function: Any  # the callable, until the task has ended; then None

    traits: TaskTraits = DEFAULT_TRAITS
    priority: int = Priority.USER_VISIBLE
    turns: int = 0  # sequences count theirs; a task has one
    queued_at: int | None = None  # only tasks that can be overtaken, or that are observed, are stamped

    # A handle is itself and nothing else, however its contents come and go.
    __hash__ = object.__hash__  # type: ignore[assignment]  # a list has none
    __eq__ = object.__eq__
    __ne__ = object.__ne__

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {'waiting' if self.is_live() else 'claimed'}>"

    @property
    def name(self) -> str:
        """The qualified name of the function, as far as it is still known."""
        function = self.function
        return "(finished)" if function is None else describe_function(function)

    def run_on(self, worker: Worker) -> bool:
        """Run here and now, unless somebody else has claimed the task."""
        try:
            arguments = self.pop()
        except IndexError:
            return False
        worker.task = self
        try:
            context = self.context or Context()
            result = context.run(self.function, *arguments) if arguments else context.run(self.function)
        except BaseException as error:  # no task may kill its worker
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
        """Answer whether nobody has claimed the task yet."""
        return len(self) > 0

    def claim(self) -> bool:
        """Take the task out of everybody's hands and release what it holds; False if it was taken already."""
        try:
            self.pop()
        except IndexError:
            return False
        self.function = self.context = None
        return True

    def cancel(self) -> bool:
        """Drop the task and release what it holds; True if it will not run."""
        if not self.claim():
            return False
        self.runner.forget(self)
        return True

    def posted_from(self) -> PostedFrom:
        """Return where the task was posted."""
        code = self.origin
        return PostedFrom(code.co_filename, None, code.co_qualname)

    def spokesman(self) -> TracedTask:
        """Return a copy of a running task that outlives its run, to speak for the coroutine it returned."""
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


class TracedTask(Task):
    """A task that carries more than a callable: traits, a due time, timings, the exact line it came from."""

    __slots__ = ("due", "line", "priority", "queued", "queued_at", "timer_entry", "traits")

    traits: TaskTraits
    priority: int
    queued_at: int | None
    queued: bool  # in a queue, so that claiming it leaves a shell there; guarded by the runner's lock
    due: int | None  # monotonic nanoseconds
    timer_entry: TimerEntry | None
    line: int | None

    def ripen(self) -> None:
        """Go to the runner: the time of the task has come."""
        self.runner.take_ripe(self)

    def run_on(self, worker: Worker) -> bool:
        if self.traits.shutdown is ShutdownBehavior.CONTINUE:
            worker.task = self  # before it starts, so that no shutdown waits for it by mistake
            worker.home.rest.announce()
        if self.traits.may_block and worker.group is not None:
            with worker.group.blocking(worker):
                has_run = Task.run_on(self, worker)
        else:
            has_run = Task.run_on(self, worker)
        worker.task = None
        return has_run

    def posted_from(self) -> PostedFrom:
        return Task.posted_from(self)._replace(line=self.line)


class Wrapper:
    """Base of what this package wraps around a user's callable and posts in its place."""

    __slots__ = ()

    def wrapped(self) -> Callable[..., object] | None:
        """Return the callable of the user, as long as it is known."""
        return None

    def dropped(self) -> None:
        """Learn that the task was dropped by a shutdown and will never run."""


def wrapper_of(function: object) -> Wrapper | None:
    """Return the wrapper whose method, or which itself, was posted."""
    owner = getattr(function, "__self__", function) if callable(function) else None
    return owner if isinstance(owner, Wrapper) else None


def describe_function(function: object) -> str:
    """Return a readable name for any callable, whatever it is made of: this must never fail."""
    try:
        wrapper = wrapper_of(function)
        if wrapper is not None:
            return describe_function(wrapper.wrapped())
        if isinstance(function, partial):
            return describe_function(function.func)  # without the arguments, whose repr is the user's code
        name = getattr(function, "__qualname__", None)
        if isinstance(name, str):
            return f"{getattr(function, '__module__', None) or 'builtins'}.{name}"
        return f"{type(function).__module__}.{type(function).__qualname__} object"
    except Exception:
        return object.__repr__(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """An exception that left a task, and where the task came from."""

    error: BaseException
    task: str
    """The qualified name of the callable."""
    runner: str
    posted_from: PostedFrom | None
    """The function that posted it; with `ThreadPool(trace_posts=True)` also the line."""
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
            text = "(an error without a readable text)"
        return (
            f"task {self.task} on runner {self.runner!r} failed: {type(self.error).__name__}: {text}"
            f" (posted from {self.posted_from})"
        )
