"""Fixtures of the tests of jobs: a store of each kind, an application on it, layers on manual time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Job, Mainspring, TaskFailure
from mainspring.engines.memory import MemoryEngine
from mainspring.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> MemoryEngine:
    return MemoryEngine(clock=clock)


@pytest.fixture
def failures() -> list[TaskFailure]:
    """What the error hook of a pool was told."""
    return []


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each kind of store, empty."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    """An application without a worker, on real time."""
    with Mainspring(url, durability="normal", grace=0) as application:
        yield application


@pytest.fixture
def cancel_order(app: Mainspring) -> Job[..., None]:
    @app.job
    def cancel_order(order_id: int, reason: str = "unpaid") -> None: ...

    return cancel_order
