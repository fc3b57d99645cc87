"""Engines that wait or fail as a test scripts it, and a job manager whose three layers share one pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mainspring import EngineUnavailable, ThreadPool
from mainspring.clock import Clock
from mainspring.engines.sqlite import SqliteEngine
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs import JobManager
from mainspring.jobs.engine import Engine, Taken
from tests.support import PATIENCE, Gate

ENGINES = ("memory", "sqlite")


class GatedEngine(SqliteEngine):
    """An engine on a SQLite file whose next transaction waits at a gate before it begins."""

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


class GatedMemory(GatedEngine, MemoryEngine):
    """A gated engine in memory."""


def make_engine(kind: str, folder: Path, clock: Clock | None = None) -> GatedEngine:
    """Make an engine of a kind, on an empty store."""
    return GatedMemory(clock=clock) if kind == "memory" else GatedEngine(folder / "jobs.db", clock=clock)


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
def blocked_store(engine: GatedEngine, manager: JobManager) -> Iterator[Gate]:
    """Block the io layer before a transaction until the block ends."""
    gate = engine.gate = Gate()
    manager.announce_handlers()  # it fetches jobs
    gate.wait_until_entered()
    try:
        yield gate
    finally:
        gate.open()


def _scripted(verb: str) -> Callable[..., Any]:
    """Make a method that fails as scripted, and records its calls."""

    def call(engine: ScriptedEngine, *arguments: Any, **options: Any) -> Any:
        return engine._call(verb, *arguments, **options)

    return call


class ScriptedEngine(GatedMemory):
    """A gated engine in memory whose methods fail as often as a test says; it records their calls."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.taken: list[Taken] = []  # the answers to `take`
        self._failing: dict[str, int] = {}
        self._errors: dict[str, Exception] = {}
        self._done: defaultdict[str, SimpleQueue[Any]] = defaultdict(SimpleQueue)

    submit, enroll, renew, announce, take, start, settle, report, sweep = map(
        _scripted, ("submit", "enroll", "renew", "announce", "take", "start", "settle", "report", "sweep")
    )

    def fail(self, verb: str, times: int = 1, error: Exception | None = None) -> None:
        """Let the next calls of a method fail, by default as if the store could not be reached."""
        self._failing[verb] = times
        self._errors[verb] = error or EngineUnavailable(engine="test", reason=f"{verb} fails", remedy="try again")

    def failures_left(self, verb: str) -> int:
        """Return how many of the next calls of a method will fail."""
        return self._failing.get(verb, 0)

    def wait_for(self, verb: str) -> Any:
        """Wait for the next call of a method that was not waited for yet; return its last argument."""
        return self._done[verb].get(timeout=PATIENCE)

    def is_idle(self, verb: str) -> bool:
        """Return whether all calls of a method were waited for."""
        return self._done[verb].empty()

    def wait_for_all(self, verb: str, count: int) -> list[Any]:
        """Wait for calls of a method until they have had `count` items in total; return the items."""
        given: list[Any] = []
        while len(given) < count:
            given += self.wait_for(verb)
        return given

    def _call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        if self._failing.get(verb, 0) > 0:
            self._failing[verb] -= 1
            raise self._errors[verb]
        answer = getattr(super(), verb)(*arguments, **options)
        if verb == "take":
            self.taken.append(answer)
        self._done[verb].put(arguments[-1] if arguments else None)
        return answer
