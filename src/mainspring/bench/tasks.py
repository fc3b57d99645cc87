"""Tasks in one process: from `post` to the end of their run, without any store."""

from __future__ import annotations

from mainspring.bench.figures import Rate
from mainspring.bench.pace import Pace
from mainspring.runners.thread_pool import ThreadPool

WORKERS = 4
MOST = 100_000  # at once


def posts(pace: Pace) -> Rate:
    """Post tasks that do nothing, and wait until all have run."""
    with ThreadPool(WORKERS, name="bench") as pool:

        def post(count: int) -> None:
            for _ in range(count):
                pool.post(_nothing)
            pool.wait_idle()

        return pace.best_rate(pace.timed(post), first=1_000, most=MOST)


def _nothing() -> None:
    return None
