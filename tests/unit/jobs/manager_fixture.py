"""A job manager with its own pools on a manual clock, and a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mainspring import TaskFailure, ThreadPool
from mainspring.jobs import JobManager
from mainspring.jobs.records import Outcome
from mainspring.testing import ManualClock
from tests.support import PATIENCE, eventually
from tests.unit.jobs.scripted_engines import ScriptedEngine


class ManagerFixture:
    """A job manager whose three layers have a pool each, all on one manual clock."""

    def __init__(
        self,
        clock: ManualClock,
        engine: ScriptedEngine | None = None,
        *,
        threads: int = 2,
        has_maintenance: bool = False,
        **options: Any,
    ) -> None:
        self.clock = clock
        self.engine = engine or ScriptedEngine(clock=clock)
        self.failures: list[TaskFailure] = []
        self._pools = [
            ThreadPool(size, name=name, clock=clock, on_error=self.failures.append)
            for name, size in (("control", 1), ("io", 1), ("execution", threads))
        ]
        control, io, execution = self._pools
        self.manager = JobManager(
            control=control.sequenced(name="control"),
            io=io,
            execution=execution,
            engine=self.engine,
            virtual_time=not has_maintenance,
            **options,
        )

    def wait_for_outcome(self) -> Outcome:
        """Wait until the worker settles one job; return its outcome."""
        (outcome,) = self.engine.wait_for("settle")
        assert isinstance(outcome, Outcome)
        return outcome

    def wait_for_hand_back(self) -> Any:
        """Advance the clock until a job without a free slot is handed back; return the outcomes.

        The worker may begin to wait for a slot after a jump; then the next jump ends its wait.
        """

        def is_handed_back() -> bool:
            self.clock.jump(0.1)
            return not self.engine.is_idle("settle")

        assert eventually(is_handed_back), "no job was handed back"
        return self.engine.wait_for("settle")

    def wait_until_maintained(self) -> None:
        """Wait until the control and io layers are idle: due maintenance is done, and its timers are set.

        Handlers may still run.
        """
        control, io, _ = self._pools
        for pool in (control, io, control):  # the answers of the engine may make calls of the control layer
            pool.wait_idle(PATIENCE)

    def close(self) -> None:
        """Stop at once, without waiting for tasks that still run."""
        self.manager.hurry()
        self.manager.shutdown(0)
        for pool in reversed(self._pools):
            pool.shutdown(timeout=0)


@contextmanager
def running_manager(
    clock: ManualClock, engine: ScriptedEngine | None = None, **options: Any
) -> Iterator[ManagerFixture]:
    """Provide a job manager, and close it after the block."""
    made = ManagerFixture(clock, engine, **options)
    try:
        yield made
    finally:
        made.close()
