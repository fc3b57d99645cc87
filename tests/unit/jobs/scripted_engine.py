"""A memory engine that fails or waits as a test scripts it, and records the calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from mainspring import EngineUnavailable
from mainspring.clock import Clock
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Taken
from tests.support import PATIENCE, Gate


class ScriptedEngine(MemoryEngine):
    """A memory engine whose methods fail as often as a test says, and whose next transaction can be held up."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.gate: Gate | None = None
        self.taken: list[Taken] = []  # the answers to `take`
        self._failing: dict[str, int] = {}
        self._done: defaultdict[str, SimpleQueue[Any]] = defaultdict(SimpleQueue)

    def fail(self, verb: str, times: int = 1) -> None:
        """Let the next calls of a method fail."""
        self._failing[verb] = times

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

    def in_unit(self, function: Callable[..., Any], *arguments: Any, durable: bool = True) -> Any:
        with self.unit(durable=durable):
            return function(*arguments)

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate()
        with super().unit(durable=durable):
            yield

    def _call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        if self._failing.get(verb, 0) > 0:
            self._failing[verb] -= 1
            raise EngineUnavailable(engine="test", reason=f"{verb} fails", remedy="try again")
        answer = getattr(super(), verb)(*arguments, **options)
        if verb == "take":
            self.taken.append(answer)
        self._done[verb].put(arguments[-1] if arguments else None)
        return answer

    def submit(self, *arguments: Any) -> Any:
        return self._call("submit", *arguments)

    def enroll(self, *arguments: Any) -> Any:
        return self._call("enroll", *arguments)

    def renew(self, *arguments: Any) -> Any:
        return self._call("renew", *arguments)

    def announce(self, *arguments: Any) -> Any:
        return self._call("announce", *arguments)

    def take(self, *arguments: Any, **options: Any) -> Any:
        return self._call("take", *arguments, **options)

    def start(self, *arguments: Any) -> Any:
        return self._call("start", *arguments)

    def settle(self, *arguments: Any) -> Any:
        return self._call("settle", *arguments)

    def report(self, *arguments: Any) -> Any:
        return self._call("report", *arguments)

    def sweep(self, *arguments: Any) -> Any:
        return self._call("sweep", *arguments)
