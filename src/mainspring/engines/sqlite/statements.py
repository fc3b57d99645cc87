"""Every statement of the engine. Each works on a whole batch: see `rows` for why.

Parameters are numbered; ?1 is the batch. Statuses are the numbers of `rows.STATUSES`. `+`, NOT INDEXED
and CROSS JOIN keep the planner from looking up the batch in an index: it is the shorter list, always.
Two crashes make a suspect: SUSPECT_CRASHES.
"""

from __future__ import annotations

from mainspring.engines.sqlite.rows import LEASE_COLUMNS, RECORD_COLUMNS

# -- submitting

ADD_LANE = "INSERT INTO lanes (queue, type, priority) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING"
LANES = "SELECT json_group_array(json_array(id, queue, type, priority)) FROM lanes"
LANES_VERSION = "SELECT coalesce(max(id), 0) FROM lanes"
LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM jobs"

# batch of [id, lane, due, payload, codec, origin]; ?2 now
INSERT = """
INSERT INTO jobs (id, lane, due, created, payload, codec, origin)
SELECT value ->> 0, value ->> 1, value ->> 2, ?2,
       CASE value ->> 4 WHEN 'json' THEN value ->> 3 ELSE unhex(value ->> 3) END, value ->> 4, value ->> 5
FROM json_each(?1) WHERE true
ON CONFLICT (id) DO NOTHING
"""

# batch of {id: payload} for jobs that are otherwise equal; ?2 now, ?3 lane, ?4 due, ?5 codec
INSERT_EQUAL = """
INSERT INTO jobs (id, lane, due, created, payload, codec)
SELECT key, ?3, ?4, ?2, iif(?5 = 'json', value, unhex(value)), ?5 FROM json_each(?1) WHERE true
ON CONFLICT (id) DO NOTHING
"""

# batch of ids; ?2 the last row before the insert
IN_THE_WAY = "SELECT json_group_array(id) FROM jobs WHERE id IN (SELECT value FROM json_each(?1)) AND seq <= ?2"

# -- taking; batch of [lane, head start in microseconds]

# A pick makes temporary tables, which costs more than all the rest of a take: so look first if there is anything.
FIRST_DUE = """
SELECT json_array(
    (SELECT min(first) FROM (
        SELECT (SELECT min(due) FROM jobs
                WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND crashes < 2) AS first
        FROM json_each(?1) AS l)),
    (SELECT min(first) FROM (
        SELECT (SELECT min(due) FROM jobs
                WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND crashes >= 2) AS first
        FROM json_each(?1) AS l)))
"""

_PICK = """
SELECT json_group_array(json_array({columns})) FROM (
    SELECT j.* FROM json_each(?1) AS l JOIN jobs AS j ON j.seq IN (
        SELECT seq FROM jobs
        WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND {condition}
        ORDER BY due, seq LIMIT ?2)
    ORDER BY j.due - (l.value ->> 1), j.seq LIMIT ?2)
"""
PICK_DUE = _PICK.format(columns=LEASE_COLUMNS, condition="crashes < 2 AND due <= ?3")
PICK_SUSPECTS = _PICK.format(columns=LEASE_COLUMNS, condition="crashes >= 2 AND due <= ?3")
PICK_AHEAD = _PICK.format(columns=LEASE_COLUMNS, condition="crashes < 2 AND due > ?3 AND due <= ?4")

# batch of seq; ?2 worker, ?3 now
MARK_STARTED = """
UPDATE jobs SET status = 1, owner = ?2, token = token + 1, starts = starts + 1, started = max(?3, due)
WHERE seq IN (SELECT value FROM json_each(?1))
"""
MARK_HELD = "UPDATE jobs SET owner = ?2, token = token + 1 WHERE seq IN (SELECT value FROM json_each(?1))"

# batch of [lane, ...]; ?2 an instant
NEXT_DUE = """
SELECT min(due) FROM (
    SELECT (SELECT min(due) FROM jobs
            WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND crashes < 2 AND due > ?2) AS due
    FROM json_each(?1) AS l
    UNION ALL
    SELECT (SELECT min(due) FROM jobs
            WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND crashes >= 2 AND due > ?2) AS due
    FROM json_each(?1) AS l)
"""
STOPS = "SELECT json_group_array(id) FROM jobs WHERE owner = ?1 AND stop IS NOT NULL AND owner IS NOT NULL"

# -- starting and settling; batch of [seq, token, ...]; ?2 worker, ?3 now

START = """
UPDATE jobs NOT INDEXED SET status = 1, starts = starts + 1, started = max(?3, due)
FROM json_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2 AND +status = 0
"""
CURRENT = """
SELECT json_group_array(json_array(seq, token)) FROM json_each(?1) AS v
CROSS JOIN jobs ON seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2
    AND +status = coalesce(v.value ->> 9, ?3)
"""

# batch of [seq, token, result, codec, began]
COMPLETE = """
UPDATE jobs NOT INDEXED SET status = 2, owner = NULL, finished = ?3, error = NULL, stop = NULL,
    started = coalesce(v.value ->> 4, started),
    result = CASE v.value ->> 3 WHEN 'json' THEN v.value ->> 2 ELSE unhex(v.value ->> 2) END
FROM json_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2 AND +status = 1
"""

# batch of [seq, token, status, due, error, failures, timeouts, interruptions, takes back a start, status before,
# attempt, began]. A job that somebody wants stopped does not go back to PENDING.
SETTLE = """
UPDATE jobs NOT INDEXED SET
    status = iif(v.value ->> 2 = 0 AND stop IS NOT NULL, 4, v.value ->> 2),
    finished = iif(v.value ->> 2 = 0 AND stop IS NULL, NULL, ?3),
    owner = NULL,
    stop = NULL,
    due = coalesce(v.value ->> 3, due),
    started = iif(v.value ->> 8 AND starts = 1, NULL, coalesce(v.value ->> 11, started)),
    error = coalesce(v.value ->> 4, error),
    failures = failures + (v.value ->> 5),
    timeouts = timeouts + (v.value ->> 6),
    interruptions = interruptions + (v.value ->> 7),
    starts = starts - (v.value ->> 8),
    history = iif(v.value ->> 10 IS NULL, history, json_insert(coalesce(history, '[]'), '$[#]',
        json_set(v.value -> 10, '$.number', starts, '$.started', coalesce(v.value ->> 11, started))))
FROM json_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2 AND +status = v.value ->> 9
"""

# -- commands

STATUSES_OF = """
SELECT json_group_array(json_array(id, status)) FROM jobs WHERE id IN (SELECT value FROM json_each(?1))
"""
CANCEL = """
UPDATE jobs SET status = 4, finished = ?2, owner = NULL, error = 'canceled before it started'
WHERE id IN (SELECT value FROM json_each(?1)) AND +status = 0
"""
REQUEST_STOP = "UPDATE jobs SET stop = 1 WHERE id IN (SELECT value FROM json_each(?1)) AND +status = 1"
REOPEN = """
UPDATE jobs SET status = 0, due = ?2, finished = NULL, error = NULL, failures = 0, timeouts = 0, crashes = 0
WHERE id = ?1 AND status = 3
"""
REPLAY = """
INSERT INTO jobs (id, lane, due, created, payload, codec, origin)
SELECT ?2, lane, ?3, ?4, coalesce(?5, payload), coalesce(?6, codec), id FROM jobs WHERE id = ?1
"""
LINK_REPLAY = "UPDATE jobs SET replayed_as = ?2 WHERE id = ?1"
REPLAYED_AS = "SELECT replayed_as FROM jobs WHERE id = ?1"
EDIT = "UPDATE jobs SET payload = ?2, codec = ?3 WHERE id = ?1"
DELETE = "DELETE FROM jobs WHERE id = ?1"

# -- workers

ENROLL = "INSERT INTO workers (name, process, types, started, heartbeat) VALUES (?1, ?2, ?3, ?4, ?4) RETURNING id"
IS_ENROLLED = "SELECT EXISTS (SELECT 1 FROM workers WHERE id = ?1)"
RENEW = "UPDATE workers SET heartbeat = ?2 WHERE id = ?1"
DECLARE_DEAD = "UPDATE workers SET heartbeat = 0 WHERE id = ?1"
LEAVE = "DELETE FROM workers WHERE id = ?1"
GIVE_BACK_HELD = "UPDATE jobs SET owner = NULL WHERE owner = ?1 AND status = 0"
OTHERS = """
SELECT json_group_array(json_array(id, heartbeat)) FROM (
    SELECT id, heartbeat FROM workers WHERE id <> ?1
    UNION ALL  -- owners that nobody remembers
    SELECT DISTINCT owner, 0 FROM jobs WHERE owner IS NOT NULL AND owner NOT IN (SELECT id FROM workers))
"""
HAS_OWNER = "SELECT EXISTS (SELECT 1 FROM jobs WHERE owner = ?1)"

# batch of dead workers; ?2 the crash that is one too many
_CRASHED = "owner IN (SELECT value FROM json_each(?1)) AND +status = 1 AND stop IS NULL"
RESCUED = f"SELECT json_group_array(id) FROM jobs WHERE {_CRASHED} AND crashes + 1 < ?2"
QUARANTINED = f"SELECT json_group_array(id) FROM jobs WHERE {_CRASHED} AND crashes + 1 >= ?2"
RESCUE = """
UPDATE jobs SET
    status = CASE WHEN stop IS NOT NULL THEN 4 WHEN crashes + 1 >= ?2 THEN 3 ELSE 0 END,
    finished = iif(stop IS NOT NULL OR crashes + 1 >= ?2, ?3, NULL),
    error = iif(stop IS NULL AND crashes + 1 >= ?2,
        'quarantined: ' || (crashes + 1) || ' workers died while they ran it', error),
    crashes = crashes + 1,
    owner = NULL,
    stop = NULL,
    history = json_insert(coalesce(history, '[]'), '$[#]', json_object('number', starts, 'started', started,
        'ended', ?3, 'cause', 'crash', 'error', 'its worker ' || owner || ' died'))
WHERE owner IN (SELECT value FROM json_each(?1)) AND +status = 1
"""
RELEASE = "UPDATE jobs SET owner = NULL WHERE owner IN (SELECT value FROM json_each(?1)) AND +status = 0"
BURY = "DELETE FROM workers WHERE id IN (SELECT value FROM json_each(?1))"
WAITING = """
SELECT json_group_array(DISTINCT type) FROM lanes WHERE EXISTS (
    SELECT 1 FROM jobs WHERE lane = lanes.id AND status = 0 AND owner IS NULL AND crashes < 2 AND due <= ?1)
OR EXISTS (
    SELECT 1 FROM jobs WHERE lane = lanes.id AND status = 0 AND owner IS NULL AND crashes >= 2 AND due <= ?1)
"""

# -- reading

FIND = (
    f"SELECT {RECORD_COLUMNS} FROM jobs AS j JOIN lanes AS l ON l.id = j.lane WHERE {{conditions}} ORDER BY j.seq"
)
COUNTS = "SELECT status, count(*) FROM jobs {conditions} GROUP BY status"
