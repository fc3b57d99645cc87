"""Starts and stops the parts of a worker together: the worker itself, the firing of schedules, and maintenance.

A shutdown waits for handlers within its grace period, and after that at most `PATIENCE_FOR_ANSWERS` for the store.
The report names the jobs whose end the store has not confirmed by then. No job is lost: the requests stay queued,
and if the process ends before they are carried out, other workers rescue the jobs.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Container
from dataclasses import replace
from typing import TYPE_CHECKING

from mainspring.clock import Duration, SystemClock, deadline_after, to_nanoseconds
from mainspring.errors import StoreReplaced
from mainspring.jobs.handlers import HandlerRegistry
from mainspring.jobs.io_layer import CallbackReply, SingleOperation
from mainspring.jobs.layers import Layers
from mainspring.jobs.middleware import Middlewares
from mainspring.jobs.policies import WorkerSettings
from mainspring.jobs.records import WorkerInfo
from mainspring.jobs.recurrence.orphaned_schedules import OrphanReporter
from mainspring.jobs.recurrence.schedule_firer import PATIENCE_SECONDS, ScheduleFirer
from mainspring.jobs.statistics import SlotStatistics
from mainspring.jobs.worker import stop_report
from mainspring.jobs.worker.invoker import HandlerInvoker
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.maintenance import EVERY_SECONDS, HealthRecorder, Maintenance, StallDetector
from mainspring.jobs.worker.stop_report import StopReport
from mainspring.jobs.worker.unserved_queues import UnservedQueues
from mainspring.jobs.worker.worker import Worker
from mainspring.runners.repeat import Repetition
from mainspring.timing.wheel import WheelStatistics
from mainspring.worker_health import WorkerHealth, WorkerState

if TYPE_CHECKING:
    from mainspring.jobs.signing import JobSigner

logger = logging.getLogger("mainspring.worker")


class WorkerHost:
    """Starts and stops the worker of a job manager, together with its schedules and its maintenance."""

    def __init__(
        self,
        layers: Layers,
        settings: WorkerSettings,
        registry: HandlerRegistry,
        invoker: HandlerInvoker,
        *,
        new_id: Callable[[], str],
        declared_schedules: Container[str],
        middlewares: Middlewares,
        on_settled: Callable[[list[str]], None],
        on_health: Callable[[WorkerHealth], None],
        signer: JobSigner | None = None,
    ) -> None:
        self._layers = layers
        self._settings = settings
        self._registry = registry
        self._health = HealthRecorder(layers.clock, on_health)
        self._firer = ScheduleFirer(
            engine=layers.engine,
            io=layers.io,
            clock=layers.clock,
            new_id=lambda _: new_id(),
            add_keys=registry.with_search_keys,
            orphans=OrphanReporter(layers.engine, registry, declared_schedules),
            middlewares=middlewares,
            refer=None if signer is None else signer.refer_to_schedule,
        )
        self._worker = Worker(
            WorkerInfo(f"{platform.node()}:{os.getpid()}", os.getpid(), (), settings.queues),
            layers,
            settings,
            registry,
            invoker,
            on_settled=on_settled,
            on_firing=self._firer.expect,
            signer=signer,
        )
        self._shutdown = _Shutdown(self._worker, layers)
        self.wake = self._worker.wake
        """Make the worker fetch jobs, because some may have become available. Any thread may call it."""
        self._health_reports: Repetition | None = None
        self._maintenance: Repetition | None = None

    # -- start

    def start(self) -> None:
        """Start the health reports, the firing of schedules, the worker and its maintenance.

        The worker rescues the jobs of dead workers before it fetches any. If a part fails to start, the others are
        stopped and its error is raised.
        """
        control = self._layers.control
        if self._settings.has_maintenance:
            control.post(self._report_health)
            self._health_reports = self._layers.control_runner.repeat(
                control.post, self._report_health, every=EVERY_SECONDS
            )
        try:
            self._start_parts()
        except BaseException:
            self._end_health_reports()
            raise

    def _start_parts(self) -> None:
        self._firer.start()
        try:
            self._worker.start()
        except BaseException:
            self._firer.close()
            raise
        self._layers.control.post(self._health.answered)
        self._enter(WorkerState.READY)
        if self._settings.has_maintenance:
            maintenance = self._make_maintenance()
            self._maintenance = self._layers.control_runner.repeat(maintenance.tick, every=EVERY_SECONDS)

    def _make_maintenance(self) -> Maintenance:
        table, clock = self._worker.table, self._layers.clock
        return Maintenance(
            self._worker,
            self._layers,
            self._registry,
            retention=self._settings.keep.retention(),
            health=self._health,
            stalls=StallDetector(
                clock,
                after_ns=self._settings.stall_after_ns,
                kind_of=table.kind_of,
                occupancy=lambda type_: table.occupancy(type_, clock.monotonic_ns()),
                now=self._layers.engine.now,
            ),
            queues=UnservedQueues(clock, after_ns=self._settings.stall_after_ns, queues=self._settings.queues),
            on_clock_jump=self.clock_jumped,
        )

    def _enter(self, state: WorkerState) -> None:
        self._layers.control.post(setattr, self._health, "state", state)
        if self._settings.has_maintenance:
            self._layers.control.post(self._report_health)

    def _report_health(self) -> None:
        self._health.report(len(self._worker.table), self._worker.trouble)

    def _end_health_reports(self) -> None:
        if self._health_reports is not None:
            self._health_reports.stop()

    # -- while it runs

    def active_jobs(self) -> list[LeasedJob]:
        """Return the jobs that the worker has leased."""
        return self._worker.active_jobs()

    def slot_statistics(self) -> tuple[SlotStatistics, ...]:
        """Return how many slots of each kind the worker has, and how many are busy."""
        return self._worker.slot_statistics()

    def timer_statistics(self) -> tuple[WheelStatistics, ...]:
        """Return the statistics of the timing wheels of the worker and of its schedules."""
        return self._worker.timer_statistics(), self._firer.timer_statistics()

    @property
    def health(self) -> WorkerHealth | None:
        """The last health report of the worker; None before the first one."""
        return self._health.latest

    @property
    def store_replaced(self) -> StoreReplaced | None:
        """The error of a store whose file was replaced while the worker runs; None if it was not."""
        return self._health.replaced

    def clock_jumped(self) -> None:
        """Set the timers of jobs and schedules again, because the wall clock has jumped."""
        self._worker.clock_jumped()
        self._firer.retime()

    def announce_handlers(self) -> None:
        """Store the job types of handlers that were registered after the start, and fetch their jobs."""
        self._worker.announce_handlers()
        self._worker.wake()

    # -- stop

    def hurry(self) -> None:
        """Make a `stop` in progress interrupt the running handlers now instead of waiting for them."""
        self._worker.hurry()
        self._shutdown.hurry()

    def stop_fetching(self) -> None:
        """Fetch no more jobs; running handlers continue. Call `stop` to end the worker.

        Wait up to `PATIENCE_FOR_ANSWERS` until the worker has stopped fetching.
        """
        self._shutdown.begin()

    def stop(self, grace: Duration) -> StopReport:
        """Hand back jobs that have not begun, let handlers finish within `grace`, interrupt the others, and leave.

        Only the first call stops the worker. A second call waits for the first one and returns the same report,
        with `already_shut_down` set. Raises the error of the store if the worker cannot leave.
        """
        self._enter(WorkerState.STOPPING)
        if self._maintenance is not None:
            self._maintenance.stop()
        self._firer.end()
        has_left = False
        try:
            report = self._shutdown.run(grace)
            has_left = report.has_left
            return report
        finally:
            # If the store does not answer, do not wait for a firing that waits for it: the stop has waited long
            # enough.
            self._firer.close(PATIENCE_SECONDS if has_left else 0)
            self._end_health_reports()


class _Shutdown:
    """The shutdown of a worker, which runs once, on the thread of the first caller."""

    def __init__(self, worker: Worker, layers: Layers) -> None:
        self._worker = worker
        self._machine = worker.machine
        self._idle = worker.idle
        self._io = layers.io
        self._control = layers.control
        self._clock = layers.clock
        self._first = [None]  # the first caller pops the only element
        self._is_hurried = False
        self._is_over = False
        self._has_left = False
        self._error: Exception | None = None

    def hurry(self) -> None:
        """Make `run` interrupt the handlers now instead of waiting for them. Any thread may call it."""
        self._is_hurried = True
        self._idle.announce()

    def begin(self) -> None:
        """Ask the worker to stop, and wait up to `PATIENCE_FOR_ANSWERS` until it fetches no more jobs."""
        self._worker.request_stop()
        real = SystemClock()
        self._idle.wait(
            lambda: self._machine.is_stopping, deadline_after(real, stop_report.PATIENCE_FOR_ANSWERS), real
        )

    def run(self, grace: Duration) -> StopReport:
        """Stop the worker and return the report.

        Wait at most `grace` for handlers, and then at most `PATIENCE_FOR_ANSWERS` for the store. Raises the error
        of the store if it cannot remove the worker; if it does not answer in time, `has_left` of the report is
        False. A second call waits for the first one, up to the sum of both times, and returns its report, with
        `already_shut_down` set.
        """
        try:
            self._first.pop()
        except IndexError:
            return self._wait_for_first(grace)
        try:
            return self._stop(grace)
        finally:
            self._is_over = True
            self._idle.announce()

    def _wait_for_first(self, grace: Duration) -> StopReport:
        real = SystemClock()
        deadline = deadline_after(real, to_nanoseconds(grace, "grace") / 1e9 + stop_report.PATIENCE_FOR_ANSWERS)
        self._idle.wait(lambda: self._is_over, deadline, real)
        return replace(self._report(), already_shut_down=True)

    def _stop(self, grace: Duration) -> StopReport:
        worker, machine = self._worker, self._machine
        # The requests are posted without waiting: a pool whose threads are all busy must not block a shutdown.
        worker.request_stop()
        deadline = deadline_after(self._clock, grace, "grace")
        self._idle.wait(lambda: self._is_hurried or (machine.is_stopping and worker.is_at_rest()), deadline)
        worker.interrupt()
        real = SystemClock()  # the store answers in real time, whatever the clock of the worker is
        patience = deadline_after(real, stop_report.PATIENCE_FOR_ANSWERS)
        self._idle.wait(lambda: machine.interrupted is not None and worker.has_answers(), patience, real)
        worker.close()
        self._leave()
        self._idle.wait(lambda: self._has_left or self._error is not None, patience, real)
        if self._error is not None:
            raise self._error
        report = self._report()
        if report.left or not report.has_left:
            logger.error("%s", report, extra={"jobs": report.left} if report.left else None)
        return report

    def _leave(self) -> None:
        number = self._machine.number
        reply: CallbackReply[None] = CallbackReply(
            lambda _answer: self._control.post(self._confirm), lambda error: self._control.post(self._fail, error)
        )
        self._io.dispatch(SingleOperation(lambda engine: engine.leave(number), reply))

    def _confirm(self) -> None:
        self._has_left = True
        self._idle.announce()

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._idle.announce()

    def _report(self) -> StopReport:
        left = tuple(job.lease.id for job in self._worker.table.jobs())
        return StopReport(interrupted=self._machine.interrupted or 0, left=left, has_left=self._has_left)
