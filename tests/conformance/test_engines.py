"""One suite of behaviour, kept by every engine."""

import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Capability
from mainspring.testing import EngineConformance
from mainspring.testing.conformance.bench import MakeEngine
from mainspring.testing.conformance.rescuing import Rescuing
from mainspring.testing.conformance.settling import Settling
from mainspring.testing.conformance.starts import Starts
from mainspring.testing.conformance.submitting import Submitting
from mainspring.testing.conformance.taking import Taking
from mainspring.testing.conformance.workers import Crew
from tests.blank_stores import make_blank_store
from tests.support import PATIENCE


class TestMemoryEngine(EngineConformance):
    lacks = frozenset({Capability.SHARED})

    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        return lambda clock: MemoryEngine(clock=clock)


class TestSqliteEngine(EngineConformance):
    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(make_blank_store(tmp_path / "jobs.db"), clock=clock)


class TestSqliteEngineWithoutFsync(Submitting, Taking, Settling, Starts):
    """What `durability` changes: how a unit of work is committed. Everything else is the same code."""

    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(make_blank_store(tmp_path / "jobs.db"), clock=clock, durability="normal")


class TestSqliteEngineOfOneProcess(Submitting, Taking, Crew, Rescuing):
    """What `is_shared` changes: the turn to write, the lock of a worker, the wake-ups of other processes."""

    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(make_blank_store(tmp_path / "jobs.db"), clock=clock, is_shared=False)


def test_the_rest_of_the_test_kit_needs_no_pytest() -> None:
    script = "import sys; sys.modules['pytest'] = None; from mainspring.testing import ManualClock, time_travel"
    subprocess.run([sys.executable, "-c", script], timeout=3 * PATIENCE, check=True)
