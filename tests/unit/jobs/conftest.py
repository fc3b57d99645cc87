"""Fixtures of the tests of jobs: an engine on the manual clock, a job function."""

import pytest

from mainspring import JobFunction, Mainspring
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.testing import ManualClock


@pytest.fixture
def engine(clock: ManualClock) -> MemoryEngine:
    return MemoryEngine(clock=clock)


@pytest.fixture
def cancel_order(app: Mainspring) -> JobFunction[..., None]:
    @app.job
    def cancel_order(order_id: int, reason: str = "unpaid") -> None: ...

    return cancel_order
