"""Export of a SQLite file for a migration: marks the file as moved, and reads its jobs, schedules and settings.

One transaction checks that no worker is alive on the file, rescues the jobs of dead workers and writes the mark.
From then on the engine refuses the file to every other process, whether it has the file open or opens it later. A
concurrent submit either commits before the mark, and its job moves, or it is refused. This module deletes no jobs:
if the migration is undone, the mark is removed, and the file is as it was after the rescue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from mainspring.clock import Clock, SystemClock
from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite import waiting_statements
from mainspring.engines.sqlite.audit import read_all_entries
from mainspring.engines.sqlite.codec import RECORD_COLUMNS, pairs_of_integers, strings, to_record
from mainspring.engines.sqlite.database import Database, Probe
from mainspring.engines.sqlite.dead_letters import DeadLetterNotifier
from mainspring.engines.sqlite.limits import read_limits
from mainspring.engines.sqlite.provider import DEFAULT_TIMEOUT
from mainspring.engines.sqlite.reading import count_all
from mainspring.engines.sqlite.rescue import JobRescuer
from mainspring.engines.sqlite.schedules import read_occurrences, read_schedules
from mainspring.engines.sqlite.schema import MOVED, VERSION, is_moved
from mainspring.engines.sqlite.spent_envelopes import read_all_envelopes
from mainspring.engines.sqlite.store import Store, read_redactions
from mainspring.engines.sqlite.submitting import JobInserter
from mainspring.engines.sqlite.tokens import read_tokens
from mainspring.engines.sqlite.worker_files import WorkerFiles
from mainspring.errors import EngineUnavailable, StoreMoved
from mainspring.jobs.audit import AuditEntry
from mainspring.jobs.commands import PutRedaction
from mainspring.jobs.engine import MAX_CRASHES, STALE
from mainspring.jobs.migration_records import MigratedJob, MigratedSchedule, MigratedSettings
from mainspring.jobs.spent_envelopes import Envelope
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import to_instant

MAX_OCCURRENCES = 100  # how many occurrences without a job are exported of each schedule, the latest ones
MAX_PAGE_BYTES = 16_000_000  # a page of jobs ends when the sum of its payloads exceeds this number
ENVELOPES = 1_000  # how many envelopes a page has
NO_WORKER = 0  # no worker has this number, so `OTHERS` lists all workers

CREATE_MOVE_TABLE = """
CREATE TABLE move (                               -- one row; the table is there only while jobs are elsewhere
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    id        TEXT NOT NULL,
    target    TEXT NOT NULL,                      -- without password
    since     INTEGER NOT NULL,
    last      INTEGER NOT NULL,                   -- the largest seq of a job when the migration began
    is_known  INTEGER NOT NULL DEFAULT 0,         -- 1: the target has a checkpoint of this migration
    is_undone INTEGER NOT NULL DEFAULT 0,         -- 1: the migration is being undone
    finished  INTEGER
) STRICT
"""
INSERT_MOVE = """
INSERT INTO move (one, id, target, since, last)
VALUES (1, ?1, ?2, ?3, (SELECT coalesce(max(seq), 0) FROM jobs))
"""
READ_MOVE = "SELECT id, target, since, last, is_known, is_undone, finished FROM move"
RECORD_RECEIPT = "UPDATE move SET is_known = 1"
RECORD_UNDO = "UPDATE move SET is_undone = 1"
RECORD_END = "UPDATE move SET finished = ?1"
MARK = f"PRAGMA user_version = {MOVED}"
UNMARK = f"PRAGMA user_version = {VERSION}"
DROP_MOVE_TABLE = "DROP TABLE move"
RUNNING = "SELECT count(*) FROM jobs WHERE status = 1"
WORKER_NAMES = "SELECT id, name FROM workers ORDER BY id"
# ?1 after this seq, ?2 how many: PENDING and FAILED jobs in the order of submission; the others are skipped
JOBS_TO_MOVE = f"""
SELECT {RECORD_COLUMNS}, j.search, coalesce(j.turn, j.due)
FROM jobs AS j NOT INDEXED JOIN lanes AS l ON l.id = j.lane
WHERE j.seq > ?1 AND j.status IN (0, 3) ORDER BY j.seq LIMIT ?2
"""
COUNT_JOBS_UNTIL = "SELECT count(*) FROM jobs WHERE status IN (0, 3) AND seq <= ?1"
LARGEST_JOB = """
SELECT id, octet_length(payload) + coalesce(octet_length(history), 0) + coalesce(octet_length(error), 0)
    + coalesce(octet_length(result), 0) + coalesce(octet_length(headers), 0) + coalesce(octet_length(follow_up), 0)
    AS size
FROM jobs WHERE status IN (0, 3) ORDER BY size DESC LIMIT 1
"""
UNENDED_JOBS_OF = """
SELECT json_group_array(id) FROM (
    SELECT id FROM jobs WHERE schedule = ?1 AND schedule IS NOT NULL AND status < 2 ORDER BY seq)
"""
RATES = "SELECT bucket, full_at FROM rates"


class MoveRecord(Struct, frozen=True):
    """The record of a migration in the SQLite file whose jobs are moved: its id, its target and how far it has
    got.
    """

    id: str
    target: str
    since: int
    last: int
    has_receipt: bool
    is_being_undone: bool
    finished: int | None


class SqliteExport:
    """A SQLite file whose jobs are moved to another store. Only one thread uses it."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        busy_timeout: float = DEFAULT_TIMEOUT,
        probe: Probe | None = None,
    ) -> None:
        self.path = str(Path(path).resolve())
        self._clock = clock or SystemClock()
        self._database = Database(
            self.path,
            durability="full",
            busy_timeout=busy_timeout,
            is_shared=True,
            probe=probe,
            is_export=True,
            clock=self._clock,
        )
        self._worker_files = WorkerFiles(self.path)
        store = Store(self._database, self._now, _wake_no_worker)
        self._rescuer = JobRescuer(store, MAX_CRASHES, DeadLetterNotifier(store, JobInserter(store)))

    @property
    def description(self) -> str:
        """A description of the file, for messages."""
        return f"SQLite file {self.path}"

    def _now(self) -> int:
        return to_instant(self._clock.now(), "now")

    def open(self) -> None:
        """Open the file, even if it has the mark that its jobs are moved to another store."""
        try:
            self._database.open()
        except StoreMoved:  # another process marked it between the check for the mark and the opening
            self._database.open()

    def close(self) -> None:
        """Close the file and the lock files of its workers."""
        self._worker_files.close()
        self._database.close()

    # -- the mark

    def move(self) -> MoveRecord | None:
        """Return the stored facts of the migration, such as its target; None if none of the file has begun."""
        with self._database.reader() as connection:
            if not is_moved(connection):
                return None
            move_id, target, since, last, has_receipt, is_being_undone, finished = connection.execute(
                READ_MOVE
            ).get
            return MoveRecord(move_id, target, since, last, bool(has_receipt), bool(is_being_undone), finished)

    def begin(self, move_id: str, target: str) -> None:
        """Mark the file as moved, so that no other process uses it, and rescue the jobs of dead workers.

        Raise `EngineUnavailable` if a worker is alive, or if jobs are RUNNING without a worker. If another process
        has marked the file already, its mark stays.
        """
        with self._database.unit(durable=True):
            if self._is_marked():
                return
            dead = self._require_no_workers()
            self._rescuer.rescue(dead)
            self._require_no_running_jobs()
            self._database.write(CREATE_MOVE_TABLE)
            self._database.write(INSERT_MOVE, (move_id, target, self._now()))
            self._database.write(MARK)
        for worker in dead:
            self._worker_files.remove(worker)

    def live_workers(self) -> list[str]:
        """Return the names (host and process) of the workers that are alive on the file."""
        with self._database.unit(durable=False):
            return self._names(self._split_workers()[0])

    def _require_no_workers(self) -> list[int]:
        """Return the numbers of the dead workers; raise `EngineUnavailable` if a worker is alive."""
        live, dead = self._split_workers()
        if live:
            raise EngineUnavailable(
                engine=self.description,
                reason=f"it has live workers: {', '.join(self._names(live))}",
                remedy="stop them, then migrate again; nothing was changed",
            )
        return dead

    def _split_workers(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the workers of the file that are alive, and of those that are dead."""
        others = pairs_of_integers(self._database.write(sql.OTHERS, (NO_WORKER,)))
        dead = [worker for worker, heartbeat in others if self._is_dead(worker, heartbeat)]
        return [worker for worker, _ in others if worker not in dead], dead

    def _names(self, workers: list[int]) -> list[str]:
        with self._database.reader() as connection:
            rows: Any = connection.execute(WORKER_NAMES).fetchall()
        return [dict(rows).get(worker, str(worker)) for worker in workers]

    def _is_dead(self, worker: int, heartbeat: int) -> bool:
        if self._worker_files.has_lock_file(worker):
            return self._worker_files.is_dead(worker)
        return heartbeat + STALE < self._now()  # the lock file is on another machine, or this system has none

    def _require_no_running_jobs(self) -> None:
        running: int = self._database.write(RUNNING)
        if running:
            raise EngineUnavailable(
                engine=self.description,
                reason=f"it has RUNNING jobs without a known worker: {running:,}",
                remedy="start a worker and stop it again, which rescues these jobs, then migrate again",
            )

    def record_receipt(self) -> None:
        """Record in the file that the target has a checkpoint (stored progress) of this migration.

        A migration that is resumed then requires this checkpoint.
        """
        self._record(RECORD_RECEIPT)

    def record_undo(self) -> None:
        """Record in the file that the migration is being undone."""
        self._record(RECORD_UNDO)

    def finish(self) -> None:
        """Record in the file that the target has all jobs, so that the migration is finished."""
        self._record(RECORD_END, (self._now(),))

    def _record(self, statement: str, bindings: tuple[Any, ...] = ()) -> None:
        with self._database.unit(durable=True):
            self._database.write(statement, bindings)

    def unmark(self) -> None:
        """Remove the mark of the migration, so that all processes may use the file again."""
        with self._database.unit(durable=True):
            if self._is_marked():
                self._database.write(DROP_MOVE_TABLE)
                self._database.write(UNMARK)

    def _is_marked(self) -> bool:
        return int(self._database.write("PRAGMA user_version")) == MOVED

    # -- reading

    def counts(self) -> dict[JobStatus, int]:
        """Count jobs by status. FAILED includes dead letters that were replayed, because they move, too."""
        with self._database.reader() as connection:
            return count_all(connection, queue=None, type_=None)

    def jobs(self, after: int, limit: int) -> list[MigratedJob]:
        """Return the next PENDING and FAILED jobs after the row `after`, in the order of submission.

        There are at most `limit`, and fewer if they are large.
        """
        found: list[MigratedJob] = []
        size = 0
        with (
            self._database.reader() as connection,
            closing(connection.execute(JOBS_TO_MOVE, (after, limit))) as rows,
        ):
            for row in rows:
                search = () if row[-2] is None else tuple(strings(row[-2]))
                found.append(MigratedJob(row[-3], row[-1], to_record(row), search))
                size += len(found[-1].record.payload)
                if size > MAX_PAGE_BYTES:  # pages of large jobs are smaller
                    break
        return found

    def count_jobs_until(self, place: int) -> int:
        """Count the jobs to move whose place in the order of submission is at most `place`."""
        with self._database.reader() as connection:
            return int(connection.execute(COUNT_JOBS_UNTIL, (place,)).get)

    def largest_job(self) -> tuple[str, int] | None:
        """Return the id and the size in bytes of the largest job to move; None if there is none."""
        with self._database.reader() as connection:
            found: Any = connection.execute(LARGEST_JOB).fetchone()
            return None if found is None else (found[0], found[1])

    def schedules(self) -> list[MigratedSchedule]:
        """Return all schedules by name, each with its jobs that have not ended and its latest skipped
        occurrences.
        """
        with self._database.reader() as connection:
            return [
                MigratedSchedule(
                    record,
                    tuple(strings(connection.execute(UNENDED_JOBS_OF, (record.name,)).get)),
                    tuple(reversed(read_occurrences(connection, record.name, MAX_OCCURRENCES))),
                )
                for record in read_schedules(connection, None, None, None)
            ]

    def count_schedules(self) -> int:
        """Count all schedules of the file."""
        with self._database.reader() as connection:
            return int(connection.execute("SELECT count(*) FROM schedules").get)

    def audit_entries(self) -> list[AuditEntry]:
        """Return the audit trail, the latest entry first."""
        with self._database.reader() as connection:
            return list(read_all_entries(connection))

    def envelopes(self, now: int) -> Iterator[list[Envelope]]:
        """Yield pages of the envelopes (signed ids and times) of jobs that must not run again on the target.

        These jobs are not migrated: they are deleted, COMPLETED or CANCELED, and their signatures are still valid.
        """
        with self._database.reader() as connection:
            yield from read_all_envelopes(connection, now, ENVELOPES)

    def settings(self) -> MigratedSettings:
        """Return the paused queues, limits, the state of rate limits, HTTP tokens and redacted parameters."""
        with self._database.reader() as connection:
            paused = sorted(strings(connection.execute(waiting_statements.PAUSED_QUEUES).get))
            rates: Any = connection.execute(RATES).fetchall()
            return MigratedSettings(
                tuple(paused),
                tuple(read_limits(connection)),
                dict(rates),
                tuple(read_tokens(connection)),
                tuple(PutRedaction(*each) for each in read_redactions(connection).items()),
            )


def _wake_no_worker() -> None:
    """Do nothing: no worker uses the file."""
