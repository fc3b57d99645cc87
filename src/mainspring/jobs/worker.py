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
from collections.abc import Callable, Iterable

from mainspring.clock import NANOSECONDS, Clock, Duration, SystemClock, deadline_after
from mainspring.jobs.active import ActiveJob
from mainspring.jobs.alarms import Alarms
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Engine, Outcome, OutcomeKind, Taken, WorkerInfo
from mainspring.jobs.execution import Execution
from mainspring.jobs.handlers import Registry
from mainspring.jobs.hands import Hands
from mainspring.jobs.io_layer import Callback, IoLayer, Operation
from mainspring.jobs.news import tell_sweep
from mainspring.jobs.running import Running
from mainspring.jobs.settling import Settling
from mainspring.jobs.starting import Starting
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.rest import Rest
from mainspring.runners.runner import TaskRunner
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

LEAD = 1_000_000  # microseconds ahead of its due time that a job is taken
PATIENCE_NS = 100_000_000  # how long a job that is due waits for a slot before it is handed back
PAUSE_NS = NANOSECONDS  # after an error of the store
PATIENCE_FOR_ANSWERS = 10.0  # seconds that a stop waits for the store

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
        self._clock = clock
        self._on_settled = on_settled
        self._timer = Timer(clock, name="mainspring-worker")
        self._alarms = Alarms(self._timer, clock, engine, control)
        self._hands = Hands(registry, threads=threads, coroutines=coroutines, queues=queues)
        self._running = Running(
            executor,
            execution,
            make_loop,
            timer=self._timer,
            clock=clock,
            thread_slots=self._hands.thread_slots,
            loop_slots=self._hands.loop_slots,
            on_outcome=self._end_with,
        )
        self._starting = Starting(
            io, control, worker=lambda: self.number, on_answer=self._started, on_failure=self._start_failed
        )
        self._rest = Rest(clock)
        self._settling = Settling(
            io,
            control,
            self._timer,
            clock,
            worker=lambda: self.number,
            collect=self._collect,
            announce=self._rest.announce,
        )
        # what follows belongs to the control sequence
        self.number = 0
        self._is_looking = False
        self._must_look = False
        self._has_room = True
        self._is_more = False
        self._is_more_ahead = False
        self._look_at: int | None = None
        self._look_alarm: TimerEntry | None = None
        self._is_reborn = False
        self._is_stopping = False
        self._is_hurried = False

    # -- beginning

    def start(self) -> None:
        """Enroll, rescue what dead workers left behind, and look for jobs."""
        self.number = self._io.call("enroll", (self._info,))
        try:
            tell_sweep(self._io.call("sweep", (), worker=self.number))
        except BaseException:
            self._io.call("leave", (), worker=self.number)
            raise
        self._clock.attach(self)
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
        demands = self._hands.demands()
        self._has_room = any(demand.starts for demand in demands)
        self._io.dispatch(
            Operation(
                "take",
                demands,
                Callback(
                    lambda taken: self._control.post(self._take, taken),
                    lambda error: self._control.post(self._look_failed, error),
                ),
                worker=self.number,
                durable=False,
                options={"lead": LEAD, "start_lead": self._engine.start_lead},
            )
        )

    def _look_failed(self, error: Exception) -> None:
        self._is_looking = False
        self._rest.announce()
        if not self._is_stopping:
            logger.error("no jobs can be taken, trying again in a second: %s", error)
            self._alarms.after(PAUSE_NS, self._look)

    def _take(self, taken: Taken) -> None:
        self._is_looking = False
        self._is_more = taken.is_more
        if not taken.is_alive:
            self._reincarnate()
            return
        jobs = [self._hands.accept(lease) for lease in taken.leases]
        if self._is_stopping:
            self._hand_back(jobs)
            self._rest.announce()
            return
        now = self._engine.now()
        for job in jobs:
            if not job.lease.is_started:
                self._time(job, job.lease.due - self._engine.start_lead, self._begin)
            elif job.lease.due > now:
                self._time(job, job.lease.due, self._release)
        self._make_ready([job for job in jobs if job.lease.is_started and job.lease.due <= now])
        self._stop_jobs(taken.stops)
        self._schedule_look(taken.next_due)
        if self._must_look:
            self._look()
        self._rest.announce()

    def _stop_jobs(self, ids: list[str]) -> None:
        if ids:
            for job in self._hands.jobs():
                if job.lease.id in ids and not job.context.cancelled:
                    self._running.interrupt(job)

    def _schedule_look(self, next_due: int | None) -> None:
        if next_due is None or not self._has_room:  # without room, the settle that makes some looks again
            return
        # What is due within the lead was left for lack of room: it comes when there is room, or when it is due.
        self._is_more_ahead = next_due <= self._engine.now() + LEAD
        instant = next_due - (self._engine.start_lead if self._is_more_ahead else LEAD)
        if self._look_at is None or instant < self._look_at:
            self._alarms.cancel(self._look_alarm)
            self._look_at = instant
            self._look_alarm = self._alarms.at(instant, self._look_now)

    def _look_now(self) -> None:
        self._look_at = self._look_alarm = None
        self._look()

    # -- timing

    def _time(self, job: ActiveJob, instant: int, then: Callable[[ActiveJob], None]) -> None:
        self._alarms.at(instant, self._fire, job, then)

    def _fire(self, job: ActiveJob, then: Callable[[ActiveJob], None]) -> None:
        if job in self._hands and job.is_waiting:  # else it has been handed back meanwhile
            then(job)

    def retime(self) -> None:
        """Start anew from the wall clock, which has jumped: jobs that are held go back, and come again in time."""
        self._control.post(self._retime)

    def _retime(self) -> None:
        self._hand_back([job for job in self._hands.jobs() if job.ready_ns is None])
        self._alarms.cancel(self._look_alarm)
        self._look_now()

    # -- starting

    def _begin(self, job: ActiveJob) -> None:
        """Commit the start of a job that was held."""
        self._hands.begin(job)
        self._starting.start(job)
        if self._is_more_ahead and self._hands.slots_of(job).wants_ahead:
            self._is_more_ahead = False
            self._look()

    def _started(self, accepted: list[ActiveJob], refused: list[ActiveJob]) -> None:
        for job in refused:  # cancelled, or lost to another worker
            self._hands.drop(job)
        if self._is_stopping:
            self._hand_back(accepted)
            self._rest.announce()
            return
        now = self._engine.now()
        self._make_ready([job for job in accepted if job.lease.due <= now])
        for job in accepted:
            if job.lease.due > now:
                self._time(job, job.lease.due, self._release)
        self._rest.announce()

    def _start_failed(self, jobs: list[ActiveJob]) -> None:
        self._hands.take_back(jobs)
        self._hand_back(jobs)
        self._rest.announce()

    def _release(self, job: ActiveJob) -> None:
        self._make_ready([job])

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
                self._hands.slots_of(job).shut()
            self._end(late, OutcomeKind.HANDED_BACK)

    # -- settling

    def _end_with(self, job: ActiveJob, outcome: Outcome) -> None:
        """Take the outcome of a handler, unless a shutdown has decided otherwise."""
        if job.claim_end():
            self._settling.settle([outcome])

    def _collect(self, settled: list[tuple[Outcome, bool]]) -> None:
        """Forget the jobs whose outcomes the store has accepted or refused."""
        had_suspect = self._hands.drop_settled(outcome for outcome, _ in settled)
        self._is_more |= had_suspect  # suspects come one at a time: there may be another
        self._hands.adapt(is_more=self._is_more)
        self._on_settled([outcome.lease.id for outcome, is_accepted in settled if is_accepted])
        self._rest.announce()
        if self._is_more:
            self._look()

    def _hand_back(self, jobs: Iterable[ActiveJob]) -> None:
        """Give back what has not started; what is being started is given back when the answer is there."""
        self._end([job for job in jobs if not job.is_starting and job.claim_start()], OutcomeKind.HANDED_BACK)

    def _end(self, jobs: list[ActiveJob], kind: OutcomeKind) -> None:
        outcomes = [Outcome(job.lease, kind) for job in jobs if job.claim_end()]
        if outcomes:
            self._settling.settle(outcomes)

    # -- ending

    def stop(self, grace: Duration) -> int:
        """Take nothing more, let handlers finish, hand back the rest; return how many were interrupted."""
        self._control.run(self._begin_stopping)
        deadline = deadline_after(self._clock, grace, "grace")
        self._rest.wait(lambda: self._is_at_rest() or self._is_hurried, deadline)
        interrupted = self._control.run(self._interrupt_all)
        self._rest.wait(self._has_answers, deadline_after(self._clock, PATIENCE_FOR_ANSWERS))
        self._timer.close()
        self._running.close()
        self._clock.detach(self)
        self._io.call("leave", (), worker=self.number)
        return interrupted

    def _is_at_rest(self) -> bool:
        return not self._hands and self._has_answers()

    def _has_answers(self) -> bool:
        """Whether the store has answered everything: what it hands over now would be left behind."""
        return not (self._is_looking or self._starting.is_busy)

    def hurry(self) -> None:
        """End a `stop` that waits for handlers. From any thread."""
        self._is_hurried = True
        self._settling.gives_up = True
        self._rest.announce()

    def _begin_stopping(self) -> None:
        self._is_stopping = True
        self._hand_back(self._hands.jobs())

    def _interrupt_all(self) -> int:
        running = [job for job in self._hands.jobs() if job.is_running]
        self._end(running, OutcomeKind.INTERRUPTED)  # before they notice: what they raise then is our doing
        for job in running:
            self._running.interrupt(job)
        return len(running)

    # -- what the duties find

    def reincarnate(self) -> None:
        """Begin again under a new number: this worker was declared dead, and its jobs belong to others."""
        self._control.post(self._reincarnate)

    def _reincarnate(self) -> None:
        if self._is_reborn or self._is_stopping:
            self._rest.announce()
            return
        logger.error("worker %d was declared dead while it was stopped; it begins again", self.number)
        self._is_reborn = self._is_looking = True  # nothing is taken until the new number is known
        reply = Callback(
            lambda number: self._control.post(self._begin_again, number),
            lambda error: self._control.post(self._enroll_failed, error),
        )
        self._io.dispatch(Operation("enroll", (self._info,), reply))

    def _enroll_failed(self, error: Exception) -> None:
        self._is_reborn = False
        self._look_failed(error)

    def _begin_again(self, number: int) -> None:
        for job in self._hands.jobs():
            if not job.is_starting and job.claim_start():  # what runs, ends: its outcome will be refused
                self._hands.drop(job)
        before, self.number = self.number, number
        self._io.dispatch(Operation("leave", (), Callback(_nothing, _nothing), worker=before, durable=False))
        self._is_reborn = self._is_looking = False
        self._rest.announce()
        self._look()

    def active_jobs(self) -> list[ActiveJob]:
        """Return what is in the hands of this worker."""
        return self._control.run(self._hands.jobs)

    # -- as a member of its clock

    def next_due(self) -> int | None:
        """Return when the next alarm may ring."""
        return self._timer.next_due()

    def activity(self) -> object:
        """Return something that changes with everything this worker does."""
        return self._control.calls, self._settling.stored

    def settle(self, real_seconds: float) -> str | None:
        """Wait until every alarm that is due has rung, and the store owes no answer."""
        real = SystemClock()
        deadline = deadline_after(real, real_seconds)
        if not self._timer.settle(real_seconds):
            return "the timer of a worker"
        return None if self._rest.wait(self._is_settled, deadline, real) else "the store of a worker"

    def _is_settled(self) -> bool:
        return self._has_answers() and not self._must_look and not self._settling.is_busy()


def _nothing(_answer: object) -> None:
    return None
