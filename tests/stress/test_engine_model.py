"""Engines against a naive model: whatever is done to both, in whatever order, they stay alike."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, settings

from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Engine
from mainspring.testing import ManualClock
from tests.blank_stores import make_blank_store
from tests.stress.machine_operators import OperatorMachine
from tests.stress.machine_workers import WorkerMachineRules
from tests.support import amount

pytestmark = pytest.mark.stress


class EngineMachine(OperatorMachine, WorkerMachineRules):
    """All that is ever said to an engine."""


class MemoryMachine(EngineMachine):
    def make_engine(self, clock: ManualClock) -> Engine:
        return MemoryEngine(clock=clock)


class SqliteMachine(EngineMachine):
    def make_engine(self, clock: ManualClock) -> Engine:
        self.folder = TemporaryDirectory(prefix="mainspring-")
        path = make_blank_store(Path(self.folder.name) / "jobs.db")
        return SqliteEngine(path, clock=clock, durability="normal", is_shared=False)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


TestMemoryEngine = MemoryMachine.TestCase
TestMemoryEngine.settings = settings(
    max_examples=amount(20, thorough=100),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
    phases=set(Phase) - {Phase.explain},  # which takes several times as long as all the others, under a tracer
)
TestSqliteEngine = SqliteMachine.TestCase
TestSqliteEngine.settings = settings(TestMemoryEngine.settings, max_examples=amount(15, thorough=80))


def test_the_profile_of_all_tests_holds_for_the_machines_too() -> None:
    for machine in (TestMemoryEngine, TestSqliteEngine):
        assert (machine.settings.deadline, machine.settings.print_blob) == (None, True)
