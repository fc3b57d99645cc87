"""Looking for jobs: one question to the store at a time, asked again when something may have changed.

When to look next follows from each answer: shortly before the next job is due, and at the instant of whatever else
it names. Without room nobody looks ahead: whoever makes some says so, and what was left is looked at again.
Everything here belongs to the control sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mainspring.clock import NANOSECONDS
from mainspring.jobs.control import Control
from mainspring.jobs.engine import Engine, Taken
from mainspring.jobs.io_layer import Callback, IoLayer, SingleOperation
from mainspring.jobs.working.alarms import Alarms
from mainspring.jobs.working.hands import Hands
from mainspring.timing.wheel import TimerEntry

LEAD = 1_000_000  # microseconds ahead of its due time that a job is taken
PAUSE_NS = NANOSECONDS  # after an error of the store
MIN_PAUSE = 1_000  # microseconds before a look that should have been already: nothing spins

logger = logging.getLogger("mainspring.worker")


class Looking:
    """Asks the store for what the hands have room for."""

    def __init__(
        self,
        io: IoLayer,
        control: Control,
        engine: Engine,
        alarms: Alarms,
        hands: Hands,
        *,
        worker: Callable[[], int],
        on_taken: Callable[[Taken], None],
        announce: Callable[[], None],
    ) -> None:
        self._io = io
        self._control = control
        self._engine = engine
        self._alarms = alarms
        self._hands = hands
        self._worker = worker
        self._on_taken = on_taken
        self._announce = announce  # that the store has answered, if not as hoped
        self._must_look = False
        self._has_room = True  # when the last question was asked,
        self._has_new_room = False  # and whether some was made since
        self._is_left = False  # whether the last answer told of jobs for which there was no room
        self._look_at: int | None = None
        self._look_alarm: TimerEntry | None = None
        self._is_over = False
        self._is_asking = False
        self._is_held = False
        self.is_more = False
        """Whether due jobs may wait for room,"""
        self.is_more_ahead = False
        """and jobs that will be due soon."""
        self.trouble: Exception | None = None
        """Why nothing could be taken, when it was last tried."""

    @property
    def is_busy(self) -> bool:
        """Whether the store owes an answer, or nothing may be taken for another reason."""
        return self._is_asking or self._is_held

    def hold(self) -> None:
        """Ask no more until `go_on`: this worker has no number of its own any more."""
        self._is_held = True

    def go_on(self) -> None:
        """Ask again."""
        self._is_held = False
        self.look()

    def look(self) -> None:
        """Ask, now or when the answer to the last question is there."""
        asked_as = self._worker()
        if self._is_over or asked_as == 0:
            return
        if self.is_busy:
            self._must_look = True
            return
        self._is_asking, self._must_look, self._has_new_room = True, False, False
        demands = self._hands.demands()
        self._has_room = any(demand.starts for demand in demands)
        start_lead = self._engine.start_lead
        self._io.dispatch(
            SingleOperation(
                lambda engine: engine.take(asked_as, demands, lead=LEAD, start_lead=start_lead),
                Callback(
                    lambda taken: self._control.post(self._answered, asked_as, taken),
                    lambda error: self._control.post(self.fail, error),
                ),
                durable=False,
            )
        )

    def fail(self, error: Exception) -> None:
        """Try again in a while."""
        self.trouble = error
        self._is_asking = self._is_held = False
        self._announce()
        if not self._is_over:
            logger.error("no jobs can be taken, trying again in a second: %s", error)
            self._alarms.after(PAUSE_NS, self.look)

    def _answered(self, asked_as: int, taken: Taken) -> None:
        self._is_asking, self.trouble = False, None
        if asked_as != self._worker():  # it was meant for an earlier life of this worker
            self._announce()
            self.look()
            return
        self.is_more = taken.is_more
        self._is_left = taken.is_more or (taken.next_due is not None and not self._has_room)
        self._must_look |= self._is_left and self._has_new_room
        self._on_taken(taken)

    def plan(self, taken: Taken) -> None:
        """Look again when there is reason to."""
        if taken.next_due is not None and self._has_room:
            # What is due within the lead was left for lack of room: it comes with some, or when it is due.
            self.is_more_ahead = taken.next_due <= self._engine.now() + LEAD
            self._look_not_after(taken.next_due - (self._engine.start_lead if self.is_more_ahead else LEAD))
        if taken.next_look is not None:
            now = self._engine.now()
            self._look_not_after(taken.next_look if taken.next_look > now else now + MIN_PAUSE)
        if self._must_look:
            self.look()

    def _look_not_after(self, instant: int) -> None:
        if self._look_at is None or instant < self._look_at:
            self._alarms.cancel(self._look_alarm)
            self._look_at = instant
            self._look_alarm = self._alarms.at(instant, self.look_now)

    def use_room(self) -> None:
        """Look again if jobs were left for lack of room, of which there is some now."""
        if self._is_left or self.is_more:
            self.look()
        else:
            self._has_new_room = True

    def look_now(self) -> None:
        """Look, and forget when that was to be."""
        self._alarms.cancel(self._look_alarm)
        self._look_at = self._look_alarm = None
        self.look()

    def look_ahead(self) -> None:
        """Look for jobs that will be due soon, if there are more of them than were taken."""
        if self.is_more_ahead:
            self.is_more_ahead = False
            self.look()

    def end(self) -> None:
        """Look no more."""
        self._is_over = True

    def is_settled(self) -> bool:
        """Answer whether there is neither a question nor an answer under way."""
        return not (self.is_busy or self._must_look)
