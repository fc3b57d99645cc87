"""Statements for schedules."""

from __future__ import annotations

COLUMNS = """name, type, queue, priority, payload, codec, rule, misfire, catch_up, overlap, jitter, begins, ends,
    expires, limits, next_due, last_due, is_paused, revision, created, aside, follow_up"""

KEPT_OCCURRENCES = 100

ALL = f"SELECT {COLUMNS} FROM schedules ORDER BY name"
NAMED = f"SELECT {COLUMNS} FROM schedules WHERE name IN (SELECT value FROM json_each(?1)) ORDER BY name"
DUE = f"""
SELECT {COLUMNS} FROM schedules WHERE is_paused = 0 AND next_due IS NOT NULL AND next_due <= ?1
ORDER BY next_due, name LIMIT ?2
"""
PLACE = "SELECT type, queue FROM schedules WHERE name = ?1"
REVISION = "SELECT revision FROM schedules WHERE name = ?1"
PUT = f"""
INSERT INTO schedules ({COLUMNS})
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)
"""
REPLACE = """
UPDATE schedules SET type = ?2, queue = ?3, priority = ?4, payload = ?5, codec = ?6, rule = ?7, misfire = ?8,
    catch_up = ?9, overlap = ?10, jitter = ?11, begins = ?12, ends = ?13, expires = ?14, limits = ?15,
    next_due = ?16, aside = ?17, follow_up = ?18, revision = revision + 1
WHERE name = ?1
"""
PAUSE = "UPDATE schedules SET is_paused = 1 WHERE name = ?1 AND is_paused = 0"
RESUME = """
UPDATE schedules SET is_paused = 0, next_due = ?2
WHERE name = ?1 AND is_paused = 1 AND revision = coalesce(?3, revision)
"""
REMOVE = "DELETE FROM schedules WHERE name = ?1"
REMOVE_OCCURRENCES = "DELETE FROM occurrences WHERE schedule = ?1"

# batch of [name, revision, expected]: those that are still so
STILL_DUE = """
SELECT json_group_array(v.value) FROM json_each(?1) AS v CROSS JOIN schedules
ON name = v.value ->> 0 AND revision = v.value ->> 1 AND next_due = v.value ->> 2 AND is_paused = 0
"""
# batch of [name, next due, last due]
MOVE_ON = """
UPDATE schedules SET next_due = v.value ->> 1, last_due = v.value ->> 2 FROM json_each(?1) AS v
WHERE name = v.value ->> 0
"""
# batch of names: [schedule, a job of it that has not ended]
ALIVE = """
SELECT json_group_array(json_array(schedule, id)) FROM (
    SELECT schedule, jobs.id AS id, min(seq) FROM json_each(?1) AS v
    CROSS JOIN jobs ON schedule = v.value AND schedule IS NOT NULL AND status < 2 GROUP BY schedule)
"""
ALIVE_OF = "SELECT json_group_array(id) FROM jobs WHERE schedule = ?1 AND schedule IS NOT NULL AND status < 2"
# batch of [schedule, occurrence]: those that have a job
KNOWN = """
SELECT json_group_array(json_array(schedule, occurrence)) FROM json_each(?1) AS v
CROSS JOIN jobs ON schedule = v.value ->> 0 AND occurrence = v.value ->> 1 AND schedule IS NOT NULL
"""
# batch of [schedule, due, until, count, kind, note, decided]
RECORD = """
INSERT INTO occurrences (schedule, due, until, count, kind, note, decided)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
FROM json_each(?1)
"""
FORGET = f"""
DELETE FROM occurrences WHERE rowid IN (
    SELECT rowid FROM occurrences WHERE schedule = ?1 ORDER BY rowid DESC LIMIT -1 OFFSET {KEPT_OCCURRENCES})
"""
OCCURRENCES = """
SELECT due, until, count, kind, note, decided FROM occurrences WHERE schedule = ?1 ORDER BY rowid DESC LIMIT ?2
"""
