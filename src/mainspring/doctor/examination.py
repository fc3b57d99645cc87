"""Runs the checks of the machine, then of the store, then of jobs and schedules, if the store can be read.

Invariants
- No check changes the store. On NATS, a test whether the server stores messages writes one, which expires and is
  deleted if the user may do that. Measuring fsync creates and removes a file beside a SQLite store. Reading its
  jobs may create the lock file and the log files beside it.
- The report names what was left out and why: if the store cannot be opened, its jobs were not examined.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterable
from typing import TypeVar

from mainspring.app import Mainspring
from mainspring.clock import Clock, SystemClock
from mainspring.doctor import jobs, machine
from mainspring.doctor.callbacks import check_callbacks
from mainspring.doctor.findings import Check, Finding, Report, Severity, carry_out, info, ok, warning
from mainspring.doctor.machine import check_time_zones, find_zone_data
from mainspring.doctor.schedules import check_schedules
from mainspring.doctor.signatures import check_signatures
from mainspring.doctor.snapshot import Snapshot, take_snapshot
from mainspring.engines.registry import load_name, provider_for
from mainspring.jobs.engine import STALE
from mainspring.store_url import CONFLICT_REMEDY, StoreChoice

T = TypeVar("T")

MOST_CHECKS = 28
"""The approximate number of checks, for a progress bar."""


def examine(
    app: Mainspring,
    *,
    has_handlers: bool = True,
    monitor: str | None = None,
    thorough: bool = False,
    workers: int = 0,
    clock: Clock | None = None,
    on_step: Callable[[int], None] = lambda _checks: None,
) -> Report:
    """Run all checks of `mainspring doctor` and return their report.

    - `has_handlers`: False if the application was not imported, so that only the URL of its store is known
    - `monitor`: the monitoring address of a NATS server; None if there is none
    - `thorough`: run checks in full, however long they take
    - `workers`: how many live workers there must be at least, or the check `workers` warns
    - `on_step`: is called with 1 after each check, and with 0 from time to time during a long one
    """
    examination = Examination(
        app,
        has_handlers=has_handlers,
        monitor=monitor,
        thorough=thorough,
        workers=workers,
        clock=clock or SystemClock(),
        on_step=on_step,
    )
    return examination.run()


class Examination:
    """Runs checks and collects their findings. Each engine's function for checks gets this object."""

    def __init__(
        self,
        app: Mainspring,
        *,
        has_handlers: bool,
        monitor: str | None,
        thorough: bool,
        workers: int,
        clock: Clock,
        on_step: Callable[[int], None],
    ) -> None:
        self.app = app
        self.has_handlers = has_handlers
        """Whether the application was imported. If not, only its URL is known."""
        self.monitor = monitor
        self.thorough = thorough
        self.workers = workers
        """How many live workers there must be at least."""
        self.clock = clock
        self._on_step = on_step
        self._findings: list[Finding] = []

    def run(self) -> Report:
        """Examine the machine, the store and the store's content, and return the report."""
        provider = provider_for(self.app.url)
        watch = machine.ClockWatch(self.clock)
        self.carry_out(_checks_of_machine(self.clock))
        self.carry_out([Check("url", lambda: check_url_choice(self.app.store_choice))])
        load_name(provider.doctor)(self)
        self.carry_out([Check("clock", watch.check)])
        if self.has_handlers:
            self.carry_out([Check("callbacks", lambda: check_callbacks(self.app.callbacks))])
        else:
            self.leave_out(
                "application",
                "the handlers, schedules and settings of an application: none is named",
                "mainspring doctor --app module:app",
            )
        return Report(store=provider.public_url(self.app.url), findings=tuple(self._findings))

    def still_busy(self) -> None:
        """Call `on_step` with 0, so that a progress display shows that a long check is still running."""
        self._on_step(0)

    def carry_out(self, checks: Iterable[Check]) -> Severity:
        """Run checks, add their findings to the report, and return the worst severity; OK without findings."""
        worst = Severity.OK
        for check in checks:
            found = carry_out(check)
            self._findings += found
            self._on_step(1)
            worst = max([worst, *(finding.severity for finding in found)], key=lambda severity: severity.rank)
        return worst

    def attempt(self, name: str, call: Callable[[], T]) -> T | None:
        """Return the result of `call`. If it raises, report a finding of the check `name` and return None."""
        results: list[T] = []

        def run() -> tuple[()]:
            results.append(call())
            return ()

        self.carry_out([Check(name, run)])
        return results[0] if results else None

    def leave_out(self, check: str, what: str, remedy: str = "") -> None:
        """Add a finding which says that `what` was not examined; `remedy` says how to examine it."""
        self.carry_out([Check(check, lambda: info(f"left out: {what}", remedy=remedy))])

    def examine_jobs(self, left_out_because: str | None, *, counts: bool, patience: int = STALE) -> None:
        """Examine jobs, workers and schedules through the engine.

        If `left_out_because` is given, only report that they were left out, for this reason. With `counts`, all
        jobs are counted, too. A worker counts as alive if its last heartbeat is at most `patience` microseconds
        old.
        """
        if left_out_because is not None:
            self.leave_out("jobs", f"jobs, workers and schedules: {left_out_because}")
            if self.workers:
                self.carry_out([Check("workers", lambda: jobs.warn_of_uncounted(self.workers))])
            return
        snapshot = self.attempt("jobs", lambda: self._take_snapshot(counts=counts, patience=patience))
        if snapshot is not None:
            self.carry_out(_checks_of_jobs(snapshot, workers=self.workers))

    def _take_snapshot(self, *, counts: bool, patience: int) -> Snapshot:
        engine = self.app.make_engine(self.clock, read_only=True)
        engine.open(lambda: None)
        try:
            app = self.app if self.has_handlers else None
            return take_snapshot(engine, app, counts=counts, patience=patience)
        finally:
            engine.close()


def check_url_choice(choice: StoreChoice) -> Finding:
    """Report which place names the store, and warn if the environment names another store than the code."""
    if choice.conflict is None:
        return ok(f"the store is named by {choice.source}")
    return warning(
        choice.conflict,
        "The application uses the store in the code; a program without a URL in its code uses the other one.",
        f"{CONFLICT_REMEDY[0].upper()}{CONFLICT_REMEDY[1:]}.",
    )


def _checks_of_machine(clock: Clock) -> list[Check]:
    return [
        Check("python", machine.check_python),
        Check("open-files", lambda: machine.check_open_files(machine.files_allowed())),
        Check("time-zones", lambda: check_time_zones(find_zone_data(zoneinfo.TZPATH), clock.now())),
        Check("synchronised", lambda: machine.check_synchronised(machine.clock_state())),
    ]


def _checks_of_jobs(snapshot: Snapshot, *, workers: int) -> list[Check]:
    return [
        Check("workers", lambda: jobs.check_workers(snapshot, workers)),
        Check("handlers", lambda: jobs.check_handlers(snapshot)),
        Check("queues", lambda: jobs.check_queues(snapshot)),
        Check("lateness", lambda: jobs.check_lateness(snapshot)),
        Check("paused", lambda: jobs.check_paused(snapshot)),
        Check("quotas", lambda: jobs.check_quotas(snapshot)),
        Check("slots", lambda: jobs.check_slots(snapshot)),
        Check("dead-letters", lambda: jobs.check_dead_letters(snapshot)),
        Check("schedules", lambda: check_schedules(snapshot)),
        Check("signatures", lambda: check_signatures(snapshot.signatures)),
    ]


def examine_store(examination: Examination) -> None:
    """Examine jobs, workers and schedules. Engines that register no function of their own use this one."""
    examination.examine_jobs(None, counts=True)


def examine_memory(examination: Examination) -> None:
    """Report that a store in memory cannot be examined from another process."""
    examination.leave_out("store", "a store in memory, which exists only inside of its process")
