"""Finds dead workers and rescues their jobs; repairs times after the clock was set back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from mainspring.clock import NANOSECONDS, Clock
from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.codec import strings, to_json
from mainspring.engines.sqlite.dead_letters import DeadLetterNotifier
from mainspring.engines.sqlite.explain import find_waiting
from mainspring.engines.sqlite.schema import DECLARED_DEAD, NOT_READY
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.activity import EngineNote
from mainspring.jobs.engine import STALE, Swept
from mainspring.jobs.events import EventKind
from mainspring.jobs.timestamps import LAST_INSTANT

STALE_NS = STALE * 1_000
LONGEST_GAP_NS = 15 * NANOSECONDS  # a longer time between two calls counts as this much for the failure detector

# jobs that processes with schema version one stored after the migration: see `schema.NOT_READY`
REPAIR_READY = f"""
UPDATE jobs SET ready = due WHERE seq IN (
    SELECT j.seq FROM lanes CROSS JOIN jobs AS j INDEXED BY claimable
    ON j.lane = lanes.id AND j.status = 0 AND j.owner IS NULL AND j.crashes < 2 AND j.wait = 0
        AND j.ready = {NOT_READY})
"""
# ?1 now, after the clock was set back: heads of groups that would only count as ready later than now
CAP_READY = """
UPDATE jobs INDEXED BY group_heads SET ready = due
WHERE grp IS NOT NULL AND status = 0 AND owner IS NULL AND wait = 0 AND ready > ?1 AND ready > due
"""
CAP_RATE_WAITS = "UPDATE waits SET until = ?1 WHERE until > ?1"

_ended_lanes = msgspec.json.Decoder(list[tuple[int, int, int]]).decode


class JobRescuer:
    """Rescues the jobs of dead and of removed workers. For use inside a unit (one transaction)."""

    def __init__(self, store: Store, max_crashes: int, dead_letters: DeadLetterNotifier) -> None:
        self._store = store
        self._dead_letters = dead_letters
        self._database = store.database
        self._heads = store.heads
        self._bucket_counts = store.bucket_counts
        self._parked_groups = store.parked_groups
        self._events = store.events
        self._now = store.now
        self._max_crashes = max_crashes
        self._last_run = LAST_INSTANT

    def rescue(self, dead: Collection[int]) -> Swept:
        """Rescue the jobs of dead workers, delete these workers, and let jobs be claimed whose limits have room.

        Return the ids of the jobs that ran and will run again, and of those that became dead letters; and the due
        jobs that could start, counted by job type and queue. Jobs whose start was not committed are only released,
        and jobs that were asked to stop become CANCELED: neither are returned.
        """
        write = self._database.write
        now = self._now()
        self._repair_times(now)
        batch = to_json(list(dead))
        rescued: list[str] = []
        quarantined: list[str] = []
        if dead:
            rescued = strings(write(sql.RESCUED, (batch, self._max_crashes)))
            quarantined = strings(write(sql.QUARANTINED, (batch, self._max_crashes)))
            stopped = strings(write(sql.STOPPED, (batch,)))
            for lane, jobs, is_removed in _ended_lanes(write(sql.ENDED_LANES, (batch,))):
                what: Literal["interrupted", "crashed"] = "interrupted" if is_removed else "crashed"
                self._store.notes.add(EngineNote(what, *self._store.lanes.queue_and_type(lane), jobs))
            memberships = self._heads.memberships_of_workers(dead)
            self._parked_groups.release_limits_of_dead(dead)
            write(sql.RESCUE, (batch, self._max_crashes, now))
            write(sql.RELEASE_HELD_OF_DEAD, (batch,))
            write(sql.DELETE_WORKERS, (batch,))
            self._parked_groups.update_after_leaving(memberships)
            self._write_events(rescued + quarantined + stopped)
            if quarantined:
                self._dead_letters.notify(quarantined)
        self._parked_groups.unpark_for_free_capacity()
        return Swept(rescued, quarantined, find_waiting(self._store, now))

    def _write_events(self, crashed: list[str]) -> None:
        """Write the events of jobs whose workers died, if a client listens.

        For each job, `started` comes first unless it was written before, because the handler may have begun.
        """
        if crashed and self._events.has_listener():
            self._events.write_started_of(crashed)
            self._events.write_states(crashed, EventKind.RESCUED)

    def _repair_times(self, now: int) -> None:
        """Correct times: of jobs from processes with schema version one, and after the clock was set back."""
        self._database.write(REPAIR_READY)
        if now < self._last_run:  # the clock was set back, or may have been before this process started
            self._database.write(CAP_READY, (now,))
            self._bucket_counts.cap_missing_tokens(now)
            self._database.write(CAP_RATE_WAITS, (now,))
        self._last_run = now


class FailureDetector:
    """Finds workers to rescue: those whose heartbeat has not changed for too long, and those declared dead.

    It counts the time by the monotonic clock, and a pause between two checks as 15 seconds at most. So a change of
    the wall clock, or a pause of this process, does not make another worker look dead.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._checked_ns = clock.monotonic_ns()
        self._silences: dict[
            int, tuple[int, int]
        ] = {}  # for each worker, its last heartbeat and how long that has not changed

    def find_silent(self, heartbeats: dict[int, int], leases: Mapping[int, int] | None = None) -> list[int]:
        """Compare the heartbeats of workers with those of the last calls; return the numbers of dead workers.

        Dead are workers with the heartbeat `DECLARED_DEAD`, and workers whose heartbeat has not changed for too
        long. For a remote worker, that is its lease, which `leases` has in microseconds, by number. The time
        between two calls counts as at most 15 seconds, and for a remote worker as at most a third of its lease.
        """
        limits = {number: lease * 1_000 for number, lease in (leases or {}).items()}
        now = self._clock.monotonic_ns()
        passed = min(LONGEST_GAP_NS, now - self._checked_ns)
        self._checked_ns = now
        before, self._silences = self._silences, {}
        for number, heartbeat in heartbeats.items():
            gap = min(passed, limits[number] // 3) if number in limits else passed
            known, silence = before.get(number, (heartbeat, -gap))
            self._silences[number] = (heartbeat, silence + gap if known == heartbeat else 0)
        return [
            number
            for number, (heartbeat, silence) in self._silences.items()
            if heartbeat == DECLARED_DEAD or silence >= limits.get(number, STALE_NS)
        ]
