"""One suite of behaviour, kept by every engine."""

from pathlib import Path

import pytest

from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Capability
from mainspring.testing import EngineConformance
from mainspring.testing.conformance.bench import MakeEngine
from mainspring.testing.conformance.claims import ClaimTests
from mainspring.testing.conformance.outcomes import OutcomeTests
from mainspring.testing.conformance.rescue import RescueTests
from mainspring.testing.conformance.started_events import StartedEventTests
from mainspring.testing.conformance.submits import SubmitTests
from mainspring.testing.conformance.workers import WorkerTests
from tests.blank_stores import make_blank_store
from tests.programs import run_python
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


class TestSqliteEngineWithoutFsync(SubmitTests, ClaimTests, OutcomeTests, StartedEventTests):
    """What `durability` changes: how a unit of work is committed. Everything else is the same code."""

    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(make_blank_store(tmp_path / "jobs.db"), clock=clock, durability="normal")


class TestSqliteEngineOfOneProcess(SubmitTests, ClaimTests, WorkerTests, RescueTests):
    """What `is_shared` changes: the turn to write, the lock of a worker, the wake-ups of other processes."""

    @pytest.fixture
    def make_engine(self, tmp_path: Path) -> MakeEngine:
        return lambda clock: SqliteEngine(make_blank_store(tmp_path / "jobs.db"), clock=clock, is_shared=False)


def test_the_rest_of_the_test_kit_needs_no_pytest() -> None:
    script = "import sys; sys.modules['pytest'] = None; from mainspring.testing import ManualClock, time_travel"
    done = run_python("-c", script, patience=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
