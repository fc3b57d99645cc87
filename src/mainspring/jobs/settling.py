"""Settling: outcomes go to the store in whatever batches come together, and are kept until the store has them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from mainspring.clock import NANOSECONDS, Clock
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Outcome
from mainspring.jobs.io_layer import Callback, IoLayer, LateOperation
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
        self._outcomes: deque[Outcome] = deque()
        self._is_queued = False  # an operation that will take everything from the deque is on its way
        self.gives_up = False
        """Whether a failed store is the end: the jobs are then found as those of a dead worker."""

    def settle(self, outcomes: list[Outcome]) -> None:
        """Store outcomes; from any thread."""
        for outcome in outcomes:
            tell_outcome(outcome)
        self._store(outcomes)

    def _store(self, outcomes: list[Outcome]) -> None:
        # Whoever adds looks at the flag afterwards; whoever takes clears the flag first: nothing is left lying.
        self._outcomes.extend(outcomes)
        if not self._is_queued:
            self._is_queued = True
            batch: list[Outcome] = []
            reply = Callback(
                lambda answers: self._control.post(self._pass_on, batch, answers),
                lambda error: self._control.post(self._failed, batch, error),
            )
            self._io.dispatch(LateOperation("settle", lambda: self._load(batch), reply, worker=self._worker()))

    def _load(self, batch: list[Outcome]) -> list[Outcome]:
        self._is_queued = False
        batch.extend(self._outcomes.popleft() for _ in range(len(self._outcomes)))
        return batch

    def _pass_on(self, outcomes: list[Outcome], answers: list[bool]) -> None:
        settled = list(zip(outcomes, answers, strict=True))
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
