"""The decorators of an application: `@app.job`, `@app.cron`, `@app.every`, `@app.on_dead_letter`, worker hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from datetime import datetime
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from mainspring.clock import Duration
from mainspring.jobs.dead_letter_handlers import DeadLetterHandlers, annotate
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.handler_options import (
    DEFAULT_QUEUE,
    DEFAULT_RETRY,
    Execution,
    FollowingJob,
    HandlerOptions,
)
from mainspring.jobs.handlers import Handler, HandlerRegistry, default_name
from mainspring.jobs.ids import require_id
from mainspring.jobs.job_function import (
    AsyncBatchJobFunction,
    AsyncJobFunction,
    BatchJobDecorator,
    BatchJobFunction,
    JobDecorator,
    JobFunction,
)
from mainspring.jobs.limit_registry import LimitRegistry
from mainspring.jobs.peer_names import explains_options, missing_attribute, refuse_options
from mainspring.jobs.policies import CatchUp, Concurrency, Rate, Unique
from mainspring.jobs.recurrence.declared_schedules import DeclaredSchedules
from mainspring.jobs.remote_job import RemoteJobFunction, make_remote_handler
from mainspring.jobs.retry import Retry
from mainspring.jobs.serializers import Serializer
from mainspring.jobs.worker_hooks import WorkerHooks
from mainspring.runners.task import Priority

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from mainspring.jobs.recurrence.cron import Cron
    from mainspring.jobs.recurrence.rules import Every

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[[], Any])
JobT = TypeVar("JobT", bound=JobFunction[Any, Any])


def _with_options(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method with `**options` a signature that lists the fields of `HandlerOptions` instead, for
    `help()`.
    """
    *given, _options = signature(method).parameters.values()
    defaults, types = HandlerOptions(), HandlerOptions.__annotations__
    options = (
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(defaults, name), annotation=types[name])
        for name in HandlerOptions.__struct_fields__
    )
    method.__signature__ = Signature([*given, *options], return_annotation="JobDecorator")  # type: ignore[attr-defined]
    return method


class Decorators(ABC):
    """The base class of `Mainspring` with the decorators that register handlers and declare schedules."""

    serializer: Serializer

    def __init__(self) -> None:
        self.registry = HandlerRegistry()
        self.limits = LimitRegistry()
        self.declared = DeclaredSchedules(self.limits)
        self.worker_hooks = WorkerHooks()
        self.dead_letter_handlers = DeadLetterHandlers(self.registry)

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, of_jobs=False)

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJobFunction[P, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...

    @overload
    def job(
        self,
        /,
        *,
        batch: int,
        name: str | None = None,
        queue: str = ...,
        priority: Priority = ...,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        soft_timeout: Duration | None = None,
        execution: Execution | None = None,
        keep_result: bool | Duration = True,
        unique: str | Unique | None = None,
        rate: Rate | None = None,
        concurrency: Concurrency | None = None,
        expires: Duration | None = None,
        then: FollowingJob | None = None,
        sequence_by: str | tuple[str, ...] | None = None,
        at_most_once: bool = False,
        steps_aside: bool = False,
        search: str | tuple[str, ...] = (),
        redact: str | tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
    ) -> BatchJobDecorator: ...

    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = ...,
        priority: Priority = ...,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        soft_timeout: Duration | None = None,
        execution: Execution | None = None,
        keep_result: bool | Duration = True,
        unique: str | Unique | None = None,
        rate: Rate | None = None,
        concurrency: Concurrency | None = None,
        expires: Duration | None = None,
        then: FollowingJob | None = None,
        sequence_by: str | tuple[str, ...] | None = None,
        at_most_once: bool = False,
        steps_aside: bool = False,
        search: str | tuple[str, ...] = (),
        redact: str | tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
    ) -> JobDecorator: ...

    @_with_options
    def job(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
    ) -> Any:
        """Register a handler: `@app.job`, or `@app.job(queue="orders", retry=Retry(max_attempts=3))`.

        - `name`: the job type; None makes it of the module and the qualified name of the function
        - `queue`: the queue of the jobs; workers can be limited to some queues
        - `priority`: how urgent the jobs are; see `Priority`. Jobs that wait for long run before more urgent ones
        - `retry`: which exceptions retry a job, how often, and after which delays
        - `timeout`: how long an attempt may take; then the worker cancels a coroutine, kills a child process, or
          asks a function on a thread to stop, which cannot be killed
        - `soft_timeout`: after this time `current_job().cancelled` is True, so that the handler can clean up
          before its timeout
        - `execution`: `"process"` runs the handler in a child process, which can be killed; otherwise a function
          runs on a thread, and an `async def` function on the event loop
        - `keep_result`: whether the result is stored; a duration says how long after the end of the job it is
          kept, at most as long as the job itself
        - `unique`: a key, or a `Unique`: at most one job for each key
        - `rate`: how many jobs may start within a time, over all workers
        - `concurrency`: how many jobs may run at once, over all workers
        - `expires`: how long after its due time a job may still start; then it becomes a dead letter
        - `then`: the follow-up job, which is stored in the transaction that completes this job, with its result
        - `batch`: the largest number of jobs in one call of a batch handler, whose only parameter is a list
        - `sequence_by`: the parameters whose values make the sequence key; jobs with the same key run one after
          another, including jobs of other handlers with the same parameters and values
        - `at_most_once`: whether a job that has started is never started again, whatever happens to its worker; it
          becomes a dead letter instead, without retries
        - `steps_aside`: whether later jobs of its sequence go first while a job waits for a retry or after a
          snooze
        - `search`: the parameters by whose values jobs are indexed, for `app.jobs(arguments=...)`
        - `redact`: the parameters whose values are redacted everywhere except in the handler; jobs can be neither
          filtered nor searched by them, and they are stored unencrypted
        - `aliases`: earlier names of the handler; jobs that were submitted under them still run
        """
        if function is None:
            return lambda decorated: self._register(decorated, name, options)
        return self._register(function, name, options)

    def _register(
        self, function: Callable[..., Any], name: str | None, options: dict[str, Any]
    ) -> JobFunction[..., Any]:
        if not callable(function):
            raise TypeError(f"@app.job decorates a function, got {function!r}; options are given by keyword")
        if isinstance(function, JobFunction):  # its schedule would go on without these options
            raise TypeError(
                f"@app.job decorates a function, got the job function {function.name}; put @app.cron, @app.every "
                "and @app.on_dead_letter above @app.job(...), which belongs directly above the function"
            )
        known = set(HandlerOptions.__struct_fields__)
        if not options.keys() <= known:
            raise refuse_options("@app.job", options.keys() - known, known | {"name"})
        given = {key: value for key, value in options.items() if key != "retry" or value is not None}
        chosen = require_id(name, "name") if name is not None else default_name(function)
        handler = Handler(chosen, function, HandlerOptions(**given), self.serializer)
        self._require_possible(handler)
        self.registry.add(handler)
        self._handler_added()
        if handler.options.batch is not None:
            return (AsyncBatchJobFunction if handler.is_coroutine else BatchJobFunction)(
                handler, function, self._source()
            )
        return (AsyncJobFunction if handler.is_coroutine else JobFunction)(handler, function, self._source())

    @overload
    def remote_job(
        self,
        name: str,
        *,
        queue: str = ...,
        priority: Priority = ...,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        keep_result: bool | Duration = True,
        unique: str | Unique | None = None,
        rate: Rate | None = None,
        concurrency: Concurrency | None = None,
        expires: Duration | None = None,
        then: FollowingJob | None = None,
        sequence_by: str | tuple[str, ...] | None = None,
        at_most_once: bool = False,
        steps_aside: bool = False,
        search: str | tuple[str, ...] = (),
        redact: str | tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        signature: None = None,
    ) -> RemoteJobFunction[..., Any]: ...

    @overload
    def remote_job(
        self,
        name: str,
        *,
        queue: str = ...,
        priority: Priority = ...,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        keep_result: bool | Duration = True,
        unique: str | Unique | None = None,
        rate: Rate | None = None,
        concurrency: Concurrency | None = None,
        expires: Duration | None = None,
        then: FollowingJob | None = None,
        sequence_by: str | tuple[str, ...] | None = None,
        at_most_once: bool = False,
        steps_aside: bool = False,
        search: str | tuple[str, ...] = (),
        redact: str | tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        signature: Callable[P, R],
    ) -> RemoteJobFunction[P, R]: ...

    @explains_options
    def remote_job(
        self,
        name: str,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: Priority = Priority.USER_VISIBLE,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        keep_result: bool | Duration = True,
        unique: str | Unique | None = None,
        rate: Rate | None = None,
        concurrency: Concurrency | None = None,
        expires: Duration | None = None,
        then: FollowingJob | None = None,
        sequence_by: str | tuple[str, ...] | None = None,
        at_most_once: bool = False,
        steps_aside: bool = False,
        search: str | tuple[str, ...] = (),
        redact: str | tuple[str, ...] = (),
        aliases: tuple[str, ...] = (),
        signature: Callable[..., Any] | None = None,
    ) -> Any:
        """Declare a job type whose jobs remote workers run: `resize = app.remote_job("resize", queue="images")`.

        A remote worker is a program in any language that claims jobs over HTTP. Workers of the application do not
        take these jobs.

        - `name`: the job type
        - `queue`: the queue of the jobs
        - `priority`: the priority of the jobs
        - `retry`: the attempts and delays; None for the usual ones. `on` and `give_up_on` are refused, because the
          remote worker says which errors are not retried
        - `timeout`: how long an attempt may take; then the heartbeat of the worker is answered with a stop request
        - `keep_result`: whether results are stored, or for how long
        - `unique`: a key, or a `Unique`: at most one job with the same key
        - `rate`: how many jobs may start within a time
        - `concurrency`: how many jobs may run at once
        - `expires`: how long after its due time a job may still start
        - `then`: the follow-up job, which is stored in the transaction that completes a job
        - `sequence_by`: parameters; jobs with the same values run one after another
        - `at_most_once`: whether a job that has started is never started again
        - `steps_aside`: whether later jobs of a sequence run while a job waits for a retry or after a snooze
        - `search`: parameters whose values are indexed
        - `redact`: parameters whose values no list shows; the worker gets them
        - `aliases`: earlier names of the job type
        - `signature`: a function whose parameters are those of the jobs, so that submits are checked; it is never
          called. Without it, a submit takes any named arguments
        """
        options = HandlerOptions(
            queue=queue,
            priority=priority,
            retry=retry or DEFAULT_RETRY,
            timeout=timeout,
            keep_result=keep_result,
            unique=unique,
            rate=rate,
            concurrency=concurrency,
            expires=expires,
            then=then,
            sequence_by=sequence_by,
            at_most_once=at_most_once,
            steps_aside=steps_aside,
            search=search,
            redact=redact,
            aliases=aliases,
        )
        handler, function = make_remote_handler(name, signature, options, self.serializer)
        self._require_possible(handler)
        self.registry.add(handler)
        self._handler_added()
        return RemoteJobFunction(handler, function, self._source())

    @abstractmethod
    def _require_possible(self, handler: Handler) -> None:
        """Raise `ValueError` if a setting of the application rules out an option of this handler.

        An example is `at_most_once=` with `durability="normal"`.
        """

    @abstractmethod
    def _handler_added(self) -> None:
        """Tell a worker that already runs in this process of a newly registered handler."""

    @abstractmethod
    def _dead_letter_handler_added(self) -> None:
        """Store a new dead-letter handler at once, if the store is open."""

    @abstractmethod
    def _source(self) -> ManagerProvider:
        """Return the application itself: its job functions get the job manager from it."""

    @explains_options
    def cron(
        self,
        expression: str,
        *,
        tz: str | ZoneInfo = "UTC",
        misfire: Literal["skip", "once"] | CatchUp = "once",
        overlap: Literal["skip", "queue", "replace", "allow"] = "skip",
        dst_gap: Literal["auto", "shift", "skip"] = "auto",
        dst_fold: Literal["auto", "first", "second", "both"] = "auto",
        jitter: Duration = 0,
        start: datetime | None = None,
        end: datetime | None = None,
        name: str | None = None,
    ) -> JobDecorator:
        """Run a handler on a cron schedule: `@app.cron("0 2 * * *", tz="Asia/Taipei")`.

        Put it above `@app.job(...)` to give options to the handler. The schedule is stored when a worker starts.

        - `expression`: minute, hour, day of month, month and day of week, with seconds in front if there are six
          fields, or an alias such as `@daily`
        - `tz`: the time zone of the wall times, an IANA name or a `ZoneInfo`
        - `misfire`: what happens to occurrences that are found late: `"skip"` drops them, `"once"` runs the
          latest, `CatchUp(24)` runs the latest 24
        - `overlap`: what happens to an occurrence while a job of an earlier one has not ended: `"skip"` drops it,
          `"queue"` lets it wait, `"replace"` cancels the earlier job, `"allow"` runs both
        - `dst_gap`: what happens to a wall time that does not exist: `"shift"` moves it by the length of the gap,
          `"skip"` drops it, `"auto"` chooses as Debian's cron does
        - `dst_fold`: which of two equal wall times counts: `"first"`, `"second"` or `"both"`; `"auto"` chooses as
          Debian's cron does
        - `jitter`: each job is delayed by up to this long; all workers compute the same delay
        - `start`: the first instant at which an occurrence may be; None for no bound
        - `end`: the last instant at which an occurrence may be; None for no bound
        - `name`: the name of the schedule; None for the name of the handler
        """
        from mainspring.jobs.recurrence.cron import Cron  # noqa: PLC0415 - see `mainspring.public`

        rule = Cron(expression, tz=tz, dst_gap=dst_gap, dst_fold=dst_fold)
        return self._recur(rule, name, misfire=misfire, overlap=overlap, jitter=jitter, start=start, end=end)

    @explains_options
    def every(
        self,
        interval: Duration,
        *,
        misfire: Literal["skip", "once"] | CatchUp = "once",
        overlap: Literal["skip", "queue", "replace", "allow"] = "skip",
        jitter: Duration = 0,
        start: datetime | None = None,
        end: datetime | None = None,
        name: str | None = None,
    ) -> JobDecorator:
        """Run a handler at a fixed interval: `@app.every(timedelta(minutes=5))`.

        The schedule is stored when a worker starts.

        - `interval`: the time between two occurrences
        - `misfire`: what happens to occurrences that are found late: `"skip"` drops them, `"once"` runs the
          latest, `CatchUp(24)` runs the latest 24
        - `overlap`: what happens to an occurrence while a job of an earlier one has not ended: `"skip"` drops it,
          `"queue"` lets it wait, `"replace"` cancels the earlier job, `"allow"` runs both
        - `jitter`: each job is delayed by up to this long; all workers compute the same delay
        - `start`: the first instant at which an occurrence may be; None for no bound
        - `end`: the last instant at which an occurrence may be; None for no bound
        - `name`: the name of the schedule; None for the name of the handler
        """
        from mainspring.jobs.recurrence.rules import Every  # noqa: PLC0415 - see `mainspring.public`

        rule = Every(interval)
        return self._recur(rule, name, misfire=misfire, overlap=overlap, jitter=jitter, start=start, end=end)

    @overload
    def on_dead_letter(self, function: JobT, /) -> JobT: ...

    @overload
    def on_dead_letter(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJobFunction[P, R]: ...

    @overload
    def on_dead_letter(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...

    def on_dead_letter(self, function: Callable[..., Any], /) -> Any:
        """Run a handler for each dead letter, as a job of its own: `def alert(letter: DeadLetter)`.

        The engine stores this job in the transaction that makes the other job a dead letter, so that none is
        missed. Put it above `@app.job(...)` to give options to the handler. The dead letters of the handler
        itself, and of jobs that it submits, make no further jobs. The handler is stored when a worker starts; at
        once if this process has the store open.
        """
        if not isinstance(function, JobFunction):
            if callable(function):
                annotate(function)
            function = self._register(function, None, {})
        self.dead_letter_handlers.add(function)
        self._dead_letter_handler_added()
        return function

    def on_worker_start(self, function: F, /) -> F:
        """Run a function (not a coroutine function) when a worker of this application starts, before it fetches
        its first job.

        The function runs in the process of the worker, once for each start. If it raises an exception, the worker
        does not start, and `app.run()` or `app.running()` raises that exception.
        """
        return self.worker_hooks.add_start(function)

    def on_worker_stop(self, function: F, /) -> F:
        """Run a function (not a coroutine function) when a worker of this application stops, after its last
        handler has ended.

        A handler on a thread that outlives the grace period may still run. An exception is logged. If a process
        dies without a shutdown, its stop functions do not run.
        """
        return self.worker_hooks.add_stop(function)

    def _recur(self, rule: Cron | Every, name: str | None, **policies: Any) -> JobDecorator:
        def decorate(function: Callable[..., Any]) -> Any:
            job = function if isinstance(function, JobFunction) else self._register(function, None, {})
            self.declared.add(job.name if name is None else require_id(name, "name"), job, rule, **policies)
            return job

        return decorate
