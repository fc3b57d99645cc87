"""Submitting: one by one, from several threads, many at once; and what a job takes on the disk.

The jobs are due in an hour, so that nobody looks at them.
"""

from __future__ import annotations

from functools import partial

from mainspring.bench.figures import Rate, Size
from mainspring.bench.pace import Pace
from mainspring.bench.places import Store
from mainspring.jobs.job import Job
from mainspring.runners.thread_pool import ThreadPool

THREADS = 8
CHUNK = 1_000
LATER = 3_600


def one_by_one(store: Store, pace: Pace) -> Rate:
    """Submit from one thread; each job is durable when its submit returns."""
    job = _job(store)
    _submit(job, 1)  # opens the store
    return pace.best_rate(pace.timed(partial(_submit, job)), first=4)


def from_threads(store: Store, pace: Pace) -> Rate:
    """Submit from several threads, which share commits."""
    job = _job(store)
    _submit(job, 1)
    with ThreadPool(THREADS, name="bench-submitters") as pool:

        def submit(count: int) -> None:
            for future in [pool.submit(_submit, job, count // THREADS) for _ in range(THREADS)]:
                future.result()

        return pace.best_rate(
            pace.timed(submit), first=4 * THREADS, most=max(THREADS, pace.jobs // THREADS * THREADS)
        )


def in_bulk(store: Store, pace: Pace) -> Rate:
    """Submit a thousand with each call."""
    job = _job(store)
    _submit(job, 1)

    def submit(count: int) -> None:
        for begin in range(0, count, CHUNK):
            job.submit_many([(number,) for number in range(begin, min(begin + CHUNK, count))])

    return pace.best_rate(pace.timed(submit), first=CHUNK)


def size_of_a_job(store: Store, pace: Pace) -> Size | None:
    """Compare the size of the store before and after some thousand jobs."""
    if store.size is None:
        return None
    job = _job(store)
    _submit(job, 1)
    before = store.size()
    count = min(pace.jobs, 5 * CHUNK)
    job.submit_many([(number,) for number in range(count)])
    return Size((store.size() - before) / count, count)


def _submit(job: Job[[int], None], count: int) -> None:
    for number in range(count):
        job.submit(number)


def _job(store: Store) -> Job[[int], None]:
    @store.app.job(name="bench.later")
    def later(number: int) -> None:
        raise AssertionError(f"job {number} is not due before an hour")

    return later.after(LATER)
