"""How soon an immediate job starts: in the process that submits it, and in another one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from time import sleep, time_ns
from typing import NamedTuple

from benchmarks.jobs.process import WorkerProcess, submitter
from benchmarks.jobs.rounds import least
from benchmarks.jobs.systems.every import OURS, PEERS
from benchmarks.jobs.systems.ours import Ours
from benchmarks.jobs.systems.system import System
from benchmarks.measure import Line, Section, percentile
from mainspring import Mainspring

JOBS = 200
PAUSE_SECONDS = 0.015
SECONDS = 60
FIRST = 10**9  # values of these jobs, apart from all others
HERE_LIMIT, THERE_LIMIT = 1.0, 5.0


class Pickup(NamedTuple):
    """Milliseconds from the call of submit to the start, and from its return: negative if the start was first."""

    total: float
    beyond: float


class Pickups(NamedTuple):
    p50: float
    p99: float
    beyond_p50: float
    beyond_p99: float

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f}, beyond {self.beyond_p50:.2f} / {self.beyond_p99:.2f}"


def submit_apart(submit: Callable[[int], object], count: int) -> list[tuple[int, int]]:
    """Submit jobs with pauses, uneven so that no poll falls in step; return when each was called and returned."""
    chance = Random(7)
    calls = []
    for number in range(count):
        called = time_ns()
        submit(FIRST + number)
        calls.append((called, time_ns()))
        sleep(PAUSE_SECONDS * chance.uniform(0.5, 1.5))
    return calls


def summary(calls: list[tuple[int, int]], starts: dict[int, int]) -> Pickups:
    found = [
        Pickup((starts[FIRST + number] - called) / 1e6, (starts[FIRST + number] - returned) / 1e6)
        for number, (called, returned) in enumerate(calls)
    ]
    total, beyond = [pickup.total for pickup in found], [pickup.beyond for pickup in found]
    return Pickups(
        percentile(total, 0.5), percentile(total, 0.99), percentile(beyond, 0.5), percentile(beyond, 0.99)
    )


def here(system: Ours, store: Path, count: int = JOBS) -> Pickups:
    """Submit and run in one process."""
    starts: dict[int, int] = {}

    def note(value: int) -> None:
        starts[value] = time_ns()

    app: Mainspring = system.application(store)
    job = app.job(name="note")(note)
    with app, app.running():
        job.submit(0).wait(SECONDS)
        calls = submit_apart(job.submit, count)
        job.submit(1).wait(SECONDS)
    return summary(calls, starts)


def there(system: System, worker: WorkerProcess, count: int = JOBS) -> Pickups:
    """Submit to a worker in another process, which runs nothing else."""
    before = worker.started()
    calls = submit_apart(system.submit, count)
    starts = worker.wait_started(before + count, SECONDS)
    return summary(calls, {start.value: start.at_ns for start in starts})


def of_idle_worker(system: System, store: Path) -> Pickups:
    with submitter(system, store), WorkerProcess(system, store) as worker:
        system.submit(0)
        worker.wait_started(1, SECONDS)
        return there(system, worker)


def _line(what: str, pickups: Pickups | None, limit: float) -> Line:
    assert pickups is not None, what
    return Line(
        what=what,
        ours=f"{pickups} ms",
        bound=f"p50 beyond the submit < {limit:g} ms",
        is_met=pickups.beyond_p50 < limit,
    )


def run(rounds: int = 2) -> Section:
    lines = [
        *(_line(f"same process, {ours.setting}", least(partial(here, ours), rounds), HERE_LIMIT) for ours in OURS),
        *(
            _line(
                f"another process, {ours.setting}",
                least(partial(of_idle_worker, ours), rounds),
                THERE_LIMIT,
            )
            for ours in OURS
        ),
    ]
    for peer in PEERS:
        if not peer.notices_others:
            continue
        found = least(partial(of_idle_worker, peer), 1)
        cell = f"{found.p50:.2f} / {found.p99:.2f} ms" if found else "did not finish"
        lines.append(Line(what="another process", ours="", peer=f"{cell} {peer.title}"))
    deaf = ", ".join(peer.name for peer in PEERS if not peer.notices_others)
    return Section(
        title=f"Jobs: pickup of an immediate job by an idle worker, p50 / p99 of {JOBS}",
        lines=lines,
        text="From the call of submit to the start of the handler; 'beyond' is from the return of submit, and "
        f"negative when the handler was first. Best of {rounds} rounds, one for peers. "
        f"{deaf}'s worker does not notice what another process submits.",
    )
