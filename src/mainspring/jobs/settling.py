"""Settling: outcomes go to the store in whatever batches come together, and are kept until the store has them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from mainspring.clock import NANOSECONDS, Clock
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Outcome
from mainspring.jobs.io_layer import Callback, IoLayer, Operation
from mainspring.jobs.news import tell_outcome, tell_refusal
from mainspring.timing.timer import Timer

PAUSE_NS = NANOSECONDS  # before an outcome that could not be stored is tried again

logger = logging.getLogger("mainspring.worker")


class Settling:
    """Stores outcomes and tells the worker, in the control sequence, which were accepted."""

    def __init__(
        self,
        io: IoLayer,
        control: Control,
        timer: Timer,
        clock: Clock,
        *,
        worker: Callable[[], int],
        collect: Callable[[list[tuple[Outcome, bool]]], None],
    ) -> None:
        self._io = io
        self._control = control
        self._timer = timer
        self._clock = clock
        self._worker = worker
        self._collect = collect
        self._settled: deque[tuple[Outcome, bool]] = deque()  # filled by io, emptied by control
        self.gives_up = False
        """Whether a failed store is the end: the jobs are then found as those of a dead worker."""

    def settle(self, outcomes: list[Outcome]) -> None:
        """Store outcomes; from any thread."""
        for outcome in outcomes:
            tell_outcome(outcome)
        self._store(outcomes)

    def _store(self, outcomes: list[Outcome]) -> None:
        reply = Callback(
            lambda answers: self._note(outcomes, answers),
            lambda error: self._control.post(self._failed, outcomes, error),
        )
        self._io.dispatch(Operation("settle", outcomes, reply, worker=self._worker()))

    def _note(self, outcomes: list[Outcome], answers: list[bool]) -> None:
        is_first = not self._settled
        self._settled.extend(zip(outcomes, answers, strict=True))
        if is_first:  # the others of this unit are found by the same call
            self._control.post(self._pass_on)

    def _pass_on(self) -> None:
        settled = []
        while self._settled:
            settled.append(self._settled.popleft())
        for outcome, is_accepted in settled:
            if not is_accepted:
                tell_refusal(outcome)
        self._collect(settled)

    def _failed(self, outcomes: list[Outcome], error: Exception) -> None:
        if self.gives_up:
            logger.error("%d outcomes could not be stored; their jobs will run again: %s", len(outcomes), error)
            return
        logger.error("%d outcomes could not be stored, trying again in a second: %s", len(outcomes), error)
        self._timer.call_at(self._clock.monotonic_ns() + PAUSE_NS, lambda: self._store(outcomes))
