"""SQL statements for jobs that wait: in sequences and groups, for limits, and in paused queues.

See `waiting_groups` for how sequences and groups work.
"""

from __future__ import annotations

from mainspring.engines.sqlite.codec import ALL_LEASES, MEMBER_LEASE

BEFORE_ALL = -(1 << 62)  # a time before any due time

# Conditions for the jobs of a group (a row `g` of groups) that do not wait for their sequence: jobs that have not
# moved since their submission and are behind the last started job, and the others. Each condition has an index of
# its own. Jobs behind (due, seq) need two conditions: SQLite does not seek a rowid together with the column before
# it.
_UNMOVED = "grp = g.id AND grp IS NOT NULL AND moved IS NULL AND status = 0 AND owner IS NULL"
_LEVEL = f"{_UNMOVED} AND due = g.due AND seq > g.seq"
_BEHIND = f"{_UNMOVED} AND due > g.due"
_MOVED = """grp = g.id AND grp IS NOT NULL AND moved IS NOT NULL AND status = 0 AND owner IS NULL AND wait <> 1
    AND crashes < 2"""
_SUSPECT = "grp = g.id AND grp IS NOT NULL AND status = 0 AND owner IS NULL AND wait <> 1 AND crashes >= 2"

_HAS_MOVED = f"EXISTS (SELECT 1 FROM jobs WHERE {_MOVED})"
# Whether any group has moved jobs: SQLite evaluates it once per statement, and it is mostly false.
_IS_MOVED = f"EXISTS (SELECT 1 FROM jobs INDEXED BY moved_members WHERE {_MOVED.removeprefix('grp = g.id AND ')})"
_HAS_DUE_JOB = f"""
EXISTS (SELECT 1 FROM groups AS g WHERE g.id = {{group}} AND ({
    " OR ".join(
        f"EXISTS (SELECT 1 FROM jobs WHERE {condition} AND due <= {{until}})"
        for condition in (_LEVEL, _BEHIND, _MOVED, _SUSPECT)
    )
}))
"""


def _first(condition: str, columns: str = "due, seq", count: str = "1") -> str:
    """Return an SQL query for the first `count` jobs by (due, seq) that meet a condition, as a part of others."""
    return f"SELECT {columns} FROM (SELECT {columns} FROM jobs WHERE {condition} ORDER BY due, seq LIMIT {count})"


# batch of seq: [sequence, group name] of the jobs that have either
MEMBERSHIPS_OF_ROWS = """
SELECT json_group_array(json_array(sequence, (SELECT name FROM groups WHERE groups.id = grp)))
FROM json_each(?1) AS v CROSS JOIN jobs ON seq = v.value
WHERE sequence IS NOT NULL OR grp IS NOT NULL
"""
# batch of ids: the same
MEMBERSHIPS_OF_JOBS = """
SELECT json_group_array(json_array(sequence, (SELECT name FROM groups WHERE groups.id = grp)))
FROM json_each(?1) AS v CROSS JOIN jobs ON jobs.id = v.value
WHERE sequence IS NOT NULL OR grp IS NOT NULL
"""
# batch of workers: the same for the jobs that they own
MEMBERSHIPS_OF_WORKERS = """
SELECT json_group_array(json_array(sequence, (SELECT name FROM groups WHERE groups.id = grp)))
FROM json_each(?1) AS v CROSS JOIN jobs ON owner = v.value
WHERE sequence IS NOT NULL OR grp IS NOT NULL
"""

# batch of sequences: [the present head, the new head], as seq
SEQUENCE_HEADS = """
SELECT json_group_array(json_array(
    (SELECT seq FROM jobs WHERE sequence = k.value AND sequence IS NOT NULL AND status = 0 AND wait <> 1),
    CASE WHEN EXISTS (SELECT 1 FROM jobs
                      WHERE sequence = k.value AND sequence IS NOT NULL AND status < 2 AND status = 1) THEN NULL
    ELSE (SELECT seq FROM jobs WHERE sequence = k.value AND sequence IS NOT NULL AND status < 2 AND status = 0
          ORDER BY turn, seq LIMIT 1) END))
FROM json_each(?1) AS k
"""
# batch of group numbers: [the present head, the new head], as seq; suspects have a head of their own
_GROUP_HEADS = """
SELECT
    (SELECT seq FROM jobs WHERE grp = g.id AND grp IS NOT NULL AND status = 0 AND owner IS NULL AND wait = 0
        AND {suspicion}) AS before,
    CASE WHEN EXISTS (SELECT 1 FROM parked WHERE grp = g.id) THEN NULL
    ELSE {first} END AS after
FROM json_each(?1) AS k CROSS JOIN groups AS g ON g.id = k.value
"""
_FIRST = f"""
coalesce(
    iif({_IS_MOVED} AND {_HAS_MOVED}, (
        SELECT seq FROM ({" UNION ALL ".join(map(_first, (_LEVEL, _BEHIND, _MOVED)))})
        ORDER BY due, seq LIMIT 1), NULL),
    ({_first(_LEVEL, "seq")}),
    ({_first(_BEHIND, "seq")}))
"""
GROUP_HEADS = f"""
SELECT json_group_array(json_array(before, after)) FROM (
    {_GROUP_HEADS.format(suspicion="crashes < 2", first=_FIRST)} UNION ALL
    {_GROUP_HEADS.format(suspicion="crashes >= 2", first=f"({_first(_SUSPECT, 'seq')})")}
    WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY suspects_of_groups
        WHERE grp IS NOT NULL AND status = 0 AND owner IS NULL AND wait <> 1 AND crashes >= 2))
"""
# batch of group numbers; ?2 a time: the groups with a job that is due by then
GROUPS_WITH_DUE_JOBS = f"""
SELECT json_group_array(k.value) FROM json_each(?1) AS k WHERE {_HAS_DUE_JOB.format(group="k.value", until="?2")}
"""
# batch of seq
DEMOTE_SEQUENCE_HEADS = "UPDATE jobs SET wait = 1, ready = due WHERE seq IN (SELECT value FROM json_each(?1))"
PROMOTE_SEQUENCE_HEADS = (
    "UPDATE jobs SET wait = iif(grp IS NULL, 0, 2) WHERE seq IN (SELECT value FROM json_each(?1))"
)
DEMOTE_GROUP_HEADS = "UPDATE jobs SET wait = 2, ready = due WHERE seq IN (SELECT value FROM json_each(?1))"
# ?2 the earliest time from which it counts as ready: now for groups that take turns, 0 for the others
PROMOTE_GROUP_HEADS = (
    "UPDATE jobs SET wait = 0, ready = max(due, ?2) WHERE seq IN (SELECT value FROM json_each(?1))"
)

# batch of group numbers; the groups are not parked, and their heads have started; ?2 as above
PROMOTE_NEXT = f"""
UPDATE jobs SET wait = 0, ready = max(due, ?2)
WHERE seq IN (SELECT {_FIRST} FROM json_each(?1) AS k CROSS JOIN groups AS g ON g.id = k.value)
"""

# batch of group numbers; ?2 how many of each, ?3 due until: the first jobs after the head of each group, one
# group after another, and within a group in the order of submission.
_PICK = """
{leases} FROM (
    SELECT {lease} AS lease FROM json_each(?1) AS k CROSS JOIN groups AS g ON g.id = k.value
    CROSS JOIN jobs AS j ON j.seq IN ({first} LIMIT ?2))
"""


def _behind_heads(*conditions: str) -> str:
    """Return an SQL statement that picks jobs behind the first ones of groups; each meets one of the conditions.

    A group has jobs under the same limits. Jobs that meet an earlier condition use up the limit of each group (?2)
    first. The statement returns the jobs of a group in the order of submission.
    """
    parts = [_first(f"{condition} AND wait = 2 AND due <= ?3", "seq", "?2") for condition in conditions]
    return _PICK.format(leases=ALL_LEASES, lease=MEMBER_LEASE, first=" UNION ALL ".join(parts))


PICK_OF_GROUPS = _behind_heads(_LEVEL, _BEHIND)
PICK_MOVED_OF_GROUPS = _behind_heads(_MOVED)
# batch of group numbers: the groups with moved jobs
GROUPS_WITH_MOVED = f"""
SELECT iif({_IS_MOVED}, (
    SELECT json_group_array(g.id) FROM json_each(?1) AS k CROSS JOIN groups AS g ON g.id = k.value
    WHERE {_HAS_MOVED}), '[]')
"""

# batch of [number, due, seq]: the position of the last started job of each group. The groups exist, so nothing is
# inserted. It is an INSERT because an UPDATE from a batch takes nearly twice as long.
RECORD_LAST_STARTED = """
INSERT INTO groups (id, name, jobs, due, seq)
SELECT value ->> 0, '', 0, value ->> 1, value ->> 2 FROM jsonb_each(?1) WHERE true
ON CONFLICT (id) DO UPDATE SET due = excluded.due, seq = excluded.seq
WHERE (groups.due, groups.seq) < (excluded.due, excluded.seq)
"""
# batch of [number, name, how many]
ADD_GROUP_JOBS = f"""
INSERT INTO groups (id, name, jobs, due, seq)
SELECT value ->> 0, value ->> 1, value ->> 2, {BEFORE_ALL}, 0 FROM jsonb_each(?1) WHERE true
ON CONFLICT (id) DO UPDATE SET jobs = jobs + excluded.jobs
"""
ADD_GROUP_JOB_LIKE = "UPDATE groups SET jobs = jobs + 1 WHERE id = (SELECT grp FROM jobs WHERE id = ?1)"
# ?1 a seq: [group number, how many] of the jobs behind it
GROUP_JOBS_SINCE = """
SELECT json_group_array(json_array(grp, jobs)) FROM (
    SELECT grp, count(*) AS jobs FROM jobs NOT INDEXED WHERE seq > ?1 AND grp IS NOT NULL GROUP BY grp)
"""
# batch of group numbers
NAMES_OF_GROUPS = """
SELECT json_group_array(json_array(g.id, name)) FROM json_each(?1) AS v CROSS JOIN groups AS g ON g.id = v.value
"""

# -- limits

LIMITS = "SELECT json_group_array(json_array(family, most, per, json(by))) FROM limits"
PUT_LIMIT = """
INSERT INTO limits (family, most, per, by) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (family) DO UPDATE SET most = ?2, per = ?3, by = ?4 WHERE (most, per, by) IS NOT (?2, ?3, ?4)
"""
DROP_LIMIT = "DELETE FROM limits WHERE family = ?1"

# batch of buckets
STATES = """
SELECT json_group_array(json_array(value, coalesce((SELECT running FROM occupied WHERE bucket = value), 0),
    coalesce((SELECT full_at FROM rates WHERE bucket = value), 0)))
FROM json_each(?1)
"""
# batch of {bucket: number of running jobs}
WRITE_RUNNING = """
INSERT INTO occupied (bucket, running) SELECT key, value FROM json_each(?1) WHERE true
ON CONFLICT (bucket) DO UPDATE SET running = excluded.running
"""
# of the buckets from ?1 up to ?2, which is excluded: see `family_bounds`
DELETE_COUNTS = "DELETE FROM occupied WHERE bucket >= ?1 AND bucket < ?2"
RECOUNT = """
INSERT INTO occupied (bucket, running)
SELECT b.value, count(*) FROM jobs CROSS JOIN groups ON groups.id = grp CROSS JOIN json_each(name) AS b
WHERE owner IS NOT NULL AND status = 1 AND b.type = 'text' AND b.value >= ?1 AND b.value < ?2 GROUP BY b.value
"""
# batch of workers: the group names of their running jobs
GROUPS_OF_OWNERS = """
SELECT json_group_array(name) FROM json_each(?1) AS v CROSS JOIN jobs ON owner = v.value AND status = 1
CROSS JOIN groups ON groups.id = grp
"""
# batch of {bucket: full at}
WRITE_RATES = """
INSERT INTO rates (bucket, full_at) SELECT key, value FROM json_each(?1) WHERE true
ON CONFLICT (bucket) DO UPDATE SET full_at = excluded.full_at
"""
# the buckets from ?1 up to ?2; ?3 now, ?4 the old and ?5 the new interval between two tokens
CHANGE_RATE = """
UPDATE rates SET full_at = ?3 + (full_at - ?3 + ?4 - 1) / ?4 * ?5
WHERE bucket >= ?1 AND bucket < ?2 AND full_at > ?3
"""
# ?1 now: cap the missing tokens of a bucket at its capacity, if it misses more than twice that
CAP_MISSING_TOKENS = """
UPDATE rates SET full_at = ?1 + l.per FROM limits AS l
WHERE family = substr(bucket, 1, instr(bucket, char(31)) - 1) AND full_at > ?1 + 2 * l.per
"""
DELETE_RATES = "DELETE FROM rates WHERE bucket >= ?1 AND bucket < ?2"
HOLDERS_OF = """
SELECT json_group_array(id) FROM (
    SELECT jobs.id FROM jobs CROSS JOIN groups ON groups.id = grp
    WHERE owner IS NOT NULL AND status = 1 AND EXISTS (SELECT 1 FROM json_each(name) AS b WHERE b.value = ?1)
    LIMIT 5)
"""

# -- parked groups

# batch of [group number, group name, bucket]; ?2 now
PARK = """
INSERT OR REPLACE INTO parked (grp, name, bucket, since, looked)
SELECT value ->> 0, value ->> 1, value ->> 2, ?2, ?2 FROM json_each(?1)
"""
IS_ANY_GROUP_PARKED = "SELECT EXISTS (SELECT 1 FROM parked)"
# ?1 bucket, ?2 how many, ?3 now: the longest waiting groups that have a due job and no paused queue
PARKED_FOR = f"""
SELECT json_group_array(name) FROM (
    SELECT p.name FROM parked AS p WHERE bucket = ?1
    AND NOT EXISTS (SELECT 1 FROM lanes JOIN paused_queues AS q ON q.name = queue WHERE id = p.name ->> 0)
    AND {_HAS_DUE_JOB.format(group="p.grp", until="?3")}
    ORDER BY since LIMIT ?2)
"""
PARKED_IN_QUEUE = "SELECT json_group_array(name) FROM parked JOIN lanes ON id = name ->> 0 WHERE queue = ?1"
PARKED_FOR_FAMILY = "SELECT json_group_array(name) FROM parked WHERE bucket >= ?1 AND bucket < ?2"
# the parked groups that were checked longest ago
LEAST_RECENTLY_CHECKED = """
SELECT json_group_array(json_array(name, bucket)) FROM (
    SELECT name, bucket FROM parked ORDER BY looked, since LIMIT 50)
"""
# batch of group numbers; ?2 now
MARK_CHECKED = "UPDATE parked SET looked = ?2 WHERE grp IN (SELECT value FROM json_each(?1))"
IDLE_GROUPS = f"""
SELECT json_group_array(name) FROM json_each(?1) AS k CROSS JOIN parked ON grp = k.value
WHERE NOT {_HAS_DUE_JOB.format(group="k.value", until="?2")}
"""
UNPARK_IDLE = f"""
DELETE FROM parked WHERE grp IN (SELECT value FROM json_each(?1))
AND NOT {_HAS_DUE_JOB.format(group="parked.grp", until="?2")}
"""
UNPARK = "DELETE FROM parked WHERE grp IN (SELECT value FROM json_each(?1))"

# batch of {bucket: time}
WRITE_RATE_WAITS = """
INSERT INTO waits (bucket, until) SELECT key, value FROM json_each(?1) WHERE true
ON CONFLICT (bucket) DO UPDATE SET until = excluded.until
"""
DUE_RATE_WAITS = """
SELECT json_group_array(bucket) FROM (SELECT bucket FROM waits WHERE until <= ?1 ORDER BY until LIMIT 100)
"""
DELETE_RATE_WAITS_OF_FAMILY = "DELETE FROM waits WHERE bucket >= ?1 AND bucket < ?2"
# batch of buckets: deletes the times of those that no group waits for any more
DELETE_UNUSED_RATE_WAITS = """
DELETE FROM waits WHERE bucket IN (SELECT value FROM json_each(?1))
AND NOT EXISTS (SELECT 1 FROM parked WHERE parked.bucket = waits.bucket)
"""

# -- queues

PAUSED_QUEUES = "SELECT json_group_array(name) FROM paused_queues"
PAUSE_QUEUE = "INSERT INTO paused_queues (name) VALUES (?1) ON CONFLICT DO NOTHING"
RESUME_QUEUE = "DELETE FROM paused_queues WHERE name = ?1"
RELEASE_HELD_OF_QUEUE = """
UPDATE jobs INDEXED BY jobs_by_owner SET owner = NULL, token = token + 1
WHERE owner IS NOT NULL AND status = 0 AND lane IN (SELECT id FROM lanes WHERE queue = ?1)
"""
INCREMENT_SETTINGS_VERSION = "UPDATE settings SET arrangements = arrangements + 1"
