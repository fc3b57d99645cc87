"""The worker: performs the decisions of its state machine on the three layers of a job manager.

`machine.py` decides what happens to leases and when. This module calls the engine on the io layer, runs handlers
through `executors.py`, stores outcomes through `reporting.py`, sets the machine's timer, and reports every answer
back to the machine in the control sequence. As a member of its clock it lets a manual clock wait until it is idle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from msgspec.structs import replace

from mainspring.clock import SystemClock, deadline_after
from mainspring.jobs.context import fields_of_jobs
from mainspring.jobs.engine import Engine, Taken
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.io_layer import START, CallbackReply, Operation, SingleOperation
from mainspring.jobs.layers import Layers
from mainspring.jobs.policies import WorkerSettings
from mainspring.jobs.processes.import_guard import import_guard
from mainspring.jobs.records import Outcome, OutcomeKind, WorkerInfo
from mainspring.jobs.statistics import SlotStatistics
from mainspring.jobs.worker import machine
from mainspring.jobs.worker.executors import CallTracker, Executors
from mainspring.jobs.worker.invoker import HandlerInvoker
from mainspring.jobs.worker.lease_table import LeasedJob, LeaseTable
from mainspring.jobs.worker.machine import ClockReading, Decision, WorkerMachine
from mainspring.jobs.worker.maintenance import HandlerAnnouncer, log_rescue
from mainspring.jobs.worker.outcomes import for_interruption
from mainspring.jobs.worker.reporting import OutcomeWriter, ProgressWriter
from mainspring.plurals import format_count
from mainspring.runners.idle_condition import IdleCondition
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry, WheelStatistics
from mainspring.version import VERSION

if TYPE_CHECKING:
    from mainspring.jobs.signing import JobSigner

P = ParamSpec("P")

logger = logging.getLogger("mainspring.worker")


class Worker:
    """Runs the jobs of an engine in this process: fetches leases, calls handlers, stores outcomes."""

    def __init__(
        self,
        info: WorkerInfo,
        layers: Layers,
        settings: WorkerSettings,
        registry: HandlerRegistry,
        invoker: HandlerInvoker,
        *,
        on_settled: Callable[[list[str]], None],
        on_firing: Callable[[int], None],
        signer: JobSigner | None = None,
    ) -> None:
        self._signer = signer
        self._engine = layers.engine
        self._io = layers.io
        self._control = layers.control
        self._clock = layers.clock
        self._on_settled = on_settled
        self._on_firing = on_firing
        self._invoker = invoker
        self._timer = Timer(layers.clock, name="mainspring-worker")
        self.idle = IdleCondition(layers.clock)
        """Notified after every event. A thread that waits until this worker is idle waits on it."""
        threads = layers.execution.width
        self._progress = ProgressWriter(layers, self._timer, self.idle, self._get_number)
        self.table = LeaseTable(
            registry,
            self._progress.report,
            threads=threads,
            coroutines=settings.coroutines,
            processes=settings.processes.count,
            queues=settings.queues,
        )
        self.machine = WorkerMachine(self.table)
        self._outcomes = OutcomeWriter(
            layers, self._timer, self.idle, progress=self._progress, on_settled=self._settled
        )
        self._executors = Executors(
            layers,
            invoker,
            CallTracker(layers, self._timer, self._progress, self._outcomes, signer),
            threads=threads,
            coroutines=settings.coroutines,
            processes=settings.processes,
            child_setup=settings.child_setup,
        )
        slots = {str(each.kind): each.slots for each in self.table.slot_statistics()}
        self._announcer = HandlerAnnouncer(
            replace(info, slots=slots, version=VERSION),
            registry,
            layers,
            worker=self._get_number,
            on_dead=self.declared_dead,
        )
        # only the control layer uses the following attributes
        self._wakeup: int | None = None  # the instant for which the timer is set
        self._timer_entry: TimerEntry | None = None

    def _get_number(self) -> int:
        return self.machine.number

    # -- events, from any thread

    def start(self) -> None:
        """Register this worker, rescue the jobs of dead workers, and begin to fetch jobs.

        Wait for the registration and the rescue. If the rescue fails, remove the worker again and raise the error.
        """
        import_guard.require_imported("starts a worker")
        info = self._announcer.current_info()
        number = self._io.run(lambda engine: engine.enroll(info))
        try:
            log_rescue(self._io.run(lambda engine: engine.sweep(number)))
        except BaseException:
            self._io.run(lambda engine: engine.leave(number))
            raise
        self._clock.attach(self)
        self._control.run(self._handle, self.machine.enrolled, number)

    def wake(self) -> None:
        """Let this worker fetch jobs soon, because some may have become available; return at once.

        A worker that shuts down does not fetch.
        """
        self._control.post(self._handle, self.machine.woken)

    def clock_jumped(self) -> None:
        """Hand back the jobs that are not ready to run yet, and fetch again, because the wall clock has jumped."""
        self._control.post(self._handle, self.machine.clock_jumped)

    def declared_dead(self, number: int) -> None:
        """Register this worker again, because other workers declared it dead and take over its jobs.

        Do nothing if `number` is an old number of this worker, or during a registration or a shutdown.
        """
        self._control.post(self._handle, self.machine.declared_dead, number)

    @property
    def trouble(self) -> str | None:
        """The problem of the store that keeps this worker from fetching jobs or storing outcomes; None if none."""
        fetch_error = self.machine.fetch_error
        return self._outcomes.trouble if fetch_error is None else str(fetch_error)

    def announce_handlers(self) -> None:
        """Store the job types of handlers that were registered since the last announcement."""
        self._control.post(self._announcer.update)

    def request_stop(self) -> None:
        """Begin a shutdown: tell the handlers, fetch no more jobs, hand back those whose handler has not begun.

        Outcomes that the engine has refused are tried again at once.
        """
        self._control.post(self._handle, self.machine.stop_requested)
        self._control.post(self._outcomes.hasten)

    def interrupt(self) -> None:
        """At the end of the grace period, interrupt the running handlers and end the leases of their jobs."""
        self._control.post(self._handle, self.machine.interrupt_requested)

    def hurry(self) -> None:
        """Make a shutdown drop outcomes that cannot be stored now, instead of trying again to store them."""
        self._outcomes.gives_up = True

    def active_jobs(self) -> list[LeasedJob]:
        """Return the leased jobs: not started, waiting for a slot, running, and ended but not settled yet."""
        return self._control.run(self.table.jobs)

    def slot_statistics(self) -> tuple[SlotStatistics, ...]:
        """Return how many slots of each kind there are, and how many are busy."""
        return self._control.run(self.table.slot_statistics)

    def timer_statistics(self) -> WheelStatistics:
        """Return the statistics of this worker's timing wheel, which has the worker's timers.

        These timers are handlers' timeouts, intervals of progress reports, retries of outcomes and the next
        wake-up.
        """
        return self._timer.statistics()

    def is_at_rest(self) -> bool:
        """Return whether this worker has no leases, and waits for no answer of the engine that could bring
        some.
        """
        return not self.table and self.has_answers()

    def has_answers(self) -> bool:
        """Return whether the engine has answered all fetches, registrations, starts and progress reports.

        Outcomes do not count.
        """
        return not (self.machine.awaits_leases or self._progress.is_busy)

    def close(self) -> None:
        """Close the timer and the executors of this worker.

        Outcomes that the engine cannot store now, or that wait for another try, are dropped. Other workers rescue
        their jobs.
        """
        self._progress.close()
        self._outcomes.close()
        self._timer.close()
        self._executors.close()
        self._clock.detach(self)

    # -- in the control sequence

    def _handle(
        self, event: Callable[Concatenate[ClockReading, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Report an event to the machine, and perform its decisions."""
        now = ClockReading(self._engine.now(), self._clock.monotonic_ns(), self._engine.start_lead)
        event(now, *args, **kwargs)
        self.machine.time_passed(now)
        wakeup = self.machine.next_wakeup(now)
        for decision in self.machine.take_decisions():
            self._perform(decision)
        if wakeup is not None and (self._wakeup is None or wakeup < self._wakeup):
            self._set_timer(wakeup)
        if self.idle.waiters:
            self.idle.announce()

    def _perform(self, decision: Decision) -> None:
        match decision:
            case machine.Fetch():
                self._fetch(decision)
            case machine.Run(jobs):
                self._run(jobs)
            case machine.EndLeases(jobs, kind):
                self._outcomes.settle([(job, _outcome_of(job, kind)) for job in jobs])
            case machine.CommitStarts():
                self._commit_starts(decision)
            case machine.ExpectFiring(instant):
                self._on_firing(instant)
            case machine.StopHandlers(jobs, also_batches):
                self._executors.stop(jobs, also_batches=also_batches)
            case machine.AnnounceShutdown(jobs):
                self._executors.announce_shutdown(jobs)
            case machine.Enroll():
                self._enroll()
            case machine.Leave(number):
                self._leave(number)

    def _fetch(self, fetch: machine.Fetch) -> None:
        def take(engine: Engine) -> Taken:
            take = engine.take if self._signer is None else partial(self._signer.take, engine)
            return take(fetch.worker, fetch.demands, lead=fetch.lead, start_lead=fetch.start_lead)

        reply: CallbackReply[Taken] = CallbackReply(
            lambda taken: self._control.post(self._fetched, fetch.worker, taken),
            lambda error: self._control.post(self._handle, self.machine.fetch_failed, error),
        )
        self._io.dispatch(SingleOperation(take, reply, durable=False))

    def _fetched(self, worker: int, taken: Taken) -> None:
        if self._signer is not None:
            self._signer.verify(taken.leases)
        self._handle(self.machine.fetched, worker, taken)

    def _run(self, jobs: list[LeasedJob]) -> None:
        try:
            self._executors.run(jobs)
        # the other decisions must be performed, because the machine waits for their answers
        except Exception as error:
            failed = [job for job in jobs if job.claim_start() and job.claim_end()]
            what = format_count(len(failed), "job")
            logger.exception(
                "the worker could not call the handlers of %s; each attempt counts as failed",
                what,
                extra=fields_of_jobs([job.context for job in jobs]),
            )
            self._outcomes.settle([(job, self._invoker.outcome_for_error(job, error)) for job in failed])

    def _commit_starts(self, commit: machine.CommitStarts) -> None:
        jobs = commit.jobs
        reply: CallbackReply[list[bool]] = CallbackReply(
            lambda answers: self._control.post(self._handle, self.machine.starts_answered, jobs, answers),
            lambda error: self._control.post(self._handle, self.machine.starts_failed, jobs, error),
        )
        leases = [job.lease for job in jobs]
        self._io.dispatch(Operation(START, leases, reply, worker=commit.worker, durable=False))

    def _settled(self, settled: list[tuple[Outcome, bool]]) -> None:
        self._on_settled([outcome.lease.id for outcome, is_accepted in settled if is_accepted])
        self._handle(self.machine.settled, [outcome for outcome, _ in settled])

    def _enroll(self) -> None:
        info = self._announcer.current_info()
        reply: CallbackReply[int] = CallbackReply(
            lambda number: self._control.post(self._handle, self.machine.enrolled, number),
            lambda error: self._control.post(self._handle, self.machine.enroll_failed, error),
        )
        self._io.dispatch(SingleOperation(lambda engine: engine.enroll(info), reply))

    def _leave(self, number: int) -> None:
        reply: CallbackReply[None] = CallbackReply(_ignore, _ignore)
        self._io.dispatch(SingleOperation(lambda engine: engine.leave(number), reply, durable=False))
        self._announcer.update()

    # -- the timer

    def _set_timer(self, wakeup: int) -> None:
        if self._timer_entry is not None:
            self._timer.cancel(self._timer_entry)
        self._wakeup = wakeup
        self._timer_entry = self._timer.call_at(wakeup, lambda: self._control.post(self._on_timer))

    def _on_timer(self) -> None:
        self._wakeup = self._timer_entry = None
        self._handle(self.machine.time_passed)

    # -- as a member of its clock

    def next_due(self) -> int | None:
        """Return the monotonic time, in nanoseconds, at which the timer must wake up; None if it is not set."""
        return self._timer.next_due()

    def activity(self) -> object:
        """Return a value that changes with every event of this worker, for a manual clock that compares two of
        them.
        """
        return self._control.calls, self._outcomes.stored, self._progress.sent

    def settle(self, real_seconds: float) -> str | None:
        """Wait until due timers were called and the engine has answered; return None.

        If this takes longer than `real_seconds`, return the name of the part that is not done.
        """
        real = SystemClock()
        deadline = deadline_after(real, real_seconds)
        if not self._timer.settle(real_seconds):
            return "the timer of a worker"
        return None if self.idle.wait(self._is_settled, deadline, real) else "the store of a worker"

    def _is_settled(self) -> bool:
        is_busy = self._announcer.is_busy or self._outcomes.is_busy or self._progress.is_busy
        return not is_busy and self.machine.is_settled


def _outcome_of(job: LeasedJob, kind: OutcomeKind) -> Outcome:
    return for_interruption(job) if kind is OutcomeKind.INTERRUPTED else Outcome(job.lease, kind)


def _ignore(_answer: object) -> None:
    return None
