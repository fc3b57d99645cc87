"""Fixtures of the tests of jobs: an engine and a manager on the manual clock, time travel, a job function."""

from collections.abc import Iterator

import pytest

from mainspring import JobFunction, Mainspring
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.testing import ManualClock, TimeTravel, time_travel
from tests.unit.jobs.call_log import START
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager


@pytest.fixture
def engine(clock: ManualClock) -> MemoryEngine:
    return MemoryEngine(clock=clock)


@pytest.fixture
def threads() -> int:
    """How many threads for handlers `shop` has. A module may override it."""
    return 2


@pytest.fixture
def shop(clock: ManualClock, threads: int) -> Iterator[ManagerFixture]:
    """A manager on a scripted engine."""
    with running_manager(clock, threads=threads) as shop:
        yield shop


@pytest.fixture
def travel(app: Mainspring) -> Iterator[TimeTravel]:
    """Time travel of an application whose handlers the test declares itself."""
    with time_travel(app, start=START) as travel:
        yield travel


@pytest.fixture
def cancel_order(app: Mainspring) -> JobFunction[..., None]:
    @app.job
    def cancel_order(order_id: int, reason: str = "unpaid") -> None: ...

    return cancel_order
