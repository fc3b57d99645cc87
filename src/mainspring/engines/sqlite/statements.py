"""SQL statements of the engine: submit, claim, settle, commands, workers and queries.

Most statements work on a whole batch: see `codec` for why. Parameters are numbered; ?1 is the batch. Statuses are
the numbers of `codec.STATUSES`. `+`, NOT INDEXED and CROSS JOIN make the planner go through the batch and look up
each of its jobs, because the batch is always the shorter list. Two crashes (SUSPECT_CRASHES) make a job a suspect.
The statements for sequences, groups and limits are in `waiting_statements`, those for schedules in `schedules`.
"""

from __future__ import annotations

from mainspring.engines.sqlite.codec import ALL_LEASES, CODES, LEASE, RECORD_COLUMNS
from mainspring.jobs.status import JobStatus, require_transition


def _move(before: JobStatus, after: JobStatus) -> int:
    """Return the number of the status after a transition, which `status.TRANSITIONS` must allow."""
    return CODES[require_transition(before, after)]


_START = _move(JobStatus.PENDING, JobStatus.RUNNING)
_EXPIRE = _move(JobStatus.PENDING, JobStatus.FAILED)
_CANCEL = _move(JobStatus.PENDING, JobStatus.CANCELED)
_COMPLETED = _move(JobStatus.RUNNING, JobStatus.COMPLETED)
_STOP = _move(JobStatus.RUNNING, JobStatus.CANCELED)
_QUARANTINE = _move(JobStatus.RUNNING, JobStatus.FAILED)
_RUN_AGAIN = _move(JobStatus.RUNNING, JobStatus.PENDING)
_REOPEN = _move(JobStatus.FAILED, JobStatus.PENDING)

# -- submitting

ADD_LANE = """
INSERT INTO lanes (queue, type, priority, exact, search) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING
"""
LANES = "SELECT json_group_array(json_array(id, queue, type, priority, exact, search)) FROM lanes"
LANES_VERSION = "SELECT coalesce(max(id), 0) || ' ' || (SELECT arrangements FROM settings) FROM lanes"
KIND_OF = """
SELECT l.queue, l.type, l.priority, l.search, j.sequence
FROM jobs AS j JOIN lanes AS l ON l.id = j.lane WHERE j.id = ?1
"""
# the largest seq, 0 if there are no jobs
LAST_JOB = "SELECT coalesce(max(seq), 0) FROM jobs"
# the largest seq before the last insert of this transaction; ?1 how many jobs it has inserted
LAST_JOB_BEFORE = "SELECT coalesce((SELECT seq FROM jobs ORDER BY seq DESC LIMIT 1 OFFSET ?1), 0)"

# The `wait` of a new job: 1 if it has a sequence, 2 if it has only a group, 0 if it has neither. `waiting_groups`
# then sets it to 0 for the heads.
WAIT = "CASE WHEN {sequence} IS NOT NULL THEN 1 WHEN {grp} IS NOT NULL THEN 2 ELSE 0 END"
_WAITS = WAIT.format(sequence="sequence", grp="grp")
# A job that leaves its first position in its group, for another one or without a start, counts as moved: see
# `waiting_groups`.
_MOVES = "moved = iif(grp IS NULL, NULL, 1)"
# A new job also counts as moved if it is due before a started job of its group, or if it has a sequence, because
# it may become the head of the sequence at any time.
_MOVED = """CASE WHEN {grp} IS NULL THEN NULL WHEN {sequence} IS NOT NULL THEN 1
    ELSE (SELECT 1 FROM groups WHERE id = {grp} AND groups.due > {due}) END"""

# batch of [id, lane, due, payload, codec, origin, sequence, aside, group, unique key, expires, schedule,
# occurrence, headers, follow up]; ?2 now. Only jobs with a sequence have a turn. `jsonb_each` returns each row in
# parsed form: `json_each` would return it as text, and every `->>` would parse that again.
_INSERT = f"""
INSERT INTO jobs (id, lane, due, ready, turn, created, payload, codec, origin, sequence, aside, grp, unique_key,
                  expires, schedule, occurrence, headers, follow_up, wait, moved{{column}})
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 2, iif(value ->> 6 IS NULL, NULL, value ->> 2), ?2,
       CASE value ->> 4 WHEN 'json' THEN value ->> 3 ELSE unhex(value ->> 3) END, value ->> 4, value ->> 5,
       value ->> 6, value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13,
       value ->> 14, {WAIT.format(sequence="(value ->> 6)", grp="(value ->> 8)")},
       {_MOVED.format(sequence="(value ->> 6)", grp="(value ->> 8)", due="(value ->> 2)")}{{value}}
FROM jsonb_each(?1) WHERE true
ON CONFLICT (id) DO NOTHING
"""
INSERT = _INSERT.format(column="", value="")
# the same with [..., search keys]
INSERT_WITH_SEARCH_KEYS = _INSERT.format(column=", search", value=", value -> 15")

# batch of [id, lane, due, payload, codec] for plain jobs, which have no other values; ?2 now
INSERT_PLAIN = """
INSERT INTO jobs (id, lane, due, ready, created, payload, codec)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 2, ?2,
       CASE value ->> 4 WHEN 'json' THEN value ->> 3 ELSE unhex(value ->> 3) END, value ->> 4
FROM json_each(?1) WHERE true
ON CONFLICT (id) DO NOTHING
"""

# batch of {id: payload} for jobs that are otherwise equal; ?2 now, ?3 lane, ?4 due, ?5 codec
INSERT_EQUAL = """
INSERT INTO jobs (id, lane, due, ready, created, payload, codec)
SELECT key, ?3, ?4, ?4, ?2, iif(?5 = 'json', value, unhex(value)), ?5 FROM json_each(?1) WHERE true
ON CONFLICT (id) DO NOTHING
"""

# batch of [id, payload, group, unique key, sequence] for jobs that are otherwise alike;
# ?2 now, ?3 lane, ?4 due, ?5 codec, ?6 aside, ?7 expires, ?8 headers, ?9 follow up
INSERT_ALIKE = f"""
INSERT INTO jobs (id, lane, due, ready, turn, created, payload, codec, sequence, aside, grp, unique_key, expires,
                  headers, follow_up, wait, moved)
SELECT value ->> 0, ?3, ?4, ?4, iif(value ->> 4 IS NULL, NULL, ?4), ?2,
       iif(?5 = 'json', value ->> 1, unhex(value ->> 1)), ?5, value ->> 4, ?6,
       value ->> 2, value ->> 3, ?7, ?8, ?9, {WAIT.format(sequence="(value ->> 4)", grp="(value ->> 2)")},
       {_MOVED.format(sequence="(value ->> 4)", grp="(value ->> 2)", due="?4")}
FROM jsonb_each(?1) WHERE true
ON CONFLICT (id) DO NOTHING
"""

# batch of [id, search keys] of jobs that were just inserted; ?2 the last seq before the insert. An insert has no
# trigger, because SQLite would then copy the whole batch into a temporary table first.
ADD_SEARCH_KEYS = """
INSERT INTO search (key, seq)
SELECT k.value, jobs.seq FROM json_each(?1) AS v CROSS JOIN jobs ON jobs.id = v.value ->> 0 AND jobs.seq > ?2
CROSS JOIN json_each(v.value, '$[1]') AS k WHERE instr(k.value, '=')
"""
SET_SEARCH_KEYS = "UPDATE jobs SET search = ?2 WHERE id = ?1"
COPY_SEARCH_KEYS = """
UPDATE jobs SET search = v.search FROM jobs AS v WHERE jobs.id = ?2 AND v.id = ?1 AND v.search IS NOT NULL
"""
# ?1 id, ?2 lane, ?3 group
MOVE_TO_LANE = "UPDATE jobs SET lane = ?2, grp = ?3 WHERE id = ?1"
LANE_AND_GROUP_OF = "SELECT lane, (SELECT name FROM groups WHERE groups.id = grp) FROM jobs WHERE id = ?1"

# batch of unique keys: the newest job for each key and each status, in the order of submission; -1 stands for the
# PENDING jobs that have started before, 0 for the other PENDING jobs
HOLDERS = """
SELECT json_group_array(json_array(unique_key, status, id, created, starts > 0)) FROM (
    SELECT j.unique_key, j.status, j.id, j.created, j.starts
    FROM json_each(?1) AS k CROSS JOIN json_each('[-1,0,1,2,3,4]') AS s
    CROSS JOIN jobs AS j ON j.seq = (
        SELECT seq FROM jobs WHERE unique_key = k.value AND unique_key IS NOT NULL AND status = max(0, s.value)
            AND (s.value > 0 OR (starts > 0) = -s.value)
        ORDER BY created DESC, seq DESC LIMIT 1)
    ORDER BY j.seq)
"""
# batch of [schedule, occurrence]: their jobs
EXISTING_OCCURRENCES = """
SELECT json_group_array(json_array(schedule, occurrence, jobs.id)) FROM json_each(?1) AS v
CROSS JOIN jobs ON schedule = v.value ->> 0 AND occurrence = v.value ->> 1 AND schedule IS NOT NULL
"""
# ?1 id, ?2 due, ?3 payload, ?4 codec, ?5 headers, ?6 expires, ?7 group, ?8 lane
REPLACE = f"""
UPDATE jobs SET due = ?2, ready = ?2, turn = ?2, payload = ?3, codec = ?4, headers = ?5, expires = ?6, grp = ?7,
    lane = ?8, token = token + (owner IS NOT NULL), owner = NULL, moved = iif(?7 IS NULL, NULL, 1),
    wait = {WAIT.format(sequence="sequence", grp="?7")}
WHERE id = ?1 AND status = 0
"""

# batch of ids; ?2 the last seq before the insert: the ids that existed before it
EXISTING_IDS = "SELECT json_group_array(id) FROM jobs WHERE id IN (SELECT value FROM json_each(?1)) AND seq <= ?2"

# -- claiming; batch of [lane, head start in microseconds, ...]

# A pick from several lanes makes temporary tables, which cost more than all the rest of a claim. So a claim first
# checks in which lanes jobs are due. ?2 due until: [how many lanes have due jobs that are not suspects, the number
# of one of them, how many lanes have due suspects].
DUE_LANES = """
SELECT json_array(
    count(*) FILTER (WHERE first <= ?2), max(iif(first <= ?2, lane, NULL)), count(*) FILTER (WHERE suspect <= ?2))
FROM (
    SELECT l.value ->> 0 AS lane,
        (SELECT min(ready) FROM jobs
         WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND crashes < 2 AND wait = 0) AS first,
        (SELECT min(ready) FROM jobs
         WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND crashes >= 2 AND wait = 0) AS suspect
    FROM json_each(?1) AS l)
"""

_PICK = """
{leases} FROM (
    SELECT {lease} AS lease FROM json_each(?1) AS l CROSS JOIN jobs AS j ON j.seq IN (
        SELECT seq FROM jobs INDEXED BY {index}
        WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND wait = 0 AND {condition}
        ORDER BY ready, seq LIMIT ?2)
    ORDER BY j.ready - (l.value ->> 1), j.seq LIMIT ?2)
"""


def _pick(index: str, condition: str) -> str:
    return _PICK.format(leases=ALL_LEASES, lease=LEASE, index=index, condition=condition)


# ?1 the number of a lane: the same as `PICK_DUE` for this lane only, from its index alone
PICK_DUE_OF_LANE = f"""
{ALL_LEASES} FROM (
    SELECT {LEASE} AS lease FROM jobs AS j INDEXED BY claimable
    WHERE lane = ?1 AND status = 0 AND owner IS NULL AND wait = 0 AND crashes < 2 AND ready <= ?3
    ORDER BY ready, seq LIMIT ?2)
"""
PICK_DUE = _pick("claimable", "crashes < 2 AND ready <= ?3")
PICK_SUSPECTS = _pick("suspects", "crashes >= 2 AND ready <= ?3")
PICK_BETWEEN = _pick("claimable", "crashes < 2 AND ready > ?3 AND ready <= ?4")

# batch of seq; ?2 worker, ?3 now, ?4 whether they must not start again: 1 or NULL
MARK_STARTED = f"""
UPDATE jobs SET status = {_START}, owner = ?2, token = token + 1, starts = starts + 1, started = max(?3, due),
    once = ?4
WHERE seq IN (SELECT value FROM json_each(?1))
"""
MARK_HELD = "UPDATE jobs SET owner = ?2, token = token + 1 WHERE seq IN (SELECT value FROM json_each(?1))"

# batch of [lane, ...]; ?2 a time: the first `ready` after it
NEXT_DUE = """
SELECT min(first) FROM (
    SELECT (SELECT min(ready) FROM jobs
            WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND wait = 0
                AND crashes < 2 AND ready > ?2) AS first
    FROM json_each(?1) AS l
    UNION ALL
    SELECT (SELECT min(ready) FROM jobs
            WHERE lane = l.value ->> 0 AND status = 0 AND owner IS NULL AND wait = 0
                AND crashes >= 2 AND ready > ?2) AS first
    FROM json_each(?1) AS l)
"""
# Other times at which a worker must act: the first job expires, the first limit admits again, the first occurrence
# of a schedule is due; then whether groups are parked, and whether envelopes of deleted jobs are remembered.
NEXT_TIMES = """
SELECT json_array(
    (SELECT min(expires) FROM jobs INDEXED BY expiring
     WHERE expires IS NOT NULL AND status = 0 AND owner IS NULL),
    (SELECT min(until) FROM waits),
    (SELECT min(next_due) FROM schedules WHERE is_paused = 0 AND next_due IS NOT NULL),
    EXISTS (SELECT 1 FROM parked),
    EXISTS (SELECT 1 FROM spent_envelopes))
"""
# ?1 now: an earlier version has left an expiry in the records of jobs that had started
FORGET_EXPIRY = """
UPDATE jobs INDEXED BY expiring SET expires = NULL
WHERE expires IS NOT NULL AND status = 0 AND owner IS NULL AND expires <= ?1 AND starts > 0
"""
# ?1 now: at most 500 of the jobs that have expired by now
EXPIRED = """
SELECT json_group_array(json_array(seq, id, lane)) FROM (
    SELECT seq, id, lane FROM jobs INDEXED BY expiring
    WHERE expires IS NOT NULL AND status = 0 AND owner IS NULL AND expires <= ?1 LIMIT 500)
"""
EXPIRE = f"""
UPDATE jobs SET status = {_EXPIRE}, finished = ?2, error = 'expired: it did not start within its time', {_MOVES}
WHERE seq IN (SELECT value FROM json_each(?1))
"""
STOP_REQUESTS = "SELECT json_group_array(id) FROM jobs WHERE owner = ?1 AND stop IS NOT NULL AND owner IS NOT NULL"

REPORT = """
UPDATE jobs NOT INDEXED SET progress = v.value -> 2 FROM json_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2 AND +status = 1
"""

# -- starting and settling; batch of [seq, token, ...]; ?2 worker, ?3 now

# batch of [seq, token], or [seq, token, 1] for jobs that must not start again
START = f"""
UPDATE jobs NOT INDEXED SET status = {_START}, starts = starts + 1, started = max(?3, due), once = v.value ->> 2
FROM json_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2 AND +status = 0
"""
# ?3 the status of the leases, if the batch does not have it: [seq, token] of those that are current
CURRENT = """
SELECT json_group_array(json_array(seq, token)) FROM json_each(?1) AS v
CROSS JOIN jobs ON seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2
    AND +status = coalesce(v.value ->> 9, ?3)
"""

# batch of [seq, token, result, codec, began]; a completed job has no error
_COMPLETE = """
UPDATE jobs NOT INDEXED SET status = {completed}, owner = NULL, finished = ?3, error = {error}, stop = NULL,
    started = coalesce(v.value ->> 4, started),{more}
    result = CASE v.value ->> 3 WHEN 'json' THEN v.value ->> 2 ELSE unhex(v.value ->> 2) END
FROM jsonb_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2 AND +status = 1
"""
COMPLETE = _COMPLETE.format(completed=_COMPLETED, error="NULL", more="")
# the same with [..., when the result may be deleted, a warning about the result]
COMPLETE_WITH_MORE = _COMPLETE.format(completed=_COMPLETED, error="v.value ->> 6", more=" forget = v.value ->> 5,")

# batch of [seq, token, status, due, error, failures, timeouts, interruptions, 1 to undo a start, status before,
# attempt, began, crashes]. A job with a stop request becomes CANCELED instead of PENDING.
SETTLE = f"""
UPDATE jobs NOT INDEXED SET
    wait = {_WAITS},
    {_MOVES},
    ready = coalesce(v.value ->> 3, due),
    turn = iif(aside AND v.value ->> 3 IS NOT NULL, v.value ->> 3, turn),
    crashes = crashes + (v.value ->> 12),
    status = iif(v.value ->> 2 = 0 AND stop IS NOT NULL, {_STOP}, v.value ->> 2),
    finished = iif(v.value ->> 2 = 0 AND stop IS NULL, NULL, ?3),
    owner = NULL,
    stop = NULL,
    due = coalesce(v.value ->> 3, due),
    started = iif(v.value ->> 8 AND starts = 1, NULL, coalesce(v.value ->> 11, started)),
    error = coalesce(v.value ->> 4, error),
    expires = iif(
        expires IS NULL OR v.value ->> 2 <> 0 OR stop IS NOT NULL OR starts = v.value ->> 8, expires, NULL),
    failures = failures + (v.value ->> 5),
    timeouts = timeouts + (v.value ->> 6),
    interruptions = interruptions + (v.value ->> 7),
    starts = starts - (v.value ->> 8),
    history = iif(v.value ->> 10 IS NULL, history, json_insert(coalesce(history, '[]'), '$[#]',
        json_set(v.value -> 10, '$.number', starts, '$.started', coalesce(v.value ->> 11, started),
            '$.worker', coalesce((SELECT name FROM workers WHERE id = ?2), CAST(?2 AS TEXT)))))
FROM json_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = ?2 AND +status = v.value ->> 9
"""

# -- commands

STATUSES_OF = """
SELECT json_group_array(json_array(id, status)) FROM jobs WHERE id IN (SELECT value FROM json_each(?1))
"""
CANCEL = f"""
UPDATE jobs SET status = {_CANCEL}, finished = ?2, owner = NULL, error = 'canceled before it started', {_MOVES}
WHERE id IN (SELECT value FROM json_each(?1)) AND +status = 0
"""
# batch of ids; ?2 now
REQUEST_STOP = """
UPDATE jobs SET stop = coalesce(stop, ?2) WHERE id IN (SELECT value FROM json_each(?1)) AND +status = 1
"""
REOPEN = f"""
UPDATE jobs SET status = {_REOPEN}, due = ?2, ready = ?2, turn = ?2, finished = NULL, error = NULL, failures = 0,
    timeouts = 0, crashes = 0, expires = NULL, wait = {_WAITS}, {_MOVES}
WHERE id = ?1 AND status = 3
"""
# a job that has started keeps its place in its sequence, unless it steps aside
RESCHEDULE = f"""
UPDATE jobs SET due = ?2, ready = ?2, turn = iif(starts > 0 AND NOT aside, turn, ?2),
    token = token + (owner IS NOT NULL), owner = NULL,
    wait = {_WAITS}, {_MOVES}
WHERE id = ?1 AND status = 0
"""
# ?1 id, ?2 group, ?3 lane
REGROUP = f"""
UPDATE jobs SET grp = ?2, lane = ?3, ready = due, moved = iif(?2 IS NULL, NULL, 1),
    token = token + (owner IS NOT NULL), owner = NULL, wait = {WAIT.format(sequence="sequence", grp="?2")}
WHERE id = ?1 AND status = 0
"""
REPLAY = f"""
INSERT INTO jobs (id, lane, due, ready, turn, created, payload, codec, origin, sequence, aside, grp, headers,
                  follow_up, wait, moved)
SELECT ?2, lane, ?3, ?3, ?3, ?4, coalesce(?5, payload), coalesce(?6, codec), id, sequence, aside, grp, headers,
       follow_up, {_WAITS}, iif(grp IS NULL, NULL, 1)
FROM jobs WHERE id = ?1
"""
ALIVE_HOLDER = "SELECT id FROM jobs WHERE unique_key = ?1 AND status IN (0, 1) AND id <> ?2 LIMIT 1"
LINK_REPLAY = "UPDATE jobs SET replayed_as = ?2 WHERE id = ?1"
REPLAYED_AS = "SELECT replayed_as FROM jobs WHERE id = ?1"
EDIT = "UPDATE jobs SET payload = ?2, codec = ?3 WHERE id = ?1"
DELETE = "DELETE FROM jobs WHERE id = ?1"
SET_HEADERS = "UPDATE jobs SET headers = ?2 WHERE id = ?1"

# -- workers

ENROLL = """
    INSERT INTO workers (name, process, types, queues, timeouts, slots, version, started, heartbeat, remote)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9) RETURNING id
"""
DIRECT = """
UPDATE workers SET remote = json_set(remote, '$.direction', ?2)
WHERE id = ?1 AND remote IS NOT NULL AND heartbeat <> 0 AND remote ->> 'direction' IS NOT ?2
"""
# ?2 the reason
REMOVE = """
UPDATE workers SET heartbeat = 0, remote = json_set(remote, '$.removed', ?2) WHERE id = ?1 AND heartbeat <> 0
"""
# ?1 now, ?2 the beginning of the name of a caller with a token: the remote workers whose token was revoked or has
# expired, with whether it was revoked
UNAUTHORIZED = """
SELECT json_group_array(json_array(w.id, t.record ->> 'revoked' IS NOT NULL))
FROM workers AS w CROSS JOIN tokens AS t ON t.id = substr(w.remote ->> 'caller', length(?2) + 1)
WHERE w.remote IS NOT NULL AND w.heartbeat <> 0 AND w.remote ->> 'caller' = ?2 || t.id AND t.ended <= ?1
"""
IS_ENROLLED = "SELECT EXISTS (SELECT 1 FROM workers WHERE id = ?1 AND heartbeat <> 0)"
RENEW = "UPDATE workers SET heartbeat = ?2 WHERE id = ?1 AND heartbeat <> 0"
SHORTEN_LEASE = """
UPDATE workers SET remote = json_set(remote, '$.lease', ?2) WHERE id = ?1 AND remote ->> 'lease' > ?2
"""
ANNOUNCE = """
    UPDATE workers SET types = ?2, queues = ?3, timeouts = ?4, slots = ?5, version = ?6 WHERE id = ?1
"""
DECLARE_DEAD = "UPDATE workers SET heartbeat = 0 WHERE id = ?1"
DELETE_WORKER = "DELETE FROM workers WHERE id = ?1"
RELEASE_HELD_OF_WORKER = "UPDATE jobs SET owner = NULL WHERE owner = ?1 AND status = 0"
OTHERS = """
SELECT json_group_array(json_array(id, heartbeat)) FROM (
    SELECT id, heartbeat FROM workers WHERE id <> ?1
    UNION ALL  -- owners that are not in the table
    SELECT DISTINCT owner, 0 FROM jobs WHERE owner IS NOT NULL AND owner NOT IN (SELECT id FROM workers))
"""
# [number, lease in microseconds] of the remote workers
REMOTE_LEASES = "SELECT json_group_array(json_array(id, remote ->> 'lease')) FROM workers WHERE remote IS NOT NULL"
HAS_OWNER = "SELECT EXISTS (SELECT 1 FROM jobs WHERE owner = ?1)"

# batch of dead workers; ?2 the number of crashes that makes a job a dead letter
_CRASHED = "owner IN (SELECT value FROM json_each(?1)) AND +status = 1 AND stop IS NULL"
STOPPED = """
SELECT json_group_array(id) FROM jobs
WHERE owner IN (SELECT value FROM json_each(?1)) AND +status = 1 AND stop IS NOT NULL
"""
_REMOVED = "(SELECT remote ->> 'removed' FROM workers WHERE id = owner)"  # why the worker was removed, or NULL
# [lane, number of jobs, whether their workers were removed]
ENDED_LANES = f"""
SELECT json_group_array(json_array(lane, ended, is_removed)) FROM (
    SELECT lane, count(*) AS ended, {_REMOVED} IS NOT NULL AS is_removed FROM jobs
    WHERE owner IN (SELECT value FROM json_each(?1)) AND +status = 1 GROUP BY lane, is_removed)
"""
_GIVEN_UP = f"(once IS NOT NULL OR (crashes + 1 >= ?2 AND {_REMOVED} IS NULL))"
_END = f"'its worker ' || owner || ' ' || coalesce({_REMOVED}, 'died')"
RESCUED = f"SELECT json_group_array(id) FROM jobs WHERE {_CRASHED} AND NOT {_GIVEN_UP}"
QUARANTINED = f"SELECT json_group_array(id) FROM jobs WHERE {_CRASHED} AND {_GIVEN_UP}"
RESCUE = f"""
UPDATE jobs SET
    wait = {_WAITS},
    {_MOVES},
    ready = due,
    status = CASE WHEN stop IS NOT NULL THEN {_STOP}
        WHEN {_GIVEN_UP} THEN {_QUARANTINE} ELSE {_RUN_AGAIN} END,
    finished = iif(stop IS NOT NULL OR {_GIVEN_UP}, ?3, NULL),
    expires = iif(stop IS NOT NULL OR {_GIVEN_UP}, expires, NULL),
    error = CASE WHEN stop IS NOT NULL THEN error
        WHEN once IS NOT NULL AND {_REMOVED} IS NULL THEN 'at most once: ' || {_END} || ' after it had started'
        WHEN once IS NOT NULL THEN 'at most once: it had started, and ' || {_END}
        WHEN {_GIVEN_UP} THEN 'quarantined: ' || (crashes + 1) || ' workers died while they ran it'
        ELSE error END,
    crashes = crashes + ({_REMOVED} IS NULL),
    interruptions = interruptions + ({_REMOVED} IS NOT NULL),
    owner = NULL,
    stop = NULL,
    history = json_insert(coalesce(history, '[]'), '$[#]', json_object('number', starts, 'started', started,
        'ended', ?3, 'cause', iif({_REMOVED} IS NULL, 'crash', 'deploy'), 'error', {_END},
        'worker', coalesce((SELECT name FROM workers WHERE id = owner), CAST(owner AS TEXT))))
WHERE owner IN (SELECT value FROM json_each(?1)) AND +status = 1
"""
RELEASE_HELD_OF_DEAD = (
    "UPDATE jobs SET owner = NULL WHERE owner IN (SELECT value FROM json_each(?1)) AND +status = 0"
)
DELETE_WORKERS = "DELETE FROM workers WHERE id IN (SELECT value FROM json_each(?1))"

# -- reading

WORKERS = (
    "SELECT id, name, process, types, queues, timeouts, slots, version, heartbeat, remote FROM workers ORDER BY id"
)
# ?1 worker
LEASED = f"""
SELECT j.once, j.stop, {RECORD_COLUMNS} FROM jobs AS j CROSS JOIN lanes AS l ON l.id = j.lane
WHERE j.owner = ?1 AND j.owner IS NOT NULL AND j.status = 1 ORDER BY j.seq
"""
# ?1 now
BACKLOG = """
SELECT queue, type, sum(plain + suspect), min(oldest) FROM (
    SELECT queue, type,
        (SELECT count(*) FROM jobs INDEXED BY claimable WHERE lane = lanes.id AND status = 0 AND owner IS NULL
            AND crashes < 2 AND wait = 0 AND ready <= ?1) AS plain,
        (SELECT count(*) FROM jobs INDEXED BY suspects WHERE lane = lanes.id AND status = 0 AND owner IS NULL
            AND crashes >= 2 AND wait = 0 AND ready <= ?1) AS suspect,
        min(
            coalesce((SELECT min(ready) FROM jobs INDEXED BY claimable WHERE lane = lanes.id AND status = 0
                AND owner IS NULL AND crashes < 2 AND wait = 0), ?1),
            coalesce((SELECT min(ready) FROM jobs INDEXED BY suspects WHERE lane = lanes.id AND status = 0
                AND owner IS NULL AND crashes >= 2 AND wait = 0), ?1)) AS oldest
    FROM lanes) WHERE plain + suspect > 0 GROUP BY queue, type ORDER BY queue, type
"""

FIRST_AND_LAST_SEQ = "SELECT (SELECT min(seq) FROM jobs), (SELECT max(seq) FROM jobs)"
FIRST_JOB_FROM = "SELECT seq, created FROM jobs WHERE seq >= ?1 ORDER BY seq LIMIT 1"
FIND = f"""
SELECT {RECORD_COLUMNS} FROM jobs AS j CROSS JOIN lanes AS l ON l.id = j.lane
WHERE {{conditions}} ORDER BY {{order}}
"""
WITH_IDS = "j.id IN (SELECT value FROM json_each(:ids))"
# Selects the lanes and statuses with the first jobs, the first jobs of each by the index, and the first of these.
# So a page costs its own rows and one look-up for each lane and status, however many jobs there are.
FIRST_OF_LANES = """
    SELECT jobs.seq FROM (
        SELECT lane, status FROM (
            SELECT w.id AS lane, s.value AS status, (
                SELECT j.seq FROM jobs AS j INDEXED BY jobs_by_lane
                WHERE j.lane = w.id AND j.status = s.value AND {conditions}
                ORDER BY j.seq {direction} LIMIT 1) AS head
            FROM lanes AS w CROSS JOIN json_each(:states) AS s WHERE {lanes})
        WHERE head IS NOT NULL ORDER BY head {direction} LIMIT :limit) AS h
    CROSS JOIN jobs ON jobs.seq IN (
        SELECT j.seq FROM jobs AS j INDEXED BY jobs_by_lane
        WHERE j.lane = h.lane AND j.status = h.status AND {conditions} ORDER BY j.seq {direction} LIMIT :limit)
    ORDER BY jobs.seq {direction} LIMIT :limit"""
# The first jobs with a search key, in lanes that are indexed by its parameter.
FIRST_WITH_KEY = """
    SELECT s.seq FROM search AS s CROSS JOIN jobs AS j ON j.seq = s.seq CROSS JOIN lanes AS w ON w.id = j.lane
    WHERE s.key = :{key} AND {lanes} AND {conditions} ORDER BY s.seq {direction} LIMIT :limit"""
# A page of FAILED jobs in the order of their failure. Lanes are chosen by (finished, seq), because jobs of several
# lanes may fail in the same instant.
FIRST_FAILED_OF_LANES = """
    SELECT jobs.seq FROM (
        SELECT f.lane FROM (
            SELECT (
                SELECT j.seq FROM jobs AS j INDEXED BY dead_letters
                WHERE j.lane = w.id AND j.status = 3 AND {conditions}
                ORDER BY j.finished {direction}, j.seq {direction} LIMIT 1) AS head
            FROM lanes AS w WHERE {lanes}) CROSS JOIN jobs AS f ON f.seq = head
        ORDER BY f.finished {direction}, f.seq {direction} LIMIT :limit) AS h
    CROSS JOIN jobs ON jobs.seq IN (
        SELECT j.seq FROM jobs AS j INDEXED BY dead_letters
        WHERE j.lane = h.lane AND j.status = 3 AND {conditions}
        ORDER BY j.finished {direction}, j.seq {direction} LIMIT :limit)
    ORDER BY jobs.finished {direction}, jobs.seq {direction} LIMIT :limit"""
COUNTS = """
SELECT status, sum(number) FROM (
    SELECT status, count(*) AS number FROM jobs INDEXED BY jobs_by_lane WHERE {lanes} GROUP BY lane, status)
GROUP BY status
"""
# Counts jobs of some lanes and statuses by the index, and stops at the limit.
COUNT_UP_TO = """
SELECT count(*) FROM (
    SELECT 1 FROM lanes AS w CROSS JOIN json_each(:states) AS s
    CROSS JOIN jobs AS j INDEXED BY jobs_by_lane ON j.lane = w.id AND j.status = s.value
    WHERE {conditions} LIMIT :most)
"""
# Counts the PENDING jobs of a queue; it reads no others.
COUNT_PENDING = """
SELECT count(*) FROM lanes AS w CROSS JOIN jobs AS j INDEXED BY jobs_by_lane
ON j.lane = w.id AND j.status = 0 WHERE w.queue = ?1
"""
# Counts FAILED jobs that were replayed; it reads only the rows of FAILED jobs.
COUNT_REPLAYED = """
SELECT count(*) FROM lanes AS w CROSS JOIN jobs AS j INDEXED BY jobs_by_lane
ON j.lane = w.id AND j.status = 3 AND j.replayed_as IS NOT NULL WHERE {lanes}
"""
QUEUES = """
SELECT json_group_array(DISTINCT queue) FROM lanes
WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_by_lane WHERE lane = lanes.id)
"""
