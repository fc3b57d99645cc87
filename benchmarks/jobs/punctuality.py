"""Start minus due of jobs that are submitted to a running worker some seconds ahead."""

from functools import partial
from pathlib import Path
from random import Random
from time import sleep, time, time_ns
from typing import NamedTuple

from benchmarks.jobs.process import TooSlow, WorkerProcess, submitter
from benchmarks.jobs.rounds import least
from benchmarks.jobs.systems.every import OURS, PEERS
from benchmarks.jobs.systems.system import System
from benchmarks.measure import Line, Section, percentile

JOBS, WINDOW_SECONDS = 2_000, 10.0
PROBES = 20
SECONDS = 90
FIRST = 2 * 10**9  # values of these jobs, apart from all others
LIMIT = 5.0


class Lateness(NamedTuple):
    """Milliseconds."""

    p99: float
    p50: float
    latest: float
    early: int

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f} / {self.latest:.1f} ms"


def dues_ns(system: System, count: int, window: float) -> list[int]:
    """Choose instants far enough ahead for all submits; whole milliseconds, which every system can store."""
    began = time()
    for number in range(PROBES):
        system.submit(number, began + 3_600)
    ahead = 2 + 2 * count * (time() - began) / PROBES
    chance = Random(11)
    base = time_ns() + int(ahead * 1e9)
    return [(base + int(chance.random() * window * 1e9)) // 1_000_000 * 1_000_000 for _ in range(count)]


def submit_at(system: System, dues: list[int]) -> None:
    for number, due in enumerate(dues):
        system.submit(FIRST + number, due / 1e9)
    if time_ns() > min(dues):
        raise TooSlow(f"{system.title} was still submitting when the first job was due")


def lateness(worker: WorkerProcess, dues: list[int], before: int) -> Lateness:
    """Wait until all have started and compare."""
    sleep(max(0.0, max(dues) / 1e9 - time()))
    starts = worker.wait_started(before + len(dues), SECONDS)
    late = [(start.at_ns - dues[start.value - FIRST]) / 1e6 for start in starts if start.value >= FIRST]
    if len(late) != len(dues):
        raise RuntimeError(f"{len(dues):,} jobs were due and {len(late):,} started")
    return Lateness(percentile(late, 0.99), percentile(late, 0.5), max(late), sum(ms < 0 for ms in late))


def there(system: System, worker: WorkerProcess, count: int = JOBS, window: float = WINDOW_SECONDS) -> Lateness:
    """Submit to a running worker in another process."""
    before = worker.started()
    dues = dues_ns(system, count, window)
    submit_at(system, dues)
    return lateness(worker, dues, before)


def of_idle_worker(system: System, store: Path) -> Lateness:
    if not system.notices_others:
        return of_later_worker(system, store)
    with submitter(system, store), WorkerProcess(system, store) as worker:
        system.submit(0)
        worker.wait_started(1, SECONDS)
        return there(system, worker)


def of_later_worker(system: System, store: Path) -> Lateness:
    """Submit first and start the worker afterwards."""
    with submitter(system, store):
        dues = dues_ns(system, JOBS, WINDOW_SECONDS)
        submit_at(system, dues)
    with WorkerProcess(system, store) as worker:
        return lateness(worker, dues, 0)


def run(rounds: int = 2) -> Section:
    lines = []
    for ours in OURS:
        found = least(partial(of_idle_worker, ours), rounds)
        assert found is not None, ours.title
        lines.append(
            Line(
                what=f"start minus due, {ours.setting}",
                ours=str(found),
                bound=f"p99 < {LIMIT:g} ms",
                is_met=found.p99 < LIMIT,
            )
        )
        lines.append(
            Line(what=f"started early, {ours.setting}", ours=f"{found.early}", bound="0", is_met=not found.early)
        )
    for peer in PEERS:
        found = least(partial(of_idle_worker, peer), 1)
        cell = f"{found}, {found.early} early" if found else "did not finish"
        lines.append(Line(what="start minus due", ours="", peer=f"{cell} {peer.title}"))
    return Section(
        title=f"Jobs: punctuality, {JOBS:,} jobs over {WINDOW_SECONDS:g} s, p50 / p99 / max",
        lines=lines,
        text=f"Submitted one by one from another process, some seconds ahead, to a worker that runs; "
        f"APScheduler's is started afterwards. Best of {rounds} rounds, one for peers.",
    )
