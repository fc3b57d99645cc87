"""What a worker does by the clock, once a second: look at the one on the wall, rescue, watch, show that it lives.

A wall clock that was set, or a laptop that slept, shows as a jump of the wall clock against the monotonic one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from mainspring.clock import Clock
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Engine, Pruned, Retention, Swept
from mainspring.jobs.handlers import Registry
from mainspring.jobs.io_layer import Callback, IoLayer, SingleOperation
from mainspring.jobs.working.news import tell_sweep
from mainspring.jobs.working.vitals import Vitals
from mainspring.jobs.working.watchdog import Watchdog
from mainspring.jobs.working.worker import Worker

T = TypeVar("T")

EVERY_SECONDS = 1.0
HEARTBEAT_TICKS = 15
PRUNE_TICKS = 60  # once a minute, and every second while there is more to forget,
MOST_PRUNES = 10  # in small steps, this many of them
JUMP_NS = 100_000_000

logger = logging.getLogger("mainspring.worker")


class Duties:
    """The regular duties of one worker. `tick` is called once a second."""

    def __init__(
        self,
        worker: Worker,
        *,
        engine: Engine,
        io: IoLayer,
        control: Control,
        registry: Registry,
        clock: Clock,
        retention: Retention,
        retime: Callable[[], None],
        vitals: Vitals,
        watchdog: Watchdog,
    ) -> None:
        self._worker = worker
        self._control = control
        self._vitals = vitals
        self._watchdog = watchdog
        self._is_sweeping = False  # the store owes an answer: asking again would only queue up
        self._retention = retention
        self._retime = retime
        self._engine = engine
        self._io = io
        self._registry = registry
        self._clock = clock
        self._ticks = 0
        self._offset = self._measure()
        self._must_prune = False
        self._unknown: set[str] = set()

    def tick(self) -> None:
        """Do what is due; waits for nothing."""
        offset = self._measure()
        if abs(offset - self._offset) > JUMP_NS:
            logger.warning("the wall clock jumped by %.3f s; jobs are timed anew", (offset - self._offset) / 1e9)
            self._offset = offset
            self._retime()
        self._ticks += 1
        self._worker.announce_handlers()
        number = self._worker.number
        if self._ticks % HEARTBEAT_TICKS == 0:
            self._dispatch(
                "renew", lambda engine: engine.renew(number), lambda is_alive: self._renewed(number, is_alive)
            )
        if not self._is_sweeping:
            self._is_sweeping = True
            self._dispatch("sweep", lambda engine: engine.sweep(number), self._swept)
        if self._ticks % PRUNE_TICKS == 0 or self._must_prune:
            self._prune(MOST_PRUNES)

    def _measure(self) -> int:
        return self._engine.now() * 1_000 - self._clock.monotonic_ns()

    def _dispatch(self, what: str, call: Callable[[Engine], T], then: Callable[[T], None]) -> None:
        reply = Callback(then, lambda error: self._failed(what, error))
        self._io.dispatch(SingleOperation(call, reply, durable=False))

    def _failed(self, verb: str, error: Exception) -> None:
        self._is_sweeping &= verb != "sweep"
        self._control.post(self._vitals.failed, error)
        logger.error("worker %d could not %s: %s", self._worker.number, verb, error)

    def _renewed(self, number: int, is_alive: bool) -> None:  # noqa: FBT001 - an answer, not an option
        if not is_alive:
            self._worker.declared_dead(number)

    def _prune(self, prunes: int) -> None:
        """Forget a little, up to so many times in a row: others come in between."""
        self._must_prune = False
        reply: Callback[Pruned] = Callback(
            lambda pruned: self._pruned(pruned, prunes), lambda error: self._failed("prune", error)
        )
        self._io.dispatch(SingleOperation(lambda engine: engine.prune(self._retention), reply, durable=False))

    def _pruned(self, pruned: Pruned, prunes: int) -> None:
        if pruned.is_more and prunes > 1:
            self._prune(prunes - 1)
        else:
            self._must_prune = pruned.is_more

    def _swept(self, swept: Swept) -> None:
        self._is_sweeping = False
        tell_sweep(swept)
        self._control.post(self._observe, swept)

    def _observe(self, swept: Swept) -> None:
        self._vitals.answered()
        self._watchdog.look(swept.waiting)
        self._vitals.stall = self._watchdog.complaint
        for name in {waiting.type for waiting in swept.waiting}:
            if name not in self._registry and name not in self._unknown:
                self._unknown.add(name)
                logger.warning(
                    "jobs for handler %r are due, and this worker does not know it; they wait for one that does: "
                    "import its module with Mainspring(include=[...]), or name it as an alias",
                    name,
                )
