"""Times how fast a worker runs jobs that do nothing, with something else going on beside it."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from threading import Event
from time import perf_counter
from typing import Any

from mainspring import Mainspring

SECONDS = 600.0


def timed_drain(app: Mainspring, jobs: int, beside: Callable[[], AbstractContextManager[Any]]) -> float:
    """Return how many jobs a second a worker runs, from the first claim to the end of the last job.

    `beside` is entered after the jobs were submitted. The application is closed at the end.
    """
    ended = count(1)
    is_done = Event()

    @app.job
    def noop() -> None:
        if next(ended) >= jobs:
            is_done.set()

    with app:
        noop.submit_many([()] * jobs)
        with beside():
            gc.collect()
            began = perf_counter()
            with app.running():
                if not is_done.wait(SECONDS):
                    raise RuntimeError(f"{next(ended) - 1:,} of {jobs:,} jobs have run within {SECONDS:g} s")
                app.queue("default").drain(timeout=SECONDS)
                return jobs / (perf_counter() - began)
