"""The composition root: `Mainspring(url)` puts engine, runners and job manager together.

Nothing is opened before the first use. A forked child leaves what belongs to its parent alone and opens its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from threading import RLock
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

from mainspring.clock import Clock, Duration, SystemClock, to_nanoseconds
from mainspring.engines.memory import MemoryEngine
from mainspring.engines.sqlite import SqliteEngine
from mainspring.errors import EngineUnavailable
from mainspring.foreground import Foreground
from mainspring.jobs.dead_letters import DeadLetters
from mainspring.jobs.engine import Engine
from mainspring.jobs.handle import JobHandle
from mainspring.jobs.handlers import Handler, HandlerOptions, Registry, default_name
from mainspring.jobs.ids import require_id
from mainspring.jobs.info import JobInfo, JobPage
from mainspring.jobs.job import AsyncJob, Decorator, Job
from mainspring.jobs.manager import DEFAULT_COROUTINES, DEFAULT_GRACE, JobManager
from mainspring.jobs.retry import Retry
from mainspring.jobs.serializers import SERIALIZERS, JsonSerializer, MsgpackSerializer
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submission import MAX_PAYLOAD
from mainspring.runners.checks import require_positive
from mainspring.runners.thread_pool import ThreadPool
from mainspring.runners.traits import Priority

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_URL = "sqlite:///mainspring.db"
DEFAULT_THREADS = 8


class Runtime:
    """What an application has open in one process."""

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
            coroutines=app.coroutines,
            queues=app.queues,
            max_payload=app.max_payload,
            virtual_time=virtual_time,
        )

    def close(self, grace: Duration) -> None:
        """Stop the worker, if there is one, and give everything back."""
        self.manager.shutdown(grace)
        self._shutdown_pools()
        self.engine.close()

    def _shutdown_pools(self) -> None:
        self._execution.shutdown(timeout=0)
        self._control.shutdown()
        self._io.shutdown()


class Mainspring:
    """An application: handlers, and where their jobs live.

    `Mainspring()` keeps jobs in `mainspring.db` in the working directory; `Mainspring("sqlite:///orders.db")`,
    `"sqlite:////absolute/path.db"` and `"memory://"` say otherwise.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        include: list[str] | tuple[str, ...] = (),
        serializer: Literal["json", "msgpack"] = "json",
        threads: int = DEFAULT_THREADS,
        coroutines: int = DEFAULT_COROUTINES,
        queues: list[str] | tuple[str, ...] | None = None,
        durability: Literal["full", "normal"] = "full",
        grace: Duration = DEFAULT_GRACE,
        max_payload: int = MAX_PAYLOAD,
        clock: Clock | None = None,
    ) -> None:
        if serializer not in SERIALIZERS:
            raise ValueError(f"serializer must be one of {', '.join(SERIALIZERS)}, got {serializer!r}")
        if durability not in ("full", "normal"):
            raise ValueError(f"durability must be 'full' or 'normal', got {durability!r}")
        to_nanoseconds(grace, "grace")
        require_positive(threads, "threads", "threads")
        require_positive(coroutines, "coroutines", "coroutines at once")
        require_positive(max_payload, "max_payload", "bytes")
        self.url = url
        self.threads = threads
        self.coroutines = coroutines
        self.queues = _require_names(queues)
        self.durability: Literal["full", "normal"] = durability
        self.max_payload = max_payload
        self.serializer: JsonSerializer | MsgpackSerializer = SERIALIZERS[serializer]()
        self.registry = Registry()
        self.dead_letters = DeadLetters(self)
        self.grace = grace
        self._include = tuple(include)
        self._clock = clock or SystemClock()
        _check_url(url)
        self._lock = RLock()  # guards what follows
        self._runtime: Runtime | None = None
        self._abandoned: list[Runtime] = []
        _forget_after_fork(self)

    # -- handlers

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncJob[P, R]: ...

    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...

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
        keep_result: bool = True,
        aliases: tuple[str, ...] = (),
    ) -> Decorator: ...

    def job(
        self, function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
    ) -> Any:
        """Register a handler: `@app.job`, or `@app.job(queue="orders", retry=Retry(max_attempts=3))`.

        `aliases` are earlier names of it, so that jobs submitted before a rename still find it.
        """
        if function is None:
            return lambda decorated: self._register(decorated, name, options)
        return self._register(function, name, options)

    def _register(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Job[..., Any]:
        if not callable(function):
            raise TypeError(f"@app.job decorates a function, got {function!r}; options are given by keyword")
        known = {field.name for field in fields(HandlerOptions)}
        unknown = options.keys() - known
        if unknown:
            raise TypeError(
                f"@app.job has no option {', '.join(unknown)}; it has name, {', '.join(sorted(known))}"
            )
        given = {key: value for key, value in options.items() if key != "retry" or value is not None}
        chosen = require_id(name, "name") if name is not None else default_name(function)
        handler = Handler(chosen, function, HandlerOptions(**given), self.serializer)
        self.registry.add(handler)
        return (AsyncJob if handler.is_async else Job)(handler, function, self)

    # -- jobs

    def get(self, job_id: str) -> JobInfo:
        """Return a job; `JobNotFound` if there is none."""
        return self.manager().get(job_id)

    def handle(self, job_id: str) -> JobHandle[Any]:
        """Return a hold on a job of which one has the id: to wait for it, to read its result, to cancel it."""
        record = self.manager().record(job_id)
        handler = self.registry.get(record.type) if record.type in self.registry else None
        return JobHandle(record.id, handler, self)

    def jobs(
        self,
        *,
        status: JobStatus | str | None = None,
        queue: str | None = None,
        type: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> JobPage:
        """List jobs in the order of their submission; `after=page.next` continues."""
        return self.manager().list(status=status, queue=queue, type=type, limit=limit, after=after)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[str, int]:
        """Count jobs by state."""
        return self.manager().counts(queue=queue, type=type)

    def cancel(self, job_id: str) -> bool:
        """Call a job off: True means that it never runs, False that it runs or has ended.

        One that runs is asked to stop, and if its attempt fails it is not repeated.
        """
        return self.manager().cancel(job_id)

    def retry(self, job_id: str) -> None:
        """Let a dead letter run again at once, as the same job; `InvalidTransition` if it is none."""
        self.manager().retry(job_id)

    def backup(self, path: str) -> None:
        """Write a consistent copy of the store to a new file, while everybody works on."""
        self.manager().engine.backup(path)

    # -- running

    @contextmanager
    def running(self) -> Iterator[Mainspring]:
        """Run jobs in this process while the block lasts. Safe in several processes at once."""
        self.load_handlers()
        manager = self.manager()
        manager.start()
        process = os.getpid()
        try:
            yield self
        finally:
            if os.getpid() == process:  # a forked child has left the worker in its parent
                manager.shutdown(self.grace)

    def run(self) -> None:
        """Run jobs in the foreground, until SIGTERM or SIGINT; a second signal does not wait for handlers."""
        Foreground(self).run()

    def load_handlers(self) -> None:
        """Import the modules named by `include`."""
        for module in self._include:
            import_module(module)

    def manager(self) -> JobManager:
        """Return the job manager of this process, opened with the first use."""
        runtime = self._runtime
        if runtime is None or runtime.process != os.getpid():
            with self._lock:
                if self._runtime is None:
                    self._runtime = Runtime(self, self.make_engine(self._clock), self._clock)
                runtime = self._runtime
        return runtime.manager

    def make_engine(self, clock: Clock) -> Engine:
        """Make the engine that the URL asks for."""
        if self.url == "memory://":
            return MemoryEngine(clock=clock)
        return SqliteEngine(self.url.removeprefix("sqlite:///"), clock=clock, durability=self.durability)

    def close(self) -> None:
        """Stop what runs and give everything back; nothing needs it for durability. It opens again when used."""
        with self._lock:
            runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close(self.grace)

    def exchange_runtime(self, runtime: Runtime | None) -> Runtime | None:
        """Put another runtime in place and return the one before: for the test kit."""
        with self._lock:
            before, self._runtime = self._runtime, runtime
            return before

    def __enter__(self) -> Mainspring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Mainspring({self.url!r})"

    def forget_after_fork(self) -> None:
        """In a forked child: leave the parent's threads, locks and connections alone."""
        self._lock = RLock()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._abandoned.append(runtime)  # collecting it would end threads that are not here


def _require_names(queues: list[str] | tuple[str, ...] | None) -> tuple[str, ...] | None:
    if isinstance(queues, str):
        raise TypeError(f"queues must be a list of names, got {queues!r}; write queues=[{queues!r}]")
    return None if queues is None else tuple(require_id(name, "a queue") for name in queues)


def _forget_after_fork(app: Mainspring) -> None:
    reference = weakref.ref(app)

    def forget() -> None:
        alive = reference()
        if alive is not None:
            alive.forget_after_fork()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)


def _check_url(url: str) -> None:
    if not isinstance(url, str):
        raise TypeError(f"url must be a string such as 'sqlite:///orders.db', got {url!r}")
    if url == "memory://" or (url.startswith("sqlite:///") and url != "sqlite:///"):
        return
    raise EngineUnavailable(
        engine=f"url {url!r}",
        reason="no engine is known for it",
        remedy="use 'sqlite:///orders.db' (relative), 'sqlite:////srv/orders.db' (absolute) or 'memory://'",
    )
