"""A job manager whose three layers share one pool, on each engine, and a store that a test can hold up."""

from __future__ import annotations

from collections.abc import Iterator
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


class GatedMemory(MemoryEngine):
    """A memory engine whose next unit waits at a gate."""

    gate: Gate | None = None

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        _pass(self)
        with super().unit(durable=durable):
            yield


class GatedSqlite(SqliteEngine):
    """A SQLite engine whose next unit waits at a gate."""

    gate: Gate | None = None

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        _pass(self)
        with super().unit(durable=durable):
            yield


def _pass(engine: GatedMemory | GatedSqlite) -> None:
    gate, engine.gate = engine.gate, None
    if gate is not None:
        gate()


def make_engine(kind: str, folder: Path, clock: Clock | None = None) -> GatedMemory | GatedSqlite:
    """Make an engine of a kind, on an empty store."""
    return GatedMemory(clock=clock) if kind == "memory" else GatedSqlite(folder / "jobs.db", clock=clock)


def in_sequences(pool: ThreadPool, engine: Engine, **options: Any) -> JobManager:
    """Put the layers on three sequences of one pool."""
    return JobManager(
        control=pool.sequenced(name="control"),
        io=pool.sequenced(name="io"),
        execution=pool.sequenced(name="execution"),
        engine=engine,
        **options,
    )


@contextmanager
def held_up(engine: GatedMemory | GatedSqlite, manager: JobManager) -> Iterator[Gate]:
    """Hold the store up while the block lasts: its io layer waits inside of a unit."""
    gate = engine.gate = Gate()
    manager.announce_handlers()  # it looks for jobs
    gate.wait_until_entered()
    try:
        yield gate
    finally:
        gate.open()
