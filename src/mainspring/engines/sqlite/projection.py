"""The projection: a copy of all jobs in a local file, for engines whose own store cannot list and count jobs.

The tables and the queries are those of the SQLite engine, so lists and counts are the same. See `jobs.projection`.
Columns that only claims use keep their defaults: nothing is claimed from a projection. The column `wait` has other
values than in a store: see `jobs.projection.Wait`. Two processes may submit in the same instant and give two jobs
the same place in the order of submission. Then the job that arrives later moves to the next free place, and stays
there while both exist.

Invariants
- A projection enforces no policies. Indexes that neither lists nor statistics use are left out.
- Changes and the position up to which they go are committed together.
- A projection is never migrated or repaired: it is rebuilt. Only a file that was a projection is deleted.
- It belongs to one process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw

from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.activity import add_batch, delete_counts, prune_counts, read_counts
from mainspring.engines.sqlite.codec import (
    CODES,
    headers_column,
    number_of,
    to_group,
    to_json,
    to_optional_json,
    to_text,
)
from mainspring.engines.sqlite.connections import FileConnectionPool, translate
from mainspring.engines.sqlite.file_modes import create_file
from mainspring.engines.sqlite.lanes import Lane, indexed_parameters
from mainspring.engines.sqlite.process_lock import ProcessLock
from mainspring.engines.sqlite.reading import count, count_pending, count_up_to, find, find_queues
from mainspring.engines.sqlite.schema import MIGRATIONS
from mainspring.engines.sqlite.statistics import LaneCounts, LimitedGroup, count_jobs, limited_groups
from mainspring.engines.sqlite.upcoming_jobs import count_upcoming
from mainspring.engines.sqlite.upcoming_slots import find_fullest_slot
from mainspring.errors import EngineUnavailable, StoreCorrupt
from mainspring.jobs.activity import MINUTE
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount
from mainspring.jobs.projection import ProjectedJob, Wait
from mainspring.jobs.records import JobRecord, Page, Query
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import FindFull, StoreStatistics, UpcomingJobs

# batch of [place, id]: those whose place is taken by another job
TAKEN = """
SELECT value ->> 0, value ->> 1 FROM json_each(?1) JOIN jobs ON jobs.seq = value ->> 0
WHERE jobs.id <> value ->> 1
"""
# ?1 id, ?2 created, ?3 place: the present place of the job, if it was moved from that place
MOVED = "SELECT seq FROM jobs WHERE id = ?1 AND created = ?2 AND seq > ?3"
IS_TAKEN = "SELECT EXISTS (SELECT 1 FROM jobs WHERE seq = ?1)"


def with_own_places(writer: apsw.Connection, kept: Sequence[tuple[int, JobRecord]]) -> list[tuple[int, JobRecord]]:
    """Return jobs, each with a place (its number in the order of submission) that no other job of this batch or of
    the file has.

    A job whose place is taken moves to the next free one, or stays where it was moved before.
    """
    asked = to_json([(place, record.id) for place, record in kept])
    clashing: set[Any] = set(writer.execute(TAKEN, (asked,)).fetchall())
    given: set[int] = set()
    own: list[tuple[int, JobRecord]] = []
    for place, record in kept:
        if place in given or (clashing and (place, record.id) in clashing):
            place = _next_place(writer, place, record, given)  # noqa: PLW2901 - it replaces the old one
        given.add(place)
        own.append((place, record))
    return own


def _next_place(writer: apsw.Connection, place: int, record: JobRecord, given: set[int]) -> int:
    moved: int | None = writer.execute(MOVED, (record.id, record.created, place)).get
    if moved is not None:
        return moved
    while place in given or writer.execute(IS_TAKEN, (place,)).get:
        place += 1
    return place


COLUMNS = (
    "seq",
    "id",
    "lane",
    "status",
    "due",
    "created",
    "payload",
    "codec",
    "token",
    "owner",
    "starts",
    "failures",
    "timeouts",
    "crashes",
    "interruptions",
    "started",
    "finished",
    "result",
    "error",
    "stop",
    "origin",
    "replayed_as",
    "history",
    "sequence",
    "aside",
    "grp",
    "unique_key",
    "expires",
    "schedule",
    "occurrence",
    "headers",
    "follow_up",
    "progress",
    "ready",
    "wait",
)
_PACKED = {"payload", "result"}


def _value(place: int, column: str) -> str:
    plain = f"value ->> {place}"
    if column not in _PACKED:
        return plain
    return f"CASE value ->> {COLUMNS.index('codec')} WHEN 'json' THEN {plain} ELSE unhex({plain}) END"


# batch of rows. REPLACE, because a job replaces its earlier version, which has the same id.
PUT = f"""
INSERT OR REPLACE INTO jobs ({", ".join(COLUMNS)})
SELECT {", ".join(_value(place, column) for place, column in enumerate(COLUMNS))} FROM jsonb_each(?1)
"""
# batch of [number, name] of groups. Their jobs are not counted: groups stay until the projection is rebuilt.
PUT_GROUPS = f"""
INSERT INTO groups (id, name, jobs, due, seq) SELECT value ->> 0, value ->> 1, {1 << 40}, 0, 0 FROM json_each(?1)
WHERE true ON CONFLICT DO NOTHING
"""
HAS_SEARCH_KEYS = "SELECT EXISTS (SELECT 1 FROM search)"
# batch of ids: `PUT` replaces these jobs, which fires no trigger
REMOVE_SEARCH_KEYS = """
UPDATE jobs SET search = NULL WHERE id IN (SELECT value FROM json_each(?1)) AND search IS NOT NULL
"""
# batch of [id, search keys]
PUT_SEARCH_KEYS = "UPDATE jobs SET search = v.value -> 1 FROM json_each(?1) AS v WHERE jobs.id = v.value ->> 0"
# batch of ids
FORGET = "DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?1))"


def lane_of_record(record: JobRecord, search: tuple[str, ...]) -> Lane:
    """Return the lane of a job for the table `lanes`.

    A lane is a queue, job type and priority, whether jobs have a sequence or limits, and the parameters of the
    search keys `search`.
    """
    exact = record.sequence is not None or bool(record.limits)
    return Lane(record.queue, record.type, record.priority, int(exact), indexed_parameters(search))


def projected_rows(rows: Iterable[tuple[int, int, JobRecord]], waits: Mapping[str, Wait]) -> str:
    """Encode jobs as a batch for `PUT`, each with its place in the order of submission and the number of its lane.

    `waits` says, by id, what jobs wait for.

    A job that is not in `waits` waits for neither its sequence nor its limits.
    """
    return to_json([_row(place, lane, record, waits.get(record.id, 0)) for place, lane, record in rows])


def projected_groups(rows: Iterable[tuple[int, int, JobRecord]]) -> str | None:
    """Encode the groups of jobs, given with places and lanes, for `PUT_GROUPS`; None if no job has limits.

    A group has the jobs of one queue, type and priority under the same limits.
    """
    groups = {group for _, lane, record in rows if (group := to_group(lane, record.limits)) is not None}
    return to_json([(number_of(group), group) for group in groups]) if groups else None


def _row(place: int, lane: int, record: JobRecord, wait: int) -> tuple[Any, ...]:
    codec = record.codec
    return (
        place,
        record.id,
        lane,
        CODES[record.status],
        record.due,
        record.created,
        to_text(record.payload, codec),
        codec,
        record.token,
        record.owner,
        record.starts,
        record.failures,
        record.timeouts,
        record.crashes,
        record.interruptions,
        record.started,
        record.finished,
        None if record.result is None else to_text(record.result, codec),
        record.error,
        1 if record.stop_requested else None,
        record.origin,
        record.replayed_as,
        to_json(record.history) if record.history else None,
        record.sequence,
        int(record.steps_aside),
        number_of(to_group(lane, record.limits)),
        record.unique_key,
        record.expires,
        record.schedule,
        record.occurrence,
        headers_column(record.headers),
        to_optional_json(record.follow_up),
        to_optional_json(record.progress),
        record.due,
        int(wait),
    )


APPLICATION_ID = 0x4D737050  # "MspP": an engine refuses a projection, and a projection refuses a store
BUSY_TIMEOUT_MS = 30_000  # another tool may have the file open
CACHE_KIB = 16_384
CHECKPOINT_PAGES = 4_000  # many, so that pages which change often are copied into the file less often
FILES = ("", "-wal", "-shm", "-journal")  # in this order: without the first, SQLite ignores the others
MAX_AGE_SECONDS = 6 * 24 * 3_600
"""A projection whose last change is older is rebuilt: the store keeps records of deletions for only a week."""
INDEXES_FOR_READING = (
    "jobs_by_id",
    "jobs_by_lane",
    "jobs_by_owner",
    "dead_letters",
    "unreplayed",
    "claimable",
    "suspects",
    "waiting_in_sequences",
    "waiting_for_limits",
)

OWN_TABLES = """
CREATE TABLE projection (                             -- one row
    source   TEXT NOT NULL,                           -- the stream that it is a copy of
    position INTEGER NOT NULL,                        -- up to where
    applied  INTEGER NOT NULL                         -- when it was written to last, in seconds since 1970
) STRICT;
CREATE INDEX waiting_for_limits ON jobs (lane, due, grp) WHERE status = 0 AND wait = 2;
CREATE TABLE activity_position (position INTEGER NOT NULL) STRICT;  -- one row: up to where counts were added
INSERT INTO activity_position VALUES (0);
"""
_LIMITED = "FROM jobs INDEXED BY waiting_for_limits WHERE lane = ?1 AND status = 0 AND wait = 2"
# ?1 lane, ?2 now, ?3 the largest number of jobs to read: [group name, number of due jobs, the earliest due time]
LIMITED = f"""
SELECT json_group_array(json_array((SELECT name FROM groups WHERE groups.id = grp), jobs, due)) FROM (
    SELECT grp, count(*) AS jobs, min(due) AS due FROM (
        SELECT grp, due {_LIMITED} AND due <= ?2 ORDER BY due LIMIT ?3)
    GROUP BY grp ORDER BY jobs DESC)
"""
LIMITED_LATER = f"SELECT count(*) FROM (SELECT 1 {_LIMITED} AND due > ?2 LIMIT ?3)"
NOTE_SOURCE = "INSERT INTO projection VALUES (?1, 0, unixepoch())"
NOTE_POSITION = "UPDATE projection SET position = ?1, applied = unixepoch()"
SOURCE = "SELECT source FROM projection"
POSITION = "SELECT position FROM projection"
AGE = "SELECT unixepoch() - applied FROM projection"
ACTIVITY_POSITION = "SELECT position FROM activity_position"
NOTE_ACTIVITY_POSITION = "UPDATE activity_position SET position = ?1"
LANES = "SELECT queue, type, priority, exact, search, id FROM lanes"
INDEXES = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"

VERSION = crc32("".join((*MIGRATIONS, OWN_TABLES, *INDEXES_FOR_READING)).encode()) & 0x7FFF_FFFF
"""A checksum of the table definitions. A projection with another checksum is rebuilt."""

logger = logging.getLogger("mainspring.sqlite")


class SqliteProjection:
    """A projection in a local SQLite file. Any thread may read it; one thread opens, changes and closes it."""

    def __init__(self, path: str | Path) -> None:
        self.path = os.path.realpath(path)  # a process that opens the file by a symlink must find the same lock
        self._lock = ProcessLock(self.path, name=self.description)
        self._connections = FileConnectionPool(
            self.path, busy_timeout_ms=BUSY_TIMEOUT_MS, prepare_writer=_prepare, on_close=_nothing
        )
        self._is_open = False
        self._source = ""
        self._lanes: dict[Lane, int] = {}

    @property
    def description(self) -> str:
        return f"projection {self.path}"

    # -- opening and closing

    def open(self, source: str) -> int:
        self._lock.acquire()
        self._source = source
        try:
            with self._translated():
                position = self._resume()
        except BaseException:
            self.close()
            raise
        self._lock.mark()
        self._is_open = True
        return position

    def _resume(self) -> int:
        """Return the position of the existing file; if there is none that can be used, create it and return 0.

        Raises `StoreCorrupt` if the file is no projection, and `EngineUnavailable` if the path is a directory.
        """
        if Path(self.path).is_dir():
            raise EngineUnavailable(
                engine=self.description, reason="it is a directory", remedy="name a file inside the directory"
            )
        if not Path(self.path).exists():
            self._recreate()
            return 0
        obstacle, position = self._inspect()
        if obstacle is not None:
            logger.warning("%s is built again from the store, because %s", self.description, obstacle)
            self._recreate()
        return position

    def _inspect(self) -> tuple[str | None, int]:
        """Return why the file cannot be used, or None; and the position up to which it is complete, or 0.

        Raises `StoreCorrupt` if the file is no projection.
        """
        try:
            with self._connections.temporary() as connection:
                self._require_projection(connection)
                obstacle = self._find_obstacle(connection)
                return obstacle, connection.execute(POSITION).get if obstacle is None else 0
        except (apsw.NotADBError, apsw.CorruptError) as error:
            if not self._lock.is_marked:
                raise self._not_a_projection(f"it is not a database ({error})") from error
            return f"it is damaged ({error})", 0

    def _require_projection(self, connection: apsw.Connection) -> None:
        """Raise `StoreCorrupt` if the file is another kind of database, which must not be deleted.

        An empty database counts as a projection.
        """
        application = connection.pragma("application_id")
        is_empty = connection.execute("SELECT count(*) FROM sqlite_schema").get == 0
        if application != APPLICATION_ID and not (is_empty and application == 0):
            raise self._not_a_projection("it is a database, but not a projection")

    def _find_obstacle(self, connection: apsw.Connection) -> str | None:
        if connection.pragma("user_version") != VERSION:
            return "its tables are of another version, or were not all created"
        problem = connection.execute("PRAGMA quick_check(1)").get
        if problem != "ok":
            return f"it is damaged ({problem})"
        source = connection.execute(SOURCE).get
        if source != self._source:
            return f"it is a copy of {source}, and not of {self._source}"
        if connection.execute(AGE).get > MAX_AGE_SECONDS:
            return "its last change is older than the records of deletions that the store keeps"
        return None

    def _not_a_projection(self, reason: str) -> StoreCorrupt:
        return StoreCorrupt(
            engine=self.description,
            reason=reason,
            remedy="give the projection another path, or move this file away",
        )

    def _recreate(self) -> None:
        """Wait until no thread reads, then delete the files of the projection and create an empty one."""
        self._lanes.clear()
        self._connections.suspend()
        try:
            for suffix in FILES:
                Path(self.path + suffix).unlink(missing_ok=True)
            create_file(Path(self.path))
            connection = self._connections.connect()
            try:
                _make(connection, self._source)
            finally:
                connection.close()
        finally:
            self._connections.resume()

    def reset(self) -> None:
        self._require_open()
        with self._translated():
            self._recreate()

    def close(self) -> None:
        self._is_open = False
        if self._lock.is_held:
            self._connections.close()
            self._lanes.clear()
            self._lock.release()

    # -- changing

    def apply(self, changes: Sequence[ProjectedJob], upto: int) -> None:
        latest = {change.id: change for change in changes}.values()
        forgotten = [change.id for change in latest if change.record is None]
        with self._unit() as writer:
            if forgotten:
                writer.execute(FORGET, (to_json(forgotten),))
            if len(forgotten) < len(latest):
                kept = [(change.place, change.record) for change in latest if change.record is not None]
                search = {change.id: change.search for change in latest if change.search}
                if writer.execute(HAS_SEARCH_KEYS).get:
                    writer.execute(REMOVE_SEARCH_KEYS, (to_json([record.id for _, record in kept]),))
                waits = {change.id: change.wait for change in latest if change.wait}
                self._put(writer, self._with_lanes(writer, with_own_places(writer, kept), search), waits)
                if search:
                    writer.execute(PUT_SEARCH_KEYS, (to_json(list(search.items())),))
            writer.execute(NOTE_POSITION, (upto,))

    def _put(
        self, writer: apsw.Connection, rows: list[tuple[int, int, JobRecord]], waits: Mapping[str, Wait]
    ) -> None:
        groups = projected_groups(rows)
        if groups is not None:
            writer.execute(PUT_GROUPS, (groups,))
        writer.execute(PUT, (projected_rows(rows, waits),))

    def _with_lanes(
        self, writer: apsw.Connection, kept: list[tuple[int, JobRecord]], search: dict[str, tuple[str, ...]]
    ) -> list[tuple[int, int, JobRecord]]:
        lanes = [lane_of_record(record, search.get(record.id, ())) for _, record in kept]
        missing = set(lanes) - self._lanes.keys()
        if missing:
            writer.executemany(sql.ADD_LANE, list(missing))
            rows: list[Any] = writer.execute(LANES).fetchall()
            self._lanes = {Lane(*row[:5]): row[5] for row in rows}
        return [(place, self._lanes[lane], record) for (place, record), lane in zip(kept, lanes, strict=True)]

    def activity_position(self) -> int:
        with self._reader() as connection:
            position: int = connection.execute(ACTIVITY_POSITION).get
            return position

    def apply_activity(self, batches: Sequence[ActivityBatch], upto: int, now: int) -> None:
        with self._unit() as writer:

            def execute(statement: str, values: tuple[Any, ...]) -> Any:
                return writer.execute(statement, values).get

            if not upto:
                delete_counts(execute)
            for batch in batches:
                add_batch(execute, batch, now)
            while prune_counts(execute, now):
                pass
            writer.execute(NOTE_ACTIVITY_POSITION, (upto,))

    @contextmanager
    def _unit(self) -> Iterator[apsw.Connection]:
        """Run the block as one transaction, which is committed, or rolled back if the block raises.

        Raises `EngineUnavailable` if the projection is not open in this process.
        """
        self._require_open()
        with self._translated(), self._connections.writer() as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                self._lanes.clear()  # the rollback may have removed some lanes
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                raise

    # -- reading

    def find(self, query: Query) -> Page:
        with self._reader() as connection:
            return find(connection, query)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        with self._reader() as connection:
            return count(connection, queue=queue, type_=type)

    def count_up_to(self, query: Query, most: int) -> int:
        with self._reader() as connection:
            return count_up_to(connection, query, most)

    def count_pending(self, queue: str) -> int:
        with self._reader() as connection:
            return count_pending(connection, queue)

    def queues(self) -> tuple[str, ...]:
        with self._reader() as connection:
            return find_queues(connection)

    def statistics(
        self, now: int, *, paused: Collection[str], find_full: FindFull, lookahead: int
    ) -> StoreStatistics:
        with self._reader() as connection, connection:  # all statements see the same jobs
            counted = count_jobs(connection, now, _limited_jobs)
            fullest = find_fullest_slot(connection, now, lookahead=lookahead)
        # the limits are evaluated without the connection, because the store may take long to answer
        groups = counted.add_up(paused=paused, find_full=find_full)
        return StoreStatistics(now, tuple(sorted(paused)), groups, fullest)

    def upcoming(self, edges: Sequence[int]) -> list[UpcomingJobs]:
        with self._reader() as connection, connection:  # all statements see the same jobs
            found = count_upcoming(connection, edges)
        return found  # noqa: RET504 - for mypy, a transaction might swallow exceptions

    def activity(self, since: int, until: int, *, step: int = MINUTE) -> list[ActivityCount]:
        with self._reader() as connection:
            return read_counts(connection, since, until, step)

    @contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        self._require_open()
        with self._translated(), self._connections.reader() as connection:
            self._require_open()  # the projection may have been closed while this thread waited for a connection
            yield connection

    def _require_open(self) -> None:
        if not (self._is_open and self._lock.is_held):  # a forked child does not hold the lock
            raise EngineUnavailable(
                engine=self.description,
                reason="it is not open in this process",
                remedy="open() it first; a forked child must open a projection of its own",
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Convert errors of SQLite that the block raises to errors of Mainspring that name a remedy."""
        try:
            yield
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise StoreCorrupt(
                engine=self.description,
                reason=f"this local copy of the job records is damaged ({error})",
                remedy="restart this process, which then copies them from the store again; no job is lost",
            ) from error
        except apsw.Error as error:
            raise translate(error, self.path) from error


def _make(connection: apsw.Connection, source: str) -> None:
    connection.pragma("application_id", APPLICATION_ID)  # first: the file is a projection from its first page on
    connection.pragma("journal_mode", "wal")
    _prepare(connection)
    with connection:
        for tables in (*MIGRATIONS, OWN_TABLES):
            connection.execute(tables)
        for (name,) in connection.execute(INDEXES).fetchall():
            if name not in INDEXES_FOR_READING:
                connection.execute(f'DROP INDEX "{name}"')
        connection.execute(NOTE_SOURCE, (source,))
        connection.pragma("user_version", VERSION)


def _prepare(connection: apsw.Connection) -> None:
    connection.pragma("synchronous", "NORMAL")  # a power failure may lose the last changes; they are applied again
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)


def _limited_jobs(
    connection: apsw.Connection, lanes: Sequence[LaneCounts], now: int, most: int
) -> list[LimitedGroup]:
    """Find the groups of due jobs that their limits have not admitted: see `LimitedJobs`.

    A group has the jobs of one queue, type and priority (its lane) under the same limits. Set `later` of each
    lane, and set `is_exact` to False if the lane has more than `most` of these jobs.
    """
    found: list[LimitedGroup] = []
    for counts in lanes:
        groups = limited_groups(connection.execute(LIMITED, (counts.lane, now, most + 1)).get)
        counts.is_exact &= sum(group.count for group in groups) <= most
        counts.later = connection.execute(LIMITED_LATER, (counts.lane, now, most)).get
        found += groups
    return found


def _nothing() -> None:
    return None
