"""Deletes old jobs, results, events, counts, requests and audit entries, a few at a time, as `Retention` says."""

from __future__ import annotations

import msgspec

from mainspring.engines.sqlite.activity import prune_counts
from mainspring.engines.sqlite.audit import prune_entries
from mainspring.engines.sqlite.codec import numbers, to_json
from mainspring.engines.sqlite.requests import RequestWriter
from mainspring.engines.sqlite.spent_envelopes import forget_ended, remember_deleted
from mainspring.engines.sqlite.store import Store
from mainspring.jobs.engine import Pruned, Retention

MAX_SCANNED = 2_000  # how many rows one prune scans
MAX_DELETED = 500  # how many rows one prune deletes at most

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
DELETE_RESULTS = """
UPDATE jobs SET result = NULL, forget = NULL
WHERE seq IN (SELECT seq FROM jobs WHERE forget IS NOT NULL AND forget <= ?1 LIMIT ?2)
"""
DELETE_EMPTY_BUCKETS = "DELETE FROM occupied WHERE running <= 0"
DELETE_FULL_RATES = """
DELETE FROM rates WHERE bucket IN (SELECT bucket FROM rates WHERE full_at <= ?1 LIMIT ?2)
"""

_scan = msgspec.json.Decoder(tuple[int, int | None, int | None, list[int]]).decode


class Pruner:
    """Deletes jobs and results that are too old or too many, and other outdated rows. For use inside a unit."""

    def __init__(self, store: Store, requests: RequestWriter) -> None:
        self._database = store.database
        self._requests = requests
        self._events = store.events
        self._now = store.now
        self._pruned_until = 0  # the last seq that a prune has scanned

    def prune(self, retention: Retention) -> Pruned:
        """Delete some of the jobs, results and other rows that `retention` does not keep.

        Return how many jobs were deleted, and whether there may be more to delete. The next call continues where
        this one stopped.
        """
        write = self._database.write
        now = self._now()
        deleted, is_done = self._prune_by_age(retention, now)
        if is_done and retention.most is not None:
            surplus, extra = self._prune_by_number(retention.most)
            deleted += extra
            is_done = surplus <= 0
        write(DELETE_RESULTS, (now, MAX_DELETED))
        deleted_results = self._database.changes()
        write(DELETE_FULL_RATES, (now, MAX_DELETED))
        write(DELETE_EMPTY_BUCKETS)
        forget_ended(self._database, now, MAX_DELETED)
        self._events.prune()
        is_more_activity = prune_counts(write, now)
        are_more_requests = self._requests.prune()
        is_more_audit = prune_entries(write, self._database.changes, retention, now)
        is_more_of_others = is_more_activity or are_more_requests or is_more_audit
        is_more = not is_done or deleted_results >= MAX_DELETED or is_more_of_others
        return Pruned(deleted, is_more=is_more)

    def _prune_by_age(self, retention: Retention, now: int) -> tuple[int, bool]:
        ages = (retention.completed, retention.failed, retention.canceled)
        ends = [None if age is None else now - age for age in ages]
        if ends == [None, None, None]:
            return 0, True
        scanned, last, youngest, old = _scan(
            self._database.write(OUTDATED, (self._pruned_until, MAX_SCANNED, *ends))
        )
        # Rows are in the order of submission: behind a row that is too young, none is old enough.
        oldest_end = max(end for end in ends if end is not None)
        is_done = (scanned < MAX_SCANNED or (youngest or 0) > oldest_end) and len(old) <= MAX_DELETED
        if len(old) > MAX_DELETED:
            old = old[:MAX_DELETED]
            last = old[-1]
        self._delete(old)
        if old:
            self._database.write(REDUCE_SURPLUS, (len(old),))
        self._pruned_until = 0 if is_done or last is None else last
        return len(old), is_done

    def _prune_by_number(self, most: int) -> tuple[int, int]:
        """Delete some of the oldest COMPLETED and CANCELED jobs, if there are more than `most` of them.

        Return how many of these jobs remain to be deleted, and how many were deleted.
        """
        write = self._database.write
        surplus: int = write(SURPLUS, (most,))  # counting takes a while, so all workers share the stored count
        if surplus <= 0:
            surplus = max(0, write(ENDED) - most)
        extra = numbers(write(OLDEST_ENDED, (min(surplus, MAX_DELETED),))) if surplus else []
        self._delete(extra)
        surplus = surplus - len(extra) if extra else 0
        write(SET_SURPLUS, (surplus, most))
        return surplus, len(extra)

    def _delete(self, seqs: list[int]) -> None:
        if seqs:
            remember_deleted(self._database, self._now(), seqs=seqs)
            self._database.write(DELETE_ROWS, (to_json(seqs),))
