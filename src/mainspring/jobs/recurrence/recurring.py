"""Fires schedules: a thread that sleeps until the next occurrence, and then makes jobs of what is due.

Every worker has one, and all of them try: a firing counts only if nobody was quicker, so there is no leader.

Invariants
- Nothing is planned that is not due within the engine's start lead.
- It never sleeps past an occurrence that it was told of: being told of a later one changes nothing, and whoever
  makes an earlier one wakes the workers, whose next look tells of it.
- A schedule that cannot be understood is left to those who can, and keeps nobody from firing the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

from mainspring.clock import Clock
from mainspring.jobs.engine import Engine
from mainspring.jobs.instants import LAST_INSTANT, MICROSECONDS, to_datetime
from mainspring.jobs.io_layer import FIRE, IoLayer
from mainspring.jobs.recurrence.planning import plan
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, ScheduleRecord
from mainspring.jobs.recurrence.stored_rules import UNREADABLE, decode_rule
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry

BATCH = 200  # schedules that are fired in one commit,
BATCH_JOBS = 5_000  # unless they make up for so many occurrences
PAUSE = MICROSECONDS  # after an error of the store
PATIENCE_SECONDS = 10.0  # real ones, that a close waits for the store

logger = logging.getLogger("mainspring.schedules")


class Recurring:
    """The firing thread of one worker. `new_id` makes the id of a job for an instant."""

    def __init__(self, *, engine: Engine, io: IoLayer, clock: Clock, new_id: Callable[[int], str]) -> None:
        self._engine = engine
        self._io = io
        self._clock = clock
        self._new_id = new_id
        self._timer = Timer(clock, name="mainspring-schedules")
        self._round = Lock()  # held while schedules are fired; guards the next three
        self._rounds = 0
        self._looked_until = 0
        self._puzzles: dict[str, int] = {}  # the revisions of schedules that cannot be understood
        self._lock = Lock()  # guards what follows
        self._armed_at: int | None = None
        self._alarm: TimerEntry | None = None
        self._is_closed = False

    def start(self) -> None:
        """Join the clock; the first `expect` sets it going."""
        self._clock.attach(self)

    def expect(self, next_firing: int | None) -> None:
        """Be ready for the earliest occurrence that a worker has seen. From any thread; cheap if it is known."""
        armed_at = self._armed_at
        if next_firing is None or (armed_at is not None and armed_at <= next_firing):
            return
        if self._puzzles and next_firing <= self._looked_until:
            # It hides the next occurrence of all others, so there is no telling without a look.
            next_firing = self._looked_until + PAUSE
        self._arm(next_firing)

    def retime(self) -> None:
        """Look again: the wall clock has jumped. From any thread."""
        with self._lock:
            self._disarm()
        self._arm(self._engine.now())

    def end(self) -> None:
        """Fire nothing more."""
        with self._lock:
            self._is_closed = True
        self._timer.close()

    def close(self, patience: float = PATIENCE_SECONDS) -> None:
        """Fire nothing more, and wait so many seconds for the end of a firing that is under way."""
        self.end()
        self._clock.detach(self)
        if self._round.acquire(timeout=patience):
            self._round.release()

    # -- timing

    def _arm(self, instant: int) -> None:
        """Ring for an instant, a start lead before it, unless it rings earlier anyway."""
        with self._lock:
            if self._is_closed or (self._armed_at is not None and self._armed_at <= instant):
                return
            self._disarm()
            wait = instant - self._engine.start_lead - self._engine.now()
            self._armed_at = instant
            self._alarm = self._timer.call_at(self._clock.monotonic_ns() + wait * 1_000, self._ring)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._timer.cancel(self._alarm)
        self._armed_at = self._alarm = None

    def _ring(self) -> None:
        with self._lock:
            instant = self._armed_at
            self._armed_at = self._alarm = None
        if instant is None:  # timed anew in this moment
            return
        if instant > self._horizon():  # the clocks differ a little, or the wall clock was set back
            self._arm(instant)
            return
        with self._round:
            self._rounds += 1
            following = self._fire_and_look_ahead()
        if following is not None:
            self._arm(following)

    def _horizon(self) -> int:
        return self._engine.now() + self._engine.start_lead

    # -- firing

    def _fire_and_look_ahead(self) -> int | None:
        """Fire what is due, and return when there is more to do."""
        try:
            self._fire_due()
            ahead = self._engine.schedules(due_until=LAST_INSTANT, limit=1 + len(self._puzzles))
        except Exception as error:  # whatever it is, there are occurrences to come
            if not self._is_closed:
                logger.error("schedules cannot be fired, trying again in a second: %s", error)
            return self._horizon() + PAUSE
        return min((r.next_due for r in ahead if r.next_due is not None and self._is_clear(r)), default=None)

    def _fire_due(self) -> None:
        before: list[tuple[str, int, int]] = []
        while not self._is_closed:
            self._looked_until = horizon = self._horizon()
            due = self._engine.schedules(due_until=horizon, limit=BATCH + len(self._puzzles))
            firings = self._plan([record for record in due if self._is_clear(record)], horizon)
            expected = [(firing.schedule, firing.revision, firing.expected) for firing in firings]
            if not firings:
                return
            if expected == before:
                raise RuntimeError(f"the store neither fires {before[0][0]!r} nor says that somebody else did")
            before = expected
            self._tell(firings, self._io.call(FIRE, firings))

    def _plan(self, due: list[ScheduleRecord], horizon: int) -> list[Firing]:
        firings: list[Firing] = []
        jobs = 0
        for record in due:
            try:
                firing = plan(record, decode_rule(record.rule), horizon, self._new_id)
            except UNREADABLE as error:
                self._puzzles[record.name] = record.revision
                logger.error(
                    "schedule %r is left alone, this version does not understand it: %s", record.name, error
                )
                continue
            firings.append(firing)
            jobs += len(firing.jobs)
            if jobs >= BATCH_JOBS:
                break
        return firings

    def _is_clear(self, record: ScheduleRecord) -> bool:
        return self._puzzles.get(record.name) != record.revision

    def _tell(self, firings: list[Firing], answers: list[Fired]) -> None:
        for firing, fired in zip(firings, answers, strict=True):
            if fired.is_done:
                tell(firing, fired)

    # -- as a member of its clock

    def next_due(self) -> int | None:
        """Return when the next occurrence may be due."""
        return self._timer.next_due()

    def activity(self) -> object:
        """Return something that changes with every round."""
        return self._rounds

    def settle(self, real_seconds: float) -> str | None:
        """Wait until everything that is due has been fired."""
        return None if self._timer.settle(real_seconds) else "the schedules of a worker"


def tell(firing: Firing, fired: Fired) -> None:
    """Log the occurrences of a firing for which there is no job."""
    for record in firing.records:
        logger.warning(
            "schedule %r: %s (%s: %s to %s)",
            firing.schedule,
            record.note,
            record.kind,
            to_datetime(record.due),
            to_datetime(record.until),
        )
    if fired.skipped_for is not None and firing.jobs:
        logger.warning(
            "schedule %r: %s skipped, job %s of an earlier occurrence has not ended",
            firing.schedule,
            ", ".join(str(to_datetime(job.occurrence or job.due)) for job in firing.jobs),
            fired.skipped_for,
        )
