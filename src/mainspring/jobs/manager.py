"""The job manager in three layers: control (memory), io (the store), execution (handlers).

Each layer is a runner of the caller's choice. Control never waits for io; io commits what has queued up as one
unit; execution runs handlers and nothing else. `Mainspring` is built on this.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mainspring.clock import NANOSECONDS, Duration, deadline_after, to_nanoseconds
from mainspring.errors import InvalidTransition, JobNotFound
from mainspring.jobs.commands import Arrangement, Cancel, Changed, Command, Reopen, Reschedule
from mainspring.jobs.completions import Completions
from mainspring.jobs.context import JobContext
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Engine
from mainspring.jobs.explaining import Explanation, explain
from mainspring.jobs.following import EventStream
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, Registry
from mainspring.jobs.ids import require_id
from mainspring.jobs.info import JobInfo, JobPage, to_info
from mainspring.jobs.io_layer import ARRANGE, CHANGE, FIRE, IoLayer, closed_error
from mainspring.jobs.limit_book import LimitBook, store_limits
from mainspring.jobs.middleware import Middlewares
from mainspring.jobs.policies import Keep, ProcessSettings
from mainspring.jobs.queries import Query, require_cursor
from mainspring.jobs.records import JobRecord
from mainspring.jobs.recurrence.schedule_records import Fired, Firing
from mainspring.jobs.serializers import JsonSerializer, Serializer
from mainspring.jobs.status import JobStatus, to_status
from mainspring.jobs.submission import MAX_PAYLOAD, Submission
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.jobs.working import stopping
from mainspring.jobs.working.execution import Execution
from mainspring.jobs.working.stopping import StopReport
from mainspring.jobs.working.workplace import Workplace
from mainspring.runners.checks import require_positive
from mainspring.runners.runner import TaskRunner
from mainspring.vital_signs import Health

DEFAULT_COROUTINES = 100
DEFAULT_GRACE = 10.0
DEFAULT_STALL = 60.0


class JobManager:
    """Submits, queries, cancels and, once started, runs jobs.

    After `close` every call raises `EngineUnavailable`, except `close`, `hurry` and `shutdown`.
    """

    def __init__(
        self,
        *,
        control: TaskRunner,
        io: TaskRunner,
        execution: TaskRunner,
        engine: Engine,
        serializer: Serializer | None = None,
        registry: Registry | None = None,
        limits: LimitBook | None = None,
        middlewares: Middlewares | None = None,
        coroutines: int = DEFAULT_COROUTINES,
        processes: ProcessSettings | None = None,
        queues: tuple[str, ...] | None = None,
        keep: Keep | None = None,
        max_payload: int = MAX_PAYLOAD,
        virtual_time: bool = False,
        stall_after: Duration = DEFAULT_STALL,
        before_start: Callable[[JobManager], None] | None = None,
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
        self.clock = control.services.clock
        self._coroutines = coroutines
        self._processes = processes or ProcessSettings()
        self._limits = limits or LimitBook()
        self._middlewares = middlewares or Middlewares()
        self._keep = keep or Keep()
        self._before_start = before_start
        self._queues = queues
        self._max_payload = max_payload
        self._virtual_time = virtual_time
        self._stall_after = to_nanoseconds(stall_after, "stall_after")
        self._layers = (control, io, execution)
        self._completions = Completions(self.clock, stands_still=virtual_time, layers=self._layers)
        self.submission = Submission(
            engine, self._io, book=self._limits, middlewares=self._middlewares, max_payload=max_payload
        )
        self._workplace: Workplace | None = None
        self._last_stop: StopReport | None = None
        self._is_closed = False
        self.on_turn: Callable[[Health], None] = lambda _health: None
        """Told how the worker is, about once a second, in the control sequence: it must not wait for anything."""
        engine.open(self._wake)

    def _open_engine(self) -> Engine:
        """Return the engine, or raise if this manager is closed."""
        if self._is_closed:
            raise closed_error(self.engine)
        return self.engine

    # -- handlers and submits

    def register(self, name: str, function: Callable[..., Any], **options: Any) -> Handler:
        """Register a handler under a name; options are those of `@app.job`. A running worker takes its jobs."""
        self._open_engine()
        handler = Handler(require_id(name, "name"), function, HandlerOptions(**options), self.serializer)
        self._control.run(self.registry.add, handler)
        self.announce_handlers()
        return handler

    def announce_handlers(self) -> None:
        """Let a running worker tell the store about handlers that were registered after its start."""
        if self._workplace is not None:
            self._workplace.announce_handlers()

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
        self._open_engine()
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
        found = self._open_engine().find(Query(ids=(require_id(job_id),))).records
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
        newest_first: bool = False,
        is_replayed: bool | None = None,
    ) -> JobPage:
        """List jobs in the order of their submission, or the newest first."""
        page = self._open_engine().find(
            Query(
                status=None if status is None else to_status(status),
                queue=queue,
                type=self._full_name(type),
                limit=require_positive(limit, "limit", "jobs"),
                after=require_cursor(after),
                newest_first=newest_first,
                is_replayed=is_replayed,
            )
        )
        return JobPage([to_info(record) for record in page.records], page.end)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[str, int]:
        """Count jobs by state; under FAILED, the dead letters: jobs that failed and were not replayed."""
        counts = self._open_engine().counts(queue=queue, type=self._full_name(type))
        return {str(status): count for status, count in counts.items()}

    def _full_name(self, type_: str | None) -> str | None:
        return None if type_ is None else self.registry.full_name(type_)

    def cancel(self, job_id: str, *, timeout: Duration | None = None) -> bool:
        """Call a job off: True means that it never runs, False that it runs or has ended.

        A job that runs is asked to stop: see `current_job().cancelled`.

        This waits until the store has committed the answer: only then does it survive a crash, and only the store
        knows whether a worker, maybe on another machine, started the job first. `TimeoutError` means that the
        store has not answered within `timeout`, in real time: the request stays queued and may still take effect.
        """
        command = Cancel(require_id(job_id))
        seconds = None if timeout is None else to_nanoseconds(timeout, "timeout") / NANOSECONDS
        try:
            changed = self._io.call(CHANGE, (command,), seconds=seconds)[0]
        except TimeoutError:
            raise TimeoutError(
                f"the store has not confirmed within {seconds} s that job {job_id!r} is canceled; the request is "
                f"queued and may still take effect: get({job_id!r}) shows whether it has"
            ) from None
        self.require_done(command, changed)
        return changed.is_done

    async def cancel_async(self, job_id: str) -> bool:
        """Do as `cancel` does without blocking the event loop.

        If the wait is canceled, by `asyncio.timeout()` for example, the request stays queued.
        """
        command = Cancel(require_id(job_id))
        changed = (await self._io.call_async(CHANGE, (command,)))[0]
        self.require_done(command, changed)
        return changed.is_done

    def reschedule(self, job_id: str, *, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Give a job another due time: True if it had not started."""
        due = SubmitOptions().changed(delay=delay, at=at).due(self.engine.now())
        return self.change(Reschedule(require_id(job_id), due)).is_done

    def retry(self, job_id: str) -> None:
        """Let a dead letter run again at once, as the same job, its attempts forgotten."""
        self.change(
            Reopen(require_id(job_id), self.engine.now()), action="retry", needs="FAILED and was not replayed"
        )

    def change(self, command: Any, *, action: str | None = None, needs: str = "") -> Changed:
        """Carry out a command; with an `action`, `InvalidTransition` if the state does not allow it."""
        changed = self._io.call(CHANGE, (command,))[0]
        self.require_done(command, changed, action=action, needs=needs)
        return changed

    def require_done(self, command: Any, changed: Changed, *, action: str | None = None, needs: str = "") -> None:
        """Raise what kept a command from being carried out: no such job; or its state, if there is an `action`."""
        if changed.status is None:
            raise JobNotFound(job_id=command.id)
        if action is not None and not changed.is_done:
            how = "job {} has its unique key" if changed.is_unique_conflict else "was replayed as {}"
            note = f" and {how.format(changed.note)}" if changed.note else ""
            status = f"{changed.status}{note}"
            raise InvalidTransition(job_id=command.id, status=status, action=action, needs=needs)

    def change_all(self, commands: Sequence[Command]) -> builtins.list[Changed]:
        """Carry out many commands."""
        return self._io.call(CHANGE, commands)

    def arrange(self, arrangements: Sequence[Arrangement]) -> builtins.list[bool]:
        """Set up schedules, queues and limits."""
        return self._io.call(ARRANGE, arrangements) if arrangements else []

    def fire(self, firings: Sequence[Firing]) -> builtins.list[Fired]:
        """Move schedules on."""
        return self._io.call(FIRE, firings)

    def explain(self, job_id: str) -> Explanation:
        """Say why a job is where it is."""
        situation = self._open_engine().situation(require_id(job_id))
        if situation is None:
            raise JobNotFound(job_id=job_id)
        front = None if situation.behind is None else self.engine.situation(situation.behind)
        return explain(situation, self.engine.workers(), self.engine.limits(), self.engine.now(), front=front)

    def events(self, timeout: Duration | None = None) -> EventStream:
        """Follow what happens from now on."""
        return EventStream(self._open_engine(), self.clock, timeout=timeout, layers=self._layers)

    def wait_until(self, is_so: Callable[[], bool], timeout: Duration | None, problem: str) -> None:
        """Wait until something is so."""
        self._open_engine()
        self._completions.wait_until(is_so, deadline_after(self.clock, timeout), problem)

    def wait(self, job_id: str, timeout: Duration | None) -> JobStatus:
        """Wait until a job has ended; `TimeoutError` if that takes too long."""
        deadline = deadline_after(self.clock, timeout)
        return self._completions.wait(job_id, lambda: self.record(job_id).status, deadline)

    def active_jobs(self) -> tuple[JobContext, ...]:
        """Return the jobs in the hands of this process, those that wait for their due time included."""
        self._open_engine()
        workplace = self._workplace
        return () if workplace is None else tuple(job.context for job in workplace.active_jobs())

    # -- the worker

    def start(self) -> None:
        """Begin to run jobs in this process, after rescuing what dead workers left behind."""
        self._open_engine()
        if self._workplace is not None:
            raise RuntimeError("jobs are run in this process already; one worker is enough, give it more threads=")
        store_limits(self.engine, self.arrange, self.change_all, self.registry, self._limits)
        if self._before_start is not None:
            self._before_start(self)
        self._last_stop = None
        workplace = self._workplace = self._make_workplace()
        try:
            workplace.start()
        except BaseException:
            self._workplace = None
            raise

    def _make_workplace(self) -> Workplace:
        return Workplace(
            engine=self.engine,
            io=self._io,
            control=self._control,
            control_runner=self._control_runner,
            execution=self._execution,
            executor=Execution(
                self.serializer,
                self.engine.now,
                max_result=self._max_payload,
                new_id=self.submission.new_id,
                registry=self.registry,
                middlewares=self._middlewares,
            ),
            registry=self.registry,
            clock=self.clock,
            coroutines=self._coroutines,
            processes=self._processes,
            queues=self._queues,
            keep=self._keep,
            has_duties=not self._virtual_time,  # a worker that is driven by hand cannot die or oversleep
            stall_after=self._stall_after,
            new_id=self.submission.new_id,
            on_settled=self._completions.announce,
            on_turn=self.on_turn,
        )

    def prune(self) -> int:
        """Forget what is older than it is to be kept, now; return how many jobs went."""
        deleted = 0
        while True:
            pruned = self._io.run(lambda engine: engine.prune(self._keep.retention()))
            deleted += pruned.deleted
            if not pruned.is_more:
                return deleted

    def _wake(self) -> None:
        if self._workplace is not None:
            self._workplace.wake()

    def retime(self) -> None:
        """Time jobs anew: the wall clock has jumped."""
        if self._workplace is not None:
            self._workplace.retime()

    def close(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Stop running jobs and close the engine, for good; the runners belong to the caller.

        Requests that are queued and have not begun fail: their callers get `EngineUnavailable`.
        """
        if self._is_closed:
            return
        try:
            self.shutdown(grace)
        finally:
            self._is_closed = True
            self._io.close(stopping.PATIENCE_FOR_ANSWERS)
            self.engine.close()

    def hurry(self) -> None:
        """End a `shutdown` that waits for handlers."""
        if self._workplace is not None:
            self._workplace.hurry()

    def stop_taking(self) -> None:
        """Take no more jobs from now on; those that run go on until `shutdown`."""
        if self._workplace is not None:
            self._workplace.stop_taking()

    def shutdown(self, grace: Duration = DEFAULT_GRACE) -> StopReport:
        """Stop running jobs: handlers may finish within `grace`, the rest is handed back.

        It takes at most `grace` and ten seconds for the store to confirm; the report says what was left. A second
        shutdown changes nothing and returns the report of the first one, with `already_shut_down`. `start` begins
        again.
        """
        to_nanoseconds(grace, "grace")
        workplace = self._workplace
        if workplace is None:
            is_first = self._last_stop is None
            return replace(self._last_stop or StopReport(), was_running=False, already_shut_down=not is_first)
        try:
            self._last_stop = report = workplace.stop(grace)
            return report
        finally:
            self._workplace = None
