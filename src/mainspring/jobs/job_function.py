"""Job functions: the objects that `@app.job` returns. They submit jobs, and can be called like the handler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from mainspring.clock import Duration
from mainspring.jobs.handle import JobHandle, ManagerProvider, open_manager
from mainspring.jobs.handler_options import FollowingJob
from mainspring.jobs.handlers import Handler
from mainspring.jobs.off_loop import OffLoop, async_twin
from mainspring.jobs.peer_names import explains_options, missing_attribute
from mainspring.jobs.policies import Unique
from mainspring.jobs.records import FollowUp
from mainspring.jobs.retry import Retry
from mainspring.jobs.submission import describe_follow_up
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.runners.task import Priority

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class JobFunction(Generic[P, R]):
    """A decorated function. A call runs the function directly; `submit` stores a job, which a worker runs.

    `after`, `at` and `options` return variants of the job function with other submit options. A variant can be
    used many times.
    """

    def __init__(
        self,
        handler: Handler,
        function: Callable[P, Any],
        source: ManagerProvider,
        options: SubmitOptions | None = None,
    ) -> None:
        update_wrapper(self, function)
        self._handler = handler
        self._function = function
        self._source = source
        self._options = options or SubmitOptions()

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, of_jobs=True)

    @property
    def name(self) -> str:
        """The job type: the name under which the handler is registered and its jobs are stored."""
        return self._handler.name

    @property
    def handler(self) -> Handler:
        """The registered handler."""
        return self._handler

    @property
    def source(self) -> ManagerProvider:
        """The application that the handler belongs to."""
        return self._source

    @property
    def _off_loop(self) -> OffLoop:
        return self._source.off_loop

    @property
    def chosen(self) -> SubmitOptions:
        """The submit options with which this variant of the job function submits jobs."""
        return self._options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without a job."""
        return self._function(*args, **kwargs)  # type: ignore[no-any-return]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job and return its handle. The job is durable when this call returns.

        If `unique=` finds an existing job with the same key, the handle is that of the existing job. Raises
        `InvalidArguments` if the arguments do not match the signature of the handler, `LimitExceeded` if a quota
        or a size limit is exceeded, and `DuplicateJob` if the id is taken or for `Unique(on_conflict="raise")`.
        """
        job_id = self._source.manager().submission.submit(self._handler, self._options, args, kwargs)
        return JobHandle(job_id, self._handler, self._source)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job and return its handle, without blocking the event loop.

        If the wait is canceled, by `asyncio.timeout()` for example, the job may still be stored. With
        `options(id=...)` or `unique=`, a second submit cannot store it twice.
        """
        submission = (await open_manager(self._source)).submission
        job_id = await submission.submit_async(self._handler, self._options, args, kwargs)
        return JobHandle(job_id, self._handler, self._source)

    def submit_many(
        self, arguments: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, atomic: bool = False
    ) -> list[str]:
        """Store many jobs and return their ids in order.

        Each item of `arguments` is a dict of named arguments or a tuple of positional ones. All items are checked
        before the first job is stored. The jobs are committed in chunks. If only some chunks are stored,
        `PartialSubmit` lists the jobs that were stored and those that were not. With `atomic=True`, either all
        jobs are stored or none. The id of an existing job stands for a job with the same unique key. Raises
        `InvalidArguments` for a wrong item, and `ValueError` after `options(id=...)`.
        """
        submission = self._source.manager().submission
        return submission.submit_many(self._handler, self._options, arguments, atomic=atomic)

    submit_many_async = async_twin(submit_many, writes=True)

    def after(self, delay: Duration) -> Self:
        """Return a variant of this job function whose jobs are due `delay` after their submit."""
        _require_given(delay, "after", "the number of seconds or a timedelta")
        return self._variant(self._options.changed(delay=delay))

    def at(self, instant: datetime) -> Self:
        """Return a variant of this job function whose jobs are due at `instant`, an aware datetime.

        If the instant is in the past, the jobs are due at once.
        """
        _require_given(instant, "at", "an aware datetime")
        return self._variant(self._options.changed(at=instant))

    @explains_options
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
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Self:
        """Return a variant of this job function with other submit options. Omitted options stay as they are.

        - `delay`: how long after the submit the job is due
        - `at`: the instant at which the job is due
        - `id`: the id of the job; a submit with the id of an existing job raises `DuplicateJob`
        - `queue`: the queue of the job, instead of that of the handler
        - `priority`: the priority of the job, instead of that of the handler
        - `unique`: a key, or a `Unique`: at most one job with the same key
        - `sequence`: a key; jobs with the same key run one after another, ordered by due time, then by submission
        - `steps_aside`: whether later jobs of the sequence run while this job waits for a retry or after a snooze
        - `expires`: how long after its due time the job may still start
        - `headers`: texts that are stored with the job; `current_job().headers` returns them
        - `then`: the follow-up job, which is stored in the transaction that completes this job
        - `retry`: the attempts and delays of the job, instead of those of the handler; `on` and `give_up_on` stay
          those of the handler
        - `timeout`: the timeout of the job, instead of that of the handler
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
            retry=retry,
            timeout=timeout,
        )
        if changed.unique is not None:
            self._handler.require_unique(changed.unique)
        return self._variant(changed)

    def _variant(self, options: SubmitOptions) -> Self:
        return type(self)(self._handler, self._function, self._source, options)

    def bind(self, **arguments: Any) -> BoundFollowUp:
        """Return a follow-up for `then=` with arguments of its own: `then=notify.bind(channel="mail")`.

        The first parameter that is not bound gets the result of the job before. If all parameters are bound, the
        result is not passed on. Raises `InvalidArguments` if an argument does not match the handler's signature.
        """
        return BoundFollowUp(self, arguments)

    def follow_up(self) -> FollowUp:
        """Return the description of this job as the follow-up job of another one, which names it in `then=`."""
        return describe_follow_up(self._handler, self._options, self._source.limits)

    def __repr__(self) -> str:
        return f"<JobFunction {self.name}>"


class BoundFollowUp:
    """A job function with some of its arguments, for `then=`. `JobFunction.bind` returns it."""

    def __init__(self, job: JobFunction[Any, Any], arguments: Mapping[str, Any]) -> None:
        job.handler.arguments.encode_some(arguments)
        self._job = job
        self._arguments = dict(arguments)

    def follow_up(self) -> FollowUp:
        """Return the description of the follow-up job, with its own arguments."""
        job = self._job
        return describe_follow_up(job.handler, job.chosen, job.source.limits, self._arguments)

    def __repr__(self) -> str:
        return f"<BoundFollowUp {self._job.name} with {', '.join(self._arguments)}>"


def _require_given(value: object, method: str, expected: str) -> None:
    if value is None:
        raise TypeError(f"{method}() needs {expected}, got None; leave {method}() out if the job is due at once")


class AsyncJobFunction(JobFunction[P, R]):
    """A decorated coroutine function. A call returns a coroutine; a job has the coroutine's result."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """Call the coroutine function directly, without a job."""
        return self._function(*args, **kwargs)  # type: ignore[no-any-return]


class BatchJobFunction(JobFunction[[T], Any], Generic[T, R]):
    """A decorated batch handler. A call takes the whole list; each job has one element of it as its argument."""

    def __call__(self, elements: list[T], /) -> R:  # type: ignore[override]
        """Call the batch handler directly with a list, without jobs."""
        return self._function(elements)  # type: ignore[arg-type,no-any-return]


class AsyncBatchJobFunction(BatchJobFunction[T, R]):
    """A decorated batch handler that is a coroutine function."""

    def __call__(self, elements: list[T], /) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """Call the coroutine function directly with a list, without jobs."""
        return self._function(elements)  # type: ignore[arg-type,no-any-return]


class BatchJobDecorator(Protocol):
    """The decorator that `@app.job(batch=...)` returns: it makes a job function whose jobs have one list element
    each.
    """

    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, R]], /
    ) -> AsyncBatchJobFunction[T, R]: ...

    @overload
    def __call__(self, function: Callable[[list[T]], R], /) -> BatchJobFunction[T, R]: ...


class JobDecorator(Protocol):
    """The decorator that `@app.job(...)` returns, for plain functions and coroutine functions."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJobFunction[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
