"""Runs the demonstration: half an hour of a shop, compressed into seconds.

Customers place thousands of orders, each with a durable time-out. Most pay in time, which cancels the time-out.
The time-out cancels the other orders. Orders that regular customers have paid are charged, packed and mailed, in
order for each customer. A cron schedule writes a report every night, which is every four seconds.

For a while the order service is down. Time-outs fail and are retried; some become dead letters and are replayed.
Charges are retried and keep their place in the sequence. Then the worker is killed with kill -9 and started again.

At the end the shop's own journal is checked. The demo reports an order that was lost, or canceled although it was
paid in time, a parcel that was mailed before it was packed, and a night without a report.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from tempfile import TemporaryDirectory
from threading import Event

from mainspring import JobStatus, TaskFailure, ThreadPool
from mainspring.demo.audit import ClosingFigures, OrderAudit, WorkerOutage
from mainspring.demo.customers import CustomerPlan, Customers
from mainspring.demo.journal import OrderEvent, clock
from mainspring.demo.orders import NIGHT, app, cancel_order, journal, nightly_report, service
from mainspring.demo.screen import Screen
from mainspring.demo.worker_process import WorkerProcess
from mainspring.plurals import format_count

FULL = CustomerPlan(
    orders=4_000,
    placed_within=8,
    timeout=5,
    unpaid_share=0.15,
    service_down=6,
    service_back=9,
    kill=10.5,
)
QUICK = CustomerPlan(
    orders=600,
    placed_within=4,
    timeout=1.5,
    unpaid_share=0.2,
    service_down=1.7,
    service_back=4.2,
    kill=4.5,
)
REPLAYS_PER_SECOND = 200


class DemoScenario:
    """Runs the demo: opens the shop, stops the order service, kills the worker, replays dead letters, audits.

    Between its steps it calls `check`, which raises an exception if the demo is to end early.
    """

    def __init__(
        self,
        plan: CustomerPlan,
        screen: Screen,
        worker: WorkerProcess,
        pool: ThreadPool,
        check: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._screen = screen
        self._check = check
        self._worker = worker
        self._customers = Customers(plan, pool)
        self._audit = OrderAudit()
        self._never = Event()  # waits with a timeout
        self._reports_shown = 0

    def run(self) -> ClosingFigures:
        """Run the demo from its start to its end, and return the closing figures of the audit."""
        show, plan = self._screen.show_event, self._plan
        show(f"a shop: an order unpaid after {plan.timeout:g} s (really: 30 min) is canceled")
        show(f"worker {self._worker.start()} is ready; the shop opens, {plan.orders:,} orders are to come")
        opening = self._screen.seconds()
        self._customers.arrive()

        self._watch_until(opening + plan.service_down)
        service.go_down()
        show("the order service goes down: time-outs fail, retries back off")
        self._watch_until(opening + plan.service_back)
        self._wait_for(lambda: app.counts()[JobStatus.FAILED] > 0)
        service.come_back()
        show("the order service is back")

        self._watch_until(opening + plan.kill)
        outage = self._kill_and_restart()

        self._wait_for(self._is_all_settled)
        letters = app.dead_letters.replay(type=cancel_order.name, rate=REPLAYS_PER_SECOND)
        show(f"dead letters: {len(letters):,}; they are replayed, {REPLAYS_PER_SECOND} a second")
        self._wait_for(self._is_all_settled)
        nights = self._end_reports()
        show(f"every job has ended; the worker stops with exit code {self._worker.stop()}")
        self._update()
        return self._audit.close(replayed=len(letters), outage=outage, nights=nights)

    def _end_reports(self) -> int:
        """Pause the schedule of the nightly report, and wait until all jobs have ended, at most 15 seconds.

        Return how many reports the schedule must have written.
        """
        app.schedules.pause(nightly_report.name)
        self._wait_for(self._is_all_settled)
        schedule = app.schedules.get(nightly_report.name)
        if schedule.last_due is None:
            return 0
        return int(schedule.last_due.timestamp() // NIGHT - schedule.created.timestamp() // NIGHT)

    def _kill_and_restart(self) -> WorkerOutage:
        self._wait_for(lambda: len(self._audit.in_flight()) >= 2, every=0.002, patience=1)
        self._worker.kill()
        begin = clock.now().timestamp()
        self._update()
        in_flight = len(self._audit.in_flight())
        self._screen.show_event(f"[bold]kill -9[/bold]: the worker is dead; time-outs in flight: {in_flight}")
        self._screen.show_event(f"worker {self._worker.start()} is ready, and goes on")
        return WorkerOutage(begin=begin, end=clock.now().timestamp())

    def _is_all_settled(self) -> bool:
        paid = self._audit.count(OrderEvent.PAID) + self._audit.count(OrderEvent.PAID_LATE)
        if self._audit.count(OrderEvent.PLACED) < self._plan.orders or paid < self._customers.payers:
            return False
        if self._audit.count(OrderEvent.PARCEL) < len(self._audit.parcels):
            return False
        counts = app.counts()
        return counts[JobStatus.PENDING] + counts[JobStatus.RUNNING] == 0

    def _watch_until(self, second: float) -> None:
        while self._screen.seconds() < second:
            self._update()
            self._never.wait(min(0.1, max(0.0, second - self._screen.seconds())))

    def _wait_for(self, condition: Callable[[], bool], *, every: float = 0.1, patience: float = 15) -> None:
        """Wait until a condition is true, at most `patience` seconds, and update the screen meanwhile.

        Return also if it stays false: the closing figures show the consequence.
        """
        deadline = self._screen.seconds() + patience
        self._update()
        while not condition() and self._screen.seconds() < deadline:
            self._never.wait(every)
            self._update()

    def _update(self) -> None:
        self._check()
        self._audit.add(journal.read_new())
        self._show_reports()
        self._screen.show_bars(self._audit)

    def _show_reports(self) -> None:
        for report in list(self._audit.reports.values())[self._reports_shown :]:
            job = app.get(report.job)
            if job.status is not JobStatus.COMPLETED:
                return
            self._reports_shown += 1
            self._screen.show_event(f"[blue]nightly report {self._reports_shown}[/blue]: {job.result}")


def run_demo(plan: CustomerPlan, screen: Screen, check: Callable[[], None]) -> ClosingFigures:
    """Run the demo in a temporary folder, which is removed at the end, and return its closing figures.

    `check` is called several times a second; an exception of it ends the demo. Raises `RuntimeError` if a task of
    the simulated customers failed.
    """
    failures: list[TaskFailure] = []
    with (
        TemporaryDirectory(prefix="mainspring-demo-") as folder,
        chdir(folder),
        app,
        WorkerProcess("worker.log") as worker,
        screen,
        ThreadPool(8, name="customers", on_error=failures.append) as pool,
    ):
        figures = DemoScenario(plan, screen, worker, pool, check).run()
    if failures:
        raise RuntimeError(
            f"{format_count(len(failures), 'task')} of the simulated customers failed; "
            "the error of the first one is printed above"
        ) from failures[0].error
    return figures
