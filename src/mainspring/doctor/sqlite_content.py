"""Checks the content of a SQLite file: schema, journal mode, integrity, log size, free pages, times, activity.

Invariants
- The file is opened read-only, so no check migrates, repairs or checkpoints it.
- Only SQLite opens the file. The process may be using the store, and when it closes any descriptor of a file, the
  kernel drops all locks that SQLite holds on the file for this process.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import apsw

from mainspring.clock import NANOSECONDS, Clock
from mainspring.doctor.findings import Finding, error, in_bytes, in_microseconds, in_seconds, info, ok, warning
from mainspring.engines.sqlite.connections import FileConnectionPool, translated
from mainspring.engines.sqlite.provider import stat_or_none
from mainspring.engines.sqlite.read_only import may_write
from mainspring.engines.sqlite.schema import VERSION, check
from mainspring.errors import MainspringError
from mainspring.jobs.activity import MINUTE
from mainspring.jobs.activity_rows import MINUTES_KEPT
from mainspring.jobs.timestamps import MICROSECONDS, to_instant

BUSY_MS = 2_000
STEPS = 10_000  # steps of SQLite's virtual machine between two reads of the clock
LONG_LOG = 64 << 20  # four times the size at which a writer runs a checkpoint itself
MUCH_FREE = 256 << 20
AHEAD = 2 * MICROSECONDS
VERSIONS = slice(18, 20)  # the write version and the read version in the header of the file
LOGGED = b"\x02\x02"  # their values in a file with a write-ahead log

HAS_TABLES = "SELECT count(*) = 2 FROM sqlite_schema WHERE type = 'table' AND name IN ('jobs', 'workers')"
LATEST = """
SELECT max(at) FROM (
    SELECT max(heartbeat) AS at FROM workers
    UNION ALL SELECT max(created) FROM (SELECT created FROM jobs ORDER BY seq DESC LIMIT 100))
"""
HAS_ACTIVITY = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'activity'"
LATEST_SUBMIT = "SELECT max(created) FROM (SELECT created FROM jobs ORDER BY seq DESC LIMIT 100)"
LATEST_COUNT = "SELECT max(minute) FROM activity"
GAP = 10 * MINUTE  # processes store their counts after 15 s, so a longer gap has a cause


@contextmanager
def opened_read_only(path: Path) -> Iterator[apsw.Connection]:
    """Open a read-only connection to a SQLite file, and close it at the end of the `with` block.

    Errors of SQLite, also those in the block, are raised as errors of Mainspring, such as `EngineUnavailable`.
    """
    pool = FileConnectionPool(  # a fork waits until the connection is closed, because a child must not inherit it
        str(path), busy_timeout_ms=BUSY_MS, prepare_writer=_leave_unchanged, on_close=_do_nothing
    )
    pool.is_read_only = True
    with translated(str(path)), pool.temporary() as connection:
        yield connection


def _leave_unchanged(_connection: apsw.Connection) -> None:
    raise AssertionError("no check writes")


def _do_nothing() -> None:
    return None


def check_schema(path: Path) -> Finding:
    """Report whether the file's schema is that of this version, or older and will be migrated, or empty.

    Raises `EngineUnavailable` if another program or a newer version wrote the file.
    """
    with opened_read_only(path) as connection:
        if check(connection, str(path)):  # raises for a file of another program, or of a newer version
            return ok(f"the schema of the file is version {VERSION}, that of this Mainspring")
        version = int(connection.pragma("user_version"))
    if version == 0:
        return info(
            "the file is empty", "The store was never used.", "The first submit or worker creates its tables."
        )
    return info(
        f"the schema of the file is version {version}, and that of this Mainspring is {VERSION}",
        "The first process that uses the file migrates it; older versions of Mainspring then cannot use it.",
        "Make a backup, stop all workers of the older version, and start a worker of this version.",
    )


def check_journal(path: Path) -> Finding:
    """Warn if the file has no write-ahead log: readers and writers then block each other."""
    if _has_log(path):
        return ok("the file has a write-ahead log")
    return warning(
        "the file has no write-ahead log",
        "A program has changed the journal mode, or the file is a copy. Readers and writers wait for each other.",
        "The next worker turns the log on again; find the program that turned it off.",
    )


def _has_log(path: Path) -> bool:
    """Return whether the file's header says that the file has a write-ahead log.

    A connection to an immutable file does not report this.
    """
    with opened_read_only(path) as connection:
        _, header = connection.read("main", 0, 0, VERSIONS.stop)  # zeros behind the end of a shorter file
        return header[VERSIONS] == LOGGED


def check_integrity(
    path: Path, clock: Clock, budget: float, on_step: Callable[[], None] = lambda: None
) -> Finding:
    """Search the file for damage, and report an error if there is any.

    After `budget` seconds, the search ends, and the finding says that the file was not checked. `on_step` is
    called repeatedly meanwhile.
    """
    deadline_ns = clock.monotonic_ns() + budget * NANOSECONDS

    def is_over() -> bool:
        on_step()
        return clock.monotonic_ns() >= deadline_ns

    with opened_read_only(path) as connection:
        connection.set_progress_handler(is_over, STEPS)
        try:
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
        except apsw.InterruptError:
            return info(
                f"the file is too large ({in_bytes(path.stat().st_size)}) to check for damage within "
                f"{in_seconds(budget)}",
                "Damage that is not noticed grows with every write.",
                "To check the whole file:",
                ("doctor", "--thorough"),
            )
    if found == ["ok"]:
        return ok("no damage is found in the file")
    return error(
        f"the file is damaged: {found[0].splitlines()[0]}",
        "Jobs may be lost or run twice, and the damage grows with every write.",
        "Stop all workers, keep a copy of the file with its -wal, and restore a backup; or save what can be read: "
        f"sqlite3 {shlex.quote(str(path))} .recover",
    )


def check_log(path: Path) -> Finding:
    """Warn if the write-ahead log has 64 MiB or more, because its content could not be copied into the file."""
    log = path.with_name(f"{path.name}-wal")
    size = log.stat().st_size if log.exists() else 0
    if size < LONG_LOG:
        return ok(f"the write-ahead log has {in_bytes(size)}")
    return warning(
        f"the write-ahead log has grown to {in_bytes(size)}; 16 MiB would be usual",
        "Probably a program keeps a read transaction open, so that the log cannot be copied into the file. Reads "
        "become slow, and the disk fills up.",
        "The log shrinks when all processes have closed it. Look for a long transaction or a suspended process: "
        f"lsof {shlex.quote(str(log))}",
    )


def check_free_pages(path: Path) -> Finding:
    """Report how much of the file is in use, with a remedy if at least a half and at least 256 MiB are free."""
    with opened_read_only(path) as connection:
        pages, free, size = (
            int(connection.pragma(name)) for name in ("page_count", "freelist_count", "page_size")
        )
    if free * size < MUCH_FREE or free < pages // 2:
        return ok(f"{in_bytes((pages - free) * size)} of {in_bytes(pages * size)} are in use")
    return info(
        f"of {in_bytes(pages * size)} only {in_bytes((pages - free) * size)} are in use",
        "New jobs use the free part again; until then it only takes space on the disk.",
        f"To free the space, with all workers stopped: sqlite3 {shlex.quote(str(path))} VACUUM",
    )


def check_times(path: Path, now: datetime) -> Finding:
    """Warn if a heartbeat, or one of the last 100 submits, is more than two seconds in the future.

    Then the clock was set back, or was wrong.
    """
    with opened_read_only(path) as connection:
        latest = connection.execute(LATEST).get if connection.execute(HAS_TABLES).get else None
    ahead = 0 if latest is None else int(latest) - to_instant(now, "now")
    if ahead <= AHEAD:
        return ok("the store has no times in the future")
    return warning(
        f"the newest time in the store is {in_microseconds(ahead)} ahead of the clock",
        "The clock was set back, or was wrong when this was written. Jobs that were submitted then are due too "
        "late, and schedules wait for the clock to catch up.",
        "Correct the clock. If it is correct now, look for jobs that are due too late:",
        ("jobs", "list", "--status", "pending"),
    )


def check_activity(path: Path, now: datetime) -> Finding:
    """Report whether the history of activity ends more than ten minutes before the last submit.

    Then a process does not store its counts. A submit of the last ten minutes is not checked.
    """
    with opened_read_only(path) as connection:
        if not connection.execute(HAS_ACTIVITY).get:
            return ok("the file is too old to have a history of activity")
        submitted = connection.execute(LATEST_SUBMIT).get
        minute = connection.execute(LATEST_COUNT).get
    at = to_instant(now, "now")
    if submitted is None or not at - MINUTES_KEPT < submitted < at - GAP:  # younger counts may be on their way
        return ok("the history of activity has no gap at its end")
    if minute is not None and submitted < (minute + 1) * MINUTE + GAP:
        return ok("the history of activity has no gap at its end")
    last = "no counts" if minute is None else f"no counts since {in_microseconds(at - minute * MINUTE)} ago"
    return info(
        f"the history of activity has {last}, and the last submit was {in_microseconds(at - submitted)} ago",
        "Processes with activity_pairs=0, processes of a version before the history, and killed processes add no "
        "counts. app.activity() and charts lack what they did; no job is lost.",
        "Look for such processes, and for 'the activity of this process is missing' in their logs.",
    )


def why_not_open(path: Path) -> str | None:
    """Return why the engine must not open the file: it would change the file, or fail. Return None if it may."""
    try:
        if stat_or_none(path) is None:
            return "there is no file"
        with opened_read_only(path) as connection:
            if not check(connection, str(path)):
                return "opening the file would migrate its schema"
        return None if _has_log(path) or not may_write(path) else "opening the file would change its journal mode"
    except (MainspringError, OSError):  # the checks above report the cause
        return "the file cannot be read"
