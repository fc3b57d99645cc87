"""Settling: outcomes go to the store in whatever batches come together, and are kept until the store has them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from mainspring.clock import NANOSECONDS, Clock
from mainspring.errors import EngineUnavailable
from mainspring.jobs.control import Control
from mainspring.jobs.io_layer import MAX_BYTES, SETTLE, Callback, IoLayer, LateOperation, Operation
from mainspring.jobs.records import Cause, Outcome, OutcomeKind
from mainspring.jobs.working.news import tell_outcome, tell_refusal
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
        announce: Callable[[], None],
    ) -> None:
        self._io = io
        self._control = control
        self._timer = timer
        self._clock = clock
        self._worker = worker
        self._collect = collect
        self._announce = announce  # that the store has answered, if not as hoped
        self._outcomes: deque[Outcome] = deque()
        self.stored = 0
        """Grows whenever something is to be stored."""
        self._is_queued = False  # an operation that will take everything from the deque is on its way
        self._under_way: set[int] = set()  # batches that the store has not answered
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
        self.stored += 1
        if not self._is_queued:
            self._is_queued = True
            batch: list[Outcome] = []
            reply: Callback[list[bool]] = Callback(
                lambda answers: self._control.post(self._pass_on, batch, answers),
                lambda error: self._control.post(self._failed, batch, error),
            )
            self._io.dispatch(LateOperation(SETTLE, lambda: self._load(batch), reply, worker=self._worker()))

    def _load(self, batch: list[Outcome]) -> list[Outcome]:
        self._under_way.add(id(batch))
        self._is_queued = False
        size = 0
        while self._outcomes and size < MAX_BYTES:
            outcome = self._outcomes.popleft()
            size += len(outcome.result or b"")
            batch.append(outcome)
        if self._outcomes:
            self._store([])
        return batch

    def is_busy(self) -> bool:
        """Answer whether the store still owes an answer."""
        return bool(self._outcomes or self._is_queued or self._under_way)

    def _pass_on(self, outcomes: list[Outcome], answers: list[bool]) -> None:
        self._under_way.discard(id(outcomes))
        settled = list(zip(outcomes, answers, strict=True))
        for outcome, is_accepted in settled:
            if not is_accepted:
                tell_refusal(outcome)
        self._collect(settled)

    def _failed(self, outcomes: list[Outcome], error: Exception) -> None:
        self._under_way.discard(id(outcomes))
        self._announce()
        if not isinstance(error, EngineUnavailable):
            self._store_one_by_one(outcomes)
        elif self.gives_up:
            logger.error("%d outcomes could not be stored; their jobs will run again: %s", len(outcomes), error)
        else:
            logger.error("%d outcomes could not be stored, trying again in a second: %s", len(outcomes), error)
            self._timer.call_at(
                self._clock.monotonic_ns() + PAUSE_NS, lambda: self._control.post(self._store, outcomes)
            )

    def _store_one_by_one(self, outcomes: list[Outcome]) -> None:
        """One of them is at fault: the others must not suffer, and even that job must be settled."""
        for outcome in outcomes:
            self._store_alone(outcome)

    def _store_alone(self, outcome: Outcome) -> None:
        batch = [outcome]
        self._under_way.add(id(batch))
        reply: Callback[list[bool]] = Callback(
            lambda answers: self._control.post(self._pass_on, batch, answers),
            lambda error: self._control.post(self._give_up, batch, error),
        )
        self._io.dispatch(Operation(SETTLE, batch, reply, worker=self._worker()))

    def _give_up(self, batch: list[Outcome], error: Exception) -> None:
        self._under_way.discard(id(batch))
        outcome = batch[0]
        reason = f"its outcome could not be stored: {type(error).__name__}"
        replacement = Outcome(outcome.lease, OutcomeKind.FAILED, error=reason, cause=Cause.FAILURE)
        if isinstance(error, EngineUnavailable):
            self._failed(batch, error)
        elif outcome.error == reason:
            logger.error("job %s cannot be settled at all: %s", outcome.lease.id, error)
            self._collect([(outcome, False)])
        else:
            logger.error("the outcome of job %s cannot be stored: %s", outcome.lease.id, error)
            self._store_alone(replacement)
