"""One suite of behaviour, kept by every engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.engines.memory import MemoryEngine
from mainspring.engines.sqlite import SqliteEngine
from mainspring.testing import EngineConformance
from mainspring.testing.engine_bench import MakeEngine
from tests.support import PATIENCE


class TestMemoryEngine(EngineConformance):
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


def test_the_rest_of_the_test_kit_needs_no_pytest() -> None:
    script = "import sys; sys.modules['pytest'] = None; from mainspring.testing import ManualClock, time_travel"
    subprocess.run([sys.executable, "-c", script], timeout=3 * PATIENCE, check=True)
