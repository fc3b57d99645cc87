"""Tables and migrations, from version one on. `user_version` is the number of migrations that a file has had.

A lane is a small number for the queue, type and priority of a job. It keeps rows short, and a worker queries only
the lanes it can serve, so jobs of other types cost it nothing, however many there are. The partial indexes for
claims hold only jobs that can be claimed: a million finished jobs do not slow a claim down.

A change of the text of a migration, even of a comment, makes processes rebuild their projections, whose version is
a checksum of it. In the comments, `rows` is the module `codec`, and `lines` and `groups` are `waiting_groups`.
"""

from __future__ import annotations

import logging
import shlex
from datetime import UTC, datetime, timedelta

import apsw

from mainspring.errors import EngineUnavailable, StoreCorrupt, StoreMoved, StoreTooNew

APPLICATION_ID = 0x4D737067  # "Mspg"
APPLICATION_ID_PLACE = slice(68, 72)
"""The bytes of a SQLite file that have its application id."""

MIGRATIONS = (
    """
    CREATE TABLE lanes (
        id       INTEGER PRIMARY KEY,
        queue    TEXT NOT NULL,
        type     TEXT NOT NULL,
        priority INTEGER NOT NULL,
        UNIQUE (queue, type, priority)
    ) STRICT;

    CREATE TABLE jobs (
        seq           INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of submission; never used again
        id            TEXT NOT NULL,
        lane          INTEGER NOT NULL REFERENCES lanes (id),
        status        INTEGER NOT NULL DEFAULT 0,     -- place in rows.STATUSES
        due           INTEGER NOT NULL,               -- all times: microseconds since 1970, UTC
        created       INTEGER NOT NULL,
        payload       ANY NOT NULL,                   -- text for JSON, a blob for msgpack
        codec         TEXT NOT NULL,
        token         INTEGER NOT NULL DEFAULT 0,     -- grows with every take-over
        owner         INTEGER,                        -- the worker that holds it
        starts        INTEGER NOT NULL DEFAULT 0,
        failures      INTEGER NOT NULL DEFAULT 0,
        timeouts      INTEGER NOT NULL DEFAULT 0,
        crashes       INTEGER NOT NULL DEFAULT 0,
        interruptions INTEGER NOT NULL DEFAULT 0,
        started       INTEGER,
        finished      INTEGER,
        result        ANY,
        error         TEXT,
        stop          INTEGER,                        -- when a caller asked for it to stop; 1: at an unknown time
        origin        TEXT,                           -- the dead letter that it replays
        replayed_as   TEXT,
        history       TEXT                            -- JSON: the attempts that did not end well
    ) STRICT;

    CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
    CREATE INDEX jobs_by_status ON jobs (status, seq);
    CREATE INDEX claimable ON jobs (lane, due) WHERE status = 0 AND owner IS NULL AND crashes < 2;
    CREATE INDEX suspects ON jobs (lane, due) WHERE status = 0 AND owner IS NULL AND crashes >= 2;
    CREATE INDEX jobs_by_owner ON jobs (owner) WHERE owner IS NOT NULL;
    CREATE INDEX stops ON jobs (owner) WHERE stop IS NOT NULL AND owner IS NOT NULL;

    CREATE TABLE workers (
        id        INTEGER PRIMARY KEY AUTOINCREMENT,  -- an incarnation: never used again
        name      TEXT NOT NULL,
        process   INTEGER NOT NULL,
        types     TEXT NOT NULL,                      -- JSON: the handlers it knows
        started   INTEGER NOT NULL,
        heartbeat INTEGER NOT NULL
    ) STRICT;
    """,
    """
    CREATE TABLE new_lanes (
        id       INTEGER PRIMARY KEY,
        queue    TEXT NOT NULL,
        type     TEXT NOT NULL,
        priority INTEGER NOT NULL,
        exact    INTEGER NOT NULL,                    -- 1: its jobs are not taken ahead of their time
        UNIQUE (queue, type, priority, exact)
    ) STRICT;
    INSERT INTO new_lanes SELECT id, queue, type, priority, 0 FROM lanes;
    DROP TABLE lanes;
    ALTER TABLE new_lanes RENAME TO lanes;

    ALTER TABLE jobs ADD COLUMN ready INTEGER NOT NULL DEFAULT 4000000000000000000;  -- orders the claims: `lines`
    ALTER TABLE jobs ADD COLUMN wait INTEGER NOT NULL DEFAULT 0;    -- 1 behind in its sequence, 2 in its group
    ALTER TABLE jobs ADD COLUMN sequence TEXT;
    ALTER TABLE jobs ADD COLUMN turn INTEGER;                       -- its place in the sequence
    ALTER TABLE jobs ADD COLUMN aside INTEGER;                      -- 1: a retry gives its place up
    ALTER TABLE jobs ADD COLUMN grp INTEGER;                        -- the number of its group: `groups`
    ALTER TABLE jobs ADD COLUMN moved INTEGER;                      -- 1: it left its first place in its group
    ALTER TABLE jobs ADD COLUMN unique_key TEXT;
    ALTER TABLE jobs ADD COLUMN expires INTEGER;
    ALTER TABLE jobs ADD COLUMN schedule TEXT;
    ALTER TABLE jobs ADD COLUMN occurrence INTEGER;
    ALTER TABLE jobs ADD COLUMN headers TEXT;                       -- JSON
    ALTER TABLE jobs ADD COLUMN follow_up TEXT;                     -- JSON
    ALTER TABLE jobs ADD COLUMN progress TEXT;                      -- JSON
    ALTER TABLE jobs ADD COLUMN forget INTEGER;                     -- when its result may be forgotten
    UPDATE jobs SET ready = due WHERE status < 2;

    DROP INDEX claimable;
    DROP INDEX suspects;
    CREATE INDEX claimable ON jobs (lane, ready) WHERE status = 0 AND owner IS NULL AND crashes < 2 AND wait = 0;
    CREATE INDEX suspects ON jobs (lane, ready) WHERE status = 0 AND owner IS NULL AND crashes >= 2 AND wait = 0;
    CREATE INDEX sequences ON jobs (sequence, status, turn) WHERE sequence IS NOT NULL AND status < 2;
    CREATE INDEX sequence_heads ON jobs (sequence) WHERE sequence IS NOT NULL AND status = 0 AND wait <> 1;
    CREATE INDEX members ON jobs (grp, due) WHERE grp IS NOT NULL AND moved IS NULL;  -- ended ones, too: `lines`
    CREATE INDEX moved_members ON jobs (grp, due)
        WHERE grp IS NOT NULL AND moved IS NOT NULL AND status = 0 AND owner IS NULL AND wait <> 1 AND crashes < 2;
    CREATE INDEX suspects_of_groups ON jobs (grp, due)
        WHERE grp IS NOT NULL AND status = 0 AND owner IS NULL AND wait <> 1 AND crashes >= 2;
    CREATE INDEX group_heads ON jobs (grp) WHERE grp IS NOT NULL AND status = 0 AND owner IS NULL AND wait = 0;
    CREATE INDEX unique_keys ON jobs (unique_key, status, created) WHERE unique_key IS NOT NULL;
    CREATE INDEX expiring ON jobs (expires) WHERE expires IS NOT NULL AND status = 0 AND owner IS NULL;
    CREATE UNIQUE INDEX occurrences_of_schedules ON jobs (schedule, occurrence) WHERE schedule IS NOT NULL;
    CREATE INDEX alive_of_schedules ON jobs (schedule) WHERE schedule IS NOT NULL AND status < 2;
    CREATE INDEX forgettable ON jobs (forget) WHERE forget IS NOT NULL;

    CREATE TABLE groups (
        id   INTEGER PRIMARY KEY,                     -- follows from the name
        name TEXT NOT NULL,                           -- JSON: lane and limits
        jobs INTEGER NOT NULL,                        -- how many are in it, ended ones, too
        due  INTEGER NOT NULL,                        -- place of the last job that started: up to it, jobs
        seq  INTEGER NOT NULL                         -- wait only if they were moved there
    ) STRICT;
    CREATE TRIGGER jobs_leave_groups AFTER DELETE ON jobs WHEN old.grp IS NOT NULL BEGIN
        UPDATE groups SET jobs = jobs - 1 WHERE id = old.grp;
        DELETE FROM groups WHERE id = old.grp AND jobs <= 0;
    END;
    CREATE TRIGGER jobs_change_groups AFTER UPDATE OF grp ON jobs WHEN old.grp IS NOT new.grp BEGIN
        UPDATE groups SET jobs = jobs + 1 WHERE id = new.grp;
        UPDATE groups SET jobs = jobs - 1 WHERE id = old.grp;
        DELETE FROM groups WHERE id = old.grp AND jobs <= 0;
    END;

    CREATE TABLE limits (
        family TEXT PRIMARY KEY,
        most   INTEGER NOT NULL,
        per    INTEGER,                               -- NULL: at once
        by     TEXT NOT NULL                          -- JSON: parameters
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE occupied (                           -- how many jobs run in a bucket of a limit at once
        bucket  TEXT PRIMARY KEY,
        running INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE rates (
        bucket  TEXT PRIMARY KEY,
        full_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE parked (                             -- groups that a bucket has refused
        grp    INTEGER PRIMARY KEY,
        name   TEXT NOT NULL,
        bucket TEXT NOT NULL,
        since  INTEGER NOT NULL,
        looked INTEGER NOT NULL                       -- when a worker last checked whether there is room for it
    ) STRICT;
    CREATE INDEX parked_by_bucket ON parked (bucket, since);
    CREATE INDEX parked_by_look ON parked (looked, since);

    CREATE TABLE waits (                              -- rates for which groups are parked
        bucket TEXT PRIMARY KEY,
        until  INTEGER NOT NULL                       -- when to look again
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX waits_by_time ON waits (until);

    CREATE TABLE paused_queues (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

    CREATE TABLE schedules (
        name      TEXT PRIMARY KEY,
        type      TEXT NOT NULL,
        queue     TEXT NOT NULL,
        priority  INTEGER NOT NULL,
        payload   ANY NOT NULL,
        codec     TEXT NOT NULL,
        rule      TEXT NOT NULL,
        misfire   TEXT NOT NULL,
        catch_up  INTEGER NOT NULL,
        overlap   TEXT NOT NULL,
        jitter    INTEGER NOT NULL,
        begins    INTEGER,
        ends      INTEGER,
        expires   INTEGER,
        limits    TEXT NOT NULL,                      -- JSON
        next_due  INTEGER,
        last_due  INTEGER,
        is_paused INTEGER NOT NULL,
        revision  INTEGER NOT NULL,
        created   INTEGER NOT NULL,
        aside     INTEGER NOT NULL,
        follow_up TEXT                                -- JSON
    ) STRICT;
    CREATE INDEX schedules_by_time ON schedules (next_due) WHERE is_paused = 0 AND next_due IS NOT NULL;

    CREATE TABLE occurrences (                        -- for which no job was made
        schedule TEXT NOT NULL,
        due      INTEGER NOT NULL,
        until    INTEGER NOT NULL,
        count    INTEGER NOT NULL,
        kind     TEXT NOT NULL,
        note     TEXT NOT NULL,
        decided  INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX occurrences_by_schedule ON occurrences (schedule);

    CREATE TABLE events (                             -- written only while a process follows events
        seq   INTEGER PRIMARY KEY AUTOINCREMENT,
        kind  TEXT NOT NULL,
        at    INTEGER NOT NULL,
        id    TEXT NOT NULL,
        type  TEXT NOT NULL,
        queue TEXT NOT NULL,
        note  TEXT
    ) STRICT;

    CREATE TABLE settings (                           -- one row
        one          INTEGER PRIMARY KEY CHECK (one = 1),
        arrangements INTEGER NOT NULL,                -- grows with every change of queues and limits
        listening    INTEGER NOT NULL,                -- until when events are written
        surplus      INTEGER NOT NULL,                -- how many ended jobs there are too many, when last counted,
        surplus_of   INTEGER NOT NULL                 -- and how many there may be
    ) STRICT;
    INSERT INTO settings VALUES (1, 0, 0, 0, 0);
    """,
    """
    DROP INDEX jobs_by_status;
    CREATE INDEX jobs_by_lane ON jobs (lane, status);  -- and then by seq, as every index: lists, counts, queues
    """,
    """
    ALTER TABLE workers ADD COLUMN queues TEXT;    -- JSON: the queues that it serves; null for all
    ALTER TABLE workers ADD COLUMN timeouts TEXT;  -- JSON: those of its handlers, in microseconds, by job type
    """,
    """
    ALTER TABLE jobs ADD COLUMN once INTEGER;           -- 1: it was started, and must not start again
    """,
    """
    CREATE TABLE new_lanes (
        id       INTEGER PRIMARY KEY,
        queue    TEXT NOT NULL,
        type     TEXT NOT NULL,
        priority INTEGER NOT NULL,
        exact    INTEGER NOT NULL,                    -- 1: its jobs are not taken ahead of their time
        search   TEXT NOT NULL DEFAULT '',            -- the parameters that index its jobs: ',order_id,customer,'
        UNIQUE (queue, type, priority, exact, search)
    ) STRICT;
    INSERT INTO new_lanes SELECT id, queue, type, priority, exact, '' FROM lanes;
    DROP TABLE lanes;
    ALTER TABLE new_lanes RENAME TO lanes;

    CREATE TABLE search (                             -- the jobs with a value of a parameter in search=
        key TEXT NOT NULL,                            -- 'order_id=42'
        seq INTEGER NOT NULL,
        PRIMARY KEY (key, seq)
    ) STRICT, WITHOUT ROWID;
    ALTER TABLE jobs ADD COLUMN search TEXT;          -- JSON: its keys, which triggers copy to the table `search`
    CREATE TRIGGER jobs_change_search AFTER UPDATE OF search ON jobs BEGIN
        DELETE FROM search WHERE seq = old.seq AND key IN (SELECT value FROM json_each(old.search));
        INSERT OR IGNORE INTO search SELECT value, new.seq FROM json_each(new.search) WHERE instr(value, '=');
    END;
    CREATE TRIGGER jobs_leave_search AFTER DELETE ON jobs WHEN old.search IS NOT NULL BEGIN
        DELETE FROM search WHERE seq = old.seq AND key IN (SELECT value FROM json_each(old.search));
    END;
    """,
    """
    ALTER TABLE schedules ADD COLUMN declared INTEGER;  -- 1: by a decorator in the code, 0: at run time
    """,
    """
    CREATE INDEX dead_letters ON jobs (lane, finished) WHERE status = 3;  -- lists by the time of failure
    """,
    """
    CREATE TABLE dead_letter_handlers (                 -- each job that is given up makes a job of each of them
        type    TEXT PRIMARY KEY,
        handler TEXT NOT NULL                           -- JSON
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE counted_queues (queue TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;  -- with a depth quota: `quotas`
    CREATE TABLE pending_counts (                     -- of the lanes of these queues, written by triggers
        lane    INTEGER PRIMARY KEY,
        pending INTEGER NOT NULL
    ) STRICT;
    """,
    """
    CREATE INDEX waiting_in_sequences ON jobs (lane, due) WHERE status = 0 AND wait = 1;       -- for `statistics`
    CREATE INDEX unreplayed ON jobs (lane) WHERE status = 3 AND replayed_as IS NULL;
    """,
    """
    CREATE TABLE activity_series (                    -- what is counted: `activity`
        id      INTEGER PRIMARY KEY,
        queue   TEXT NOT NULL,
        type    TEXT NOT NULL,
        measure TEXT NOT NULL,
        label   TEXT NOT NULL,                        -- an outcome or a kind
        bucket  INTEGER NOT NULL,                     -- the upper bound, in microseconds
        UNIQUE (queue, type, measure, label, bucket)
    ) STRICT;
    CREATE TABLE activity (                           -- counts of all processes in each minute
        minute INTEGER NOT NULL,                      -- since 1970
        series INTEGER NOT NULL,
        count  INTEGER NOT NULL,
        PRIMARY KEY (minute, series)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE activity_senders (                   -- the last batch of counts of each process
        sender TEXT PRIMARY KEY,
        number INTEGER NOT NULL,
        at     INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE activity_hours (                     -- the same for each hour, of the time before
        hour   INTEGER NOT NULL,
        series INTEGER NOT NULL,
        count  INTEGER NOT NULL,
        PRIMARY KEY (hour, series)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE tokens (                             -- of the HTTP server
        id        TEXT PRIMARY KEY,
        record    TEXT NOT NULL,                      -- JSON, with a hash of the secret
        ended     INTEGER,                            -- when it expires, or was revoked
        last_used INTEGER
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE requests (                           -- of the HTTP API, with an Idempotency-Key
        caller     TEXT NOT NULL,                     -- the id of a token
        key        TEXT NOT NULL,
        digest     TEXT NOT NULL,                     -- of the method, the path and the body
        first_id   TEXT NOT NULL,                     -- of the jobs that it makes
        owner      TEXT NOT NULL,                     -- the request that carries it out
        busy_until INTEGER NOT NULL,                  -- 0: it has ended
        created    INTEGER NOT NULL,
        expires    INTEGER NOT NULL,
        answer     BLOB,
        PRIMARY KEY (caller, key)
    ) STRICT;
    CREATE INDEX requests_by_expiry ON requests (expires);
    CREATE TABLE request_counts (                     -- the number of requests of each caller
        caller TEXT PRIMARY KEY,
        number INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TRIGGER requests_enter AFTER INSERT ON requests BEGIN
        INSERT INTO request_counts VALUES (new.caller, 1) ON CONFLICT (caller) DO UPDATE SET number = number + 1;
    END;
    CREATE TRIGGER requests_leave AFTER DELETE ON requests BEGIN
        UPDATE request_counts SET number = number - 1 WHERE caller = old.caller;
        DELETE FROM request_counts WHERE caller = old.caller AND number <= 0;
    END;
    """,
    """
    CREATE TABLE audit (                              -- what operators did
        id    TEXT PRIMARY KEY,                       -- sorts by time
        entry TEXT NOT NULL                           -- JSON
    ) STRICT;
    """,
    """
    CREATE TABLE redacted_parameters (                -- whose values no list shows: `jobs/redaction.py`
        type      TEXT NOT NULL,
        parameter TEXT NOT NULL,
        PRIMARY KEY (type, parameter)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    ALTER TABLE schedules ADD COLUMN signature TEXT;    -- of its name and definition: `jobs/signing.py`
    CREATE TABLE spent_envelopes (                    -- the signatures of jobs that were deleted, until they end
        id     TEXT PRIMARY KEY,                      -- the signed id
        signed INTEGER NOT NULL,
        until  INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX spent_envelopes_by_end ON spent_envelopes (until);
    """,
    """
    ALTER TABLE workers ADD COLUMN remote TEXT;       -- JSON: the terms of a remote worker; null for other workers
    """,
    """
    ALTER TABLE workers ADD COLUMN slots TEXT;     -- JSON: how many handlers it runs at once, by kind
    ALTER TABLE workers ADD COLUMN version TEXT;   -- of Mainspring
    """,
    """
    CREATE TABLE callback_pauses (                    -- receivers that get no requests: `jobs/callback_pauses.py`
        records TEXT NOT NULL                         -- JSON, of all of them, in at most one row
    ) STRICT;
    """,
    """
    ALTER TABLE schedules ADD COLUMN maker TEXT;   -- the caller of the HTTP server that stored it, or null
    """,
)

VERSION = len(MIGRATIONS)
NOT_READY = 4_000_000_000_000_000_000
"""The `ready` of jobs that a process with schema version one stores after the migration: see `rescue`."""
DECLARED_DEAD = 0
"""The heartbeat of a worker that was declared dead."""
MOVED = 0x4D6F_7665
"""The `user_version` of a file whose jobs were moved to another store, or are being moved.

Older versions of Mainspring refuse such a file as too new.
"""
READ_MOVE = "SELECT target, since, finished FROM move"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIGRATION_BUSY_TIMEOUTS = 20  # for how many lock timeouts a process waits for the write lock before a migration

logger = logging.getLogger("mainspring.sqlite")


def migrate(connection: apsw.Connection, path: str) -> None:
    """Migrate the file to the current schema, if it is empty or has an older schema.

    One process does this at a time; others wait. Raises `EngineUnavailable` if a migration fails, and what `check`
    raises.
    """
    if check(connection, path):
        return
    try:
        _migrate(connection, path)
    except apsw.SQLError as error:
        raise EngineUnavailable(
            engine=f"SQLite file {path}",
            reason=f"its schema could not be migrated to version {VERSION} ({error})",
            remedy="restore a backup, or report this as a bug; the file is unchanged",
        ) from error


def _migrate(connection: apsw.Connection, path: str) -> None:
    _begin(connection, path)
    try:
        if not check(connection, path):  # another process may have migrated the file meanwhile
            version = connection.pragma("user_version")
            if version:
                logger.warning(
                    "SQLite file %s: migrating its schema from version %d to %d", path, version, VERSION
                )
            for migration in MIGRATIONS[version:]:
                connection.execute(migration)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", VERSION)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _begin(connection: apsw.Connection, path: str) -> None:
    """Begin the transaction of a migration; wait for the write lock, which another migration may hold for long.

    Raises `apsw.BusyError` if the lock is not free after 21 lock timeouts.
    """
    for _ in range(MIGRATION_BUSY_TIMEOUTS):
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            logger.warning(
                "SQLite file %s: waiting for the write lock, to bring the schema up to date; another process "
                "holds it, perhaps to do the same",
                path,
            )
        else:
            return
    connection.execute("BEGIN IMMEDIATE")


def require_version(connection: apsw.Connection, path: str) -> None:
    """Raise `StoreMoved` if the jobs of a file were moved to another store, or are being moved.

    Raise `StoreTooNew` if a newer version of Mainspring has migrated the file.
    """
    require_not_moved(connection, path)
    version = int(connection.pragma("user_version"))
    if version > VERSION:
        raise _too_new(path, version)


def is_moved(connection: apsw.Connection) -> bool:
    """Return whether the jobs of a file were moved to another store, or are being moved."""
    return int(connection.pragma("user_version")) == MOVED


def require_not_moved(connection: apsw.Connection, path: str) -> None:
    """Raise `StoreMoved` if the jobs of a file were moved to another store, or are being moved."""
    if is_moved(connection):
        raise moved_error(connection, path)


def check(connection: apsw.Connection, path: str) -> bool:
    """Return True if the schema is current, and False if the file is empty or its schema is older.

    Raise an error if the file belongs to another application, if its schema is newer, or if its jobs were moved to
    another store or are being moved. This function only reads.
    """
    if not require_own(connection, path):
        return False
    require_version(connection, path)
    return int(connection.pragma("user_version")) == VERSION


def require_own(connection: apsw.Connection, path: str) -> bool:
    """Return True if a file is a store, of any version, and False if it is empty.

    Raise `StoreCorrupt` if it belongs to another application. This function only reads.
    """
    application = connection.pragma("application_id")
    if application == APPLICATION_ID:
        return True
    version = int(connection.pragma("user_version"))
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if application != 0 or version != 0 or tables:
        if connection.pragma("application_id") == APPLICATION_ID:  # another process has just made the store
            return True
        raise StoreCorrupt(
            engine=f"SQLite file {path}",
            reason="it is a database of another application, or a projection",
            remedy="give Mainspring a file of its own: Mainspring('sqlite:///jobs.db')",
        )
    return False


def _too_new(path: str, version: int) -> StoreTooNew:
    return StoreTooNew(
        engine=f"SQLite file {path}",
        reason=f"its schema is version {version}, and this Mainspring knows versions up to {VERSION}",
        remedy="upgrade Mainspring here: pip install --upgrade mainspring",
    )


def moved_error(connection: apsw.Connection, path: str) -> StoreMoved:
    """Return the error for a file whose jobs were moved to another store, or are being moved."""
    target, since, finished = connection.execute(READ_MOVE).get
    at = (EPOCH + timedelta(microseconds=finished or since)).strftime("%Y-%m-%d %H:%M:%S UTC")
    command = shlex.join(("mainspring", "migrate", f"sqlite:///{path}", str(target)))
    if finished:
        reason = f"its jobs were moved to {target} at {at}"
        remedy = f"use that URL from now on; {command} --undo takes them back if no worker has changed them"
    else:
        reason = f"its jobs are being moved to {target}, since {at}"
        remedy = f"finish the migration: {command}; or take it back: the same command with --undo"
    return StoreMoved(engine=f"SQLite file {path}", reason=reason, remedy=remedy, target=target)
