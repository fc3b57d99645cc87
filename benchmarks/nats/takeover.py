"""A worker is killed with a job in flight: how long until another one, which is idle, starts it again.

The lease of the dead worker lasts much longer: the other worker finds out that its connection has ended.
"""

from pathlib import Path
from time import time_ns

from benchmarks.jobs.process import TooSlow, WorkerProcess, fresh_store, submitter
from benchmarks.measure import Line, Section
from benchmarks.nats import versions
from benchmarks.nats.brokers import nats_server
from benchmarks.nats.systems.every import OURS
from mainspring.engines.nats.settings import DEFAULT_LEASE

LIMIT = 4.0
SECONDS = 30.0
HELD = 10**9  # the value of the job in flight, apart from all others
LOOK_SECONDS = 0.2


class Victim(WorkerProcess):
    def kill(self) -> int:
        """Kill it at once, and say when."""
        self._process.kill()
        at_ns = time_ns()
        self._process.wait()
        return at_ns


def seconds(store: Path) -> float:
    """Return how long a job that a killed worker ran was without a worker."""
    first, second = (store.with_name(f"worker-{name}.url") for name in ("first", "second"))
    for own in (first, second):
        own.write_text(store.read_text())
    with submitter(OURS, store), Victim(OURS, first) as killed:
        OURS.hold.submit(HELD)
        killed.wait_started(1, SECONDS)
        with Victim(OURS, second) as other:
            wait_until_it_works(other)
            killed_ns = killed.kill()
            other.wait_until(lambda: again_ns(other) > 0, DEFAULT_LEASE + SECONDS)
            took = (again_ns(other) - killed_ns) / 1e9
            other.kill()  # it would wait for the job to end
    return took


def wait_until_it_works(worker: WorkerProcess) -> None:
    """Submit jobs until one of them is run by a worker, which need not be the only one."""
    for value in range(round(SECONDS / LOOK_SECONDS)):
        OURS.submit(value)
        try:
            worker.wait_started(1, LOOK_SECONDS)
        except TooSlow:
            continue
        return
    raise TooSlow(f"a second worker of {OURS.title} had run nothing after {SECONDS:g} s")


def again_ns(worker: WorkerProcess) -> int:
    """Return when a worker started the job that was in flight; 0 if it has not."""
    return next((start.at_ns for start in worker.wait_started(0, 0) if start.value == HELD), 0)


def run(rounds: int = 5) -> Section:
    found = []
    for _ in range(rounds):
        with fresh_store() as store, nats_server(store):
            found.append(seconds(store))
    return Section(
        title=f"NATS: take-over after `kill -9` of a worker, longest of {rounds} rounds",
        lines=[
            Line(
                what="until the job in flight starts again",
                ours=f"{max(found):.1f} s",
                bound=f"≤ {LIMIT:g} s (lease {DEFAULT_LEASE:g} s)",
                is_met=max(found) <= LIMIT,
            ),
        ],
        text=f"Another worker was there and idle. All rounds: {', '.join(f'{took:.1f} s' for took in found)}. "
        f"{versions.on_nats()}.",
    )
