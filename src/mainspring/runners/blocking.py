"""Telling the pool that the running task waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mainspring.runners.worker import current_worker


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
