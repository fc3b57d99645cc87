"""Schedules on workers that are killed at random, and on releases that differ about them.

The judge is arithmetic: occurrences of a schedule are the whole multiples of its interval, on a grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from signal import SIGTERM

from mainspring import Every, Mainspring, ScheduleInfo
from mainspring.clock import SystemClock
from mainspring.jobs.timestamps import to_instant
from tests.processes.apps import released, scheduled
from tests.processes.run_history import by_group, by_job
from tests.processes.sandbox import READY, Sandbox
from tests.processes.worker_processes import Figures, ScenarioResult, WorkerProcesses

INTERVALS = {"second": 1_000_000, "half": 500_000, "often": 50_000}
"""Of each schedule of the application `scheduled`, in microseconds."""
WORKERS_OF_A_RELEASE = 2
SLACK = 100_000  # microseconds: occurrences are decided about a moment ahead


@dataclass(frozen=True)
class Recurrence:
    """What came of schedules."""

    figures: Figures
    occurrences: dict[str, int]
    """How many each schedule had."""
    missing: list[str]
    """Occurrences for which no job has run."""
    twice: list[str]
    """Occurrences for which there was more than one job."""
    stray: list[str]
    """Jobs for instants that are no occurrences."""


@dataclass(frozen=True)
class Period:
    """From an instant between `begin` and `stored`, a schedule has this interval. All in microseconds."""

    interval: int
    begin: int
    stored: int
    anchor: int = 0
    """Any point of the grid."""

    def grid(self, after: int, until: int) -> set[int]:
        """Return the occurrences in (after, until]."""
        first = after + self.interval - (after - self.anchor) % self.interval
        return set(range(first, until + 1, self.interval))


def recur(sandbox: Sandbox, *, kills: int, lines: int, seed: int) -> Recurrence:
    """Let schedules run while workers are killed, until handlers have said so many lines."""
    with scheduled.app as app:
        workers = WorkerProcesses(sandbox, "scheduled", seed=seed)
        begin = _wall_clock()
        workers.start()
        stored = _wall_clock()
        workers.kill_at_random(kills, until=lines)
        workers.wait_for_lines(lines)
        result, last = _end(app, workers)
        anchors = {schedule.name: _anchor(schedule) for schedule in app.schedules.list()}
    periods = {name: [Period(interval, begin, stored, anchors[name])] for name, interval in INTERVALS.items()}
    return _compare(result, periods, last)


def roll(sandbox: Sandbox, *, releases: list[str], lines: int, seed: int) -> Recurrence:
    """Replace the workers of one release by those of another, some by force, while both are at work."""
    chance = Random(seed)
    periods: dict[str, list[Period]] = {name: [] for name in released.INTERVALS["old"]}
    with released.app as app:
        workers = WorkerProcesses(sandbox, "released", seed=seed)
        for release in releases:
            begin = _wall_clock()
            _start_a_worker(workers, release)
            stored = _wall_clock()
            for name, interval in released.INTERVALS[release].items():
                periods[name].append(Period(interval, begin, stored))
            for _ in range(WORKERS_OF_A_RELEASE - 1):
                _start_a_worker(workers, release)
            workers.wait_for_lines(workers.lines + lines)
            _end_those_before(workers, chance)
            workers.wait_for_lines(workers.lines + lines)
        result, last = _end(app, workers)
    return _compare(result, periods, last)


def _start_a_worker(workers: WorkerProcesses, release: str) -> None:
    workers.workers.append(workers.start_one(RELEASE=release))
    workers.workers[-1].expect_all(READY)


def _end_those_before(workers: WorkerProcesses, chance: Random) -> None:
    """End the workers of the release before: the first by force, others as it comes."""
    while len(workers.workers) > WORKERS_OF_A_RELEASE:
        worker = workers.workers.pop(0)
        if len(workers.workers) > WORKERS_OF_A_RELEASE or chance.random() < 0.5:
            workers.kill(worker)
        else:
            worker.signal(SIGTERM)
            assert worker.wait() == 0


def _anchor(schedule: ScheduleInfo) -> int:
    """Return where the grid lies: an interval counts from when its schedule was stored first, and stays there."""
    return (schedule.rule.anchor or 0) if isinstance(schedule.rule, Every) else 0


def _end(app: Mainspring, workers: WorkerProcesses) -> tuple[ScenarioResult, dict[str, int]]:
    """Let schedules rest, and the workers do what is left; return the last occurrence of each as well."""
    last = {}
    for name in [schedule.name for schedule in app.schedules.list()]:
        app.schedules.pause(name)
        due = app.schedules.get(name).last_due
        assert due is not None, f"schedule {name} has not had an occurrence"
        last[name] = (due - scheduled.EPOCH) // timedelta(microseconds=1)
    return workers.finish(app, [job.id for job in app.jobs(limit=1_000_000)]), last


def _compare(result: ScenarioResult, periods: dict[str, list[Period]], last: dict[str, int]) -> Recurrence:
    missing, twice, stray = [], [], []
    groups = by_group(own[0] for own in by_job(result.runs).values())  # one run of each job
    for name, runs in groups.items():
        jobs = Counter(int(run.argument.partition("/")[2]) for run in runs)
        expected = _expect(periods[name], last[name], jobs.keys())
        missing += [f"{name}/{due}" for due in sorted(expected - jobs.keys())]
        stray += [f"{name}/{due}" for due in sorted(jobs.keys() - expected)]
        twice += [f"{name}/{due}" for due, number in jobs.items() if number > 1]
    return Recurrence(
        figures=result.figures(),
        occurrences={name: len(runs) for name, runs in groups.items()},
        missing=missing,
        twice=twice,
        stray=stray,
    )


def _expect(periods: list[Period], last: int, found: Iterable[int]) -> set[int]:
    """Return the occurrences there must be: each period has all from its switch until the next one."""
    found = set(found)
    expected: set[int] = set()
    before: Period | None = None
    since = 0
    for period in periods:
        switch = _find_switch(before, period, found)
        if before is not None:
            expected |= before.grid(since, switch)
        before, since = period, switch
    assert before is not None
    return expected | before.grid(since, last)


def _find_switch(before: Period | None, period: Period, found: set[int]) -> int:
    """Return the instant in the time of the switch that explains best what was found around it."""
    first, end = period.begin - SLACK, period.stored + SLACK
    around = {due for due in found if first < due <= end}

    def mistakes(switch: int) -> int:
        old = set() if before is None else before.grid(first, switch)
        return len(around ^ (old | period.grid(switch, end)))

    candidates = {first, end} | period.grid(first, end)
    if before is not None:
        candidates |= before.grid(first, end)
    candidates |= {candidate - 1 for candidate in candidates}
    return min(sorted(candidates), key=mistakes)


def _wall_clock() -> int:
    return to_instant(SystemClock().now(), "now")
