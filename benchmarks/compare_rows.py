"""Measures one installed version of Mainspring, through public names only, and prints the figures as JSON.

`benchmarks.compare` runs this file, `python compare_rows.py NATS_URL ONLY`, with the interpreters of two
environments in turn. ONLY is a regular expression: rows whose names do not contain it are left out.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any
from uuid import uuid4

from mainspring import Mainspring, ThreadPool

PATIENCE = 120.0
POSTS = 50_000
SINGLE_FULL, SINGLE_NORMAL, BULK, DRAIN, PICKUPS, DELAYED = 300, 1_000, 20_000, 10_000, 200, 500
SINGLE_MEMORY, BY_THREADS = 3_000, 3_200
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


def submit(app: Mainspring, count: int, threads: int = 1) -> float:
    """Submit jobs one by one, a second; the threads share the jobs evenly."""
    with app:
        later = app.job(name="later")(_nothing).after(3_600)
        later.submit()

        def submit_share() -> None:
            for _ in range(count // threads):
                later.submit()

        def submit_all() -> None:
            others = [Thread(target=submit_share) for _ in range(threads - 1)]
            for thread in others:
                thread.start()
            submit_share()
            for thread in others:
                thread.join()

        return count / seconds_of(submit_all)


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


def pickup(app: Mainspring) -> float:
    """Return the milliseconds from a submit to the start of its handler, the median."""
    ran = Event()
    started = [0.0]
    found: list[float] = []

    def note() -> None:
        started[0] = time.perf_counter()
        ran.set()

    with app:
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


def main(nats_url: str, only: str) -> None:
    """Measure the chosen rows."""
    with TemporaryDirectory(prefix="mainspring-compare-") as folder:

        def full() -> Mainspring:
            return app_in(folder)

        def normal() -> Mainspring:
            return app_in(folder, durability="normal")

        rows: dict[str, Callable[[], float]] = {
            "post": post,
            "single submit, FULL": lambda: submit(full(), SINGLE_FULL),
            "single submit, NORMAL": lambda: submit(normal(), SINGLE_NORMAL),
            "single submit, memory": lambda: submit(Mainspring("memory://"), SINGLE_MEMORY),
            "8 threads submit, FULL": lambda: submit(full(), BY_THREADS, 8),
            "8 threads submit, NORMAL": lambda: submit(normal(), BY_THREADS, 8),
            "32 threads submit, FULL": lambda: submit(full(), BY_THREADS, 32),
            "32 threads submit, NORMAL": lambda: submit(normal(), BY_THREADS, 32),
            "bulk submit": lambda: bulk(folder),
            "drain": lambda: drain(normal(), DRAIN),
            "pickup FULL p50 (ms)": lambda: pickup(full()),
            "pickup NORMAL p50 (ms)": lambda: pickup(normal()),
            "lateness p99 (ms)": lambda: lateness(folder),
            "drain on NATS": lambda: drain(
                Mainspring(f"{nats_url}?prefix=compare-{uuid4().hex[:8]}", threads=8), NATS_DRAIN
            ),
        }
        figures = {name: measure() for name, measure in rows.items() if re.search(only, name)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
