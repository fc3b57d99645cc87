"""The workplace of a process: its worker, the thread that fires schedules, and the regular duties, as one.

They start and stop together. What a worker has to know beforehand, limits and schedules, is stored first.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress

from mainspring.clock import Clock, Duration
from mainspring.jobs.control import Control
from mainspring.jobs.crew import WorkerInfo
from mainspring.jobs.engine import Engine
from mainspring.jobs.handlers import Registry
from mainspring.jobs.io_layer import IoLayer
from mainspring.jobs.policies import Keep, ProcessSettings
from mainspring.jobs.recurrence.recurring import PATIENCE_SECONDS, Recurring
from mainspring.jobs.working.active import ActiveJob
from mainspring.jobs.working.duties import EVERY_SECONDS, Duties
from mainspring.jobs.working.execution import Execution
from mainspring.jobs.working.stopping import StopReport
from mainspring.jobs.working.vitals import Vitals
from mainspring.jobs.working.watchdog import Watchdog
from mainspring.jobs.working.worker import Worker
from mainspring.runners.asyncio_runner import AsyncioRunner
from mainspring.runners.repeat import Repetition
from mainspring.runners.runner import TaskRunner
from mainspring.runners.thread_pool import ThreadPool
from mainspring.vital_signs import Health, WorkerState


class Workplace:
    """Runs the jobs of an engine, from `start` to `stop`."""

    def __init__(
        self,
        *,
        engine: Engine,
        io: IoLayer,
        control: Control,
        control_runner: TaskRunner,
        execution: TaskRunner,
        executor: Execution,
        registry: Registry,
        clock: Clock,
        coroutines: int,
        processes: ProcessSettings,
        queues: tuple[str, ...] | None,
        keep: Keep,
        has_duties: bool,
        stall_after: int,
        new_id: Callable[[], str],
        on_settled: Callable[[list[str]], None],
        on_turn: Callable[[Health], None],
    ) -> None:
        self._engine = engine
        self._io = io
        self._control = control
        self._stall_after = stall_after
        self._vitals = Vitals(clock, on_turn)
        self._pulse: Repetition | None = None
        self._control_runner = control_runner
        self._execution = execution
        self._registry = registry
        self._clock = clock
        self._keep = keep
        self._has_duties = has_duties
        self._duties: Repetition | None = None
        self._loop_pool: ThreadPool | None = None
        self._recurring = Recurring(engine=engine, io=io, clock=clock, new_id=lambda _: new_id())
        self._worker = Worker(
            WorkerInfo(f"{platform.node()}:{os.getpid()}", os.getpid(), ()),
            engine=engine,
            io=io,
            control=control,
            registry=registry,
            executor=executor,
            execution=execution,
            make_loop=self._make_loop,
            clock=clock,
            threads=execution.width,
            coroutines=coroutines,
            processes=processes.count,
            process_options=processes.options(),
            queues=queues,
            on_settled=on_settled,
            on_firing=self._recurring.expect,
        )

    def start(self) -> None:
        """Begin, after rescuing what dead workers left behind."""
        if self._has_duties:
            self._control.post(self._turn)
            self._pulse = self._control_runner.repeat(self._control.post, self._turn, every=EVERY_SECONDS)
        try:
            self._start()
        except BaseException:
            self._end_pulse()
            raise

    def _start(self) -> None:
        self._recurring.start()
        try:
            self._worker.start()
        except BaseException:
            self._recurring.close()
            raise
        self._control.post(self._vitals.answered)
        self._enter(WorkerState.READY)
        if self._has_duties:
            self._duties = self._control_runner.repeat(self._make_duties().tick, every=EVERY_SECONDS)

    def _make_duties(self) -> Duties:
        hands = self._worker.hands
        return Duties(
            self._worker,
            engine=self._engine,
            io=self._io,
            control=self._control,
            registry=self._registry,
            clock=self._clock,
            retention=self._keep.retention(),
            retime=self.retime,
            vitals=self._vitals,
            watchdog=Watchdog(
                self._clock,
                after_ns=self._stall_after,
                kind_of=hands.kind_of,
                occupancy=lambda type_: hands.occupancy(type_, self._clock.monotonic_ns()),
                now=self._engine.now,
            ),
        )

    def _enter(self, state: WorkerState) -> None:
        self._control.post(setattr, self._vitals, "state", state)
        if self._has_duties:
            self._control.post(self._turn)

    def _turn(self) -> None:
        self._vitals.turn(len(self._worker.hands), self._worker.trouble)

    def _end_pulse(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()

    def _make_loop(self) -> AsyncioRunner:
        if isinstance(self._execution, ThreadPool):
            return self._execution.asyncio(name="mainspring-loop")
        self._loop_pool = ThreadPool(1, name="mainspring-loops", clock=self._clock)
        return self._loop_pool.asyncio(name="mainspring-loop")

    def active_jobs(self) -> list[ActiveJob]:
        """Return what is in the hands of the worker."""
        return self._worker.active_jobs()

    def wake(self) -> None:
        """Look for jobs."""
        self._worker.wake()

    def retime(self) -> None:
        """Time everything anew: the wall clock has jumped."""
        self._worker.retime()
        self._recurring.retime()

    def hurry(self) -> None:
        """End a `stop` that waits for handlers."""
        self._worker.hurry()

    def announce_handlers(self) -> None:
        """Tell the store about handlers that were registered after the start, and look for their jobs."""
        self._worker.announce_handlers()
        self._worker.wake()

    def stop_taking(self) -> None:
        """Take no more jobs; those that run go on. `stop` does the rest."""
        self._worker.stop_taking()

    def stop(self, grace: Duration) -> StopReport:
        """Let handlers finish within `grace`, hand back the rest, and leave the store."""
        self._enter(WorkerState.STOPPING)
        if self._duties is not None:
            self._duties.stop()
        self._recurring.end()
        does_store_answer = False
        try:
            report = self._worker.stop(grace)
            does_store_answer = report.has_left
            return report
        finally:
            # A firing that waits for a store that does not answer is left behind: the stop has waited long enough.
            self._recurring.close(PATIENCE_SECONDS if does_store_answer else 0)
            self._end_pulse()
            if self._loop_pool is not None:
                with suppress(RuntimeError):
                    self._loop_pool.shutdown(timeout=0)
