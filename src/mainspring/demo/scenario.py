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
from threading import Event as Alarm

from mainspring import JobStatus, TaskFailure, ThreadPool
from mainspring.demo.books import Books, Figures, Outage
from mainspring.demo.customers import CustomerPlan, Customers
from mainspring.demo.journal import OrderEvent, clock
from mainspring.demo.orders import NIGHT, app, cancel_order, journal, nightly_report, service
from mainspring.demo.screen import Screen
from mainspring.demo.worker_process import WorkerProcess

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


class Story:
    """Runs the events of the demo one after the other."""

    def __init__(self, plan: CustomerPlan, screen: Screen, worker: WorkerProcess, pool: ThreadPool) -> None:
        self._plan = plan
        self._screen = screen
        self._worker = worker
        self._customers = Customers(plan, pool)
        self._books = Books()
        self._alarm = Alarm()
        self._reports_told = 0

    def tell(self) -> Figures:
        """Run all events and return the closing figures."""
        tell, plan = self._screen.tell, self._plan
        tell(f"a shop: an order unpaid after {plan.timeout:g} s (really: 30 min) is canceled")
        tell(f"worker {self._worker.start()} is ready; the shop opens, {plan.orders:,} orders are to come")
        opening = self._screen.seconds()
        self._customers.arrive()

        self._watch_until(opening + plan.service_down)
        service.go_down()
        tell("the order service goes down: time-outs fail, retries back off")
        self._watch_until(opening + plan.service_back)
        self._wait_for(lambda: app.counts()[JobStatus.FAILED] > 0)
        service.come_back()
        tell("the order service is back")

        self._watch_until(opening + plan.kill)
        outage = self._kill_and_restart()

        self._wait_for(self._is_all_settled)
        letters = app.dead_letters.replay(type=cancel_order.name, rate=REPLAYS_PER_SECOND)
        tell(f"dead letters: {len(letters):,}; they are replayed, {REPLAYS_PER_SECOND} a second")
        self._wait_for(self._is_all_settled)
        nights = self._end_the_nights()
        tell(f"every job has ended; the worker stops with exit code {self._worker.stop()}")
        self._look()
        return self._books.close(replayed=len(letters), outage=outage, nights=nights)

    def _end_the_nights(self) -> int:
        """Pause the schedule of the report; return how many reports there must be."""
        app.schedules.pause(nightly_report.name)
        self._wait_for(self._is_all_settled)
        schedule = app.schedules.get(nightly_report.name)
        if schedule.last_due is None:
            return 0
        return int(schedule.last_due.timestamp() // NIGHT - schedule.created.timestamp() // NIGHT)

    def _kill_and_restart(self) -> Outage:
        self._wait_for(lambda: len(self._books.in_flight()) >= 2, every=0.002, patience=1)
        self._worker.kill()
        begin = clock.now().timestamp()
        self._look()
        in_flight = len(self._books.in_flight())
        self._screen.tell(f"[bold]kill -9[/bold]: the worker is dead; time-outs in flight: {in_flight}")
        self._screen.tell(f"worker {self._worker.start()} is ready, and goes on")
        return Outage(begin=begin, end=clock.now().timestamp())

    def _is_all_settled(self) -> bool:
        paid = self._books.count(OrderEvent.PAID) + self._books.count(OrderEvent.PAID_LATE)
        if self._books.count(OrderEvent.PLACED) < self._plan.orders or paid < self._customers.payers:
            return False
        if self._books.count(OrderEvent.PARCEL) < len(self._books.parcels):
            return False
        counts = app.counts()
        return counts[JobStatus.PENDING] + counts[JobStatus.RUNNING] == 0

    def _watch_until(self, second: float) -> None:
        while self._screen.seconds() < second:
            self._look()
            self._alarm.wait(min(0.1, max(0.0, second - self._screen.seconds())))

    def _wait_for(self, condition: Callable[[], bool], *, every: float = 0.1, patience: float = 15) -> None:
        """Wait for a condition for at most `patience` seconds; the closing figures count what is missing then."""
        deadline = self._screen.seconds() + patience
        self._look()
        while not condition() and self._screen.seconds() < deadline:
            self._alarm.wait(every)
            self._look()

    def _look(self) -> None:
        self._books.add(journal.read_new())
        self._tell_reports()
        self._screen.show(self._books)

    def _tell_reports(self) -> None:
        for report in list(self._books.reports.values())[self._reports_told :]:
            job = app.get(report.job)
            if job.status is not JobStatus.COMPLETED:
                return
            self._reports_told += 1
            self._screen.tell(f"[blue]nightly report {self._reports_told}[/blue]: {job.result}")


def play(plan: CustomerPlan, screen: Screen) -> Figures:
    """Run the demo in a temporary folder, which is removed at the end."""
    failures: list[TaskFailure] = []
    with (
        TemporaryDirectory(prefix="mainspring-demo-") as folder,
        chdir(folder),
        app,
        WorkerProcess("worker.log") as worker,
        screen,
        ThreadPool(8, name="customers", on_error=failures.append) as pool,
    ):
        figures = Story(plan, screen, worker, pool).tell()
    if failures:
        raise RuntimeError(f"customers met errors: {len(failures):,}, the first of them above") from failures[
            0
        ].error
    return figures
