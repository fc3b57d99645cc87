"""The job manager: submits, queries and cancels jobs, and runs them with a worker.

It has three layers, each on a runner that the caller chooses. The control layer changes state in memory and never
waits for the store. The io layer commits all queued calls of the engine as one transaction. The execution layer
runs handlers and nothing else. The class `Mainspring` is built on the job manager.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.clock import Duration, deadline_after, to_nanoseconds
from mainspring.errors import InvalidTransition, JobNotFound, StoreReplaced, WorkerAlive, WorkerNotFound
from mainspring.jobs.activity import MAX_PAIRS, ActivityRecorder
from mainspring.jobs.activity_writer import ActivityWriter
from mainspring.jobs.audit import AuditNote, current_actor
from mainspring.jobs.audit_drafts import AuditDraft
from mainspring.jobs.command_timeouts import explained_timeout, to_seconds
from mainspring.jobs.commands import (
    Arrangement,
    CancelJob,
    Changed,
    Command,
    DropRedaction,
    RemoveWorker,
    Reopen,
    Reschedule,
)
from mainspring.jobs.context import JobContext
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.ids import require_id
from mainspring.jobs.io_layer import ARRANGE, BEGIN_REQUESTS, CHANGE, END_REQUESTS, FIRE, IoLayer
from mainspring.jobs.job_queries import ACTIVITY_PATIENCE, JobQueries
from mainspring.jobs.job_waiter import JobWaiter
from mainspring.jobs.layers import ControlLayer, Layers
from mainspring.jobs.limit_registry import LimitRegistry, store_limits
from mainspring.jobs.middleware import Middlewares
from mainspring.jobs.off_loop import OffLoop
from mainspring.jobs.policies import Keep, ProcessSettings, WorkerSettings
from mainspring.jobs.processes.application import ChildSetup
from mainspring.jobs.records import WorkerRecord
from mainspring.jobs.recurrence.firing_middleware import fire_with_middleware
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, ScheduleRecord
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestRecord
from mainspring.jobs.serializers import JsonSerializer, PlainSerializer, Serializer, Serializers, make_serializer
from mainspring.jobs.status import JobStatus
from mainspring.jobs.submission import MAX_PAYLOAD, Submission
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.jobs.worker import stop_report
from mainspring.jobs.worker.stop_report import StopReport
from mainspring.jobs.worker_hooks import WorkerHooks
from mainspring.runners.runner import TaskRunner
from mainspring.runners.thread_pool import ThreadPool
from mainspring.runners.validation import require_positive
from mainspring.worker_health import WorkerHealth

if TYPE_CHECKING:
    from mainspring.jobs.remote_workers import RemoteWorkers
    from mainspring.jobs.signing import JobSigner
    from mainspring.jobs.worker.host import WorkerHost

DueCommand = TypeVar("DueCommand", Reschedule, Reopen)

DEFAULT_COROUTINES = 100
DEFAULT_GRACE = 10.0
DEFAULT_STALL = 60.0

_UNREPLAYED = "FAILED and was not replayed"  # the state of a job that `retry` needs
_RUN_NOW = AuditNote(action="job.run_now")

_importing_worker = RLock()
"""Held during the import of the worker modules.

A fork waits for it, as a child could not finish a partial import.
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing_worker.acquire,
        after_in_parent=_importing_worker.release,
        after_in_child=_importing_worker.release,
    )


class JobManager(JobQueries):
    """Submits, queries and cancels jobs. After `start`, its worker runs them.

    After `close` every call that needs the store raises `EngineUnavailable`. `pools` are the thread pools that
    `statistics` shows; None for those among the runners `control`, `io` and `execution`.
    """

    def __init__(
        self,
        *,
        control: TaskRunner,
        io: TaskRunner,
        execution: TaskRunner,
        engine: Engine,
        serializer: Serializer | PlainSerializer | None = None,
        registry: HandlerRegistry | None = None,
        limits: LimitRegistry | None = None,
        middlewares: Middlewares | None = None,
        coroutines: int = DEFAULT_COROUTINES,
        processes: ProcessSettings | None = None,
        child_setup: ChildSetup | None = None,
        queues: tuple[str, ...] | None = None,
        keep: Keep | None = None,
        max_payload: int = MAX_PAYLOAD,
        virtual_time: bool = False,
        stall_after: Duration = DEFAULT_STALL,
        before_start: Callable[[JobManager], None] | None = None,
        declared_schedules: Container[str] = (),
        worker_hooks: WorkerHooks | None = None,
        off_loop: OffLoop | None = None,
        pools: Sequence[ThreadPool] | None = None,
        activity_pairs: int = MAX_PAIRS,
        signer: JobSigner | None = None,
    ) -> None:
        require_positive(coroutines, "coroutines", "coroutines at once")
        require_positive(max_payload, "max_payload", "bytes")
        self.engine = engine
        self.signer = signer
        """Signs and verifies jobs; None if the application does not sign jobs."""
        self.serializer: Serializer = make_serializer(serializer or JsonSerializer())
        self.serializers = Serializers(self.serializer)
        self.registry = registry or HandlerRegistry()
        self.clock = control.services.clock
        self._control = ControlLayer(control)
        self._activity: ActivityWriter | None = None
        if activity_pairs:
            recorder = ActivityRecorder(engine.now, max_pairs=activity_pairs, keeps_minutes=True)
            self._activity = ActivityWriter(engine, recorder, self.clock, has_timer=not virtual_time)
        self._io = IoLayer(engine, io, self._activity)
        self._layers = Layers(engine, self._control, control, self._io, execution, self.clock)
        self._settings = WorkerSettings(
            coroutines=coroutines,
            processes=processes or ProcessSettings(),
            child_setup=child_setup or ChildSetup(),
            queues=queues,
            keep=keep or Keep(),
            stall_after_ns=to_nanoseconds(stall_after, "stall_after"),
            has_maintenance=not virtual_time,
            has_jitter=not virtual_time,
        )
        self._limits = limits or LimitRegistry()
        self._middlewares = middlewares or Middlewares()
        self._before_start = before_start
        self._declared_schedules = declared_schedules
        self._hooks = worker_hooks or WorkerHooks()
        self.max_payload = max_payload
        self._runners = (control, io, execution)
        own = [runner for runner in self._runners if isinstance(runner, ThreadPool)]
        self._pools = tuple(dict.fromkeys(own if pools is None else pools))
        self._off_loop = off_loop or OffLoop()
        self._owns_off_loop = off_loop is None
        self.waiter = JobWaiter(self.clock, virtual_time=virtual_time, layers=self._runners)
        self.submission = Submission(
            engine,
            self._io,
            registry=self.registry,
            limits=self._limits,
            middlewares=self._middlewares,
            max_payload=max_payload,
            off_loop=self._off_loop,
            signer=signer,
        )
        self._host: WorkerHost | None = None
        self._remote: RemoteWorkers | None = None
        self._must_run_stop_hooks: builtins.list[None] = []  # the first of several shutdowns pops the element
        self._last_stop: StopReport | None = None
        self.is_closed = False
        """Whether `close` was called."""
        self.on_turn: Callable[[WorkerHealth], None] = lambda _health: None
        """Called with the health of the worker about once a second, in the control layer. It must not block."""
        self._wake_worker = self._io.off_callers(self._wake_host)
        engine.open(self._wake)

    # -- handlers and submits

    def register(self, name: str, function: Callable[..., Any], **options: Any) -> Handler:
        """Register a handler, with the options of `@app.job`.

        A worker that runs in this process also runs its jobs.
        """
        self._open_engine()
        handler = Handler(require_id(name, "name"), function, HandlerOptions(**options), self.serializer)
        self._control.run(self.registry.add, handler)
        self.announce_handlers()
        return handler

    def announce_handlers(self) -> None:
        """Make the worker of this process, if it runs, tell the store the job types registered after its start."""
        if self._host is not None:
            self._host.announce_handlers()

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
        """Store a job for a registered handler, and return its id. The job is durable when this call returns.

        For a job whose unique key another job holds, return the id of that job. Raises `DuplicateJob` if the id
        exists, or if the unique key is held and has `on_conflict="raise"`.
        """
        self._open_engine()
        handler = self.registry.get(name)
        chosen = SubmitOptions().changed(delay=delay, at=at, id=id, **options)
        if isinstance(arguments, Mapping):
            return self.submission.submit(handler, chosen, (), arguments)
        return self.submission.submit(handler, chosen, tuple(arguments), {})

    def submit_delayed(
        self, name: str, arguments: tuple[Any, ...] | Mapping[str, Any] = (), *, delay: Duration, **options: Any
    ) -> str:
        """Store a job that is due after `delay`, and return its id."""
        return self.submit(name, arguments, delay=delay, **options)

    # -- jobs

    def remove_redaction(self, type_: str) -> bool:
        """Delete the stored redaction of a job type, so that its arguments are shown again; return False if it had
        none.

        Raises `ValueError` if this process declares `redact=` for the type.
        """
        full_name = self.registry.full_name(require_id(type_, "type"))
        if full_name in self.registry.redacted():
            raise ValueError(
                f"the handler {full_name!r} in this process has redact=; remove it from the code first"
            )
        (is_removed,) = self.arrange([DropRedaction(full_name)])
        return is_removed

    def cancel(self, job_id: str, *, timeout: Duration | None = None) -> bool:
        """Cancel a job. Return True if it will not run any more, and False if it is running or has ended.

        A running job is asked to stop: see `current_job().cancelled`. Raises `JobNotFound` if there is no such
        job.

        The call returns when the store has committed the cancel. Only then does the cancel survive a crash, and
        only the store knows whether a worker, maybe on another machine, has started the job first. `TimeoutError`
        means that the store has not answered within `timeout`, in real time. The request stays queued and may
        still take effect.
        """
        changed = self.change(CancelJob(require_id(job_id)), timeout=timeout)
        self.waiter.announce([job_id])
        return changed.is_done

    async def cancel_async(self, job_id: str, *, timeout: Duration | None = None) -> bool:
        """Cancel a job as `cancel` does, without blocking the event loop.

        If the wait is canceled, by `asyncio.timeout()` for example, the request stays queued and may still take
        effect.
        """
        changed = await self.change_async(CancelJob(require_id(job_id)), timeout=timeout)
        self.waiter.announce([job_id])
        return changed.is_done

    def cancel_many(self, job_ids: Sequence[str], *, audit: AuditDraft | None = None) -> builtins.list[Changed]:
        """Cancel jobs, in one transaction if the engine can; return the engine's answer for each, in order.

        A running job is asked to stop. A job that does not exist or has ended raises no error. `audit` is what
        `begin_audit` returned, if several calls cancel jobs together.
        """
        draft = audit or self.begin_audit(len(job_ids))
        changed = self._io.call(CHANGE, [CancelJob(require_id(job_id)) for job_id in job_ids], audit=draft)
        self.waiter.announce(builtins.list(job_ids))
        return changed

    def run_now(self, job_id: str) -> bool:
        """Make a PENDING job due now, and return True; also if it is due already. Return False if it has started
        or ended.

        If its receiver is paused, lift the pause. Raises `JobNotFound` if there is no such job.
        """
        record = self.record(job_id)
        now = self.engine.now()
        self.lift_pauses([record.id])  # first, so that no worker puts the job off again
        if record.status is JobStatus.PENDING and record.due <= now:
            return True  # it keeps its place among the due jobs
        return self.change(self._signed(Reschedule(record.id, now)), note=_RUN_NOW).is_done

    def lift_pauses(self, job_ids: Sequence[str]) -> int:
        """Lift the pauses of receivers that hold back these jobs, the callbacks among them; return how many.

        Call it before the jobs are made due.
        """
        from mainspring.jobs.paused_receivers import resume_jobs  # noqa: PLC0415 - see `mainspring.public`

        return resume_jobs(self, job_ids)

    def reschedule(self, job_id: str, *, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Change the due time of a job that is PENDING. Return False if it is RUNNING or has ended.

        Raises `JobNotFound` if there is no such job.
        """
        return self.change(self._signed(self._reschedule(job_id, delay, at))).is_done

    async def reschedule_async(
        self, job_id: str, *, delay: Duration | None = None, at: datetime | None = None
    ) -> bool:
        """Change the due time of a job as `reschedule` does, without blocking the event loop."""
        command = self._reschedule(job_id, delay, at)
        return (await self.change_async(await self._signed_async(command))).is_done

    def _reschedule(self, job_id: str, delay: Duration | None, at: datetime | None) -> Reschedule:
        due = SubmitOptions().changed(delay=delay, at=at).due(self.engine.now(), self.engine.latest())
        return Reschedule(require_id(job_id), due)

    def retry(self, job_id: str) -> None:
        """Run a dead letter again at once as the same job, with its counters of failed attempts set to zero.

        Raises `JobNotFound` if there is no such job, and `InvalidTransition` if it is not a dead letter, or if
        another job has its unique key now.
        """
        command = self._signed(Reopen(require_id(job_id), self.engine.now()))
        self.change(command, action="retry", needs=_UNREPLAYED)

    async def retry_async(self, job_id: str) -> None:
        """Run a dead letter again as `retry` does, without blocking the event loop."""
        command = Reopen(require_id(job_id), self.engine.now())
        await self.change_async(await self._signed_async(command), action="retry", needs=_UNREPLAYED)

    def _signed(self, command: DueCommand) -> DueCommand:
        """Return the command, with a new signature of its job if the job's signature ends before the new due
        time.
        """
        return command if self.signer is None else self.signer.renew(command, self.record(command.id))

    async def _signed_async(self, command: DueCommand) -> DueCommand:
        return command if self.signer is None else await self._off_loop.read(self._signed, command)

    def change(
        self,
        command: Any,
        *,
        action: str | None = None,
        needs: str = "",
        timeout: Duration | None = None,
        note: AuditNote | None = None,
    ) -> Changed:
        """Carry out a command on a job, and return the answer of the engine.

        Raises `JobNotFound` if there is no such job. If the engine refuses the command and `action` is given,
        raises `InvalidTransition` with this verb and the required state `needs`. Raises `TimeoutError` if the
        store does not answer within `timeout`, in real time; the command stays queued. The texts in `note` are
        added to the audit entry, if there is an actor.
        """
        seconds = to_seconds(timeout)
        with explained_timeout(command, seconds):
            (changed,) = self._io.call(CHANGE, (command,), seconds=seconds, audit=self._draft(note))
        self.require_done(command, changed, action=action, needs=needs)
        return changed

    async def change_async(
        self, command: Any, *, action: str | None = None, needs: str = "", timeout: Duration | None = None
    ) -> Changed:
        """Carry out a command as `change` does, without blocking the event loop."""
        seconds = to_seconds(timeout)
        with explained_timeout(command, seconds):
            (changed,) = await self._io.call_async(CHANGE, (command,), seconds=seconds, audit=self._draft(None))
        self.require_done(command, changed, action=action, needs=needs)
        return changed

    def require_done(self, command: Any, changed: Changed, *, action: str | None = None, needs: str = "") -> None:
        """Raise `JobNotFound` if the engine found no job for a command.

        If `action` is given and the engine refused the command, raise `InvalidTransition` with this verb and the
        required state `needs`.
        """
        if changed.status is None:
            raise JobNotFound(job_id=command.id)
        if action is not None and not changed.is_done:
            how = "job {} has its unique key" if changed.is_unique_conflict else "was replayed as {}"
            needs = f"{needs}, and whose unique key no other job has," if changed.is_unique_conflict else needs
            note = f" and {how.format(changed.note)}" if changed.note else ""
            status = f"{changed.status}{note}"
            raise InvalidTransition(job_id=command.id, status=status, action=action, needs=needs)

    def change_all(
        self, commands: Sequence[Command], *, audit: AuditDraft | None = None
    ) -> builtins.list[Changed]:
        """Carry out commands on jobs; return the answer of the engine for each, in order.

        A command that the engine refuses raises no error: its answer has `is_done` False. `audit` describes the
        audit entry to store, as `begin_audit` returns it; None stores no entry.
        """
        return self._io.call(CHANGE, commands, audit=audit)

    def arrange(
        self, arrangements: Sequence[Arrangement], *, note: AuditNote | None = None
    ) -> builtins.list[bool]:
        """Store or delete schedules, limits, pauses, tokens, dead-letter handlers and redactions.

        Return for each arrangement whether the store changed. The texts in `note` are added to the audit entries,
        if there is an actor.
        """
        return self._io.call(ARRANGE, arrangements, audit=self._draft(note)) if arrangements else []

    def remove_worker(
        self, number: int, *, check: Callable[[WorkerRecord], None] | None = None
    ) -> builtins.list[str]:
        """Remove a remote worker, or one that is silent or dead; return the ids of the jobs that it was running.

        The next sweep of any process lets these jobs run elsewhere. Raises `WorkerNotFound` if there is no such
        worker, and `WorkerAlive` if it is a process of the application that is alive. `check` may raise another
        error for the worker that was found.
        """
        from mainspring.jobs.worker_status import Liveness, to_worker_status  # noqa: PLC0415 - see `mainspring.public`

        worker = next((each for each in self.engine.workers() if each.number == number), None)
        if worker is None:
            raise WorkerNotFound(number=number)
        if check is not None:
            check(worker)
        status = to_worker_status(worker, self.engine.now())
        if not status.is_remote and status.state is Liveness.ALIVE:
            raise WorkerAlive(number=number, name=worker.info.name)
        left = self.engine.leased(number) if Capability.REMOTE_WORKERS in self.engine.capabilities else []
        self.arrange([RemoveWorker(number, "was removed by an operator")])
        return [running.lease.id for running in left]

    def fire(self, firings: Sequence[Firing]) -> builtins.list[Fired]:
        """Advance schedules and store the jobs of their occurrences, with the middleware around it.

        Return an answer for each firing, in order.
        """
        return fire_with_middleware(firings, lambda given: self._io.call(FIRE, given), self._middlewares)

    async def begin_request(self, request: NewRequest) -> RequestRecord | None:
        """Store that a request with an idempotency key begins, and return its record: see `request_records.begun`.

        Return None, and store nothing, if the store has too many requests. The record may be lost in a power cut,
        unless jobs were stored after it.
        """
        (record,) = await self._io.call_async(BEGIN_REQUESTS, (request,), durable=False)
        return record

    async def end_request(self, end: RequestEnd) -> bool:
        """Store the answer of a request with an idempotency key; return False if its record is gone or taken
        over.
        """
        (is_stored,) = await self._io.call_async(END_REQUESTS, (end,), size=len(end.answer or b""))
        return is_stored

    def trigger(self, firing: Firing, record: ScheduleRecord) -> Fired:
        """Store the job of a schedule that an operator triggers, with the middleware around it.

        Return the answer of the engine, which may have refused it: see `Fired`.
        """
        draft = self._draft(None)

        def send(given: Sequence[Firing]) -> builtins.list[Fired]:
            if self.signer is not None:
                given = [self.signer.sign_trigger(record, each) for each in given]
            return self._io.call(FIRE, given, audit=draft)

        (fired,) = fire_with_middleware([firing], send, self._middlewares)
        return fired

    # -- the audit trail

    def _draft(self, note: AuditNote | None) -> AuditDraft | None:
        """Return what is known of the audit entry of one call before it is made; None if no `acting_as` block
        names an actor.
        """
        actor = current_actor()
        return None if actor is None else AuditDraft(actor, self.engine.now(), note)

    def begin_audit(self, count: int, note: AuditNote | None = None) -> AuditDraft | None:
        """Return the draft of one audit entry about `count` jobs, for each of the calls that change them.

        Return None if no `acting_as` block names an actor.
        """
        actor = current_actor()
        return None if actor is None else AuditDraft(actor, self.engine.now(), note, is_bulk=count != 1)

    def wait_until(self, is_so: Callable[[], bool], timeout: Duration | None, problem: str) -> None:
        """Poll until `is_so` returns True.

        Raises `TimeoutError` with the text `problem` after `timeout`, None for never; with a manual clock, which
        stands still meanwhile, after the first call of `is_so`.
        """
        self._open_engine()
        self.waiter.wait_until(is_so, deadline_after(self.clock, timeout), problem)

    async def wait_until_async(self, is_so: Callable[[], bool], timeout: Duration | None, problem: str) -> None:
        """Poll as `wait_until` does, without blocking the event loop: a thread calls `is_so`."""
        self._open_engine()
        deadline = deadline_after(self.clock, timeout)
        await self.waiter.wait_until_async(is_so, deadline, problem, self._off_loop)

    def wait(self, job_id: str, timeout: Duration | None) -> JobStatus:
        """Wait until a job has ended, and return its status. Raises `JobNotFound` if there is no such job.

        Raises `TimeoutError` after `timeout`, None for never; with a manual clock, which stands still meanwhile,
        after the first read.
        """
        deadline = deadline_after(self.clock, timeout)
        return self.waiter.wait(job_id, lambda: self._state(job_id), deadline)

    async def wait_async(self, job_id: str, timeout: Duration | None) -> JobStatus:
        """Wait as `wait` does, without blocking the event loop."""
        self._open_engine()
        deadline = deadline_after(self.clock, timeout)
        return await self.waiter.wait_async(job_id, lambda: self._state(job_id), deadline, self._off_loop)

    def _state(self, job_id: str) -> tuple[JobStatus, int]:
        """Return the status of a job, and the nanoseconds until it is due.

        The number is negative if a PENDING job is due already, and 0 if the job is not PENDING.
        """
        record = self.record(job_id)
        is_pending = record.status is JobStatus.PENDING
        return record.status, (record.due - self.engine.now()) * 1_000 if is_pending else 0

    def active_jobs(self) -> tuple[JobContext, ...]:
        """Return the jobs that the worker of this process has leased, including those that are not due yet.

        Without a worker, the tuple is empty.
        """
        self._open_engine()
        host = self._host
        return () if host is None else tuple(job.context for job in host.active_jobs())

    # -- the worker

    def start(self) -> None:
        """Start the worker of this process, after storing the declarations and running the start hooks.

        The worker first rescues the jobs of dead workers. Raises `RuntimeError` if it already runs.
        """
        self._open_engine()
        if self._host is not None:
            raise RuntimeError(
                "the worker of this process is already running; give it more threads= to run more jobs"
            )
        self._store_declarations()
        self._hooks.run_start()
        self._last_stop = None
        self._must_run_stop_hooks = [None]
        try:
            host = self._host = self._make_host()
            host.start()
        except BaseException:
            self._host = None
            self._run_stop_hooks()
            raise

    def _store_declarations(self) -> None:
        """Store what the code declares: limits, quotas, schedules, dead-letter handlers and redactions.

        Waiting jobs with other limits get the declared ones.
        """
        self.submission.store_declarations()
        store_limits(self.engine, self.arrange, self.change_all, self.registry, self._limits)
        if self._before_start is not None:
            self._before_start(self)

    @property
    def remote_workers(self) -> RemoteWorkers:
        """Enrolls remote workers, and claims and settles jobs for them. Made at the first use."""
        if self._remote is None:
            with _importing_worker:
                from mainspring.jobs.remote_workers import RemoteWorkers  # noqa: PLC0415 - it imports the worker
            self._remote = RemoteWorkers(self, self._layers.io, self._off_loop, self._store_declarations)
        return self._remote

    def _make_host(self) -> WorkerHost:
        # A process that only submits and reads does not import the worker, which takes as long as all the rest.
        with _importing_worker:
            from mainspring.jobs.worker.host import WorkerHost  # noqa: PLC0415
            from mainspring.jobs.worker.invoker import HandlerInvoker  # noqa: PLC0415

        invoker = HandlerInvoker(
            self.serializer,
            self.engine.now,
            latest=self.engine.latest,
            max_result=self.max_payload,
            draw=None if self._settings.has_jitter else lambda: 0.5,
            new_id=self.submission.new_id,
            registry=self.registry,
            middlewares=self._middlewares,
        )
        return WorkerHost(
            self._layers,
            self._settings,
            self.registry,
            invoker,
            new_id=self.submission.new_id,
            declared_schedules=self._declared_schedules,
            middlewares=self._middlewares,
            on_settled=self.waiter.announce,
            on_health=self.on_turn,
            signer=self.signer,
        )

    @property
    def worker_health(self) -> WorkerHealth | None:
        """The last health report of the worker in this process; None if no worker runs or it has not reported."""
        host = self._host
        return None if host is None else host.health

    @property
    def store_replaced(self) -> StoreReplaced | None:
        """The error of a store whose file was replaced while the worker of this process runs; None if it was not.

        The worker can do nothing then: the process must be restarted.
        """
        host = self._host
        return None if host is None else host.store_replaced

    def prune(self) -> int:
        """Delete the ended jobs that `keep` does not keep. Return how many jobs were deleted.

        Also delete old results, expired requests and old audit entries, and shorten the history of activity.
        """
        deleted = 0
        while True:
            pruned = self._io.run(lambda engine: engine.prune(self._settings.keep.retention()))
            deleted += pruned.deleted
            if not pruned.is_more:
                return deleted

    def _wake(self) -> None:
        """Make the worker of this process, and the waiting claims of remote workers, look for jobs.

        The engine calls this on any thread.
        """
        if self._remote is not None:
            self._remote.wake()
        if self._host is not None:
            self._wake_worker()

    def _wake_host(self) -> None:
        if self._host is not None:
            self._host.wake()

    def retime(self) -> None:
        """Set the timers of this process's worker for jobs and schedules again, because the wall clock has
        jumped.
        """
        if self._host is not None:
            self._host.clock_jumped()

    def close(self, grace: Duration = DEFAULT_GRACE) -> None:
        """Stop the worker and close the engine permanently. The runners belong to the caller and stay open.

        Calls of the engine that are queued and have not begun fail with `EngineUnavailable`. A second `close` does
        nothing.
        """
        if self.is_closed:
            return
        try:
            self.shutdown(grace)
        finally:
            self.is_closed = True
            if self._activity is not None:
                self._activity.close()
            self._io.close(stop_report.PATIENCE_FOR_ANSWERS)
            self.engine.close()
            if self._owns_off_loop:
                self._off_loop.close()

    def hurry(self) -> None:
        """Make a `shutdown` in progress interrupt the running handlers now instead of waiting for them."""
        if self._host is not None:
            self._host.hurry()

    def stop_taking(self) -> None:
        """Make the worker of this process claim no more jobs. Running jobs continue until `shutdown`.

        Wait up to ten seconds until the worker has stopped claiming. Do nothing without a worker.
        """
        if self._host is not None:
            self._host.stop_fetching()

    def shutdown(self, grace: Duration = DEFAULT_GRACE) -> StopReport:
        """Stop the worker: hand back jobs that have not begun, and interrupt handlers that run longer than
        `grace`.

        After `grace` it waits at most ten seconds for the store to confirm, and at most ten seconds for a firing
        of schedules in progress; then it runs the functions of `@app.on_worker_stop`. The report lists the jobs
        whose end the store has not confirmed. A second shutdown changes nothing and returns the first report, with
        `already_shut_down` set. `start` starts a worker again.
        """
        to_nanoseconds(grace, "grace")
        host = self._host
        if host is None:
            self._flush_activity()
            is_first = self._last_stop is None
            return replace(self._last_stop or StopReport(), was_running=False, already_shut_down=not is_first)
        try:
            self._last_stop = report = host.stop(grace)
            if report.has_left:  # otherwise the store does not answer
                self._flush_activity()
            return report
        finally:
            self._host = None
            self._run_stop_hooks()

    def _flush_activity(self) -> None:
        if self._activity is not None and not self.is_closed:
            self._activity.flush(ACTIVITY_PATIENCE)

    def _run_stop_hooks(self) -> None:
        try:
            self._must_run_stop_hooks.pop()
        except IndexError:  # another thread runs them, or has run them
            return
        self._hooks.run_stop()
