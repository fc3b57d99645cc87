"""Finds dead workers, rescues their jobs, and deletes old jobs a few at a time."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from mainspring.clock import NANOSECONDS, Clock
from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.codec import strings, to_json
from mainspring.engines.sqlite.explain import find_waiting
from mainspring.engines.sqlite.schema import DECLARED_DEAD, NOT_READY
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.engine import STALE, Pruned, Retention, Swept
from mainspring.jobs.events import EventKind
from mainspring.jobs.timestamps import LAST_INSTANT

STALE_NS = STALE * 1_000
LONGEST_GAP_NS = 15 * NANOSECONDS  # the failure detector counts no more than this between two calls
SCANNED = 2_000  # rows that one prune scans
DELETED = 500  # rows that it deletes at most

# ?1 after this seq, ?2 how many rows to scan, ?3 ?4 ?5 the latest end of COMPLETED, FAILED, CANCELED jobs to
# delete: [number of rows, the last seq, the latest creation, the seqs to delete]
OUTDATED = """
SELECT json_array(
    count(*), max(seq), max(created), json_group_array(seq) FILTER (WHERE finished <= limit_of)) FROM (
    SELECT seq, created, finished, CASE status WHEN 2 THEN ?3 WHEN 3 THEN ?4 WHEN 4 THEN ?5 END AS limit_of
    FROM jobs NOT INDEXED WHERE seq > ?1 ORDER BY seq LIMIT ?2)
"""
# ?1 how many, at most. It reads an equal share from each of the 256 lanes whose first ended jobs are the oldest.
# These jobs are the oldest of all, up to the last one of a full share or the first one of a lane left out.
OLDEST_ENDED = """
WITH heads AS MATERIALIZED (
    SELECT lane, status, seq, row_number() OVER (ORDER BY seq) AS place FROM (
        SELECT lanes.id AS lane, s.value AS status, (
            SELECT min(seq) FROM jobs INDEXED BY jobs_by_lane WHERE lane = lanes.id AND status = s.value) AS seq
        FROM lanes CROSS JOIN json_each('[2,4]') AS s)
    WHERE seq IS NOT NULL),
share AS MATERIALIZED (SELECT max(16, 2 * ?1 / max(1, count(*))) AS most FROM heads),
first AS MATERIALIZED (
    SELECT jobs.lane, jobs.status, jobs.seq FROM heads AS h CROSS JOIN jobs ON jobs.seq IN (
        SELECT seq FROM jobs INDEXED BY jobs_by_lane WHERE lane = h.lane AND status = h.status
        ORDER BY seq LIMIT (SELECT most FROM share))
    WHERE h.place <= 256),
bounds AS MATERIALIZED (
    SELECT max(seq) AS seq FROM first GROUP BY lane, status HAVING count(*) = (SELECT most FROM share)
    UNION ALL SELECT seq FROM heads WHERE place = 257)
SELECT json_group_array(seq) FROM (
    SELECT seq FROM first WHERE seq <= coalesce((SELECT min(seq) FROM bounds), seq) ORDER BY seq LIMIT ?1)
"""
ENDED = """
SELECT count(*) FROM lanes CROSS JOIN jobs INDEXED BY jobs_by_lane ON lane = lanes.id AND status IN (2, 4)
"""
SURPLUS = "SELECT iif(surplus_of = ?1, surplus, 0) FROM settings"
SET_SURPLUS = "UPDATE settings SET surplus = ?1, surplus_of = ?2 WHERE (surplus, surplus_of) <> (?1, ?2)"
REDUCE_SURPLUS = "UPDATE settings SET surplus = surplus - ?1 WHERE surplus > 0"
DELETE_ROWS = "DELETE FROM jobs WHERE seq IN (SELECT value FROM json_each(?1))"
FORGET_RESULTS = """
UPDATE jobs SET result = NULL, forget = NULL
WHERE seq IN (SELECT seq FROM jobs WHERE forget IS NOT NULL AND forget <= ?1 LIMIT ?2)
"""
FORGET_BUCKETS = "DELETE FROM occupied WHERE running <= 0"
FORGET_RATES = """
DELETE FROM rates WHERE bucket IN (SELECT bucket FROM rates WHERE full_at <= ?1 LIMIT ?2)
"""

# jobs that processes with schema version one stored after the migration
GET_READY = f"""
UPDATE jobs SET ready = due WHERE seq IN (
    SELECT j.seq FROM lanes CROSS JOIN jobs AS j INDEXED BY claimable
    ON j.lane = lanes.id AND j.status = 0 AND j.owner IS NULL AND j.crashes < 2 AND j.wait = 0
        AND j.ready = {NOT_READY})
"""
# ?1 now, after the clock was set back
READY_AGAIN = """
UPDATE jobs INDEXED BY group_heads SET ready = due
WHERE grp IS NOT NULL AND status = 0 AND owner IS NULL AND wait = 0 AND ready > ?1 AND ready > due
"""
WAIT_AGAIN = "UPDATE waits SET until = ?1 WHERE until > ?1"

_scan = msgspec.json.Decoder(tuple[int, int | None, int | None, list[int]]).decode
_numbers = msgspec.json.Decoder(list[int]).decode


class Sweeping:
    """Rescues jobs of dead workers and deletes old jobs; for use inside a unit (one transaction)."""

    def __init__(self, store: Store, max_crashes: int) -> None:
        self._store = store
        self._database = store.database
        self._lines = store.lines
        self._buckets = store.buckets
        self._parking = store.parking
        self._events = store.events
        self._now = store.now
        self._max_crashes = max_crashes
        self._swept_at = LAST_INSTANT
        self._pruned_until = 0  # the last seq that a prune has scanned

    def rescue(self, dead: Collection[int]) -> Swept:
        """Rescue the jobs of dead workers; return them, and the due jobs that could start."""
        write = self._database.write
        now = self._now()
        self._set_right(now)
        batch = to_json(list(dead))
        rescued: list[str] = []
        quarantined: list[str] = []
        if dead:
            rescued = strings(write(sql.RESCUED, (batch, self._max_crashes)))
            quarantined = strings(write(sql.QUARANTINED, (batch, self._max_crashes)))
            stopped = strings(write(sql.STOPPED, (batch,)))
            places = self._lines.of_owners(dead)
            self._parking.vacate_for_dead(dead)
            write(sql.RESCUE, (batch, self._max_crashes, now))
            write(sql.RELEASE, (batch,))
            write(sql.BURY, (batch,))
            self._parking.leave(places)
            self._write_events(rescued + quarantined + stopped)
        self._parking.admit_to_free_places()
        return Swept(rescued, quarantined, find_waiting(self._store, now))

    def _write_events(self, crashed: list[str]) -> None:
        """Write events for jobs of dead workers: `started` first, because the handler may have begun."""
        if crashed and self._events.has_listener():
            self._events.write_started([(job_id, None) for job_id in crashed])
            self._events.write_states(crashed, EventKind.RESCUED)

    def _set_right(self, now: int) -> None:
        """Repair jobs of processes with schema version one, and future times left by a clock that was set back."""
        self._database.write(GET_READY)
        if now < self._swept_at:  # the clock was set back, or may have been before this process started
            self._database.write(READY_AGAIN, (now,))
            self._buckets.fill_up(now)
            self._database.write(WAIT_AGAIN, (now,))
        self._swept_at = now

    def prune(self, retention: Retention) -> Pruned:
        """Delete some old jobs and results; the next call goes on where this one stopped."""
        write = self._database.write
        now = self._now()
        deleted, has_ended = self._prune_by_age(retention, now)
        if has_ended and retention.most is not None:
            surplus, extra = self._prune_by_number(retention.most)
            deleted += extra
            has_ended = surplus <= 0
        write(FORGET_RESULTS, (now, DELETED))
        forgotten = self._database.changes()
        write(FORGET_RATES, (now, DELETED))
        write(FORGET_BUCKETS)
        self._events.prune()
        return Pruned(deleted, is_more=not has_ended or forgotten >= DELETED)

    def _prune_by_age(self, retention: Retention, now: int) -> tuple[int, bool]:
        ages = (retention.completed, retention.failed, retention.canceled)
        ends = [None if age is None else now - age for age in ages]
        if ends == [None, None, None]:
            return 0, True
        seen, last, youngest, old = _scan(self._database.write(OUTDATED, (self._pruned_until, SCANNED, *ends)))
        # Rows are in the order of submission: behind a row that is too young, none is old enough.
        oldest_end = max(end for end in ends if end is not None)
        has_ended = (seen < SCANNED or (youngest or 0) > oldest_end) and len(old) <= DELETED
        if len(old) > DELETED:
            old = old[:DELETED]
            last = old[-1]
        self._delete(old)
        if old:
            self._database.write(REDUCE_SURPLUS, (len(old),))
        self._pruned_until = 0 if has_ended or last is None else last
        return len(old), has_ended

    def _prune_by_number(self, most: int) -> tuple[int, int]:
        """Delete some of the surplus jobs; return how many are left to delete, and how many were deleted."""
        write = self._database.write
        surplus: int = write(SURPLUS, (most,))  # counting takes a while, so all workers share the stored count
        if surplus <= 0:
            surplus = max(0, write(ENDED) - most)
        extra = _numbers(write(OLDEST_ENDED, (min(surplus, DELETED),))) if surplus else []
        self._delete(extra)
        surplus = surplus - len(extra) if extra else 0
        write(SET_SURPLUS, (surplus, most))
        return surplus, len(extra)

    def _delete(self, seqs: list[int]) -> None:
        if seqs:
            self._database.write(DELETE_ROWS, (to_json(seqs),))


class FailureDetector:
    """Finds workers whose heartbeat has stayed the same for too long.

    It counts only the time in which this worker itself checked. So a change of the wall clock, or a pause of this
    process, makes no other worker look dead.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked_ns = clock.monotonic_ns()
        self._silences: dict[
            int, tuple[int, int]
        ] = {}  # by worker: its heartbeat, and how long it stayed the same

    def find_silent(self, heartbeats: dict[int, int]) -> list[int]:
        """Compare the heartbeats of other workers with those of the last call; return the silent workers."""
        now = self._clock.monotonic_ns()
        gap = min(LONGEST_GAP_NS, now - self._looked_ns)
        self._looked_ns = now
        before, self._silences = self._silences, {}
        for number, heartbeat in heartbeats.items():
            known, silence = before.get(number, (heartbeat, -gap))
            self._silences[number] = (heartbeat, silence + gap if known == heartbeat else 0)
        return [
            number
            for number, (heartbeat, silence) in self._silences.items()
            if heartbeat == DECLARED_DEAD or silence >= STALE_NS
        ]
