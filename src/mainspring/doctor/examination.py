"""An examination: the machine, the store, then jobs and schedules, as far as the store lets itself be read.

Invariants
- Nothing is made, migrated or changed; to measure fsync, a file beside the store is made and removed.
- What hides something else is named: if the store cannot be opened, its jobs are left out, and that is said.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.app import Mainspring
from mainspring.clock import Clock, SystemClock
from mainspring.doctor import jobs, machine, sqlite_checks
from mainspring.doctor.findings import Check, Finding, Report, Severity, carry_out, info
from mainspring.doctor.nats_monitor import ask_monitor, no_monitor
from mainspring.doctor.schedules import check_schedules
from mainspring.doctor.snapshot import Snapshot, take_snapshot
from mainspring.doctor.sqlite_content import why_not_open
from mainspring.doctor.time_zones import check_time_zones, find_zone_data
from mainspring.engines.nats.settings import NatsSettings, parse_url, without_password
from mainspring.jobs.engine import STALE
from mainspring.jobs.instants import MICROSECONDS
from mainspring.urls import is_nats, is_sqlite, to_path

if TYPE_CHECKING:  # it needs the client of NATS
    from mainspring.doctor.nats_facts import NatsFacts

T = TypeVar("T")

BUDGET = 1.0
"""Seconds for a look at all of a file, unless it is to be thorough."""
MOST_CHECKS = 23
"""About how many there are, for those who show how far it is."""


def examine(
    app: Mainspring,
    *,
    has_handlers: bool = True,
    monitor: str | None = None,
    thorough: bool = False,
    clock: Clock | None = None,
    on_step: Callable[[int], None] = lambda _checks: None,
) -> Report:
    """Look at everything; `has_handlers=False` if only the URL of the application means something.

    `monitor` is the monitoring address of a NATS server. `thorough` looks at everything, however long it takes.
    `on_step` is called with 1 after each check, and with 0 while a long one goes on.
    """
    examination = _Examination(
        app, has_handlers=has_handlers, thorough=thorough, clock=clock or SystemClock(), on_step=on_step
    )
    return examination.run(monitor)


class _Examination:
    def __init__(
        self,
        app: Mainspring,
        *,
        has_handlers: bool,
        thorough: bool,
        clock: Clock,
        on_step: Callable[[int], None],
    ) -> None:
        self._app = app
        self._has_handlers = has_handlers
        self._clock = clock
        self._thorough = thorough
        self._on_step = on_step
        self._findings: list[Finding] = []

    def run(self, monitor: str | None) -> Report:
        watch = machine.ClockWatch(self._clock)
        self._carry_out(_checks_of_machine(self._clock))
        if is_sqlite(self._app.url):
            self._examine_file(to_path(self._app.url).resolve())
        elif is_nats(self._app.url):
            self._examine_servers(monitor)
        else:
            self._leave_out("store", "nothing of it outlives this process")
        self._carry_out([Check("clock", watch.check)])
        if not self._has_handlers:
            self._leave_out(
                "application",
                "the handlers, schedules and settings of an application: none is named",
                "mainspring doctor --app module:app",
            )
        return Report(store=without_password(self._app.url), findings=tuple(self._findings))

    def _carry_out(self, checks: Iterable[Check]) -> Severity:
        """Carry checks out; return the worst that they found."""
        worst = Severity.OK
        for check in checks:
            found = carry_out(check)
            self._findings += found
            self._on_step(1)
            worst = max([worst, *(finding.severity for finding in found)], key=lambda severity: severity.rank)
        return worst

    def _attempt(self, name: str, look: Callable[[], T]) -> T | None:
        """Return what a look brings; None if it fails, which is a finding then."""
        brought: list[T] = []

        def run() -> tuple[()]:
            brought.append(look())
            return ()

        self._carry_out([Check(name, run)])
        return brought[0] if brought else None

    def _leave_out(self, check: str, what: str, remedy: str = "") -> None:
        self._carry_out([Check(check, lambda: info(f"left out: {what}", remedy=remedy))])

    # -- SQLite

    def _examine_file(self, path: Path) -> None:
        durability = self._app.durability if self._has_handlers else None
        checks = sqlite_checks.store_checks(
            path,
            self._clock,
            durability,
            budget=inf if self._thorough else BUDGET,
            on_step=lambda: self._on_step(0),
        )
        worst = {check.name: self._carry_out([check]) for check in checks}
        is_damaged = worst.get("integrity") is Severity.ERROR
        self._examine_jobs("the file is damaged" if is_damaged else why_not_open(path), counts=True)

    # -- NATS

    def _examine_servers(self, monitor: str | None) -> None:
        told: list[dict[str, Any]] = []
        if monitor is not None:
            self._carry_out([Check("monitor", lambda: _hear(monitor, told))])
        facts = self._attempt("server", lambda: self._visit(told[0] if told else None))
        if facts is None:
            self._examine_jobs("there is no connection", counts=False)
            return
        from mainspring.doctor import nats_checks  # noqa: PLC0415 - only with the extra

        self._carry_out(nats_checks.checks_of_server(facts, self._app.max_payload))
        self._examine_jobs(
            nats_checks.why_not_open(facts),
            counts=self._thorough or nats_checks.is_small(facts),
            patience=max(STALE, round(facts.settings.lease * MICROSECONDS)),
        )

    def _visit(self, monitor: dict[str, Any] | None) -> NatsFacts:
        self._app.make_engine(self._clock, only_looks=True)  # says what to install, if its client is missing
        from mainspring.doctor.nats_facts import visit  # noqa: PLC0415 - only with the extra

        servers, settings = parse_url(self._app.url, self._app.nats or NatsSettings())
        return visit(servers, settings, self._clock, monitor)

    # -- what is in it

    def _examine_jobs(self, left_out_because: str | None, *, counts: bool, patience: int = STALE) -> None:
        if left_out_because is not None:
            self._leave_out("jobs", f"jobs, workers and schedules: {left_out_because}")
            return
        snapshot = self._attempt("jobs", lambda: self._take_snapshot(counts=counts, patience=patience))
        if snapshot is not None:
            self._carry_out(_checks_of_jobs(snapshot))

    def _take_snapshot(self, *, counts: bool, patience: int) -> Snapshot:
        engine = self._app.make_engine(self._clock, only_looks=True)
        engine.open(lambda: None)
        try:
            app = self._app if self._has_handlers else None
            return take_snapshot(engine, app, counts=counts, patience=patience)
        finally:
            engine.close()


def _hear(monitor: str, told: list[dict[str, Any]]) -> Iterator[Finding]:
    try:
        told.append(ask_monitor(monitor))
    except ConnectionError as problem:
        yield no_monitor(monitor, problem)


def _checks_of_machine(clock: Clock) -> list[Check]:
    return [
        Check("python", machine.check_python),
        Check("open-files", lambda: machine.check_open_files(machine.files_allowed())),
        Check("time-zones", lambda: check_time_zones(find_zone_data(zoneinfo.TZPATH), clock.now())),
        Check("synchronised", lambda: machine.check_synchronised(machine.clock_state())),
    ]


def _checks_of_jobs(snapshot: Snapshot) -> list[Check]:
    return [
        Check("workers", lambda: jobs.check_workers(snapshot)),
        Check("handlers", lambda: jobs.check_handlers(snapshot)),
        Check("lateness", lambda: jobs.check_lateness(snapshot)),
        Check("paused", lambda: jobs.check_paused(snapshot)),
        Check("dead-letters", lambda: jobs.check_dead_letters(snapshot)),
        Check("schedules", lambda: check_schedules(snapshot)),
    ]
