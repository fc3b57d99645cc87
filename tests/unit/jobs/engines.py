"""Engines that do what a test tells them: fail, wait, and remember what they were asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mainspring import EngineUnavailable
from mainspring.clock import Clock
from mainspring.engines.memory import MemoryEngine
from tests.support import Gate


class FailingEngine(MemoryEngine):
    """A memory engine whose verbs fail as often as a test says."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.failing: dict[str, int] = {}

    def fail(self, verb: str, times: int = 1) -> None:
        self.failing[verb] = times

    def _fail_perhaps(self, verb: str) -> None:
        if self.failing.get(verb, 0) > 0:
            self.failing[verb] -= 1
            raise EngineUnavailable(engine="test", reason=f"{verb} fails", remedy="try again")

    def submit(self, *args: Any) -> Any:
        self._fail_perhaps("submit")
        return super().submit(*args)

    def take(self, *args: Any, **options: Any) -> Any:
        self._fail_perhaps("take")
        return super().take(*args, **options)

    def start(self, *args: Any) -> Any:
        self._fail_perhaps("start")
        return super().start(*args)

    def settle(self, *args: Any) -> Any:
        self._fail_perhaps("settle")
        return super().settle(*args)

    def sweep(self, *args: Any) -> Any:
        self._fail_perhaps("sweep")
        return super().sweep(*args)

    def enroll(self, *args: Any) -> Any:
        self._fail_perhaps("enroll")
        return super().enroll(*args)


class WaitingEngine(MemoryEngine):
    """A memory engine whose next commit waits until a test opens the gate."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self.gate: Gate | None = None

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate()
        with super().unit(durable=durable):
            yield
