"""The tables, from version one on. A file says in `user_version` which migrations it has seen.

A job's queue, type and priority are its lane, a small number: rows stay short, and a worker asks for exactly the
lanes it can serve, so jobs that it does not know cost it nothing however many there are. The partial indexes
hold what can be claimed and nothing else: a million finished jobs do not slow a claim down.
"""

from __future__ import annotations

import apsw

from mainspring.errors import EngineUnavailable, StoreCorrupt, StoreTooNew

APPLICATION_ID = 0x4D737067  # "Mspg"

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
        stop          INTEGER,                        -- 1: somebody wants it stopped while it runs
        origin        TEXT,                           -- the dead letter of which it is a replay
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
)

VERSION = len(MIGRATIONS)


def migrate(connection: apsw.Connection, path: str) -> None:
    """Bring the file up to this version, one process at a time."""
    if check(connection, path):
        return
    try:
        _migrate(connection, path)
    except apsw.SQLError as error:
        raise EngineUnavailable(
            engine=f"SQLite file {path}",
            reason=f"its schema could not be brought to version {VERSION} ({error})",
            remedy="restore a backup, or report this; the file is as it was",
        ) from error


def _migrate(connection: apsw.Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not check(connection, path):  # another process may have been quicker
            version = connection.pragma("user_version")
            for migration in MIGRATIONS[version:]:
                connection.execute(migration)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", VERSION)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def check(connection: apsw.Connection, path: str) -> bool:
    """Refuse files that are not ours or are newer, without touching them; answer whether it is up to date."""
    application = connection.pragma("application_id")
    version = int(connection.pragma("user_version"))
    if application != APPLICATION_ID:
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
        if application != 0 or version != 0 or tables:
            raise StoreCorrupt(
                engine=f"SQLite file {path}",
                reason="it is a database of another application",
                remedy="give Mainspring a file of its own: Mainspring('sqlite:///jobs.db')",
            )
        return False
    if version > VERSION:
        raise StoreTooNew(
            engine=f"SQLite file {path}",
            reason=f"its schema is version {version}, and this Mainspring knows versions up to {VERSION}",
            remedy="upgrade Mainspring here: pip install --upgrade mainspring",
        )
    return version == VERSION
