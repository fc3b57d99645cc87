"""Fixtures of all tests of runners. A conftest imports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from mainspring import TaskFailure, ThreadPool
from tests.support import WatchedClock


class MakePool(Protocol):
    def __call__(self, workers: int = 4, **options: Any) -> ThreadPool: ...


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock()


@pytest.fixture
def failures() -> list[TaskFailure]:
    """What the error hook was told."""
    return []


@pytest.fixture
def make_pool(clock: WatchedClock, failures: list[TaskFailure]) -> Iterator[MakePool]:
    """Makes started pools on the manual clock; what is left of them at the end is not waited for."""
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
