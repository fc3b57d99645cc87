"""A worker: takes jobs shortly before they are due, starts them on time, settles them, and hands back the rest.

All of its state belongs to the control sequence; methods that touch it are posted there. The way of a job:

    take ──due──────────────────────────────▶ ready ──▶ handler ──▶ outcome ──▶ settle
      └──held──(due - start lead)──▶ start ──(due)──┘

Invariants
- A handler runs only after the store has accepted the start of its job.
- Nothing starts before its due instant in engine time.
- Every lease is settled, handed back, or found out to be lost to another worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from mainspring.clock import NANOSECONDS, Clock, Duration, deadline_after
from mainspring.jobs.active import ActiveJob
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Engine, Lease, Outcome, OutcomeKind, Taken, WorkerInfo
from mainspring.jobs.execution import Execution
from mainspring.jobs.handlers import Registry
from mainspring.jobs.io_layer import Callback, IoLayer, Operation
from mainspring.jobs.slots import Slots
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.func_queue import FuncQueue
from mainspring.runners.rest import Rest
from mainspring.runners.runner import TaskRunner
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

LEAD = 1_000_000  # microseconds ahead of its due time that a job is taken
START_LEAD = 10_000  # microseconds ahead of its due time that its start is committed
PATIENCE_NS = 100_000_000  # how long a job that is due waits for a slot before it is handed back
PAUSE_NS = NANOSECONDS  # after an error of the store

logger = logging.getLogger("mainspring.worker")


class Worker:
    """Runs the jobs of an engine in this process."""

    def __init__(
        self,
        info: WorkerInfo,
        *,
        engine: Engine,
        io: IoLayer,
        control: Control,
        registry: Registry,
        executor: Execution,
        execution: TaskRunner,
        make_loop: Callable[[], AsyncioRunner],
        clock: Clock,
        threads: int,
        coroutines: int,
        queues: tuple[str, ...] | None,
        on_settled: Callable[[list[str]], None],
    ) -> None:
        self._info = info
        self._engine = engine
        self._io = io
        self._control = control
        self._registry = registry
        self._executor = executor
        self._clock = clock
        self._make_loop = make_loop
        self._loop: AsyncioRunner | None = None
        self._on_settled = on_settled
        self._ready: FuncQueue[ActiveJob] = FuncQueue(self._run, execution, concurrency=threads, name="jobs")
        self._timer = Timer(clock, name="mainspring-worker")
        self._thread_slots = Slots(threads, lambda: registry.names(is_async=False), queues)
        self._loop_slots = Slots(coroutines, lambda: registry.names(is_async=True), queues)
        self._settled: deque[tuple[Outcome, bool]] = deque()  # filled by io, emptied by control
        self._rest = Rest(clock)
        # what follows belongs to the control sequence
        self.number = 0
        self._active: dict[int, ActiveJob] = {}
        self._starting: list[ActiveJob] = []
        self._is_starting = False
        self._is_looking = False
        self._must_look = False
        self._is_more = False
        self._look_at: int | None = None
        self._look_alarm: TimerEntry | None = None
        self._is_stopping = False
        self._is_hurried = False
        self.takes = 0

    # -- beginning

    def start(self) -> None:
        """Enroll, rescue what dead workers left behind, and look for jobs."""
        self.number = self._io.call("enroll", (self._info,))
        self._clock.attach(self)
        self.report_sweep(self._io.call("sweep", (), worker=self.number))
        self._control.post(self._look)

    def wake(self) -> None:
        """Look for jobs: something may have become due. From any thread."""
        self._control.post(self._look)

    # -- taking

    def _look(self) -> None:
        if self._is_stopping or self.number == 0:
            return
        if self._is_looking:
            self._must_look = True
            return
        self._is_looking, self._must_look = True, False
        demands = [slots.demand() for slots in (self._thread_slots, self._loop_slots)]
        self._io.dispatch(
            Operation(
                "take",
                [demand for demand in demands if demand.types],
                Callback(
                    lambda taken: self._control.post(self._take, taken),
                    lambda error: self._control.post(self._look_failed, error),
                ),
                worker=self.number,
                durable=False,
                options={"lead": LEAD, "start_lead": START_LEAD},
            )
        )

    def _look_failed(self, error: Exception) -> None:
        self._is_looking = False
        if not self._is_stopping:
            logger.error("no jobs can be taken, trying again in a second: %s", error)
            self._timer.call_at(self._clock.monotonic_ns() + PAUSE_NS, self.wake)

    def _take(self, taken: Taken) -> None:
        self._is_looking = False
        self.takes += 1
        self._is_more = taken.is_more
        ready: list[ActiveJob] = []
        now = self._engine.now()
        for lease in taken.leases:
            job = self._accept(lease)
            if not lease.is_started:
                self._time(job, lease.due - START_LEAD, self._begin)
            elif lease.due > now:
                self._time(job, lease.due, self._release)
            else:
                ready.append(job)
        if self._is_stopping:
            self._hand_back(self._active.values())
            self._rest.announce()
            return
        self._make_ready(ready)
        for job_id in taken.stops:
            self._stop_job(job_id)
        self._schedule_look(taken.next_due)
        if self._must_look:
            self._look()

    def _accept(self, lease: Lease) -> ActiveJob:
        job = ActiveJob(lease, self._registry.get(lease.type))
        self._active[lease.ref] = job
        slots = self._slots_of(job)
        if lease.is_started:
            slots.started += 1
        else:
            slots.held += 1
        if lease.crashes:
            slots.suspects += 1
        return job

    def _slots_of(self, job: ActiveJob) -> Slots:
        return self._loop_slots if job.handler.is_async else self._thread_slots

    def _schedule_look(self, next_due: int | None) -> None:
        if next_due is None:
            return
        instant = self._to_monotonic(next_due - LEAD)
        if self._look_at is not None and self._look_at <= instant:
            return
        if self._look_alarm is not None:
            self._timer.cancel(self._look_alarm)
        self._look_at = instant
        self._look_alarm = self._timer.call_at(instant, lambda: self._control.post(self._look_now))

    def _look_now(self) -> None:
        self._look_at = self._look_alarm = None
        self._look()

    # -- timing

    def _to_monotonic(self, instant: int) -> int:
        return self._clock.monotonic_ns() + (instant - self._engine.now()) * 1_000

    def _time(self, job: ActiveJob, instant: int, then: Callable[[ActiveJob], None]) -> None:
        job.alarm = self._timer.call_at(
            self._to_monotonic(instant), lambda: self._control.post(self._fire, job, instant, then)
        )

    def _fire(self, job: ActiveJob, instant: int, then: Callable[[ActiveJob], None]) -> None:
        if job.lease.ref not in self._active:
            return
        if self._engine.now() < instant:  # the clocks differ a little, or the wall clock was set back
            self._time(job, instant, then)
        else:
            then(job)

    def retime(self) -> None:
        """Start anew from the wall clock, which has jumped: jobs that are held go back, and come again in time."""
        self._control.post(self._retime)

    def _retime(self) -> None:
        self._hand_back([job for job in self._active.values() if not job.ready_ns])
        if self._look_alarm is not None:
            self._timer.cancel(self._look_alarm)
        self._look_now()

    # -- starting

    def _begin(self, job: ActiveJob) -> None:
        """Commit the start of a job that was held."""
        slots = self._slots_of(job)
        slots.held -= 1
        slots.started += 1
        job.is_starting = True
        self._starting.append(job)
        if not self._is_starting:
            self._commit_starts()

    def _commit_starts(self) -> None:
        jobs, self._starting = self._starting, []
        self._is_starting = True
        self._io.dispatch(
            Operation(
                "start",
                [job.lease for job in jobs],
                Callback(
                    lambda answers: self._control.post(self._started, jobs, answers),
                    lambda error: self._control.post(self._start_failed, jobs, error),
                ),
                worker=self.number,
                durable=False,
            )
        )

    def _started(self, jobs: list[ActiveJob], answers: list[bool]) -> None:
        self._is_starting = False
        if self._starting:
            self._commit_starts()
        now = self._engine.now()
        ready = []
        for job, is_accepted in zip(jobs, answers, strict=True):
            job.lease = replace(job.lease, is_started=True)
            job.is_starting = False
            if not is_accepted:  # cancelled, or lost to another worker
                self._drop(job)
            elif job.lease.due <= now:
                ready.append(job)
            else:
                self._time(job, job.lease.due, self._release)
        if self._is_stopping:
            self._hand_back([job for job in jobs if job.lease.ref in self._active])
            self._rest.announce()
        else:
            self._make_ready(ready)

    def _start_failed(self, jobs: list[ActiveJob], error: Exception) -> None:
        logger.error("the start of %d jobs could not be stored, so they are handed back: %s", len(jobs), error)
        self._is_starting = False
        for job in jobs:  # not stored means still held
            job.is_starting = False
            self._slots_of(job).started -= 1
            self._slots_of(job).held += 1
        self._hand_back(jobs)

    def _release(self, job: ActiveJob) -> None:
        self._make_ready([job])

    def _make_ready(self, jobs: list[ActiveJob]) -> None:
        if not jobs:
            return
        now = self._clock.monotonic_ns()
        for job in jobs:
            job.ready_ns = now or 1
            if job.handler.is_async:
                self._run_on_loop(job)
            else:
                self._ready.dispatch(job)
        self._timer.call_at(now + PATIENCE_NS, lambda: self._control.post(self._hand_back_late, jobs))

    def _hand_back_late(self, jobs: list[ActiveJob]) -> None:
        late = [job for job in jobs if job.claim_start()]
        if late:
            for job in late:
                self._slots_of(job).shut()
            self._end(late, OutcomeKind.HANDED_BACK)

    # -- running

    def _run(self, job: ActiveJob) -> None:
        """Run a plain function, on an execution thread."""
        if job.claim_start():
            self._thread_slots.waited(self._clock.monotonic_ns() - job.ready_ns)
            self._arm_timeout(job)
            self._finish(job, self._executor.run(job))

    def _run_on_loop(self, job: ActiveJob) -> None:
        if self._loop is None:
            self._loop = self._make_loop()
        self._loop.post(self._run_async, job)

    async def _run_async(self, job: ActiveJob) -> None:
        """Run a coroutine function, on the event loop."""
        if job.claim_start():
            self._loop_slots.waited(self._clock.monotonic_ns() - job.ready_ns)
            job.coroutine = asyncio.ensure_future(self._executor.run_async(job))
            self._arm_timeout(job)
            self._finish(job, await job.coroutine)

    def _arm_timeout(self, job: ActiveJob) -> None:
        if job.handler.timeout is not None:
            due = self._clock.monotonic_ns() + job.handler.timeout * 1_000
            job.alarm = self._timer.call_at(due, lambda: self._time_out(job))

    def _time_out(self, job: ActiveJob) -> None:
        if not job.is_running:
            return
        logger.warning("job %s (%s) has run into its timeout", job.lease.id, job.lease.type)
        job.has_timed_out = True
        self._interrupt(job)

    def _interrupt(self, job: ActiveJob) -> None:
        """Ask a handler to stop: a coroutine is cancelled, a thread has to look at `cancelled` itself."""
        job.context.request_stop()
        coroutine, loop = job.coroutine, self._loop
        if coroutine is not None and loop is not None:
            loop.loop.call_soon_threadsafe(coroutine.cancel)

    def _stop_job(self, job_id: str) -> None:
        for job in self._active.values():
            if job.lease.id == job_id and not job.context.cancelled:
                self._interrupt(job)

    # -- settling

    def _finish(self, job: ActiveJob, outcome: Outcome) -> None:
        if job.handler.timeout is not None and job.alarm is not None:
            self._timer.cancel(job.alarm)
        if job.claim_end():
            _log(outcome)
            self._settle([outcome])

    def _settle(self, outcomes: list[Outcome]) -> None:
        self._io.dispatch(
            Operation(
                "settle",
                outcomes,
                Callback(
                    lambda answers: self._note_settled(outcomes, answers),
                    lambda error: self._control.post(self._settle_failed, outcomes, error),
                ),
                worker=self.number,
            )
        )

    def _note_settled(self, outcomes: list[Outcome], answers: list[bool]) -> None:
        is_first = not self._settled
        self._settled.extend(zip(outcomes, answers, strict=True))
        if is_first:  # the others of this batch are found by the same call
            self._control.post(self._collect_settled)

    def _collect_settled(self) -> None:
        ids: list[str] = []
        while self._settled:
            outcome, is_accepted = self._settled.popleft()
            lease = outcome.lease
            job = self._active.get(lease.ref)
            if job is not None and job.lease.token == lease.token:
                self._drop(job)
            if is_accepted:
                ids.append(lease.id)
            else:
                logger.warning(
                    "job %s was taken over by another worker; the result of this run was refused", lease.id
                )
        for slots in (self._thread_slots, self._loop_slots):
            slots.adapt(is_more=self._is_more)
        self._on_settled(ids)
        self._rest.announce()
        if self._is_more:
            self._look()

    def _settle_failed(self, outcomes: list[Outcome], error: Exception) -> None:
        logger.error("%d outcomes could not be stored, trying again in a second: %s", len(outcomes), error)
        if self._is_hurried:
            return  # their jobs are found as those of a dead worker, and run again
        self._timer.call_at(self._clock.monotonic_ns() + PAUSE_NS, lambda: self._settle(outcomes))

    def _drop(self, job: ActiveJob) -> None:
        if self._active.pop(job.lease.ref, None) is None:
            return
        slots = self._slots_of(job)
        if job.lease.is_started:
            slots.started -= 1
        else:
            slots.held -= 1
        if job.lease.crashes:
            slots.suspects -= 1

    def _hand_back(self, jobs: Iterable[ActiveJob]) -> None:
        """Give back what has not started; what is being started is given back when the answer is there."""
        self._end([job for job in jobs if not job.is_starting and job.claim_start()], OutcomeKind.HANDED_BACK)

    def _end(self, jobs: list[ActiveJob], kind: OutcomeKind) -> None:
        outcomes = [Outcome(job.lease, kind) for job in jobs if job.claim_end()]
        if outcomes:
            self._settle(outcomes)

    # -- ending

    def stop(self, grace: Duration) -> int:
        """Take nothing more, let handlers finish, hand back the rest; return how many were interrupted."""
        self._control.run(self._begin_stopping)
        deadline = deadline_after(self._clock, grace, "grace")
        self._rest.wait(lambda: self._is_at_rest() or self._is_hurried, deadline)
        interrupted = self._control.run(self._interrupt_all)
        self._timer.close()
        self._clock.detach(self)
        self._io.call("leave", (), worker=self.number)
        return interrupted

    def _is_at_rest(self) -> bool:
        return not (self._active or self._is_looking or self._is_starting)

    def hurry(self) -> None:
        """End a `stop` that waits for handlers. From a signal handler, too."""
        self._is_hurried = True
        self._rest.announce()

    def _begin_stopping(self) -> None:
        self._is_stopping = True
        self._hand_back(list(self._active.values()))

    def _interrupt_all(self) -> int:
        running = [job for job in self._active.values() if job.is_running]
        for job in running:
            self._interrupt(job)
        self._end(running, OutcomeKind.INTERRUPTED)
        return len(running)

    # -- what the duties find

    def report_sweep(self, swept: Any) -> None:
        """Say what was rescued."""
        if swept.rescued:
            logger.warning("rescued %d jobs of workers that died: %s", len(swept.rescued), _some(swept.rescued))
        if swept.quarantined:
            logger.error(
                "%d jobs killed their workers again and again and are now dead letters: %s",
                len(swept.quarantined),
                _some(swept.quarantined),
            )

    def reincarnate(self) -> None:
        """Begin again under a new number: this worker was declared dead, and its jobs belong to others."""
        logger.error("worker %d was declared dead while it was stopped; it begins again", self.number)
        again = Callback(lambda number: self._control.post(self._begin_again, number), self._enroll_failed)
        self._io.dispatch(Operation("enroll", (self._info,), again))

    def _enroll_failed(self, error: Exception) -> None:
        logger.error("worker %d could not begin again, and will try with its next heartbeat: %s", self.number, error)

    def _begin_again(self, number: int) -> None:
        for job in list(self._active.values()):
            if job.claim_start():  # what runs, ends: its outcome will be refused
                self._drop(job)
        self.number = number
        self._is_looking = False
        self._look()

    def active_jobs(self) -> list[ActiveJob]:
        """Return what is in the hands of this worker."""
        return self._control.run(lambda: list(self._active.values()))

    # -- as a member of its clock

    def next_due(self) -> int | None:
        """Return when the next alarm may ring."""
        return self._timer.next_due()

    def activity(self) -> object:
        """Return something that changes with everything this worker does."""
        return self.takes

    def settle(self, real_seconds: float) -> str | None:
        """Wait until every alarm that is due has rung."""
        return None if self._timer.settle(real_seconds) else "the timer of a worker"


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")


def _log(outcome: Outcome) -> None:
    if outcome.kind is OutcomeKind.FAILED:
        logger.error(
            "job %s (%s) is given up and is now a dead letter: %s", outcome.lease.id, outcome.lease.type, outcome.error
        )
    elif outcome.kind is OutcomeKind.RETRY:
        logger.warning("job %s (%s) failed and runs again: %s", outcome.lease.id, outcome.lease.type, outcome.error)
