"""Engines whose next transaction waits at a gate, and a job manager whose three layers share one pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mainspring import ThreadPool
from mainspring.clock import Clock
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs import JobManager
from mainspring.jobs.engine import Engine
from tests.support import Gate

ENGINES = ("memory", "sqlite")


class GatedEngine(SqliteEngine):
    """An engine whose next transaction waits at a gate before it begins."""

    gate: Gate | None = None
    _is_inside = False  # a transaction has begun: calls inside of it hold the connection, and must not wait

    def in_unit(self, function: Callable[..., Any], *arguments: Any, durable: bool = True) -> Any:
        with self.unit(durable=durable):
            return function(*arguments)

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        if self._is_inside:
            with super().unit(durable=durable):
                yield
            return
        gate, self.gate = self.gate, None
        if gate is not None:
            gate()
        self._is_inside = True
        try:
            with super().unit(durable=durable):
                yield
        finally:
            self._is_inside = False


class GatedSqlite(GatedEngine):
    """A gated engine on a SQLite file."""


class GatedMemory(GatedEngine, MemoryEngine):
    """A gated engine in memory."""


def make_engine(kind: str, folder: Path, clock: Clock | None = None) -> GatedMemory | GatedSqlite:
    """Make an engine of a kind, on an empty store."""
    return GatedMemory(clock=clock) if kind == "memory" else GatedSqlite(folder / "jobs.db", clock=clock)


def manager_on_one_pool(pool: ThreadPool, engine: Engine, **options: Any) -> JobManager:
    """Make a job manager whose layers are three sequences of one pool."""
    return JobManager(
        control=pool.sequenced(name="control"),
        io=pool.sequenced(name="io"),
        execution=pool.sequenced(name="execution"),
        engine=engine,
        **options,
    )


@contextmanager
def blocked_store(engine: GatedMemory | GatedSqlite, manager: JobManager) -> Iterator[Gate]:
    """Block the io layer before a transaction until the block ends."""
    gate = engine.gate = Gate()
    manager.announce_handlers()  # it fetches jobs
    gate.wait_until_entered()
    try:
        yield gate
    finally:
        gate.open()
