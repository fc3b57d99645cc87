"""Measures one installed version of Mainspring, through public names only, and prints the figures as JSON.

`benchmarks.compare` runs this file, `python compare_rows.py [NATS_URL]`, with the interpreters of two environments
in turn.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Any
from uuid import uuid4

from mainspring import Mainspring, ThreadPool

PATIENCE = 120.0
POSTS = 50_000
SINGLE_FULL, SINGLE_NORMAL, BULK, DRAIN, PICKUPS, DELAYED = 300, 1_000, 20_000, 10_000, 200, 500
NATS_DRAIN = 3_000


class Countdown:
    """Lets the main thread wait until so many handlers have run."""

    def __init__(self, count: int) -> None:
        self._lock = Lock()
        self._left = count
        self._done = Event()

    def step(self) -> None:
        """Count one."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._done.set()

    def wait(self) -> None:
        """Wait for the last one."""
        if not self._done.wait(PATIENCE):
            raise TimeoutError("the jobs have not run in time")


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def post() -> float:
    """Post tasks that do nothing to a pool, a second."""

    def work() -> None:
        for _ in range(POSTS):
            pool.post(_nothing)
        pool.wait_idle()

    with ThreadPool(4) as pool:
        return POSTS / seconds_of(work)


def _nothing() -> None:
    return None


def app_in(folder: str, **options: Any) -> Mainspring:
    """Make an application with a new file."""
    return Mainspring(f"sqlite:///{Path(folder) / f'{uuid4().hex}.db'}", threads=8, **options)


def submit(folder: str, durability: str, count: int) -> float:
    """Submit jobs one by one on one thread, a second."""
    with app_in(folder, durability=durability) as app:
        job = app.job(name="later")(_nothing)
        later = job.after(3_600)
        later.submit()
        return count / seconds_of(lambda: [later.submit() for _ in range(count)])


def bulk(folder: str) -> float:
    """Submit jobs with one call, a second."""
    with app_in(folder) as app:
        later = app.job(name="later")(_nothing).after(3_600)
        later.submit()
        return BULK / seconds_of(lambda: later.submit_many([() for _ in range(BULK)]))


def drain(app: Mainspring, count: int) -> float:
    """Run jobs that do nothing and are due already, a second."""
    countdown = Countdown(count)
    with app:
        job = app.job(name="step")(countdown.step)
        job.submit_many([() for _ in range(count)])

        def work() -> None:
            with app.running():
                countdown.wait()

        return count / seconds_of(work)


def pickup(folder: str) -> float:
    """Return the milliseconds from a submit to the start of its handler, the median."""
    ran = Event()
    started = [0.0]
    found: list[float] = []

    def note() -> None:
        started[0] = time.perf_counter()
        ran.set()

    with app_in(folder, durability="normal") as app:
        job = app.job(name="note")(note)
        with app.running():
            for _ in range(PICKUPS):
                ran.clear()
                began = time.perf_counter()
                job.submit()
                if not ran.wait(PATIENCE):
                    raise TimeoutError("a job has not run in time")
                found.append(started[0] - began)
    return 1_000 * statistics.median(found)


def lateness(folder: str) -> float:
    """Return the milliseconds from the due time of a job to the start of its handler, the 99th percentile."""
    late: list[float] = []
    countdown = Countdown(DELAYED)

    def note(due: float) -> None:
        late.append(time.time() - due)
        countdown.step()

    with app_in(folder, durability="normal") as app:
        job = app.job(name="note")(note)
        with app.running():
            begin = datetime.now(UTC) + timedelta(seconds=1)
            for number in range(DELAYED):
                due = begin + timedelta(milliseconds=2 * number)
                job.at(due).submit(due.timestamp())
            countdown.wait()
    return 1_000 * statistics.quantiles(late, n=100)[98]


def main(nats_url: str | None) -> None:
    """Measure everything."""
    with TemporaryDirectory(prefix="mainspring-compare-") as folder:
        rows = {
            "post": post(),
            "single submit, FULL": submit(folder, "full", SINGLE_FULL),
            "single submit, NORMAL": submit(folder, "normal", SINGLE_NORMAL),
            "bulk submit": bulk(folder),
            "drain": drain(app_in(folder, durability="normal"), DRAIN),
            "pickup p50 (ms)": pickup(folder),
            "lateness p99 (ms)": lateness(folder),
        }
        if nats_url is not None:
            rows["drain on NATS"] = drain(
                Mainspring(f"{nats_url}?prefix=compare-{uuid4().hex[:8]}", threads=8), NATS_DRAIN
            )
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
