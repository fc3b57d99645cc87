"""Engines that do what a test tells them: fail, wait, and tell what was done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from mainspring import EngineUnavailable
from mainspring.clock import Clock
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs.engine import Taken
from tests.support import PATIENCE, Gate


class TestEngine(MemoryEngine):
    """A memory engine whose verbs fail as often as a test says, and whose next unit may be made to wait."""

    __test__ = False  # not a class of tests

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.gate: Gate | None = None
        self.taken: list[Taken] = []  # the answers to `take`
        self._failing: dict[str, int] = {}
        self._done: defaultdict[str, SimpleQueue[Any]] = defaultdict(SimpleQueue)

    def fail(self, verb: str, times: int = 1) -> None:
        """Let the next calls of a verb fail."""
        self._failing[verb] = times

    def wait_for(self, verb: str) -> Any:
        """Wait until a verb was carried out, once more than it was waited for; return what it was given."""
        return self._done[verb].get(timeout=PATIENCE)

    def is_idle(self, verb: str) -> bool:
        """Answer whether a verb was not carried out since it was last waited for."""
        return self._done[verb].empty()

    def wait_for_all(self, verb: str, count: int) -> list[Any]:
        """Wait until a verb was given so much in all, in however many calls: what comes together goes together."""
        given: list[Any] = []
        while len(given) < count:
            given += self.wait_for(verb)
        return given

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate()
        with super().unit(durable=durable):
            yield

    def _carry_through(self, verb: str, *arguments: Any, **options: Any) -> Any:
        if self._failing.get(verb, 0) > 0:
            self._failing[verb] -= 1
            raise EngineUnavailable(engine="test", reason=f"{verb} fails", remedy="try again")
        answer = getattr(super(), verb)(*arguments, **options)
        if verb == "take":
            self.taken.append(answer)
        self._done[verb].put(arguments[-1] if arguments else None)
        return answer

    def submit(self, *arguments: Any) -> Any:
        return self._carry_through("submit", *arguments)

    def enroll(self, *arguments: Any) -> Any:
        return self._carry_through("enroll", *arguments)

    def renew(self, *arguments: Any) -> Any:
        return self._carry_through("renew", *arguments)

    def announce(self, *arguments: Any) -> Any:
        return self._carry_through("announce", *arguments)

    def take(self, *arguments: Any, **options: Any) -> Any:
        return self._carry_through("take", *arguments, **options)

    def start(self, *arguments: Any) -> Any:
        return self._carry_through("start", *arguments)

    def settle(self, *arguments: Any) -> Any:
        return self._carry_through("settle", *arguments)

    def report(self, *arguments: Any) -> Any:
        return self._carry_through("report", *arguments)

    def sweep(self, *arguments: Any) -> Any:
        return self._carry_through("sweep", *arguments)
