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

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from mainspring.clock import Clock, Duration, SystemClock, deadline_after
from mainspring.jobs.control import Control
from mainspring.jobs.crew import WorkerInfo
from mainspring.jobs.engine import Engine, Taken
from mainspring.jobs.handlers import Registry
from mainspring.jobs.io_layer import Callback, IoLayer, SingleOperation
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.alarms import Alarms
from mainspring.jobs.working.announcing import Announcing
from mainspring.jobs.working.attempts import Attempts
from mainspring.jobs.working.execution import Execution
from mainspring.jobs.working.hands import Hands
from mainspring.jobs.working.looking import Looking
from mainspring.jobs.working.news import tell_sweep
from mainspring.jobs.working.on_loop import OnLoop
from mainspring.jobs.working.on_threads import OnThreads
from mainspring.jobs.working.progress import Reporting
from mainspring.jobs.working.running import Running, in_processes, require_main_guard
from mainspring.jobs.working.settling import Settling
from mainspring.jobs.working.slots import Kind
from mainspring.jobs.working.starting import Starting
from mainspring.jobs.working.stopping import Stopping, StopReport
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.rest import Rest
from mainspring.runners.runner import TaskRunner
from mainspring.timing.timer import Timer

PATIENCE_NS = 100_000_000  # how long a job that is due waits for a slot before it is handed back
PROCESSES = os.cpu_count() or 1

logger = logging.getLogger("mainspring.worker")


def _nothing(_answer: object) -> None:
    return None


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
        processes: int = PROCESSES,
        process_options: Mapping[str, Any] | None = None,
        on_firing: Callable[[int | None], None] = _nothing,
    ) -> None:
        self._engine = engine
        self._io = io
        self._control = control
        self._clock = clock
        self._on_settled = on_settled
        self._on_firing = on_firing
        self._timer = Timer(clock, name="mainspring-worker")
        self._alarms = Alarms(self._timer, clock, engine, control)
        self._rest = Rest(clock)
        announce, number = self._rest.announce, self._number
        self._reporting = Reporting(io, self._timer, clock, engine, worker=number, announce=announce)
        self._hands = Hands(
            registry,
            self._reporting,
            threads=threads,
            coroutines=coroutines,
            processes=processes,
            queues=queues,
        )
        attempts = Attempts(self._timer, clock, self._reporting.begin, self._end_with)
        self._running = Running(
            {
                Kind.THREADS: lambda: OnThreads(execution, threads, executor, attempts),
                Kind.LOOP: lambda: OnLoop(make_loop(), coroutines, executor, attempts),
                Kind.PROCESSES: partial(in_processes, processes, executor, attempts, clock, process_options or {}),
            }
        )
        self._looking = Looking(
            io, control, engine, self._alarms, self._hands, worker=number, on_taken=self._take, announce=announce
        )
        self._starting = Starting(
            io, control, worker=number, on_answer=self._started, on_failure=self._start_failed
        )
        self._settling = Settling(
            io, control, self._timer, clock, worker=number, collect=self._collect, announce=announce
        )
        self._announcing = Announcing(info, registry, io, control, worker=number, on_dead=self._declared_dead)
        self._stopping = Stopping(
            io,
            control,
            clock,
            self._rest,
            begin=self._begin_stopping,
            is_at_rest=self._is_at_rest,
            interrupt=self._interrupt_all,
            has_answers=self._has_answers,
            close=self._close,
            jobs=self._hands.jobs,
        )
        # what follows belongs to the control sequence
        self.number = 0
        self._is_reborn = self._is_stopping = False

    def _number(self) -> int:
        return self.number

    # -- beginning

    def start(self) -> None:
        """Enroll, rescue what dead workers left behind, and look for jobs."""
        require_main_guard()
        self.number = self._io.run(_enrolling(self._announcing.introduce()))
        try:
            tell_sweep(self._io.run(lambda engine: engine.sweep(self.number)))
        except BaseException:
            self._io.run(lambda engine: engine.leave(self.number))
            raise
        self._clock.attach(self)
        self._control.post(self._looking.look)

    def wake(self) -> None:
        """Look for jobs: something may have become due. From any thread."""
        self._control.post(self._looking.look)

    def announce_handlers(self) -> None:
        """Tell the store about handlers that were registered since it was last told. From any thread."""
        self._control.post(self._announcing.update)

    # -- taking

    def _take(self, taken: Taken) -> None:
        if not taken.is_alive:
            self._reincarnate()
            return
        jobs = [self._hands.accept(lease) for lease in taken.leases]
        if self._is_stopping:
            self._hand_back(jobs)
            self._rest.announce()
            return
        for job in jobs:
            if not job.lease.is_started:
                self._alarms.at(job.lease.due - self._engine.start_lead, self._begin, job)
        self._release([job for job in jobs if job.lease.is_started])
        self._stop_jobs(taken.stops)
        self._looking.plan(taken)
        self._on_firing(taken.next_firing)
        self._rest.announce()

    def _stop_jobs(self, ids: list[str]) -> None:
        if ids:
            for job in self._hands.jobs():
                if job.lease.id in ids and not job.is_asked_to_stop:
                    job.is_asked_to_stop = True
                    self._running.stop(job)

    def retime(self) -> None:
        """Start anew from the wall clock, which has jumped: jobs that are held go back, and come again in time."""
        self._control.post(self._retime)

    def _retime(self) -> None:
        self._hand_back([job for job in self._hands.jobs() if job.ready_ns is None])
        self._looking.look_now()

    # -- starting

    def _begin(self, job: ActiveJob) -> None:
        """Commit the start of a job that was held, unless it has been handed back meanwhile."""
        if self._is_ours(job):
            self._hands.begin(job)
            self._starting.start(job)
            if job.slots.wants_ahead:
                self._looking.look_ahead()

    def _is_ours(self, job: ActiveJob) -> bool:
        return job in self._hands and job.is_waiting

    def _started(self, accepted: list[ActiveJob], refused: list[ActiveJob]) -> None:
        for job in refused:  # cancelled, or lost to another worker
            self._hands.drop(job)
        if self._is_stopping:
            self._hand_back(accepted)
        else:
            self._release(accepted)
        self._rest.announce()

    def _start_failed(self, jobs: list[ActiveJob]) -> None:
        self._hands.take_back(jobs)
        self._hand_back(jobs)
        self._rest.announce()

    def _release(self, jobs: list[ActiveJob]) -> None:
        """Make jobs ready as soon as they are due; those of one instant together."""
        now = self._engine.now()
        early: dict[int, list[ActiveJob]] = {}
        for job in jobs:
            if job.lease.due > now:
                early.setdefault(job.lease.due, []).append(job)
        for due, group in early.items():
            self._alarms.at(due, self._release_waiting, group)
        self._make_ready([job for job in jobs if job.lease.due <= now] if early else jobs)

    def _release_waiting(self, jobs: list[ActiveJob]) -> None:
        self._make_ready([job for job in jobs if self._is_ours(job)])

    def _make_ready(self, jobs: list[ActiveJob]) -> None:
        if not jobs:
            return
        now, instant = self._clock.monotonic_ns(), self._engine.now()
        for job in jobs:
            job.ready_ns, job.ready_at = now, instant
        self._running.dispatch(jobs)
        if self._hands.is_crowded():
            self._alarms.after(PATIENCE_NS, self._hand_back_late, jobs)

    def _hand_back_late(self, jobs: list[ActiveJob]) -> None:
        late = [job for job in jobs if job.is_waiting and job.claim_start()]
        if late:
            for job in late:
                job.slots.shut()
            self._end(late, OutcomeKind.HANDED_BACK)

    # -- settling

    def _end_with(self, jobs: Sequence[ActiveJob], outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes of handlers, unless a shutdown has decided otherwise. From any thread."""
        if len(jobs) == 1 and self._reporting.is_idle:  # as nearly always
            if jobs[0].claim_end():
                jobs[0].context.fall_silent()
                self._settling.settle([outcomes[0]])
        else:
            self._settle([end for end in zip(jobs, outcomes, strict=True) if end[0].claim_end()])

    def _settle(self, ends: Sequence[tuple[ActiveJob, Outcome]]) -> None:
        """Store outcomes whose end was claimed: what their handlers have reported goes first."""
        for job, _ in ends:
            job.context.fall_silent()
        if self._reporting.is_idle:
            if ends:
                self._settling.settle([outcome for _, outcome in ends])
            return
        for job, outcome in ends:
            self._reporting.finish(job.lease, partial(self._settling.settle, [outcome]))

    def _collect(self, settled: list[tuple[Outcome, bool]]) -> None:
        """Forget the jobs whose outcomes the store has accepted or refused."""
        had_suspect = self._hands.drop_settled(outcome for outcome, _ in settled)
        self._looking.is_more |= had_suspect  # suspects come one at a time: there may be another
        self._hands.adapt(is_more=self._looking.is_more)
        self._on_settled([outcome.lease.id for outcome, is_accepted in settled if is_accepted])
        self._rest.announce()
        self._looking.use_room()

    def _hand_back(self, jobs: Iterable[ActiveJob]) -> None:
        """Give back what has not started; what is being started is given back when the answer is there."""
        self._end([job for job in jobs if not job.is_starting and job.claim_start()], OutcomeKind.HANDED_BACK)

    def _end(self, jobs: list[ActiveJob], kind: OutcomeKind) -> None:
        self._settle([(job, Outcome(job.lease, kind)) for job in jobs if job.claim_end()])

    # -- ending

    def stop_taking(self) -> None:
        """Take nothing more; what runs goes on. The rest of the end is `stop`."""
        self._stopping.begin()

    def stop(self, grace: Duration) -> StopReport:
        """Take nothing more, let handlers finish within `grace`, hand back the rest, and leave the store."""
        return self._stopping.stop(grace, self._number)

    def _close(self) -> None:
        self._reporting.close()
        self._timer.close()
        self._running.close()
        self._clock.detach(self)

    def _is_at_rest(self) -> bool:
        return not self._hands and self._has_answers()

    def _has_answers(self) -> bool:
        """Whether the store has answered everything: what it hands over now would be left behind."""
        return not (self._looking.is_busy or self._starting.is_busy or self._reporting.is_busy())

    def hurry(self) -> None:
        """End a `stop` that waits for handlers. From any thread."""
        self._settling.gives_up = True
        self._stopping.hurry()

    def _begin_stopping(self) -> None:
        self._is_stopping = True
        self._looking.end()
        self._running.announce_shutdown(self._hands.jobs())
        self._hand_back(self._hands.jobs())

    def _interrupt_all(self) -> list[ActiveJob]:
        running = [job for job in self._hands.jobs() if job.is_running]
        self._end(running, OutcomeKind.INTERRUPTED)  # before they notice: what they raise then is our doing
        self._running.stop_all(running)
        return running

    # -- what the duties find

    def declared_dead(self, number: int) -> None:
        """Begin again under a new number: others declared `number` dead and take its jobs. From any thread."""
        self._control.post(self._declared_dead, number)

    def _declared_dead(self, number: int) -> None:
        if number == self.number:  # else it has begun again meanwhile
            self._reincarnate()

    def _reincarnate(self) -> None:
        if self._is_reborn or self._is_stopping:
            self._rest.announce()
            return
        logger.error("worker %d was declared dead while it was stopped; it begins again", self.number)
        self._is_reborn = True
        self._looking.hold()  # nothing is taken until the new number is known
        reply: Callback[int] = Callback(
            lambda number: self._control.post(self._begin_again, number),
            lambda error: self._control.post(self._enroll_failed, error),
        )
        self._io.dispatch(SingleOperation(_enrolling(self._announcing.introduce()), reply))

    def _enroll_failed(self, error: Exception) -> None:
        self._is_reborn = False
        self._looking.fail(error)

    def _begin_again(self, number: int) -> None:
        for job in self._hands.jobs():
            if not job.is_starting and job.claim_start():  # what runs, ends: its outcome will be refused
                self._hands.drop(job)
        before, self.number = self.number, number
        self._io.dispatch(
            SingleOperation(lambda engine: engine.leave(before), Callback(_nothing, _nothing), durable=False)
        )
        self._is_reborn = False
        self._rest.announce()
        self._announcing.update()
        self._looking.go_on()

    def active_jobs(self) -> list[ActiveJob]:
        """Return what is in the hands of this worker."""
        return self._control.run(self._hands.jobs)

    @property
    def hands(self) -> Hands:
        """What it holds; belongs to the control sequence."""
        return self._hands

    @property
    def trouble(self) -> Exception | None:
        """Why it could take nothing, when it last tried; belongs to the control sequence."""
        return self._looking.trouble

    # -- as a member of its clock

    def next_due(self) -> int | None:
        """Return when the next alarm may ring."""
        return self._timer.next_due()

    def activity(self) -> object:
        """Return something that changes with everything this worker does."""
        return self._control.calls, self._settling.stored, self._reporting.sent

    def settle(self, real_seconds: float) -> str | None:
        """Wait until every alarm that is due has rung, and the store owes no answer."""
        real = SystemClock()
        deadline = deadline_after(real, real_seconds)
        if not self._timer.settle(real_seconds):
            return "the timer of a worker"
        return None if self._rest.wait(self._is_settled, deadline, real) else "the store of a worker"

    def _is_settled(self) -> bool:
        is_busy = self._announcing.is_busy or self._settling.is_busy()
        return not is_busy and self._has_answers() and self._looking.is_settled()


def _enrolling(worker: WorkerInfo) -> Callable[[Engine], int]:
    return lambda engine: engine.enroll(worker)
