"""Runs handlers: plain functions on threads, coroutines on an event loop, others in child processes.

Each executor is set up when its first job is ready: an application without coroutines has no event loop. A call of
a handler is for one job, or for all jobs of a batch. Its timeouts hold for all of its jobs. A request to stop one
job of a batch only sets `cancelled` for that job, because the call also runs the other jobs.

Each call has an empty context (`contextvars`). A task has the context of its caller. For a job, that would be the
context of any thread whose submit has woken the worker, with the values and the current span of another request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from threading import Semaphore
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from mainspring.jobs.context import fields_of_jobs
from mainspring.jobs.job_policies import TIMEOUT, timeout_of
from mainspring.jobs.layers import Layers
from mainspring.jobs.policies import ProcessSettings
from mainspring.jobs.processes.application import ChildSetup
from mainspring.jobs.processes.messages import CallRequest, ChildAnswer, ProgressNote
from mainspring.jobs.records import Outcome, is_suspect, refusal
from mainspring.jobs.worker.attempt_log import log_start
from mainspring.jobs.worker.invoker import HandlerInvoker
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.outcomes import ProcessCrashed, ProcessInterrupted, ProcessKilled, needs_result
from mainspring.jobs.worker.reporting import OutcomeWriter, ProgressWriter
from mainspring.jobs.worker.slots import ExecutionKind, Slots
from mainspring.plurals import format_count
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.runner import TaskRunner
from mainspring.runners.thread_pool import ThreadPool
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

if TYPE_CHECKING:
    from mainspring.jobs.processes.child_process import RunningRequest
    from mainspring.jobs.processes.pool import ProcessPool
    from mainspring.jobs.signing import JobSigner

logger = logging.getLogger("mainspring.worker")


class HandlerCall:
    """A call of a handler, for one job or a batch, with its timers and the functions that stop it.

    A plain function on a thread without timeouts needs no such object.
    """

    __slots__ = ("_timers", "announce_shutdown", "began_ns", "jobs", "kill", "request_stop")

    def __init__(self, jobs: Sequence[LeasedJob]) -> None:
        self.jobs = jobs
        self.began_ns = 0  # when the call began, by the monotonic clock
        self._timers: list[TimerEntry] = []
        self.announce_shutdown: Callable[[], object] | None = None
        """A function that tells the child process of a shutdown; None if there is no child process."""
        self.request_stop: Callable[[], object] | None = None
        """A function that asks the handler in the child process to stop; None if there is no child process."""
        self.kill: Callable[[], object] | None = None
        """A function that ends the handler by force; None if that is impossible."""

    @property
    def is_stop_requested(self) -> bool:
        """Whether all jobs of this call have `cancelled` set: by a request to stop, a timeout or a shutdown."""
        return all(job.context.cancelled for job in self.jobs)

    def arm_timeouts(self, timer: Timer, now_ns: int) -> None:
        """Set timers for the soft timeout and the timeout of this call.

        A single job may have a timeout of its own.
        """
        handler = self.jobs[0].handler
        if handler.soft_timeout is not None:
            due = now_ns + handler.soft_timeout * 1_000
            self._timers.append(
                timer.call_at(
                    due, lambda: self._time_out(handler.soft_timeout or 0, self.request_stop, is_soft=True)
                )
            )
        own = self.jobs[0].lease.headers if len(self.jobs) == 1 else None
        timeout = timeout_of(own, handler.timeout)
        if timeout is not None:
            due = now_ns + timeout * 1_000
            self._timers.append(timer.call_at(due, lambda: self._time_out(timeout, self.kill)))

    def cancel_timeouts(self, timer: Timer) -> None:
        """Cancel the timers that `arm_timeouts` has set."""
        for entry in self._timers:
            timer.cancel(entry)

    def _time_out(self, limit: int, then: Callable[[], object] | None, *, is_soft: bool = False) -> None:
        running = [job for job in self.jobs if job.is_running]
        if running:
            lease = running[0].lease
            others = (
                f" and {format_count(len(running) - 1, 'other job')} of its batch have"
                if len(running) > 1
                else " has"
            )
            logger.warning(
                "job %s (%s)%s run into the %s of %g s; %s",
                lease.id,
                lease.type,
                others,
                "soft timeout" if is_soft else "timeout",
                limit / 1e6,
                _describe_timeout(is_soft=is_soft, can_kill=self.kill is not None),
                extra=fields_of_jobs([job.context for job in running]),
            )
            for job in running:
                job.timed_out_after = limit
                job.context.request_stop()
            if then is not None:
                then()


def _describe_timeout(*, is_soft: bool, can_kill: bool) -> str:
    """Describe what the worker does to a handler at its soft timeout or timeout, for the log."""
    if is_soft:
        return "current_job().cancelled asks the handler to end"
    if can_kill:
        return "the worker cancels the coroutine or kills the child process"
    return "its thread cannot be killed: current_job().cancelled asks the handler to return"


def split_into_calls(
    jobs: Sequence[LeasedJob], claim: Callable[[LeasedJob], bool] = LeasedJob.claim_start
) -> Iterator[HandlerCall]:
    """Divide the jobs of a batch handler that are ready to run into calls, and yield each call when the one before
    has ended.

    `claim` claims the start of each job of the call; jobs that it refuses are left out. A job with two crashes
    gets a call of its own: if it kills its process again, no other job is charged for that.
    """
    waiting = list(jobs)
    while waiting:
        most = 1 if is_suspect(waiting[0].lease) else waiting[0].slots.batch or 1
        others = waiting[1:most]
        chosen = waiting[:1] + [job for job in others if not is_suspect(job.lease)]
        waiting = [job for job in others if is_suspect(job.lease)] + waiting[max(1, most) :]
        claimed = [job for job in chosen if claim(job)]
        if claimed:
            yield HandlerCall(claimed)


class CallTracker:
    """Keeps track of handler calls, on any thread.

    It verifies signed jobs, reports each start, sets timeouts, and passes the outcomes on to be stored.
    """

    def __init__(
        self,
        layers: Layers,
        timer: Timer,
        progress: ProgressWriter,
        outcomes: OutcomeWriter,
        signer: JobSigner | None = None,
    ) -> None:
        self._signer = signer
        self.claim: Callable[[LeasedJob], bool] = (
            LeasedJob.claim_start if signer is None else self._make_claim(signer)
        )
        """Claims the start of a job; returns whether its handler may be called. It verifies signed jobs."""
        self._clock = layers.clock
        self._timer = timer
        self._report_begin = progress.begin
        self._end_jobs = outcomes.end

    def _make_claim(self, signer: JobSigner) -> Callable[[LeasedJob], bool]:
        """Return a function that claims the start of a job and then verifies the signature of the job.

        The function returns whether the handler may be called. A job whose signature is not right becomes a dead
        letter, and its arguments are not decoded.
        """

        def claim(job: LeasedJob) -> bool:
            if not job.claim_start():
                return False
            problem = signer.problem_of(job.lease)
            if problem is None:
                return True
            self._end_jobs((job,), (refusal(job.lease, problem),))
            return False

        return claim

    def begin_job(self, job: LeasedJob) -> int:
        """Report that a thread calls the handler of a job now, and arm its timeouts, if it has some.

        Return the time of the begin, by the engine's clock.
        """
        now = job.began_ns = self._clock.monotonic_ns()
        self._report_begin(job)
        waited = job.waited(now)
        job.slots.record_wait(waited)
        handler, headers = job.handler, job.lease.headers
        has_own = headers is not None and TIMEOUT in headers
        if has_own or handler.timeout is not None or handler.soft_timeout is not None:
            job.call = HandlerCall((job,))
            job.call.arm_timeouts(self._timer, now)
        began = job.ready_at + waited // 1_000  # as `to_engine_time` computes it
        if logger.isEnabledFor(logging.DEBUG):
            log_start(job.context, job.lease, began)
        return began

    def end_job(self, job: LeasedJob, outcome: Outcome, began: int) -> None:
        """End the call of a single job: cancel its timeouts, and pass its outcome on to be stored.

        The outcome gets the times of the attempt and, if jobs are signed, the signatures that it needs.
        """
        if job.call is not None:
            job.call.cancel_timeouts(self._timer)
        outcome.began = began
        outcome.took = (self._clock.monotonic_ns() - job.began_ns) // 1_000
        if self._signer is not None and (outcome.follow_up is not None or outcome.due is not None):
            self._signer.finish(outcome)
        self._end_jobs((job,), (outcome,))

    def begin(self, call: HandlerCall) -> int:
        """Report that a handler call for one job or a batch begins now, and arm its timeouts, if it has some.

        Return the time of the begin, by the engine's clock.
        """
        now = call.began_ns = self._clock.monotonic_ns()
        for job in call.jobs:
            self._report_begin(job)
            job.slots.record_wait(job.waited(now))
            job.call = call
        call.arm_timeouts(self._timer, now)
        began = call.jobs[0].to_engine_time(now)
        if logger.isEnabledFor(logging.DEBUG):
            for job in call.jobs:
                log_start(job.context, job.lease, began)
        return began

    def end(self, call: HandlerCall, outcomes: Sequence[Outcome], began: int | None) -> None:
        """End a handler call for one job or a batch: cancel its timeouts, and pass its outcomes on to be stored.

        The outcomes get the times of the attempt and, if jobs are signed, the signatures that they need.

        `began` is None if the handler did not begin.
        """
        call.cancel_timeouts(self._timer)
        took = None if began is None else (self._clock.monotonic_ns() - call.began_ns) // 1_000
        for outcome in outcomes:
            outcome.began, outcome.took = began, took
            if self._signer is not None:
                self._signer.finish(outcome)
        self._end_jobs(call.jobs, outcomes)


class Executor(Protocol):
    """Runs handlers in one way: on threads, on an event loop, or in child processes."""

    @property
    def run(self) -> Callable[[list[LeasedJob]], Any]:
        """A function that runs jobs as soon as there are free slots.

        It skips a job that a shutdown has handed back before it could start.
        """

    @property
    def run_batch(self) -> Callable[[list[LeasedJob]], Any]:
        """A function that runs jobs of one batch handler, as many in each call as it accepts, one call at a time.

        A job that may have crashed a worker gets a call of its own: see `split_into_calls`.
        """

    def close(self) -> None:
        """End the event loop or the child processes of this executor, with the handlers that still run there.

        Handlers on threads go on.
        """


class Executors:
    """The executors of one worker. The control layer calls `run`; any thread may call the other methods."""

    def __init__(
        self,
        layers: Layers,
        invoker: HandlerInvoker,
        calls: CallTracker,
        *,
        threads: int,
        coroutines: int,
        processes: ProcessSettings,
        child_setup: ChildSetup,
    ) -> None:
        self._makers: dict[ExecutionKind, Callable[[Slots], Executor]] = {
            ExecutionKind.THREADS: lambda _: ThreadExecutor(layers.execution, threads, invoker, calls),
            ExecutionKind.LOOP: lambda _: LoopExecutor(layers, coroutines, invoker, calls),
            ExecutionKind.PROCESSES: lambda _: ProcessExecutor(layers, processes, child_setup, invoker, calls),
            ExecutionKind.CALLBACKS: lambda slots: LoopExecutor(layers, slots.size, invoker, calls),
        }
        self._executors: dict[ExecutionKind, Executor] = {}

    def run(self, jobs: Iterable[LeasedJob]) -> None:
        """Pass jobs to the executors of their kind, which run them as soon as there are slots."""
        groups: dict[Slots, list[LeasedJob]] = {}
        for job in jobs:
            groups.setdefault(job.slots, []).append(job)
        for slots, group in groups.items():
            executor = self._executor(slots)
            if slots.batch is None:
                executor.run(group)
            else:
                executor.run_batch(group)

    def _executor(self, slots: Slots) -> Executor:
        executor = self._executors.get(slots.kind)
        if executor is None:
            executor = self._executors[slots.kind] = self._makers[slots.kind](slots)
        return executor

    def announce_shutdown(self, jobs: list[LeasedJob]) -> None:
        """Tell the handlers of these jobs that their worker shuts down."""
        for job in jobs:
            job.context.announce_shutdown()
        for call in _distinct_calls(jobs):
            if call.announce_shutdown is not None:
                call.announce_shutdown()

    def stop(self, jobs: list[LeasedJob], *, also_batches: bool) -> None:
        """Ask the handlers of these jobs to stop. Cancel their coroutines, and kill their child processes.

        A call of several jobs of a batch is ended by force only with `also_batches`.
        """
        for job in jobs:
            job.context.request_stop()
        for call in _distinct_calls(jobs):
            if call.kill is not None and (also_batches or len(call.jobs) == 1):
                call.kill()

    def close(self) -> None:
        """Close all executors that have run a job."""
        for executor in self._executors.values():
            executor.close()


def _distinct_calls(jobs: list[LeasedJob]) -> set[HandlerCall]:
    return {job.call for job in jobs if job.call is not None}


class BatchQueues:
    """Queues of jobs that may run, one for each batch handler, so that one call of each handler runs at a time."""

    def __init__(
        self, runner: TaskRunner, run: Callable[[HandlerCall], object], claim: Callable[[LeasedJob], bool]
    ) -> None:
        self._runner = runner
        self._run = run
        self._claim = claim
        self._queues: dict[str, FuncQueue[LeasedJob]] = {}

    def add(self, jobs: list[LeasedJob]) -> None:
        """Add jobs of one batch handler that may run to the queue of this handler."""
        name = jobs[0].handler.name
        queue = self._queues.get(name)
        if queue is None:
            queue = FuncQueue(self._run_all, self._runner, batch=True, name=f"mainspring-batches-{name}")
            self._queues[name] = queue
        queue.dispatch_all(jobs)

    def _run_all(self, jobs: list[LeasedJob]) -> None:
        for call in split_into_calls(jobs, self._claim):
            self._run(call)


class ThreadExecutor:
    """Runs plain functions on threads.

    A thread cannot be ended: the function must check `current_job().cancelled`.
    """

    def __init__(self, runner: TaskRunner, size: int, invoker: HandlerInvoker, calls: CallTracker) -> None:
        self._invoker = invoker
        self._calls = calls
        self._ready: FuncQueue[LeasedJob] = FuncQueue(self._run, runner, concurrency=size, name="mainspring-ready")
        self._batches = BatchQueues(runner, self._run_batch, calls.claim)
        self.run = self._ready.dispatch_all
        self.run_batch = self._batches.add

    def _run(self, job: LeasedJob) -> None:
        if self._calls.claim(job):
            began = self._calls.begin_job(job)
            self._calls.end_job(job, Context().run(self._invoker.invoke, job), began)

    def _run_batch(self, call: HandlerCall) -> None:
        began = self._calls.begin(call)
        self._calls.end(call, Context().run(self._invoker.invoke_batch, call.jobs), began)

    def close(self) -> None:
        """Do nothing: handlers that still run go on, because their threads belong to the runner."""


class LoopExecutor:
    """Runs coroutine handlers on an event loop. A timeout or a request to stop cancels the coroutine."""

    def __init__(self, layers: Layers, size: int, invoker: HandlerInvoker, calls: CallTracker) -> None:
        self._own_pool: ThreadPool | None = None
        self._loop = self._make_loop(layers)
        self._invoker = invoker
        self._calls = calls
        # only the event loop uses the following attributes
        self._slots = asyncio.Semaphore(size)
        # jobs that wait for the running call of their batch handler, by its name
        self._waiting: dict[str, list[LeasedJob]] = {}

    def _make_loop(self, layers: Layers) -> AsyncioRunner:
        pool = layers.execution
        if not isinstance(pool, ThreadPool):
            pool = self._own_pool = ThreadPool(1, name="mainspring-loops", clock=layers.clock)
        return pool.asyncio(name="mainspring-loop")

    def run(self, jobs: list[LeasedJob]) -> None:
        """Run jobs on the event loop, as soon as there are free slots."""
        for job in jobs:
            self._loop.post(self._run, job)

    def run_batch(self, jobs: list[LeasedJob]) -> None:
        """Run jobs of one batch handler, as soon as there is a free slot and no other call of the handler runs."""
        self._loop.post(self._run_batches, jobs)

    async def _run(self, job: LeasedJob) -> None:
        async with self._slots:
            if self._calls.claim(job):
                await self._call(HandlerCall((job,)), self._invoke(job))

    async def _invoke(self, job: LeasedJob) -> list[Outcome]:
        return [await self._invoker.invoke_async(job)]

    async def _run_batches(self, jobs: list[LeasedJob]) -> None:
        name = jobs[0].handler.name
        if name in self._waiting:
            self._waiting[name] += jobs
            return
        self._waiting[name] = list(jobs)
        while self._waiting[name]:
            async with self._slots:
                waiting, self._waiting[name] = self._waiting[name], []
                for call in split_into_calls(waiting, self._calls.claim):
                    await self._call(call, self._invoker.invoke_batch_async(call.jobs))
        del self._waiting[name]

    async def _call(self, call: HandlerCall, work: Coroutine[Any, Any, list[Outcome]]) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, context=Context())
        call.kill = partial(loop.call_soon_threadsafe, task.cancel)
        began = self._calls.begin(call)
        if call.is_stop_requested:  # the request came while the job waited for a slot
            task.cancel()
        try:
            outcomes = await task
        except asyncio.CancelledError as error:
            if not task.cancelled():
                raise
            # The task was canceled before its first step.
            outcomes = [self._invoker.outcome_for_error(job, error) for job in call.jobs]
        self._calls.end(call, outcomes, began)

    def close(self) -> None:
        """End the event loop, without waiting for coroutines that still run."""
        self._loop.shutdown(timeout=0)
        if self._own_pool is not None:
            with suppress(RuntimeError):  # this thread belongs to the pool, so it cannot wait for it
                self._own_pool.shutdown(timeout=0)


class ProcessExecutor:
    """Runs handlers in child processes. A timeout, or a request to stop the job, kills the process.

    A process starts when a job needs one and none is idle. A thread of a separate pool waits for each busy
    process, so that no thread for plain handlers is used up. If a process crashes, only the job that it ran is
    affected, or the jobs of the batch that it ran.
    """

    def __init__(
        self,
        layers: Layers,
        settings: ProcessSettings,
        setup: ChildSetup,
        invoker: HandlerInvoker,
        calls: CallTracker,
    ) -> None:
        from mainspring.jobs.processes.pool import ProcessPool  # noqa: PLC0415 - most applications need none

        size = settings.count
        self._invoker = invoker
        self._calls = calls
        self._pool = ProcessPool(size, setup=setup, **settings.options())
        self._threads = ThreadPool(size, name="mainspring-processes", clock=layers.clock)
        self._slots = Semaphore(size)  # if a middleware waits, the pool starts another thread
        self._ready: FuncQueue[LeasedJob] = FuncQueue(self._run, self._threads, concurrency=size)
        self._batches = BatchQueues(self._threads, self._run_call, calls.claim)
        self.run = self._ready.dispatch_all
        self.run_batch = self._batches.add

    def _run(self, job: LeasedJob) -> None:
        if self._calls.claim(job):
            self._run_call(HandlerCall((job,)))

    def _run_call(self, call: HandlerCall) -> None:
        remote = _RemoteCall(call, self._calls)
        request = _request(call, self._invoker.max_result)
        outcomes = Context().run(
            self._invoker.invoke_remote,
            call.jobs,
            lambda passed: self._ask(remote, replace(request, passed=passed)),
        )
        self._calls.end(call, outcomes, remote.began)

    def _ask(self, remote: _RemoteCall, request: CallRequest) -> list[ChildAnswer]:
        with self._slots:
            return remote.run(self._pool, request)

    def close(self) -> None:
        """Kill the child processes that run a handler. Idle ones get a second to exit, and are killed after it."""
        self._pool.close(0)
        self._threads.shutdown(timeout=0)


class _RemoteCall:
    """A call of a handler in a child process, for one job or a batch."""

    def __init__(self, call: HandlerCall, calls: CallTracker) -> None:
        self._call = call
        self._calls = calls
        self.began: int | None = None

    def run(self, pool: ProcessPool, request: CallRequest) -> list[ChildAnswer]:
        """Send the request to a child process, wait, and return the answer for each job.

        Raises `ProcessInterrupted`, `ProcessKilled` or `ProcessCrashed` if the process died while the handler ran,
        and `CannotStart` if the handler did not begin.
        """
        from mainspring.jobs.processes.child_process import ChildDied  # noqa: PLC0415 - see `ProcessExecutor`

        try:
            return pool.run(request, on_start=self._begin, on_note=self._report).answers
        except ChildDied as death:
            if death.was_asked_to_end:
                raise ProcessInterrupted(str(death)) from None
            if death.was_killed:
                raise ProcessKilled(str(death)) from None
            raise ProcessCrashed(str(death)) from None

    def _begin(self, child: RunningRequest) -> None:
        call = self._call
        call.announce_shutdown, call.request_stop, call.kill = child.announce_shutdown, child.stop, child.kill
        self.began = self._calls.begin(call)
        if call.jobs[0].context.stopping:  # the shutdown began while the process started
            child.announce_shutdown()
        if call.is_stop_requested:  # the request to stop came while the process started
            child.kill()

    def _report(self, note: ProgressNote) -> None:
        self._call.jobs[note.place].context.progress(note.done, note.total, note.note)


def _request(call: HandlerCall, max_result: int) -> CallRequest:
    handler = call.jobs[0].handler
    return CallRequest.of(
        handler,
        [job.lease for job in call.jobs],
        max_result=max_result,
        keep_result=any(needs_result(job) for job in call.jobs),
        is_batch=handler.options.batch is not None,
    )
