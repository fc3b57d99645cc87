"""Thread pools for tests: on manual time as fixtures, with an end in bounded time, and their kinds of runners."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, Protocol

import pytest

from mainspring import TaskFailure, TaskRunner, ThreadPool
from tests.support import PATIENCE, WatchedClock

RUNNER_KINDS: dict[str, Callable[[ThreadPool], TaskRunner]] = {
    "pool": lambda pool: pool,
    "sequenced": lambda pool: pool.sequenced(),
    "parallel": lambda pool: pool.parallel(limit=2),
    "single_thread": lambda pool: pool.single_thread(),
    "asyncio": lambda pool: pool.asyncio(),
}
"""Makes a runner of each kind on a pool."""

each_kind = pytest.mark.parametrize("make", RUNNER_KINDS.values(), ids=RUNNER_KINDS)


def runners_of(pool: ThreadPool) -> list[TaskRunner]:
    """Make a runner of each kind."""
    return [make(pool) for make in RUNNER_KINDS.values()]


class MakePool(Protocol):
    def __call__(self, workers: int = 4, **options: Any) -> ThreadPool: ...


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock()


@pytest.fixture
def failures() -> list[TaskFailure]:
    """The failures that the error hook of a pool has received."""
    return []


@pytest.fixture
def make_pool(clock: WatchedClock, failures: list[TaskFailure]) -> Iterator[MakePool]:
    """Makes started pools on the manual clock; at the end it does not wait for their tasks."""
    pools: list[ThreadPool] = []

    def make(workers: int = 4, **options: Any) -> ThreadPool:
        pool = ThreadPool(workers, **{"clock": clock, "on_error": failures.append, **options})
        pools.append(pool)
        return pool.start()

    yield make
    for pool in pools:
        pool.shutdown(timeout=0)


@pytest.fixture
def pool(make_pool: MakePool) -> ThreadPool:
    return make_pool(name="main")


@contextmanager
def running(pool: ThreadPool) -> Iterator[ThreadPool]:
    """Start a pool and shut it down; a pool that cannot end fails the test and does not hang it."""
    pool.start()
    try:
        yield pool
    except BaseException:
        close(pool, patience=1.0)
        raise
    assert close(pool), f"{pool!r} did not shut down"


def close(pool: ThreadPool, patience: float = PATIENCE) -> bool:
    """Shut a pool down; False if that takes too long."""
    closing = Thread(target=pool.shutdown, daemon=True)
    closing.start()
    closing.join(patience)
    atexit.unregister(pool._shutdown_at_exit)
    return not closing.is_alive()
