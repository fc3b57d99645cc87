"""Measures submits (one by one, from several threads, many at once), the size of a job on disk, and an fsync.

The jobs are due in an hour, so that no worker claims them. An fsync is the price of a durable commit.
"""

from __future__ import annotations

import os
from functools import partial
from tempfile import TemporaryFile

from mainspring.bench.budget import MeasurementBudget
from mainspring.bench.figures import Percentiles, RateFigure, Size
from mainspring.bench.stores import BenchStore, StoreFactory
from mainspring.jobs.job_function import JobFunction
from mainspring.runners.thread_pool import ThreadPool

PAGE = b"\0" * 4_096
LEAST = 5
MOST = 500
SHARE = 0.25  # the share of a measurement's time that is enough for fsync


def fsync(stores: StoreFactory, budget: MeasurementBudget) -> Percentiles | None:
    """Measure writing a page to a file and syncing it; None if the stores are not in a folder of this machine."""
    if stores.folder is None:
        return None
    taken: list[float] = []
    with TemporaryFile(prefix=".mainspring-bench-", dir=stores.folder) as file:
        while len(taken) < LEAST or (len(taken) < MOST and budget.spent < budget.seconds * SHARE):
            began = budget.clock.monotonic_ns()
            file.write(PAGE)
            file.flush()
            os.fsync(file.fileno())
            taken.append(budget.since(began) * 1_000)
            budget.report()
    return Percentiles.of(taken)


THREADS = 8
CHUNK = 1_000
LATER = 3_600


def one_by_one(store: BenchStore, budget: MeasurementBudget) -> RateFigure:
    """Measure submits from one thread; each job is durable when its submit returns."""
    job = _job(store)
    _submit(job, 1)  # opens the store
    return budget.best_rate(budget.timed(partial(_submit, job)), first=4)


def from_threads(store: BenchStore, budget: MeasurementBudget) -> RateFigure:
    """Measure submits from eight threads at once, which share commits."""
    job = _job(store)
    _submit(job, 1)
    with ThreadPool(THREADS, name="bench-submitters") as pool:

        def submit(count: int) -> None:
            for future in [pool.submit(_submit, job, count // THREADS) for _ in range(THREADS)]:
                future.result()

        return budget.best_rate(
            budget.timed(submit), first=4 * THREADS, most=max(THREADS, budget.jobs // THREADS * THREADS)
        )


def in_bulk(store: BenchStore, budget: MeasurementBudget) -> RateFigure:
    """Measure bulk submits, a thousand jobs with each call."""
    job = _job(store)
    _submit(job, 1)

    def submit(count: int) -> None:
        for begin in range(0, count, CHUNK):
            job.submit_many([(number,) for number in range(begin, min(begin + CHUNK, count))])

    return budget.best_rate(budget.timed(submit), first=CHUNK)


def size_of_a_job(store: BenchStore, budget: MeasurementBudget) -> Size | None:
    """Measure the size of a job: compare the size of the store before and after up to 5,000 submits.

    Returns None if the size of the store is not known.
    """
    if store.size is None:
        return None
    job = _job(store)
    _submit(job, 1)
    before = store.size()
    count = min(budget.jobs, 5 * CHUNK)
    job.submit_many([(number,) for number in range(count)])
    return Size((store.size() - before) / count, count)


def _submit(job: JobFunction[[int], None], count: int) -> None:
    for number in range(count):
        job.submit(number)


def _job(store: BenchStore) -> JobFunction[[int], None]:
    @store.app.job(name="bench.later")
    def later(number: int) -> None:
        raise AssertionError(f"job {number} is not due before an hour")

    return later.after(LATER)
