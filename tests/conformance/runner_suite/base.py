"""The fixtures that a kind of runner gives to the conformance suite."""

from __future__ import annotations

from typing import ClassVar, Protocol

import pytest

from mainspring import ShutdownBehavior, TaskRunner, TaskTraits, ThreadPool

BLOCK = TaskTraits(shutdown=ShutdownBehavior.BLOCK)
SKIP = TaskTraits(shutdown=ShutdownBehavior.SKIP)
CONTINUE = TaskTraits(shutdown=ShutdownBehavior.CONTINUE)


class MakeRunner(Protocol):
    def __call__(
        self,
        *,
        name: str = "orders",
        capacity: int | None = None,
        traits: TaskTraits | None = None,
        metadata: dict[str, object] | None = None,
    ) -> TaskRunner: ...


class RunnerBase:
    """What every part of the suite uses. `places` is the number of tasks that a runner runs at once."""

    places: ClassVar[int]

    @pytest.fixture
    def make(self, pool: ThreadPool) -> MakeRunner:
        raise NotImplementedError

    @pytest.fixture
    def runner(self, make: MakeRunner) -> TaskRunner:
        return make()

    @pytest.fixture
    def owner(self, pool: ThreadPool) -> ThreadPool:
        """The pool of the runner."""
        return pool
