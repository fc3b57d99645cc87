"""`/healthz` and `/readyz`. They need no token, so they tell a state and the kind of a problem, and no details.

In a process with a worker they answer the same as `mainspring healthcheck --live` and `--ready`, by the same rule.
In a process without one, `/healthz` says that the process answers, and `/readyz` whether its store does.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from mainspring.clock import NANOSECONDS, Clock, SystemClock
from mainspring.errors import MainspringError
from mainspring.foreground.health_rules import HealthLevel, HealthProblem, ProblemKind
from mainspring.jobs.handle import ManagerProvider, open_manager

STORE_SECONDS = 5.0
"""A store that does not answer a probe within this time, in seconds, counts as unavailable."""
KEPT_NS = NANOSECONDS
"""For this time, in nanoseconds, probes reuse the last answer of the store, so that they put no load on it."""


class HealthSource(Protocol):
    """Tells the health of the worker in this process: see `OwnHealth`."""

    def problem(self, level: HealthLevel) -> HealthProblem | None:
        """Return the problem that keeps the worker below a level of health; None if it has the level."""


class ProbeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of an answer to a probe: the status, and the kind of the problem if there is one."""

    status: str
    reason: ProblemKind | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the probe succeeds: there is no problem."""
        return self.reason is None


def to_answer(kind: ProblemKind | None) -> ProbeAnswer:
    """Return the answer of a probe: `unavailable` with the kind of the problem, or `ok` for None."""
    return ProbeAnswer("ok") if kind is None else ProbeAnswer("unavailable", kind)


class Probes:
    """Answers the probes of one application.

    - `source`: the application, whose store is asked
    - `worker`: the health of the worker in this process; None if the probes concern no worker
    - `clock`: the clock that measures the age of the last answer
    """

    def __init__(
        self, source: ManagerProvider, *, worker: HealthSource | None = None, clock: Clock | None = None
    ) -> None:
        self._source = source
        self._worker = worker
        self._clock = clock or SystemClock()
        self._asking: asyncio.Task[ProblemKind | None] | None = None
        self._asked_ns: int | None = None
        self._last: ProblemKind | None = None

    async def live(self) -> ProbeAnswer:
        """Answer `/healthz`: not ok if the worker of this process hangs, so that the process must be restarted."""
        return self._of_worker(HealthLevel.LIVE) or to_answer(None)

    async def ready(self) -> ProbeAnswer:
        """Answer `/readyz`: ok if the worker is ready, or, in a process without a worker, if the store answers."""
        return self._of_worker(HealthLevel.READY) or to_answer(await self._ask_store())

    def _of_worker(self, level: HealthLevel) -> ProbeAnswer | None:
        if self._worker is None:
            return None
        problem = self._worker.problem(level)
        return to_answer(None if problem is None else problem.kind)

    async def _ask_store(self) -> ProblemKind | None:
        """Return None if the store answers, else the kind of the problem.

        The store is asked at most once a second. Probes that come at the same time share one question.
        """
        if self._asked_ns is not None and self._clock.monotonic_ns() - self._asked_ns <= KEPT_NS:
            return self._last
        task = self._asking
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._asking = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(task)

    async def _ask(self) -> ProblemKind | None:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                manager = await open_manager(self._source)
                await self._source.off_loop.read(
                    manager.engine.paused_queues
                )  # reads little, from the store itself
            self._last = None
        except (MainspringError, OSError):  # a TimeoutError is an OSError
            self._last = ProblemKind.STORE
        self._asked_ns = self._clock.monotonic_ns()
        return self._last
