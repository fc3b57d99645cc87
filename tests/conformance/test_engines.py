"""One suite of behaviour, kept by every engine."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Timer

import pytest
from msgspec.structs import replace

from mainspring.engines.memory import MemoryEngine
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import Capability, Demand, Taken
from mainspring.testing import EngineConformance
from mainspring.testing.engine_bench import MakeEngine
from tests.support import PATIENCE

DELAY_SECONDS = 0.01


class TestMemoryEngine(EngineConformance):
    lacks = frozenset({Capability.SHARED})

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return lambda clock: MemoryEngine(clock=clock)


class TestSqliteEngine(EngineConformance):
    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(tmp_path / "jobs.db", clock=clock)


class TestSqliteEngineWithoutFsync(EngineConformance):
    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(tmp_path / "jobs.db", clock=clock, durability="normal")


class TestSqliteEngineOfOneProcess(EngineConformance):
    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(tmp_path / "jobs.db", clock=clock, is_shared=False)


class DistantEngine(MemoryEngine):
    """As if it were far away: the time is its own, wakes come late, jobs at times, and in no order."""

    capabilities = frozenset({Capability.ATOMIC_UNIT, Capability.ATOMIC_BATCH})

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def open(self, wake: Callable[[], None]) -> None:
        def wake_late() -> None:
            timer = Timer(DELAY_SECONDS, wake)
            timer.daemon = True
            timer.start()

        super().open(wake_late)

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        self._looks += 1
        if self._looks % 4 == 2:  # what is due has not arrived yet
            demands = [replace(demand, starts=0, ahead=0) for demand in demands]
        taken = super().take(worker, demands, lead=lead, start_lead=start_lead)
        leases = list(reversed(taken.leases))
        return replace(taken, leases=leases, next_due=None, next_look=None, next_firing=None)


class TestAnEngineOnTheRealClock(EngineConformance):
    lacks = frozenset({Capability.SHARED, Capability.VIRTUAL_TIME, Capability.EXACT_ORDER, Capability.FORESIGHT})

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return lambda _: DistantEngine()


def test_the_rest_of_the_test_kit_needs_no_pytest() -> None:
    script = "import sys; sys.modules['pytest'] = None; from mainspring.testing import ManualClock, time_travel"
    subprocess.run([sys.executable, "-c", script], timeout=3 * PATIENCE, check=True)
