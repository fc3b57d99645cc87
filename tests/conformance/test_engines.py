"""One suite of behaviour, kept by every engine."""

from pathlib import Path

import pytest

from mainspring.engines.memory import MemoryEngine
from mainspring.engines.sqlite import SqliteEngine
from mainspring.testing import EngineConformance
from mainspring.testing.engine_bench import MakeEngine


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
