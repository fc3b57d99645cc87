"""Tells the store which handlers a worker knows: with its start, and again when a handler is registered later."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from mainspring.jobs.control import Control
from mainspring.jobs.crew import WorkerInfo
from mainspring.jobs.handlers import Handler, Registry
from mainspring.jobs.io_layer import Callback, IoLayer, SingleOperation

logger = logging.getLogger("mainspring.worker")


class Announcing:
    """Keeps the job types of one worker in the store up to date. Belongs to the control sequence."""

    def __init__(
        self,
        info: WorkerInfo,
        registry: Registry,
        io: IoLayer,
        control: Control,
        *,
        worker: Callable[[], int],
        on_dead: Callable[[int], None],
    ) -> None:
        self._info = info
        self._registry = registry
        self._io = io
        self._control = control
        self._worker = worker
        self._on_dead = on_dead
        self.is_busy = False
        """Whether the store owes an answer."""

    def introduce(self) -> WorkerInfo:
        """Return the worker with the handlers that are registered now, to enroll it."""
        self._info = replace(self._info, types=self._types())
        return self._info

    def update(self) -> None:
        """Tell the store about handlers that were registered since it was last told."""
        number, types = self._worker(), self._types()
        if self.is_busy or number == 0 or types == self._info.types:
            return
        self.is_busy = True
        reply: Callback[bool] = Callback(
            lambda is_alive: self._control.post(self._answered, number, types, is_alive),
            lambda error: self._control.post(self._failed, error),
        )
        self._io.dispatch(SingleOperation(lambda engine: engine.announce(number, types), reply, durable=False))

    def _types(self) -> tuple[str, ...]:
        return self._registry.names(_any_handler)

    def _answered(self, number: int, types: tuple[str, ...], is_alive: bool) -> None:  # noqa: FBT001 - an answer
        self.is_busy = False
        if not is_alive:
            self._on_dead(number)
            return
        if number == self._worker():  # else it was enrolled again meanwhile, with what was known then
            self._info = replace(self._info, types=types)
        self.update()

    def _failed(self, error: Exception) -> None:
        self.is_busy = False  # the next duty round, once a second, tries again
        logger.warning("worker %d could not announce its new handlers: %s", self._worker(), error)


def _any_handler(_handler: Handler) -> bool:
    return True
