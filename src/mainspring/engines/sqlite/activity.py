"""The history of activity in a SQLite file: counts of each minute, which become counts of each hour.

A series is a small number for a queue, a type, a measure, a label and a bucket, so that a row of counts is short.
A row is one count of one series in one minute. After two days, the rows of the 60 minutes of an hour are replaced
by one row, which is deleted after 30 days. The number of rows is bounded, too: if there are too many, the oldest
minutes are added up earlier, and the oldest hours are deleted earlier.

The functions take a function that executes a statement in the current transaction, because projections use them,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import apsw
import msgspec
from msgspec.structs import replace

from mainspring.engines.sqlite.codec import to_json
from mainspring.jobs.activity import MINUTE, OTHER
from mainspring.jobs.activity_rows import HOUR, HOURS_KEPT, MINUTES_KEPT, ActivityBatch, ActivityCount

Execute: TypeAlias = Callable[[str, tuple[Any, ...]], Any]
"""Executes a statement with its values in the current transaction, and returns the value of the first row."""

MAX_PAIRS = 1_000
"""How many pairs of queue and type a store counts separately. Further pairs are counted together as `other`."""
MAX_ROWS = 200_000  # how many rows of minutes, and how many of hours, a store keeps at most
MAX_SERIES = 20_000  # series without rows are deleted if there are more
SENDERS_KEPT = 24 * HOUR  # how long the number of the last batch of a process is kept

# ?1 the process, ?2 the number of its batch, ?3 now
NOTE_BATCH = """
INSERT INTO activity_senders VALUES (?1, ?2, ?3)
ON CONFLICT DO UPDATE SET number = ?2, at = ?3 WHERE number < ?2
"""
DELETE_SENDERS = "DELETE FROM activity_senders WHERE at < ?1"
CHANGES = "SELECT changes()"

# batch of [queue, type]: those that have no series yet
NEW_PAIRS = """
SELECT json_group_array(json(v.value)) FROM json_each(?1) AS v
WHERE NOT EXISTS (SELECT 1 FROM activity_series AS s WHERE s.queue = v.value ->> 0 AND s.type = v.value ->> 1)
"""
COUNT_PAIRS = "SELECT count(*) FROM (SELECT DISTINCT queue, type FROM activity_series)"
# batch of [minute, queue, type, measure, label, bucket, count]
ADD_SERIES = """
INSERT OR IGNORE INTO activity_series (queue, type, measure, label, bucket)
SELECT value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5 FROM json_each(?1)
"""
ADD = """
INSERT INTO activity (minute, series, count)
SELECT v.value ->> 0, s.id, v.value ->> 6 FROM json_each(?1) AS v CROSS JOIN activity_series AS s
    ON (s.queue, s.type, s.measure, s.label, s.bucket)
        = (v.value ->> 1, v.value ->> 2, v.value ->> 3, v.value ->> 4, v.value ->> 5)
WHERE true ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
# ?1 the first and ?2 the end of the minutes, ?3 the first and ?4 the end of the hours
READ = """
SELECT 60000000 * a.minute, s.queue, s.type, s.measure, s.label, s.bucket, a.count, 60000000
FROM activity AS a CROSS JOIN activity_series AS s ON s.id = a.series WHERE a.minute >= ?1 AND a.minute < ?2
UNION ALL
SELECT 3600000000 * a.hour, s.queue, s.type, s.measure, s.label, s.bucket, a.count, 3600000000
FROM activity_hours AS a CROSS JOIN activity_series AS s ON s.id = a.series WHERE a.hour >= ?3 AND a.hour < ?4
"""
# the same, with the counts of ?5 minutes, and of ?6 hours, added up
READ_BY_STEP = """
SELECT 60000000 * ?5 * a.period, s.queue, s.type, s.measure, s.label, s.bucket, a.total, 60000000 * ?5
FROM (SELECT minute / ?5 AS period, series, sum(count) AS total FROM activity
    WHERE minute >= ?1 AND minute < ?2 GROUP BY period, series) AS a
CROSS JOIN activity_series AS s ON s.id = a.series
UNION ALL
SELECT 3600000000 * ?6 * a.period, s.queue, s.type, s.measure, s.label, s.bucket, a.total, 3600000000 * ?6
FROM (SELECT hour / ?6 AS period, series, sum(count) AS total FROM activity_hours
    WHERE hour >= ?3 AND hour < ?4 GROUP BY period, series) AS a
CROSS JOIN activity_series AS s ON s.id = a.series
"""
FIRST_MINUTE = "SELECT min(minute) FROM activity"
# ?1 an hour
FOLD = """
INSERT INTO activity_hours (hour, series, count)
SELECT ?1, series, sum(count) FROM activity WHERE minute >= 60 * ?1 AND minute < 60 * ?1 + 60 GROUP BY series
ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
DELETE_MINUTES = "DELETE FROM activity WHERE minute < 60 * ?1 + 60"
DELETE_HOURS = "DELETE FROM activity_hours WHERE hour < ?1"
# ?1 how many rows may stay: the minute or hour of the oldest of them, NULL if there are fewer
MINUTE_TO_KEEP = "SELECT minute FROM activity ORDER BY minute DESC LIMIT 1 OFFSET ?1"
HOUR_TO_KEEP = "SELECT hour FROM activity_hours ORDER BY hour DESC LIMIT 1 OFFSET ?1"
COUNT_SERIES = "SELECT count(*) FROM activity_series"
DELETE_UNUSED_SERIES = """
DELETE FROM activity_series
WHERE id NOT IN (SELECT series FROM activity) AND id NOT IN (SELECT series FROM activity_hours)
"""


_pairs = msgspec.json.Decoder(list[tuple[str, str]]).decode


def add_batch(execute: Execute, batch: ActivityBatch, now: int) -> None:
    """Add the counts of a process to the stored counts of the same minutes.

    Do nothing if this batch, or a later one of the same process, was added before.
    """
    execute(NOTE_BATCH, (batch.sender, batch.number, now))
    if not execute(CHANGES, ()) or not batch.counts:
        return
    counts = _with_bounded_pairs(execute, batch.counts)
    rows = to_json([(c.start // MINUTE, c.queue, c.type, c.measure, c.label, c.bucket, c.count) for c in counts])
    execute(ADD_SERIES, (rows,))
    execute(ADD, (rows,))


def _with_bounded_pairs(execute: Execute, counts: Sequence[ActivityCount]) -> Sequence[ActivityCount]:
    """Return the counts, with `other` as queue and type for new pairs that exceed `MAX_PAIRS`."""
    pairs = sorted({(count.queue, count.type) for count in counts})
    new = _pairs(execute(NEW_PAIRS, (to_json(pairs),)))
    if not new:
        return counts
    room = MAX_PAIRS - execute(COUNT_PAIRS, ())
    others = set(new[max(0, room) :])
    if not others:
        return counts
    return [
        replace(count, queue=OTHER, type=OTHER) if (count.queue, count.type) in others else count
        for count in counts
    ]


def read_counts(connection: apsw.Connection, since: int, until: int, step: int = MINUTE) -> list[ActivityCount]:
    """Return the counts of all minutes and hours that overlap the time from `since` to `until`.

    With a `step` of several minutes, the counts of so many minutes, or of the whole hours in it, are added up.
    """
    bounds = (since // MINUTE, -(-until // MINUTE), since // HOUR, -(-until // HOUR))
    if step <= MINUTE:
        rows: list[Any] = connection.execute(READ, bounds).fetchall()
    else:
        rows = connection.execute(READ_BY_STEP, (*bounds, step // MINUTE, max(1, step // HOUR))).fetchall()
    return [ActivityCount(*row) for row in rows]


def prune_counts(execute: Execute, now: int) -> bool:
    """Add up the oldest minutes by the hour if they are old enough or too many, and delete old hours.

    One call adds up one hour. Return whether there are more hours to add up.
    """
    _delete_hours(execute, now)
    execute(DELETE_SENDERS, (now - SENDERS_KEPT,))
    first = execute(FIRST_MINUTE, ())
    if first is None:
        return False
    excess = execute(MINUTE_TO_KEEP, (MAX_ROWS,))
    # the current hour and the hour before are never added up, because processes may still add counts to them
    end = min(max((now - MINUTES_KEPT) // HOUR, 0 if excess is None else excess // 60), now // HOUR - 1)
    hour = first // 60
    if hour >= end:
        return False
    execute(FOLD, (hour,))
    execute(DELETE_MINUTES, (hour,))
    return bool(hour + 1 < end)


def delete_counts(execute: Execute) -> None:
    """Delete the whole history of activity."""
    for table in ("activity", "activity_hours", "activity_series", "activity_senders"):
        execute(f"DELETE FROM {table}", ())


def _delete_hours(execute: Execute, now: int) -> None:
    excess = execute(HOUR_TO_KEEP, (MAX_ROWS,))
    first_kept = max((now - HOURS_KEPT) // HOUR, 0 if excess is None else excess)
    execute(DELETE_HOURS, (first_kept,))
    if execute(CHANGES, ()) and execute(COUNT_SERIES, ()) > MAX_SERIES:
        execute(DELETE_UNUSED_SERIES, ())
