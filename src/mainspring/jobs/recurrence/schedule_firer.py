"""Fires schedules. A thread sleeps until the next occurrence, and then submits the jobs that are due.

Every worker has such a thread, and all of them try to fire each occurrence. The store accepts only the first
firing of an occurrence, so no leader is needed.

Invariants
- Only occurrences that are due within the engine's start lead are fired.
- The thread never sleeps past an occurrence that was announced by `expect`. The announcement of a later occurrence
  changes nothing. A process that stores an earlier occurrence wakes the workers, and the next fetch of each worker
  announces this occurrence.
- A schedule that this version cannot read is not fired here; a worker of another version can fire it. The other
  schedules are fired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

from msgspec.structs import replace

from mainspring.clock import Clock
from mainspring.jobs.engine import Engine
from mainspring.jobs.io_layer import FIRE, IoLayer
from mainspring.jobs.middleware import Middlewares
from mainspring.jobs.records import NewJob
from mainspring.jobs.recurrence.firing_middleware import fire_with_middleware
from mainspring.jobs.recurrence.orphaned_schedules import OrphanReporter
from mainspring.jobs.recurrence.planning import plan_firing
from mainspring.jobs.recurrence.rules import UNREADABLE, decode_rule
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, ScheduleRecord
from mainspring.jobs.timestamps import LAST_INSTANT, MICROSECONDS, to_datetime
from mainspring.plurals import format_count
from mainspring.timing.timer import Timer
from mainspring.timing.wheel import TimerEntry, WheelStatistics

BATCH = 200  # how many schedules the first transaction fires; few, so that their jobs start soon
MAX_BATCH = 1_000  # each later transaction fires twice as many, up to this number
BATCH_JOBS = 5_000  # a transaction with this many jobs fires no more schedules
RETRY_DELAY = MICROSECONDS  # time until the next try after an error of the store
PATIENCE_SECONDS = 10.0  # how long `close` waits for the store, in real time

logger = logging.getLogger("mainspring.schedules")


class ScheduleFirer:
    """Fires the due schedules of the store for one worker: submits the jobs of their occurrences.

    `new_id` makes the id of a job for an instant. `add_keys` adds the search keys to a new job. `refer` makes the
    jobs of a firing refer to the signature of their schedule; None if schedules are not signed.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        io: IoLayer,
        clock: Clock,
        new_id: Callable[[int], str],
        add_keys: Callable[[NewJob], NewJob],
        orphans: OrphanReporter | None = None,
        middlewares: Middlewares | None = None,
        refer: Callable[[ScheduleRecord, Firing], Firing] | None = None,
    ) -> None:
        self._engine = engine
        self._io = io
        self._clock = clock
        self._new_id = new_id
        self._add_keys = add_keys
        self._orphans = orphans
        self._middlewares = middlewares or Middlewares()
        self._refer = refer
        self._timer = Timer(clock, name="mainspring-schedules")
        self._firing = Lock()  # held while schedules are fired; guards the next three attributes
        self._firings = 0
        self._checked_until = 0
        self._unreadable: dict[str, int] = {}  # revisions of schedules that this version cannot read
        self._lock = Lock()  # guards the following attributes
        self._armed_at: int | None = None
        self._timer_entry: TimerEntry | None = None
        self._is_closed = False

    def start(self) -> None:
        """Attach to the clock, so that a manual clock can drive the timer. The first `expect` sets the timer."""
        self._clock.attach(self)

    def expect(self, next_firing: int | None) -> None:
        """Make the timer fire no later than the occurrence `next_firing`, the earliest that a worker has read;
        None if there is none.

        Any thread may call it. The call is cheap if this occurrence or an earlier one was announced before.
        """
        armed_at = self._armed_at
        if next_firing is None or (armed_at is not None and armed_at <= next_firing):
            return
        if self._unreadable and next_firing <= self._checked_until:
            # The announced occurrence may belong to a schedule that cannot be read. So the next occurrence of the
            # other schedules is unknown, and the store is read again after `RETRY_DELAY`.
            next_firing = self._checked_until + RETRY_DELAY
        self._arm(next_firing)

    def timer_statistics(self) -> WheelStatistics:
        """Return the statistics of the timing wheel, which has the timer of the next occurrence."""
        return self._timer.statistics()

    def retime(self) -> None:
        """Check the schedules now, because the wall clock has jumped. Any thread may call this method."""
        with self._lock:
            self._disarm()
        self._arm(self._engine.now())

    def end(self) -> None:
        """Stop firing, without waiting for a firing in progress."""
        with self._lock:
            self._is_closed = True
        self._timer.close()

    def close(self, patience: float = PATIENCE_SECONDS) -> None:
        """Stop firing, and wait up to `patience` seconds for a firing in progress."""
        self.end()
        self._clock.detach(self)
        if self._firing.acquire(timeout=patience):
            self._firing.release()

    # -- timing

    def _arm(self, instant: int) -> None:
        """Set the timer to the start lead before an instant, unless the timer is set for an earlier instant."""
        with self._lock:
            if self._is_closed or (self._armed_at is not None and self._armed_at <= instant):
                return
            self._disarm()
            wait = instant - self._engine.start_lead - self._engine.now()
            self._armed_at = instant
            self._timer_entry = self._timer.call_at(self._clock.monotonic_ns() + wait * 1_000, self._on_timer)

    def _disarm(self) -> None:
        if self._timer_entry is not None:
            self._timer.cancel(self._timer_entry)
        self._armed_at = self._timer_entry = None

    def _on_timer(self) -> None:
        with self._lock:
            instant = self._armed_at
            self._armed_at = self._timer_entry = None
        if instant is None:  # another thread has just set the timer again
            return
        if instant > self._horizon():  # the clocks differ a little, or the wall clock was set back
            self._arm(instant)
            return
        with self._firing:
            self._firings += 1
            following = self._fire_and_look_ahead()
        if following is not None:
            self._arm(following)

    def _horizon(self) -> int:
        return self._engine.now() + self._engine.start_lead

    # -- firing

    def _fire_and_look_ahead(self) -> int | None:
        """Fire the schedules that are due; return the instant for which to set the timer next.

        The instant is that of the next occurrence, or after an error a second from now; None if no schedule has
        another occurrence.
        """
        try:
            self._fire_due()
            ahead = self._engine.schedules(due_until=LAST_INSTANT, limit=1 + len(self._unreadable))
        except Exception as error:  # later occurrences must be fired, whatever the error is
            if not self._is_closed:
                logger.error("the worker could not fire schedules and tries again in a second: %s", error)
            return self._horizon() + RETRY_DELAY
        return min((r.next_due for r in ahead if r.next_due is not None and self._is_readable(r)), default=None)

    def _fire_due(self) -> None:
        before: list[tuple[str, int, int | None]] = []
        batch = BATCH
        while not self._is_closed:
            self._checked_until = horizon = self._horizon()
            due = self._engine.schedules(due_until=horizon, limit=batch + len(self._unreadable))
            firings = self._plan([record for record in due if self._is_readable(record)], horizon)
            expected = [(firing.schedule, firing.revision, firing.expected) for firing in firings]
            if not firings:
                return
            if expected == before:
                raise RuntimeError(
                    f"schedule {before[0][0]!r} is still due: the store has not fired it, and does not "
                    "report that another worker did"
                )
            before = expected
            answers = fire_with_middleware(firings, lambda given: self._io.call(FIRE, given), self._middlewares)
            self._report({record.name: record for record in due}, firings, answers)
            batch = min(2 * batch, MAX_BATCH)

    def _plan(self, due: list[ScheduleRecord], horizon: int) -> list[Firing]:
        firings: list[Firing] = []
        jobs = 0
        for record in due:
            try:
                firing = plan_firing(record, decode_rule(record.rule), horizon, self._new_id)
                firing = replace(firing, jobs=tuple(map(self._add_keys, firing.jobs)))
                if self._refer is not None:
                    firing = self._refer(record, firing)
            except UNREADABLE as error:
                self._unreadable[record.name] = record.revision
                logger.error(
                    "this worker does not fire schedule %r, because this version of Mainspring cannot read it; "
                    "update Mainspring: %s",
                    record.name,
                    error,
                )
                continue
            firings.append(firing)
            jobs += len(firing.jobs)
            if jobs >= BATCH_JOBS:
                break
        return firings

    def _is_readable(self, record: ScheduleRecord) -> bool:
        return self._unreadable.get(record.name) != record.revision

    def _report(self, records: dict[str, ScheduleRecord], firings: list[Firing], answers: list[Fired]) -> None:
        for firing, fired in zip(firings, answers, strict=True):
            if fired.is_done:
                is_orphan = self._orphans is not None and self._orphans.check(records[firing.schedule])
                log_skipped(firing, fired, logging.DEBUG if is_orphan else logging.WARNING)

    # -- for the clock that this object is attached to

    def next_due(self) -> int | None:
        """Return the monotonic time, in nanoseconds, at which the timer must wake up; None if it is not set."""
        return self._timer.next_due()

    def activity(self) -> object:
        """Return a value that changes with every firing, for a manual clock that compares two of them."""
        return self._firings

    def settle(self, real_seconds: float) -> str | None:
        """Wait until all due schedules have been fired; return None.

        If this takes longer than `real_seconds`, return a text that names the busy component.
        """
        return None if self._timer.settle(real_seconds) else "the schedules of a worker"


def log_skipped(firing: Firing, fired: Fired, level: int = logging.WARNING) -> None:
    """Log the occurrences of a firing that got no job: by the misfire policy, or because an earlier job runs."""
    for record in firing.records:
        logger.log(
            level,
            "schedule %r has made no job for its occurrences from %s to %s (%s): %s",
            firing.schedule,
            to_datetime(record.due),
            to_datetime(record.until),
            record.kind,
            record.note,
        )
    if fired.skipped_for is not None and firing.jobs:
        logger.log(
            level,
            "schedule %r has made no job for %s (%s), because its earlier job %s has not ended",
            firing.schedule,
            format_count(len(firing.jobs), "occurrence"),
            ", ".join(str(to_datetime(job.occurrence or job.due)) for job in firing.jobs),
            fired.skipped_for,
        )
