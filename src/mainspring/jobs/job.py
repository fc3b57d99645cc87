"""A handler as its decorator returns it: still a function, and a way to submit jobs for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from mainspring.clock import Duration
from mainspring.jobs.handle import JobHandle, ManagerSource
from mainspring.jobs.handler_options import FollowingJob
from mainspring.jobs.handlers import Handler
from mainspring.jobs.policies import Unique, names_of
from mainspring.jobs.records import FollowUp
from mainspring.jobs.shaping import describe_follow_up
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.runners.traits import Priority

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Job(Generic[P, R]):
    """A registered handler. `after`, `at` and `options` return variants, which can be kept and used again."""

    def __init__(
        self,
        handler: Handler,
        function: Callable[P, Any],
        source: ManagerSource,
        options: SubmitOptions | None = None,
    ) -> None:
        update_wrapper(self, function)
        self._handler = handler
        self._function = function
        self._source = source
        self._options = options or SubmitOptions()

    @property
    def name(self) -> str:
        """The name under which jobs find this handler."""
        return self._handler.name

    @property
    def handler(self) -> Handler:
        """The handler as it is registered."""
        return self._handler

    @property
    def source(self) -> ManagerSource:
        """The application that it belongs to."""
        return self._source

    @property
    def chosen(self) -> SubmitOptions:
        """The options of this variant."""
        return self._options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now: no job."""
        return self._function(*args, **kwargs)  # type: ignore[no-any-return]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job; it is durable when this returns."""
        job_id = self._source.manager().submission.submit(self._handler, self._options, args, kwargs)
        return JobHandle(job_id, self._handler, self._source)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job without blocking the event loop."""
        submission = self._source.manager().submission
        job_id = await submission.submit_async(self._handler, self._options, args, kwargs)
        return JobHandle(job_id, self._handler, self._source)

    def submit_many(
        self, arguments: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, atomic: bool = False
    ) -> list[str]:
        """Store many jobs and return their ids in order.

        Each is a dict of named arguments or a tuple of positional ones, and all are checked before the first is
        stored. They are committed in chunks: `PartialSubmit` says which were stored if not all were. With
        `atomic=True` they are stored all or none.
        """
        submission = self._source.manager().submission
        return submission.submit_many(self._handler, self._options, arguments, atomic=atomic)

    def after(self, delay: Duration) -> Self:
        """Return a variant whose jobs are due `delay` after their submit."""
        return self.options(delay=delay)

    def at(self, instant: datetime) -> Self:
        """Return a variant whose jobs are due at an instant, an aware datetime; in the past means at once."""
        return self.options(at=instant)

    def options(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        queue: str | None = None,
        priority: Priority | None = None,
        unique: str | Unique | None = None,
        sequence: str | None = None,
        steps_aside: bool | None = None,
        expires: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        then: FollowingJob | None = None,
    ) -> Self:
        """Return a variant with other options: when, where and under which policies its jobs run.

        `unique` is a key, or a `Unique`; jobs of equal `sequence` run one after another, in the order (due,
        submission); `expires` is how long after its due time a job may still start; `headers` are carried along;
        `then` is the job to be submitted in the same step that completes this one.
        """
        changed = self._options.changed(
            delay=delay,
            at=at,
            id=id,
            queue=queue,
            priority=priority,
            unique=unique,
            sequence=sequence,
            steps_aside=steps_aside,
            expires=expires,
            headers=headers,
            then=then,
        )
        if changed.unique is not None:
            self._handler.arguments.require_parameters(names_of(changed.unique.by))
        return type(self)(self._handler, self._function, self._source, changed)

    def follow_up(self) -> FollowUp:
        """Describe the job that this variant makes when it follows another: `then=other.options(...)`."""
        return describe_follow_up(self._handler, self._options, self._source.limits)

    def __repr__(self) -> str:
        return f"<Job {self.name}>"


class AsyncJob(Job[P, R]):
    """A registered coroutine function: a call is awaited, a job has its result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """Call the coroutine function, here and now: no job."""
        return self._function(*args, **kwargs)  # type: ignore[no-any-return]


class BatchJob(Job[[T], Any], Generic[T, R]):
    """A registered batch handler: a call takes the list, a job carries one element of it."""

    def __call__(self, elements: list[T], /) -> R:  # type: ignore[override]
        """Call the function, here and now: no job."""
        return self._function(elements)  # type: ignore[arg-type,no-any-return]


class AsyncBatchJob(BatchJob[T, R]):
    """A registered batch handler that is a coroutine function."""

    def __call__(self, elements: list[T], /) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """Call the coroutine function, here and now: no job."""
        return self._function(elements)  # type: ignore[arg-type,no-any-return]


class BatchDecorator(Protocol):
    """What `@app.job(batch=...)` returns: jobs carry one element each of the handler's list."""

    @overload
    def __call__(self, function: Callable[[list[T]], Coroutine[Any, Any, R]], /) -> AsyncBatchJob[T, R]: ...

    @overload
    def __call__(self, function: Callable[[list[T]], R], /) -> BatchJob[T, R]: ...


class Decorator(Protocol):
    """What `@app.job(...)` returns: it makes a job of a function, of either kind."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...
