"""The application class: `Mainspring(url)` connects the engine, the runners and the job manager.

The first use opens them. A forked child opens its own, and does not touch the threads and connections of its
parent.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import UNSET, UnsetType

from mainspring.callbacks.http_jobs import HttpJobs
from mainspring.clock import Clock, Duration, SystemClock, to_nanoseconds
from mainspring.engines.registry import EngineConfig, check_url, provider_for
from mainspring.errors import MissingExtra
from mainspring.jobs.activity import MAX_PAIRS
from mainspring.jobs.audit import AuditEntry, AuditQuery
from mainspring.jobs.dead_letters import DeadLetters
from mainspring.jobs.decorators import Decorators
from mainspring.jobs.engine import Engine
from mainspring.jobs.handle import JobHandle, open_manager
from mainspring.jobs.handlers import Handler
from mainspring.jobs.info import JobInfo, JobPage
from mainspring.jobs.manager import DEFAULT_COROUTINES, DEFAULT_GRACE, DEFAULT_STALL, JobManager
from mainspring.jobs.middleware import Middleware, Middlewares
from mainspring.jobs.off_loop import OffLoop, async_twin
from mainspring.jobs.policies import Concurrency, Keep, ProcessSettings, Rate
from mainspring.jobs.processes.application import ChildSetup, identify, worker_url
from mainspring.jobs.projection import Projection
from mainspring.jobs.queues import Queue, queue_names, require_queues
from mainspring.jobs.serializers import PlainSerializer, Serializer, make_serializer
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submission import MAX_PAYLOAD
from mainspring.jobs.worker.stop_report import PATIENCE_FOR_ANSWERS
from mainspring.runners.thread_pool import ThreadPool
from mainspring.runners.validation import require_instance, require_positive
from mainspring.security.keys import KeyRing
from mainspring.store_url import CONFLICT_REMEDY, StoreChoice, UrlSource, choose_store

if TYPE_CHECKING:
    from mainspring.callbacks.policy import CallbackPolicy
    from mainspring.engines.nats import NatsSettings
    from mainspring.jobs.activity_rows import ActivityRow
    from mainspring.jobs.event_stream import EventStream
    from mainspring.jobs.explanation import Explanation
    from mainspring.jobs.recurrence.schedules import Schedules
    from mainspring.jobs.signing import JobSigner
    from mainspring.jobs.statistics import Statistics
    from mainspring.jobs.tokens import Tokens
    from mainspring.jobs.worker_status import WorkerStatus
    from mainspring.security.asgi_types import AsgiApp, Auth
    from mainspring.security.http_limits import HttpLimits

MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)

DEFAULT_THREADS = 8

logger = logging.getLogger("mainspring.app")


class Runtime:
    """The engine, the thread pools and the job manager that an application has open in one process."""

    def __init__(self, app: Mainspring, engine: Engine, clock: Clock, *, virtual_time: bool = False) -> None:
        self.process = os.getpid()
        self.engine = engine
        self._control = ThreadPool(1, name="mainspring-control", clock=clock)
        self._io = ThreadPool(1, name="mainspring-io", clock=clock)
        self._execution = ThreadPool(app.threads, name="mainspring-jobs", clock=clock)
        try:
            self.manager = self._make_manager(app, virtual_time=virtual_time)
        except BaseException:
            self._shutdown_pools()
            raise

    def _make_manager(self, app: Mainspring, *, virtual_time: bool) -> JobManager:
        return JobManager(
            control=self._control.sequenced(name="control"),
            io=self._io,
            execution=self._execution,
            engine=self.engine,
            serializer=app.serializer,
            registry=app.registry,
            limits=app.limits,
            middlewares=app.middlewares,
            coroutines=app.coroutines,
            processes=app.processes,
            child_setup=app.child_setup(),
            queues=app.queues,
            keep=app.keep,
            stall_after=app.stall_after,
            before_start=app.store_declarations,
            declared_schedules=app.declared,
            worker_hooks=app.worker_hooks,
            max_payload=app.max_payload,
            virtual_time=virtual_time,
            off_loop=app.off_loop,
            pools=(self._control, self._io, self._execution),
            activity_pairs=app.activity_pairs,
            signer=_make_signer(app.signing, self.engine),
        )

    def close(self, grace: Duration) -> None:
        """Stop the worker, if it runs, with `grace` for its handlers; shut down the pools and close the engine."""
        try:
            self.manager.shutdown(grace)
        finally:
            self._shutdown_pools()
            self.manager.close(0)

    def _shutdown_pools(self) -> None:
        self._execution.shutdown(timeout=0)
        self._control.shutdown(timeout=PATIENCE_FOR_ANSWERS)
        self._io.shutdown(timeout=PATIENCE_FOR_ANSWERS)


class Mainspring(Decorators, HttpJobs):
    """An application: its handlers, and the store that keeps their jobs.

    `Mainspring("sqlite:///orders.db")`, `"sqlite:////absolute/path.db"` and `"memory://"` name the store.
    `?timeout=5` after the path of a file lets a call wait 5 seconds for other processes that write, instead of 30.
    `"nats://host:4222"`, with commas between several servers, keeps jobs on NATS JetStream for any number of
    machines; `nats=` sets the credentials. Without a URL, the environment variable `MAINSPRING_URL` names the
    store, else `url` in `[tool.mainspring]` of `pyproject.toml`; else it is `mainspring.db` in the working folder.

    - `url`: the URL of the store
    - `include`: names of modules with handlers, which are imported before a worker starts
    - `serializer`: the encoding of arguments and results, `"json"`, `"msgpack"`, or a serializer of your own: an
      object with `name`, `encode(data)` and `decode(data)`
    - `threads`: how many handlers a worker of this application runs at once on threads
    - `coroutines`: how many `async def` handlers a worker runs at once
    - `processes`: how many child processes a worker has for `execution="process"`, or a `ProcessSettings`; None
      for one for each processor
    - `queues`: the queues that workers of this application serve; None for all
    - `durability`: `"full"` syncs each commit to the disk, so that a submitted job survives a power failure;
      `"normal"` is faster, and a power failure may lose the last jobs (SQLite)
    - `grace`: how long a stopping worker waits for running handlers
    - `stall_after`: after this time without a claim of a due job, a worker logs an error and is unhealthy; 0 turns
      this off
    - `keep`: how long ended jobs are kept; None for the defaults of `Keep`
    - `max_payload`: the largest size of encoded arguments or of a result, in bytes
    - `activity_pairs`: how many pairs of queue and type this process counts separately, for `activity()` and for
      metrics; further pairs are counted together as `other`; 0 counts nothing
    - `signing`: the keys that sign and verify jobs; None if jobs are not signed. A worker then runs only jobs with
      a right signature
    - `nats`: the settings of the NATS engine; None for their defaults
    - `callbacks`: which URLs jobs may call, and with which secrets; None allows no callbacks
    - `clock`: the clock of the application, such as a `ManualClock` in tests; None for the system's clock
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        include: list[str] | tuple[str, ...] = (),
        serializer: Literal["json", "msgpack"] | PlainSerializer | Serializer = "json",
        threads: int = DEFAULT_THREADS,
        coroutines: int = DEFAULT_COROUTINES,
        processes: int | ProcessSettings | None = None,
        queues: list[str] | tuple[str, ...] | None = None,
        durability: Literal["full", "normal"] = "full",
        grace: Duration = DEFAULT_GRACE,
        stall_after: Duration = DEFAULT_STALL,
        keep: Keep | None = None,
        max_payload: int = MAX_PAYLOAD,
        activity_pairs: int = MAX_PAIRS,
        signing: KeyRing | None = None,
        nats: NatsSettings | None = None,
        callbacks: CallbackPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.serializer: Serializer = make_serializer(serializer)
        if durability not in ("full", "normal"):
            raise ValueError(f"durability must be 'full' or 'normal', got {durability!r}")
        for name, duration in (("grace", grace), ("stall_after", stall_after)):
            to_nanoseconds(duration, name)
        require_positive(threads, "threads", "threads")
        require_positive(coroutines, "coroutines", "coroutines at once")
        require_positive(max_payload, "max_payload", "bytes")
        self._id = identify(self)
        self.module = self._id.module
        """The module that child processes import first: where the application was created, or that of `--app`."""
        self._choice = choose_store(url, os.environ, Path.cwd())
        self.url = self._choice.url
        self._import_engine()
        self.threads = threads
        self.coroutines = coroutines
        self.queues = require_queues(queues)
        self.durability: Literal["full", "normal"] = durability
        self.max_payload = max_payload
        self.activity_pairs = activity_pairs and require_positive(
            activity_pairs, "activity_pairs", "pairs of queue and type"
        )
        if isinstance(processes, int):
            processes = ProcessSettings(count=require_positive(processes, "processes", "processes"))
        self.processes = require_instance(
            processes or ProcessSettings(), ProcessSettings, "processes", "ProcessSettings(count=2)"
        )
        self.keep = require_instance(keep or Keep(), Keep, "keep", "Keep(completed=timedelta(days=1))")
        self.signing = _require_ring(signing)
        self.middlewares = Middlewares()
        self.dead_letters = DeadLetters(self)
        self.grace = grace
        self.stall_after = stall_after
        self.nats = None if nats is None else _require_nats_settings(nats)
        self._include = tuple(include)
        self._clock = clock or SystemClock()
        self._use_callbacks(callbacks, self._clock)
        self._off_loop = OffLoop()
        self._lock = RLock()  # guards the following attributes
        self._runtime: Runtime | None = None
        self._abandoned: list[Runtime | OffLoop] = []
        _forget_after_fork(self)

    _has_warned = False  # whether a warning said that the code and the environment name different stores

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of the store: `app.schedules.put(...)`, `list()`, `pause(...)`."""
        from mainspring.jobs.recurrence.schedules import Schedules  # noqa: PLC0415 - see `mainspring.public`

        return Schedules(self, self.declared)

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens of the HTTP server: `app.tokens.create(...)`, `list()`, `revoke(...)`."""
        from mainspring.jobs.tokens import Tokens  # noqa: PLC0415 - see `mainspring.public`

        return Tokens(self)

    def _source(self) -> Mainspring:
        return self

    def _require_possible(self, handler: Handler) -> None:
        if handler.options.at_most_once and self.durability == "normal":
            raise ValueError(
                f"handler {handler.name!r} has at_most_once=True, but with Mainspring(durability='normal') a "
                "power failure may lose the stored start of a job, and the job would start again; use "
                "durability='full', or leave at_most_once= out"
            )

    def _handler_added(self) -> None:
        if self.is_open:
            self.manager().announce_handlers()

    def _dead_letter_handler_added(self) -> None:
        if self.is_open:
            self.dead_letter_handlers.store(self.manager())

    def store_declarations(self, manager: JobManager) -> None:
        """Store the schedules and dead-letter handlers that the code declares. A worker does this at its start."""
        self.declared.store(manager)
        self.dead_letter_handlers.store(manager)

    def middleware(self, middleware: MiddlewareT) -> MiddlewareT:
        """Add a middleware and return it. It runs inside of those added before: `app.middleware(Tracing())`."""
        self.middlewares.add(middleware)
        return middleware

    def queue(
        self,
        name: str,
        *,
        concurrency: Concurrency | None = None,
        rate: Rate | None = None,
        max_depth: int | UnsetType | None = UNSET,
        submit_rate: Rate | UnsetType | None = UNSET,
    ) -> Queue:
        """Return a queue, to pause, drain or count it, and declare the limits and quotas that are given.

        Limits are declared for all workers. A worker stores them when it starts. Quotas are declared for all
        processes: a submit beyond one raises `LimitExceeded`. A quota stays in the store until it is declared as
        None.

        - `name`: the name of the queue
        - `concurrency`: how many jobs of the queue may run at once, over all workers
        - `rate`: how many jobs of the queue may start within a time, over all workers
        - `max_depth`: how many jobs of the queue may be pending, including those that are due later
        - `submit_rate`: how many jobs may be submitted to the queue within a time
        """
        queue = Queue(name, self)
        if concurrency is not None or rate is not None:
            self.limits.limit_queue(name, concurrency, rate)
        if max_depth is not UNSET:
            self.limits.set_max_depth(name, max_depth)
        if submit_rate is not UNSET:
            self.limits.set_submit_rate(name, submit_rate)
        return queue

    def all_queues(self) -> list[Queue]:
        """List, by name, the queues that jobs, handlers or schedules use, and those with a quota or a pause."""
        return [Queue(name, self) for name in queue_names(self.manager())]

    all_queues_async = async_twin(all_queues)

    # -- jobs

    def get(self, job_id: str) -> JobInfo:
        """Return a snapshot of a job; raise `JobNotFound` if there is none with this id."""
        return self.manager().get(job_id)

    get_async = async_twin(get)

    def handle(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job, to wait for the job, read its result or cancel it.

        Raises `JobNotFound` if there is no job with this id.
        """
        record = self.manager().record(job_id)
        handler = self.registry.get(record.type) if record.type in self.registry else None
        return JobHandle(record.id, handler, self)

    handle_async = async_twin(handle)

    def jobs(
        self,
        *,
        status: JobStatus | str | None = None,
        queue: str | None = None,
        type: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        text: str | None = None,
        newest_first: bool = False,
        limit: int = 50,
        after: str | None = None,
    ) -> JobPage:
        """Return a page of jobs in the order of submission, or newest first.

        `since` and `until` limit the time of the submit: at `since` or later, and before `until`; a timedelta
        means that long ago. `arguments` are values that the stored arguments have, as in
        `arguments={"order_id": 42}`. `text` is a part of the id, the job type, the arguments or the error; upper
        and lower case do not matter. A search by arguments or text reads at most 10,000 jobs for a page; if it
        stopped early, `page.is_complete` is False. `after=page.next` returns the next page.
        """
        return self.manager().list(
            status=status,
            queue=queue,
            type=type,
            arguments=arguments,
            since=since,
            until=until,
            text=text,
            limit=limit,
            after=after,
            newest_first=newest_first,
        )

    jobs_async = async_twin(jobs)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[str, int]:
        """Count all jobs of the store by status, or only those of a queue or a type.

        FAILED counts the dead letters: jobs that failed and were not replayed.
        """
        return self.manager().counts(queue=queue, type=type)

    counts_async = async_twin(counts)

    def cancel(self, job_id: str, *, timeout: Duration | None = None) -> bool:
        """Cancel a job. Return True if it will not run any more, and False if it is RUNNING or has ended.

        A RUNNING job is asked to stop, and is not retried if its attempt fails. If its handler has not begun and
        the worker hands it back, it is CANCELED then. The call returns when the store has committed the cancel.
        Raises `JobNotFound` if there is no job with this id. After `timeout` it raises `TimeoutError`; the request
        stays queued and may still take effect.
        """
        return self.manager().cancel(job_id, timeout=timeout)

    async def cancel_async(self, job_id: str, *, timeout: Duration | None = None) -> bool:
        """Cancel a job as `cancel` does, without blocking the event loop."""
        return await (await open_manager(self)).cancel_async(job_id, timeout=timeout)

    def reschedule(self, job_id: str, *, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Make a PENDING job due after `delay`, or at `at`; return False if it is RUNNING or has ended.

        Without `delay` and `at`, the job is due now. Raises `JobNotFound` if there is no job with this id.
        """
        return self.manager().reschedule(job_id, delay=delay, at=at)

    async def reschedule_async(
        self, job_id: str, *, delay: Duration | None = None, at: datetime | None = None
    ) -> bool:
        """Change the due time of a job as `reschedule` does, without blocking the event loop."""
        return await (await open_manager(self)).reschedule_async(job_id, delay=delay, at=at)

    def run_now(self, job_id: str) -> bool:
        """Make a pending job due now, also one that waits for a retry; return False if it has started or ended.

        A job that is due starts when a worker has a free slot, unless its queue is paused, or a limit or its
        sequence holds it back: see `explain`. If it is a callback whose receiver is paused, the pause is lifted.
        Raises `JobNotFound` if there is no job with this id.
        """
        return self.manager().run_now(job_id)

    run_now_async = async_twin(run_now, writes=True)

    def explain(self, job_id: str) -> Explanation:
        """Explain in plain words why a job has its status, and what would change it.

        Raises `JobNotFound` if there is no job with this id.
        """
        return self.manager().explain(job_id)

    explain_async = async_twin(explain)

    def remove_redaction(self, type: str) -> bool:
        """Show the arguments of a job type again, after `redact=` was removed from its handler.

        The names of redacted parameters stay in the store until this call, so that a process with code from before
        `redact=` was added cannot show secrets. Return False if no parameters of this type are redacted. Raises
        `ValueError` if a handler in this process still has `redact=` for this type.
        """
        return self.manager().remove_redaction(type)

    remove_redaction_async = async_twin(remove_redaction, writes=True)

    def workers(self) -> list[WorkerStatus]:
        """List the workers of the store, in all processes and on all machines, sorted by number.

        A worker that has died stays in the list until another worker has rescued its jobs.
        """
        return self.manager().workers()

    workers_async = async_twin(workers)

    def statistics(self) -> Statistics:
        """Return a snapshot of the store and of this process.

        It counts due, blocked, scheduled and running jobs and dead letters, by queue and job type, in a few
        milliseconds: above 10,000 jobs of a kind, a count may be too small, and `is_exact` is False. On NATS it
        needs the projection: see docs/nats.md. It also has the slots, timers and pools of this process.
        """
        return self.manager().statistics()

    statistics_async = async_twin(statistics)

    def events(self, *, timeout: Duration | None = None) -> EventStream:
        """Return a stream of job events of all processes, from now on: iterate with `for` or `async for`.

        The iteration ends `timeout` after this call; without one, it ends only when the stream is stopped.
        """
        return self.manager().events(timeout)

    events_async = async_twin(events, writes=True)

    def activity(
        self,
        *,
        since: datetime | timedelta = timedelta(hours=6),
        until: datetime | timedelta | None = None,
    ) -> list[ActivityRow]:
        """Return what all processes did: a row for each minute (or hour), queue and type, ordered by time.

        A row counts submitted jobs, attempts by outcome and retries, and has histograms of lateness and duration.
        It covers a minute for the last two days, and an hour for older times, up to 30 days: see
        `ActivityRow.length`. There are no rows without activity. Other processes add their counts within 15
        seconds.

        - `since`: an aware datetime, or a positive timedelta: `timedelta(hours=6)` is six hours ago. The whole
          minute or hour of this instant is included.
        - `until`: the end, in the same form; None for now
        """
        return self.manager().activity(since, until)

    activity_async = async_twin(activity, writes=True)

    def audit(
        self,
        limit: int = 50,
        *,
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        actor: str | None = None,
        action: str | None = None,
        job: str | None = None,
    ) -> list[AuditEntry]:
        """List the audit trail, the latest entry first: who changed jobs, queues, schedules and tokens.

        The command line, HTTP servers and blocks of `acting_as` make entries. The store keeps as many as `keep`
        says: by default those of 90 days, and at most 10,000.

        - `limit`: the largest number of entries
        - `since`: only entries from this time on: an aware datetime, or a timedelta before now
        - `until`: only entries before this time, in the same form
        - `actor`: the name of an actor, with or without its host, or the id of a token
        - `action`: an action, such as `"job.cancel"`, or a kind of them, such as `"queue"`
        - `job`: the id of a job; an entry about more than a hundred jobs is found by the first hundred only
        """
        manager = self.manager()
        now, filters = manager.engine.now(), {"actor": actor, "action": action, "job": job}
        return manager.audit(AuditQuery.of(now, limit, since=since, until=until, **filters))

    audit_async = async_twin(audit)

    def prune(self) -> int:
        """Delete the ended jobs that `keep` no longer allows, and return their number.

        Old results and audit entries are deleted, too, and not counted. Workers also do this regularly.
        """
        return self.manager().prune()

    prune_async = async_twin(prune, writes=True)

    def retry(self, job_id: str) -> None:
        """Make a dead letter PENDING again, due now, as the same job; raise `InvalidTransition` for any other job.

        Also raises it if an unended job has the unique key of the dead letter, and `JobNotFound` if there is no
        job with this id.
        """
        self.manager().retry(job_id)

    async def retry_async(self, job_id: str) -> None:
        """Run a dead letter again as `retry` does, without blocking the event loop."""
        await (await open_manager(self)).retry_async(job_id)

    def backup(self, path: str) -> None:
        """Write a consistent copy of the store to a new file. Workers and callers continue meanwhile.

        Raises `FileExistsError` if the file exists, and `EngineUnavailable` if it cannot be written, or if the
        engine makes no backups (NATS, memory).
        """
        self.manager().engine.backup(path)

    backup_async = async_twin(backup, writes=True)

    # -- running

    @contextmanager
    def running(self) -> Iterator[Mainspring]:
        """Import the handlers of `include`, and run a worker in this process until the end of the `with` block.

        Several processes may do this at once. Raises `RuntimeError` if a worker of this application runs in this
        process already.
        """
        self.load_handlers()
        manager = self.manager()
        manager.start()
        process = os.getpid()
        try:
            yield self
        finally:
            if os.getpid() == process:  # in a forked child, the worker belongs to the parent
                manager.shutdown(self.grace)

    @asynccontextmanager
    async def running_async(self) -> AsyncIterator[Mainspring]:
        """Run a worker as `running` does, until the end of the `async with` block; do not block the event loop."""
        worker = self.running()
        start = self._off_loop.submit(worker.__enter__, writes=True)
        try:
            await self._off_loop.result(start)
        except BaseException:
            start.add_done_callback(partial(self._stop_unwanted, worker))
            raise
        try:
            yield self
        finally:
            await self._off_loop.write(worker.__exit__, None, None, None)

    def _stop_unwanted(self, worker: AbstractContextManager[Mainspring], start: Future[Mainspring]) -> None:
        """Stop the worker of `running_async` if it has started although the caller canceled the start."""
        if not start.cancelled() and start.exception() is None:
            self._off_loop.submit(partial(worker.__exit__, None, None, None), writes=True)

    def find_missing_file(self) -> Path | None:
        """Return the path of the store's file if it is relative and the first use of the store would create it.

        Return None if the file exists, the path is absolute, the store is open or the store is not a file.
        """
        path = None if self.is_open else provider_for(self.url).missing_file(self.url)
        return None if path is None or path.is_absolute() else path

    def run(self) -> None:
        """Run a worker in the foreground until SIGTERM or SIGINT; a second signal ends the wait for handlers."""
        from mainspring.foreground.foreground import Foreground  # noqa: PLC0415 - most processes never call this

        Foreground(self, environment=os.environ).run()

    def asgi(
        self,
        *,
        auth: Auth | None = None,
        hosts: list[str] | tuple[str, ...] | None = None,
        store_metrics: bool = False,
        limits: HttpLimits | None = None,
        read_only: bool = False,
    ) -> AsgiApp:
        """Return an ASGI application with the dashboard and the HTTP API, to be mounted anywhere.

        It needs the extra `web`. Without `auth` it is closed: only `/healthz` and `/readyz` answer. It works
        without the lifespan protocol.

        - `auth`: `"tokens"` admits the tokens of the store, see `app.tokens`; a function gets the ASGI scope of a
          request and returns the `Identity` of its caller, or None; it may be a coroutine function
        - `hosts`: the host names of the server; other values of the `Host` header are refused. None accepts all,
          for a server that checks them itself
        - `store_metrics`: whether `/metrics` has the metrics of the store, too
        - `limits`: the largest sizes and the longest times of a request; None for the defaults of `HttpLimits`
        - `read_only`: refuse every request that would change something; pages show no actions
        """
        try:
            module = import_module("mainspring.web.asgi")  # a process without a server imports no web framework
        except ModuleNotFoundError as error:
            raise MissingExtra(feature="app.asgi()", extra="web") from error
        make: Callable[..., AsgiApp] = module.make_asgi
        return make(self, auth=auth, hosts=hosts, store_metrics=store_metrics, limits=limits, read_only=read_only)

    def load_handlers(self) -> None:
        """Import the modules that `include` names, so that their handlers are registered."""
        for module in self._include:
            import_module(module)

    @property
    def off_loop(self) -> OffLoop:
        """The threads on which asynchronous calls wait for the store."""
        return self._off_loop

    @property
    def is_open(self) -> bool:
        """Whether this process has the store open."""
        return self._runtime is not None and self._runtime.process == os.getpid()

    @property
    def store_choice(self) -> StoreChoice:
        """The URL of the store and the place that names it, such as the code or the option `--url`."""
        return self._choice if self.url == self._choice.url else StoreChoice(self.url, UrlSource.OPTION)

    def use_store(self, url: str) -> None:
        """Use another store, before the first use; raise `EngineUnavailable` if no engine serves the URL."""
        self.url = check_url(url)
        self._choice = StoreChoice(url, UrlSource.OPTION)
        self._import_engine()

    def child_setup(self) -> ChildSetup:
        """Describe this application and its store for child processes of a worker."""
        url = provider_for(self.url).resolve(self.url, Path.cwd())
        return ChildSetup(module=self.module, application=self._id, url=url)

    def manager(self) -> JobManager:
        """Return the job manager of this process; the first call opens the store and creates the manager."""
        runtime = self._runtime
        if runtime is None or runtime.process != os.getpid():
            with self._lock:
                if self._runtime is None:
                    self._prepare_store()
                    self._runtime = Runtime(self, self.make_engine(self._clock), self._clock)
                runtime = self._runtime
        return runtime.manager

    def manager_if_open(self) -> JobManager | None:
        """Return the job manager if this process has the store open; else None."""
        runtime = self._runtime
        return None if runtime is None or runtime.process != os.getpid() else runtime.manager

    def _prepare_store(self) -> None:
        """In a child of a worker, use its store; else warn once if code and `MAINSPRING_URL` name two stores."""
        of_worker = worker_url(self._id)
        if of_worker is not None:
            self.url = of_worker
            self._choice = StoreChoice(of_worker, UrlSource.WORKER)
            self._import_engine()
            return
        conflict = self.store_choice.conflict
        if conflict is not None and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the store in the code is used, not that of MAINSPRING_URL: %s; to end this warning, %s",
                conflict,
                CONFLICT_REMEDY,
            )

    def make_engine(self, clock: Clock, *, read_only: bool = False) -> Engine:
        """Create the engine for the URL of the store. With `read_only`, a NATS engine creates no streams."""
        config = EngineConfig(
            url=self.url,
            clock=clock,
            durability=self.durability,
            retention=self.keep.retention(),
            settings=self.nats,
            make_projection=_make_projection,
            read_only=read_only,
        )
        return provider_for(self.url).make_engine(config)

    def _import_engine(self) -> None:
        provider = provider_for(self.url)
        provider.import_engine()
        if provider.needs_projection:
            import_module("mainspring.engines.sqlite.projection")

    def close(self) -> None:
        """Stop the worker, if it runs, and close the store. The next use opens the store again.

        No job is lost if a process ends without this call.
        """
        with self._lock:
            runtime, self._runtime = self._runtime, None
        try:
            if runtime is not None:
                runtime.close(self.grace)
        finally:
            self._off_loop.close()

    close_async = async_twin(close, writes=True)

    def exchange_runtime(self, runtime: Runtime | None) -> Runtime | None:
        """Replace the open runtime (engine, pools, manager) and return the previous one, which is not closed.

        None stands for no open runtime. Only the test kit uses this.
        """
        with self._lock:
            before, self._runtime = self._runtime, runtime
            return before

    def __enter__(self) -> Mainspring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Mainspring:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        return f"Mainspring({provider_for(self.url).public_url(self.url)!r})"

    def forget_after_fork(self) -> None:
        """Drop the parent's runtime in a forked child, without touching its threads, locks and connections."""
        self._lock = RLock()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._abandoned.append(runtime)  # kept, because collecting it would end threads that do not exist here
        self._abandoned.append(self._off_loop)
        self._off_loop = OffLoop()


def _require_ring(signing: object) -> KeyRing | None:
    if signing is None:
        return None
    return require_instance(signing, KeyRing, "signing", "KeyRing.from_file('keys.toml')")


def _make_signer(ring: KeyRing | None, engine: Engine) -> JobSigner | None:
    if ring is None:
        return None
    from mainspring.jobs.signing import JobSigner  # noqa: PLC0415 - most applications do not sign jobs

    signer = JobSigner(ring, engine.now)
    engine.sign_letters(signer.sign_letter)
    return signer


def _make_projection(name: str) -> Projection:
    """Open the local projection of a remote store; `name` is a path, or a file name in the user's cache."""
    from mainspring.engines.sqlite.projection import SqliteProjection  # noqa: PLC0415 - see _import_engine

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mainspring"
    path = Path(name) if os.sep in name else folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return SqliteProjection(path)


def _forget_after_fork(app: Mainspring) -> None:
    reference = weakref.ref(app)

    def forget() -> None:
        alive = reference()
        if alive is not None:
            alive.forget_after_fork()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


def _require_nats_settings(nats: object) -> NatsSettings:
    from mainspring.engines.nats import NatsSettings  # noqa: PLC0415 - an application imports only its own engine

    return require_instance(nats, NatsSettings, "nats", "NatsSettings(prefix='shop')")
