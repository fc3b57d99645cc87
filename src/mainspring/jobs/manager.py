"""The job manager in three layers: control (memory), io (the store), execution (handlers).

Each layer is a runner of the caller's choice. Control never waits for io; io commits what has queued up as one
unit; execution runs handlers and nothing else. `Mainspring` is built on this.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from mainspring.clock import Duration, deadline_after, to_nanoseconds
from mainspring.errors import InvalidTransition, JobNotFound
from mainspring.jobs.completions import Completions
from mainspring.jobs.context import JobContext
from mainspring.jobs.control import Control
from mainspring.jobs.duties import EVERY_SECONDS, Duties
from mainspring.jobs.engine import Cancel, Changed, Engine, JobRecord, Query, Reopen, WorkerInfo
from mainspring.jobs.execution import Execution
from mainspring.jobs.handlers import Handler, HandlerOptions, Registry
from mainspring.jobs.ids import require_id
from mainspring.jobs.info import JobInfo, JobPage, to_info
from mainspring.jobs.io_layer import IoLayer
from mainspring.jobs.serializers import JsonSerializer, Serializer
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submission import MAX_PAYLOAD, Submission, SubmitOptions
from mainspring.jobs.worker import Worker
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.checks import require_positive
from mainspring.runners.repeat import Repetition
from mainspring.runners.runner import TaskRunner
from mainspring.runners.thread_pool import ThreadPool

DEFAULT_COROUTINES = 100
DEFAULT_GRACE = 10.0


class JobManager:
    """Submits, queries, cancels and, once started, runs jobs."""

    def __init__(
        self,
        *,
        control: TaskRunner,
        io: TaskRunner,
        execution: TaskRunner,
        engine: Engine,
        serializer: Serializer | None = None,
        registry: Registry | None = None,
        coroutines: int = DEFAULT_COROUTINES,
        queues: tuple[str, ...] | None = None,
        max_payload: int = MAX_PAYLOAD,
        virtual_time: bool = False,
    ) -> None:
        require_positive(coroutines, "coroutines", "coroutines at once")
        require_positive(max_payload, "max_payload", "bytes")
        self.engine = engine
        self.serializer: Serializer = serializer or JsonSerializer()
        self.registry = registry or Registry()
        self._control_runner = control
        self._control = Control(control)
        self._io = IoLayer(engine, io)
        self._execution = execution
        self._clock = control.services.clock
        self._threads = execution.width
        self._coroutines = coroutines
        self._queues = queues
        self._max_payload = max_payload
        self._virtual_time = virtual_time
        self._completions = Completions(self._clock, stands_still=virtual_time)
        self.submission = Submission(engine, self._io, max_payload=max_payload)
        self._worker: Worker | None = None
        self._duties: Repetition | None = None
        self._loop_pool: ThreadPool | None = None
        engine.open(self._wake)

    # -- handlers and submits

    def register(self, name: str, function: Callable[..., Any], **options: Any) -> Handler:
        """Register a handler under a name; options are those of `@app.job`."""
        handler = Handler(require_id(name, "name"), function, HandlerOptions(**options), self.serializer)
        self._control.run(self.registry.add, handler)
        return handler

    def submit(
        self,
        name: str,
        arguments: tuple[Any, ...] | Mapping[str, Any] = (),
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        **options: Any,
    ) -> str:
        """Store a job for a registered handler; return its id."""
        handler = self._control.run(self.registry.get, name)
        chosen = SubmitOptions().changed(delay=delay, at=at, id=id, **options)
        if isinstance(arguments, Mapping):
            return self.submission.submit(handler, chosen, (), arguments)
        return self.submission.submit(handler, chosen, tuple(arguments), {})

    def submit_delayed(
        self, name: str, arguments: tuple[Any, ...] | Mapping[str, Any] = (), *, delay: Duration, **options: Any
    ) -> str:
        """Store a job that is due after `delay`."""
        return self.submit(name, arguments, delay=delay, **options)

    # -- jobs

    def get(self, job_id: str) -> JobInfo:
        """Return a job; `JobNotFound` if there is none."""
        return to_info(self.record(job_id))

    def record(self, job_id: str) -> JobRecord:
        """Return a job as the store has it."""
        found = self.engine.find(Query(ids=(require_id(job_id),))).records
        if not found:
            raise JobNotFound(job_id=job_id)
        return found[0]

    def list(
        self,
        *,
        status: JobStatus | str | None = None,
        queue: str | None = None,
        type: str | None = None,
        limit: int = 50,
        after: str | None = None,
        is_replayed: bool | None = None,
    ) -> JobPage:
        """List jobs in the order of their submission."""
        page = self.engine.find(
            Query(
                status=None if status is None else to_status(status),
                queue=queue,
                type=self._full_name(type),
                limit=require_positive(limit, "limit", "jobs"),
                after=_require_cursor(after),
                is_replayed=is_replayed,
            )
        )
        return JobPage([to_info(record) for record in page.records], page.end)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[str, int]:
        """Count jobs by state."""
        counts = self.engine.counts(queue=queue, type=self._full_name(type))
        return {str(status): count for status, count in counts.items()}

    def _full_name(self, type_: str | None) -> str | None:
        return None if type_ is None else self.registry.full_name(type_)

    def cancel(self, job_id: str) -> bool:
        """Call a job off: True means that it never runs, False that it runs or has ended.

        A job that runs is asked to stop: see `current_job().cancelled`.
        """
        changed = self.change(Cancel(require_id(job_id)))
        return changed.is_done

    def retry(self, job_id: str) -> None:
        """Let a dead letter run again at once, as the same job, its attempts forgotten."""
        self.change(
            Reopen(require_id(job_id), self.engine.now()), action="retry", needs="FAILED and was not replayed"
        )

    def change(self, command: Any, *, action: str | None = None, needs: str = "") -> Changed:
        """Carry out a command; with an `action`, `InvalidTransition` if the state does not allow it."""
        changed: Changed = self._io.call("change", (command,))[0]
        if changed.status is None:
            raise JobNotFound(job_id=command.id)
        if action is not None and not changed.is_done:
            status = (
                f"{changed.status} and was replayed as {changed.note}" if changed.note else str(changed.status)
            )
            raise InvalidTransition(job_id=command.id, status=status, action=action, needs=needs)
        return changed

    def wait(self, job_id: str, timeout: Duration | None) -> JobStatus:
        """Wait until a job has ended; `TimeoutError` if that takes too long."""
        deadline = deadline_after(self._clock, timeout)
        return self._completions.wait(job_id, lambda: self.record(job_id).status, deadline)

    def active_jobs(self) -> tuple[JobContext, ...]:
        """Return the jobs in the hands of this process, those that wait for their due time included."""
        worker = self._worker
        return () if worker is None else tuple(job.context for job in worker.active_jobs())

    # -- the worker

    def start(self) -> None:
        """Begin to run jobs in this process, after rescuing what dead workers left behind."""
        if self._worker is not None:
            raise RuntimeError("jobs are run in this process already; one worker is enough, give it more threads=")
        types = tuple(handler.name for handler in self.registry.all())
        worker = Worker(
            WorkerInfo(f"{platform.node()}:{os.getpid()}", os.getpid(), types),
            engine=self.engine,
            io=self._io,
            control=self._control,
            registry=self.registry,
            executor=Execution(self.serializer, self.engine.now, max_result=self._max_payload),
            execution=self._execution,
            make_loop=self._make_loop,
            clock=self._clock,
            threads=self._threads,
            coroutines=self._coroutines,
            queues=self._queues,
            on_settled=self._completions.announce,
        )
        self._worker = worker
        try:
            worker.start()
        except BaseException:
            self._worker = None
            raise
        if not self._virtual_time:  # a worker that is driven by hand cannot die or oversleep
            duties = Duties(worker, engine=self.engine, io=self._io, registry=self.registry, clock=self._clock)
            self._duties = self._control_runner.repeat(duties.tick, every=EVERY_SECONDS)

    def _make_loop(self) -> AsyncioRunner:
        if isinstance(self._execution, ThreadPool):
            return self._execution.asyncio(name="mainspring-loop")
        self._loop_pool = ThreadPool(1, name="mainspring-loops", clock=self._clock)
        return self._loop_pool.asyncio(name="mainspring-loop")

    def _wake(self) -> None:
        if self._worker is not None:
            self._worker.wake()

    def retime(self) -> None:
        """Time jobs anew: the wall clock has jumped."""
        if self._worker is not None:
            self._worker.retime()

    def close(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Stop running jobs and close the engine; the runners belong to the caller."""
        self.shutdown(grace)
        self.engine.close()

    def hurry(self) -> None:
        """End a `shutdown` that waits for handlers."""
        if self._worker is not None:
            self._worker.hurry()

    def shutdown(self, grace: Duration = DEFAULT_GRACE) -> int:
        """Stop running jobs: handlers may finish within `grace`, the rest is handed back. Return how many were."""
        to_nanoseconds(grace, "grace")
        worker = self._worker
        if worker is None:
            return 0
        if self._duties is not None:
            self._duties.stop()
        try:
            return worker.stop(grace)
        finally:
            self._worker = self._duties = None
            if self._loop_pool is not None:
                with suppress(RuntimeError):
                    self._loop_pool.shutdown(timeout=0)


def to_status(status: JobStatus | str) -> JobStatus:
    """Convert a name, with an error that lists them."""
    try:
        return JobStatus(status)
    except ValueError:
        raise ValueError(f"status must be one of {', '.join(JobStatus)}, got {status!r}") from None


def _require_cursor(cursor: str | None) -> str | None:
    if cursor is not None and not isinstance(cursor, str):
        raise ValueError(f"after must be the `next` of an earlier page, got {cursor!r}")
    return cursor
