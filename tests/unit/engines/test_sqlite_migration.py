"""Files of the first version, as early users have them: opened by today's engine, their jobs go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from mainspring.engines.sqlite import schema
from mainspring.jobs.commands import Replay
from mainspring.jobs.limits import bucket_of
from mainspring.jobs.records import Cause, Outcome, OutcomeKind, Query
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench, seconds
from tests.unit.engines.crash_points import integrity, opened
from tests.unit.engines.store_invariants import check_invariants

# The tables as the first release made them. Never change this: files out there do not change either.
VERSION_ONE = """
    CREATE TABLE lanes (
        id       INTEGER PRIMARY KEY,
        queue    TEXT NOT NULL,
        type     TEXT NOT NULL,
        priority INTEGER NOT NULL,
        UNIQUE (queue, type, priority)
    ) STRICT;

    CREATE TABLE jobs (
        seq           INTEGER PRIMARY KEY AUTOINCREMENT,
        id            TEXT NOT NULL,
        lane          INTEGER NOT NULL REFERENCES lanes (id),
        status        INTEGER NOT NULL DEFAULT 0,
        due           INTEGER NOT NULL,
        created       INTEGER NOT NULL,
        payload       ANY NOT NULL,
        codec         TEXT NOT NULL,
        token         INTEGER NOT NULL DEFAULT 0,
        owner         INTEGER,
        starts        INTEGER NOT NULL DEFAULT 0,
        failures      INTEGER NOT NULL DEFAULT 0,
        timeouts      INTEGER NOT NULL DEFAULT 0,
        crashes       INTEGER NOT NULL DEFAULT 0,
        interruptions INTEGER NOT NULL DEFAULT 0,
        started       INTEGER,
        finished      INTEGER,
        result        ANY,
        error         TEXT,
        stop          INTEGER,
        origin        TEXT,
        replayed_as   TEXT,
        history       TEXT
    ) STRICT;

    CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
    CREATE INDEX jobs_by_status ON jobs (status, seq);
    CREATE INDEX claimable ON jobs (lane, due) WHERE status = 0 AND owner IS NULL AND crashes < 2;
    CREATE INDEX suspects ON jobs (lane, due) WHERE status = 0 AND owner IS NULL AND crashes >= 2;
    CREATE INDEX jobs_by_owner ON jobs (owner) WHERE owner IS NOT NULL;
    CREATE INDEX stops ON jobs (owner) WHERE stop IS NOT NULL AND owner IS NOT NULL;

    CREATE TABLE workers (
        id        INTEGER PRIMARY KEY AUTOINCREMENT,
        name      TEXT NOT NULL,
        process   INTEGER NOT NULL,
        types     TEXT NOT NULL,
        started   INTEGER NOT NULL,
        heartbeat INTEGER NOT NULL
    ) STRICT;
"""
HISTORY = '[{"number":1,"started":1,"ended":2,"cause":"failure","error":"it broke"}]'
DEAD = 7


class OldFile:
    """A file of the first version, and short ways to put rows into it."""

    def __init__(self, path: Path, now: int) -> None:
        self._connection = apsw.Connection(str(path))
        self._now = now
        self._connection.execute(VERSION_ONE)
        self._connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
        self._connection.execute("INSERT INTO lanes VALUES (1, 'default', 'ping', 1), (2, 'mail', 'pong', 2)")
        self._connection.execute("INSERT INTO workers VALUES (?, 'gone', 1, '[\"ping\"]', 0, 0)", (DEAD,))

    def add(self, job_id: str, after: float = 0, **columns: Any) -> None:
        values = {"id": job_id, "lane": 1, "due": self._now + seconds(after), "created": self._now}
        values |= {"payload": f'{{"job":"{job_id}"}}', "codec": "json"} | columns
        marks = ", ".join("?" * len(values))
        self._connection.execute(
            f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
        )

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def old(path: Path, clock: ManualClock) -> Any:
    now = round(clock.now().timestamp() * 1_000_000)
    file = OldFile(path, now)
    file.add("third", after=-1)
    file.add("first", after=-3)
    file.add("second", after=-2)
    file.add("pong", lane=2, payload=b"\x80", codec="msgpack")
    file.add("later", after=60)
    file.add("held by the dead", owner=DEAD, token=3)
    file.add("orphan", status=1, owner=DEAD, token=5, starts=1, started=now)
    file.add("suspect", crashes=2)
    file.add("stopped", status=1, owner=DEAD, token=1, starts=1, stop=1)
    file.add("retried", after=30, failures=1, starts=1, error="it broke", history=HISTORY)
    file.add("done", status=2, finished=now, result="42")
    file.add("letter", status=3, finished=now, error="it broke", failures=1, history=HISTORY)
    file.add("called off", status=4, finished=now)
    file.close()
    return file


def test_the_first_version_is_the_one_that_was_released() -> None:
    def words(sql: str) -> list[str]:
        lines = (line.partition("--")[0] for line in sql.splitlines())
        return " ".join(lines).split()

    assert words(schema.MIGRATIONS[0]) == words(VERSION_ONE)


def test_jobs_of_an_old_file_run_in_the_order_of_their_due_times(
    path: Path, clock: ManualClock, old: OldFile
) -> None:
    with opened(path, clock) as bench:
        worker = bench.enroll()
        assert bench.take_ids(worker, suspects=False, ahead=0) == ["first", "second", "third"]
        (pong,) = bench.take(bench.enroll("pong"), "pong", queues=("mail",))
        assert (pong.payload, pong.codec, pong.priority) == (b"\x80", "msgpack", 2)


def test_an_old_file_keeps_what_it_says_about_its_jobs(path: Path, clock: ManualClock, old: OldFile) -> None:
    with opened(path, clock) as bench:
        assert bench.record("done").result == b"42"
        letter = bench.record("letter")
        assert (letter.status, letter.error, letter.failures) == (JobStatus.FAILED, "it broke", 1)
        assert [attempt.error for attempt in letter.history] == ["it broke"]
        later = bench.record("later")
        assert (later.payload, later.due) == (b'{"job":"later"}', bench.now + seconds(60))
        assert (later.sequence, later.limits, later.unique_key, later.headers) == (None, (), None, None)
        assert (later.follow_up, later.progress, later.expires, later.steps_aside) == (None, None, None, False)
        counts = bench.engine.counts()
        assert [counts[status] for status in JobStatus] == [8, 2, 1, 1, 1]


def test_everything_that_waits_in_an_old_file_or_was_lost_runs_to_its_end(
    path: Path, clock: ManualClock, old: OldFile
) -> None:
    with opened(path, clock) as bench:
        worker = bench.enroll("ping", "pong")
        completed: list[str] = []
        for _ in range(15):
            bench.pass_time(5)
            assert bench.engine.renew(worker)
            bench.engine.sweep(worker)
            while leases := bench.take(worker, "ping", "pong", ahead=0):
                bench.complete(worker, *leases)
                completed += [lease.id for lease in leases]
        waited = ["first", "second", "third", "pong", "later", "held by the dead", "orphan", "suspect", "retried"]
        assert sorted(completed) == sorted(waited)
        assert bench.status("stopped") is JobStatus.CANCELED
    assert integrity(path) == "ok"
    check_invariants(path)


def test_jobs_of_an_old_file_and_new_ones_share_sequences_limits_and_keys(
    path: Path, clock: ManualClock, old: OldFile
) -> None:
    with opened(path, clock) as bench:
        bench.limit("one", 1)
        bench.submit("new 1", "new 2", sequence="s", limits=(bucket_of("one"),))
        bench.submit("plain")
        worker = bench.enroll()
        assert bench.take_ids(worker, suspects=False, ahead=0) == ["first", "second", "third", "new 1", "plain"]
        assert bench.situation("new 2").behind == "new 1"
        assert bench.change(Replay("letter", "copy", 0)).is_done
    check_invariants(path)


def test_an_old_worker_that_comes_back_is_told_that_it_is_dead(
    path: Path, clock: ManualClock, old: OldFile
) -> None:
    with opened(path, clock) as bench:
        worker = bench.enroll()
        bench.engine.sweep(worker)
        assert not bench.engine.renew(DEAD)
        assert {record.owner for record in bench.engine.find(Query(limit=100)).records} <= {None, worker}


def test_an_old_file_is_brought_up_to_date_once_and_is_whole(path: Path, clock: ManualClock, old: OldFile) -> None:
    for _ in range(2):
        with opened(path, clock) as bench:
            assert len(bench.find_ids(limit=100)) == 13
    connection = apsw.Connection(str(path))
    try:
        assert connection.pragma("user_version") == schema.VERSION
        assert list(connection.execute("PRAGMA foreign_key_check")) == []
        assert [row[2] for row in connection.execute("PRAGMA foreign_key_list(jobs)")] == ["lanes"]
        fresh = apsw.Connection(":memory:")
        for migration in schema.MIGRATIONS:
            fresh.execute(migration)
        names = "SELECT type, name FROM sqlite_schema WHERE name NOT LIKE 'sqlite_stat%' ORDER BY 1, 2"
        assert list(connection.execute(names)) == list(fresh.execute(names))
        fresh.close()
    finally:
        connection.close()


def test_attempts_of_before_count_in_an_old_file(path: Path, clock: ManualClock, old: OldFile) -> None:
    with opened(path, clock) as bench:
        bench.pass_time(30)
        leases = {lease.id: lease for lease in take_all(bench)}
        retried = leases["retried"]
        assert retried.failures == 1
        outcome = Outcome(retried, OutcomeKind.FAILED, error="again", cause=Cause.FAILURE)
        assert bench.engine.settle(bench.record("retried").owner or 0, [outcome]) == [True]
        assert [attempt.error for attempt in bench.record("retried").history] == ["it broke", "again"]


def take_all(bench: Bench) -> list[Any]:
    return bench.take(bench.enroll(), suspects=False, ahead=0)
