"""Telling the pool that the running task waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mainspring.runners.worker import current_worker

if TYPE_CHECKING:
    from mainspring.runners.runner import TaskRunner


@contextmanager
def blocking() -> Iterator[None]:
    """Let the pool run other tasks on another thread while this block waits for something slow.

    Outside of a pool it does nothing.
    """
    worker = current_worker()
    if worker is None or worker.group is None:
        yield
    else:
        with worker.group.blocking(worker):
            yield


@contextmanager
def blocking_for(*runners: TaskRunner) -> Iterator[None]:
    """Do as `blocking` does if one of `runners` runs on the threads of the pool that the caller occupies.

    A caller that waits for them would else keep them from running. A pool that they do not need does not grow.
    """
    worker = current_worker()
    if worker is None or not any(runner.shares_threads_with(worker) for runner in runners):
        yield
    else:
        with worker.standing_in():
            yield
