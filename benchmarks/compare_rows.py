"""Measures one installed version of Mainspring, through public names only, and prints the figures as JSON.

`benchmarks.compare` runs this file, `python compare_rows.py NATS_URL ONLY`, with the interpreters of two
environments in turn. ONLY is a regular expression: rows whose names do not contain it are left out.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from typing import Any
from uuid import uuid4

from mainspring import Cron, Mainspring, ThreadPool

PATIENCE = 120.0
POSTS = 50_000
SINGLE_FULL, SINGLE_NORMAL, BULK, DRAIN, PICKUPS, DELAYED = 300, 1_000, 20_000, 10_000, 200, 500
SINGLE_MEMORY, BY_THREADS = 3_000, 3_200
NATS_DRAIN = 3_000
TIMERS, TIMER_ROUNDS, HOUR = 50_000, 5, 3_600.0
SCHEDULES, SCHEDULES_EVERY = 2_000, 30
STARTS, LISTS, LISTED = 3, 5, 100
ZONES = ("UTC", "Asia/Taipei", "Europe/Berlin", "America/New_York")
WORKER_APP = """
import os, pathlib, time
from mainspring import Mainspring
app = Mainspring(os.environ["COMPARE_URL"], threads=8)

@app.job(name="first")
def first() -> None:
    pathlib.Path(os.environ["COMPARE_STARTED"]).write_text(str(time.time()))
"""


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


def timers() -> tuple[float, float, float]:
    """Arm delayed tasks and cancel them, each a second; return the bytes of one, too. The best of some rounds."""
    arm = cancel = 0.0
    handles: list[Any] = []
    with ThreadPool(4) as pool:
        sequence = pool.sequenced()

        def post_all() -> list[Any]:
            return [sequence.post(_nothing, delay=HOUR + number * 1e-3) for number in range(TIMERS)]

        for _ in range(TIMER_ROUNDS):
            began = time.perf_counter()
            handles = post_all()
            armed = time.perf_counter()
            for handle in handles:
                handle.cancel()
            arm = max(arm, TIMERS / (armed - began))
            cancel = max(cancel, TIMERS / (time.perf_counter() - armed))
        handles.clear()
        gc.collect()
        tracemalloc.start()
        for number in range(TIMERS):
            sequence.post(_nothing, delay=HOUR + number * 1e-3)
        size = tracemalloc.get_traced_memory()[0] / TIMERS
        tracemalloc.stop()
    return arm, cancel, size


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


def role_url(nats_url: str, role: str) -> str:
    """Return the URL of a role; `nats_url` has `{user}` for its user."""
    return f"{nats_url.format(user=f'row0-{role}')}?prefix=row0&role={role}"


def drain_on_nats(nats_url: str, count: int) -> float:
    """Run jobs that a submitter has stored, in a worker with the rights of its role, a second."""
    with Mainspring(role_url(nats_url, "operator")) as operator:
        operator.counts()  # creates the streams
    with Mainspring(role_url(nats_url, "submitter"), threads=1) as submitter:
        submitter.job(name="step")(_nothing).submit_many([() for _ in range(count)])
    return drain(Mainspring(role_url(nats_url, "worker"), threads=8), count, is_submitted=True)


def drain(app: Mainspring, count: int, *, is_submitted: bool = False) -> float:
    """Run jobs that do nothing and are due already, a second."""
    countdown = Countdown(count)
    with Mainspring("memory://") as first, first.running():
        pass  # the first worker of a process imports modules
    with app:
        job = app.job(name="step")(countdown.step)
        if not is_submitted:
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


def schedules(folder: str) -> float:
    """Fire schedules that are all due, no two of them equal, and run their jobs, a second."""
    countdown = Countdown(SCHEDULES)
    with app_in(folder) as app:
        job = app.job(name="step")(countdown.step)
        for number in range(SCHEDULES):
            # Each occurs at the same instants, and is written differently.
            times = f"0-59,{number % 60} 0-23,{number // 60 % 24} 1-31,{1 + number // 1_440}"
            rule = Cron(f"*/{SCHEDULES_EVERY} {times} * *", tz=ZONES[number % len(ZONES)])
            app.schedules.put(f"schedule {number}", job, rule)
        time.sleep(SCHEDULES_EVERY - time.time() % SCHEDULES_EVERY + 0.1)  # now all of them are due

        def work() -> None:
            with app.running():
                countdown.wait()

        return SCHEDULES / seconds_of(work)


def worker_start(folder: str) -> float:
    """Return the milliseconds from the start of a worker process to its first job, the median."""
    (Path(folder) / "compared.py").write_text(WORKER_APP)
    started = Path(folder) / "started"
    environment = os.environ | {
        "COMPARE_URL": f"sqlite:///{Path(folder) / f'{uuid4().hex}.db'}",
        "COMPARE_STARTED": str(started),
        "PYTHONPATH": folder,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has byte code
    submit = [sys.executable, "-c", "import compared; compared.first.submit(); compared.app.close()"]
    found = []
    for _ in range(1 + STARTS):
        subprocess.run(submit, env=environment, check=True)
        began = time.time()
        worker = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "run", "compared:app"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (started.exists() and started.read_text()):
                if worker.poll() is not None or time.time() - began > PATIENCE:
                    raise TimeoutError("the worker has not run its job in time")
                time.sleep(0.002)
        finally:
            worker.terminate()
            worker.wait()
        found.append(float(started.read_text()) - began)
        started.unlink()
    return 1_000 * statistics.median(found[1:])  # the first start may have compiled modules


def list_cpu(folder: str) -> float:
    """Return the CPU milliseconds of the command that lists jobs, the median."""
    with app_in(folder) as app:
        later = app.job(name="later")(_nothing).after(3_600)
        later.submit_many([() for _ in range(LISTED)])
        url = app.url
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    found = []
    for _ in range(1 + LISTS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-P", "-m", "mainspring", "jobs", "list", "--url", url],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return 1_000 * statistics.median(found[1:])


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
            "schedules fired and run": lambda: schedules(folder),
            "worker start to first job (ms)": lambda: worker_start(folder),
            "jobs list, CPU (ms)": lambda: list_cpu(folder),
            "delayed post, arm": lambda: timers()[0],
            "delayed post, cancel": lambda: timers()[1],
            "delayed post, memory (B)": lambda: timers()[2],
            "drain on NATS": lambda: drain_on_nats(nats_url, NATS_DRAIN),
        }
        figures = {name: measure() for name, measure in rows.items() if re.search(only, name)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
