"""Fixtures of the tests of jobs: a manual clock, an engine on it, a job function."""

import pytest

from mainspring import JobFunction, Mainspring, TaskFailure
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> MemoryEngine:
    return MemoryEngine(clock=clock)


@pytest.fixture
def failures() -> list[TaskFailure]:
    """The failures that the error hook of a pool has received."""
    return []


@pytest.fixture
def cancel_order(app: Mainspring) -> JobFunction[..., None]:
    @app.job
    def cancel_order(order_id: int, reason: str = "unpaid") -> None: ...

    return cancel_order
