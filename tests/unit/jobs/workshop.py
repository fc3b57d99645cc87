"""A job manager on runners of its own and on manual time, with an engine that does what a test tells it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mainspring import TaskFailure, ThreadPool
from mainspring.jobs import JobManager
from mainspring.testing import ManualClock
from tests.support import eventually
from tests.unit.jobs.engines import TestEngine


class Workshop:
    """The three layers, each on a pool, all on one manual clock."""

    def __init__(
        self,
        clock: ManualClock,
        engine: TestEngine | None = None,
        *,
        threads: int = 2,
        duties: bool = False,
        **options: Any,
    ) -> None:
        self.clock = clock
        self.engine = engine or TestEngine(clock=clock)
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
            virtual_time=not duties,
            **options,
        )

    def wait_for_hand_back(self) -> Any:
        """Let time pass until a job that finds no slot is handed back; return what the engine was given.

        The worker may begin to wait for a slot after a jump, and then waits for the next one.
        """

        def is_handed_back() -> bool:
            self.clock.jump(0.1)
            return not self.engine.is_idle("settle")

        assert eventually(is_handed_back), "no job was handed back"
        return self.engine.wait_for("settle")

    def close(self) -> None:
        """Stop at once; what is busy is left behind."""
        self.manager.hurry()
        self.manager.shutdown(0)
        for pool in reversed(self._pools):
            pool.shutdown(timeout=0)


@contextmanager
def workshop(clock: ManualClock, engine: TestEngine | None = None, **options: Any) -> Iterator[Workshop]:
    """A workshop while the block lasts."""
    made = Workshop(clock, engine, **options)
    try:
        yield made
    finally:
        made.close()
