"""Bare loops on the table of the SQLite engine: the upper bound that the disk and SQLite allow."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter, time_ns
from typing import Any, TypeAlias

import apsw

from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.ids import JobIds

Row: TypeAlias = tuple[Any, ...]

LANE = 1
CACHE_KIB = 16_384
BATCH = 1_000

INSERT = "INSERT INTO jobs (id, lane, due, ready, created, payload, codec) VALUES (?, ?, ?, ?, ?, ?, ?)"
CLAIM = """
UPDATE jobs SET status = 1, owner = 1, token = token + 1, starts = starts + 1, started = ?1
WHERE seq IN (
    SELECT seq FROM jobs INDEXED BY claimable
    WHERE lane = 1 AND status = 0 AND owner IS NULL AND crashes < 2 AND wait = 0 AND ready <= ?1
    ORDER BY ready, seq LIMIT ?2)
RETURNING seq, token, payload
"""
SETTLE = """
UPDATE jobs SET status = 2, owner = NULL, finished = ?2 FROM json_each(?1) AS v
WHERE seq = v.value ->> 0 AND token = v.value ->> 1 AND +owner = 1 AND +status = 1
"""


@contextmanager
def table(store: Path) -> Iterator[apsw.Connection]:
    """Make the engine's tables and lend a connection with its settings, checkpoints aside."""
    engine = SqliteEngine(store)
    engine.open(lambda: None)
    engine.close()
    with closing(apsw.Connection(str(store))) as connection:
        connection.pragma("synchronous", "FULL")
        connection.pragma("cache_size", -CACHE_KIB)
        connection.pragma("wal_autocheckpoint", 0)  # the engine does not wait for them either
        connection.execute("INSERT INTO lanes (queue, type, priority, exact) VALUES ('default', 'work', 1, 0)")
        yield connection


def rows(count: int) -> list[Row]:
    """Make the rows that the engine would make."""
    now = time_ns() // 1_000
    ids = JobIds().make(now, count)
    return [(job_id, LANE, now, now, now, f'{{"value":{n}}}', "json") for n, job_id in enumerate(ids)]


def insert_rate(store: Path, count: int) -> float:
    """Insert rows that lie ready in one transaction, fsynced."""
    with table(store) as connection:
        ready = rows(count)
        began = perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, ready)
        connection.execute("COMMIT")
        return count / (perf_counter() - began)


def commit_rate(store: Path, count: int, synchronous: str) -> float:
    """Insert one by one on one thread, each in a transaction of its own."""
    with table(store) as connection:
        connection.pragma("synchronous", synchronous)
        ready = rows(count)
        began = perf_counter()
        for row in ready:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(INSERT, row)
            connection.execute("COMMIT")
        return count / (perf_counter() - began)


def group_commit_rate(store: Path, threads: int, each: int) -> float:
    """Insert one by one from many threads; one thread commits all that has queued up, each waits for its own."""
    with table(store) as connection:
        waiting: SimpleQueue[tuple[Row, Lock] | None] = SimpleQueue()
        committer = Thread(target=_commit, args=(connection, waiting))
        committer.start()
        submitters = [Thread(target=_submit, args=(waiting, rows(each))) for _ in range(threads)]
        began = perf_counter()
        for submitter in submitters:
            submitter.start()
        for submitter in submitters:
            submitter.join()
        took = perf_counter() - began
        waiting.put(None)
        committer.join()
        return threads * each / took


def _submit(waiting: SimpleQueue[tuple[Row, Lock] | None], ready: list[Row]) -> None:
    for row in ready:
        done = Lock()
        done.acquire()
        waiting.put((row, done))
        done.acquire()


def _commit(connection: apsw.Connection, waiting: SimpleQueue[tuple[Row, Lock] | None]) -> None:
    while (first := waiting.get()) is not None:
        batch = [first]
        try:
            while (more := waiting.get_nowait()) is not None:
                batch.append(more)
        except Empty:
            pass
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, [row for row, _ in batch])
        connection.execute("COMMIT")
        for _, done in batch:
            done.release()


def drain_rate(store: Path, count: int) -> float:
    """Claim and settle rows in batches, two transactions each, the settles fsynced; nothing is run."""
    with table(store) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, rows(count))
        connection.execute("COMMIT")
        began = perf_counter()
        while True:
            connection.pragma("synchronous", "NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            claimed: list[Any] = connection.execute(CLAIM, (time_ns() // 1_000, BATCH)).fetchall()
            connection.execute("COMMIT")
            if not claimed:
                return count / (perf_counter() - began)
            connection.pragma("synchronous", "FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(SETTLE, (json.dumps([row[:2] for row in claimed]), time_ns() // 1_000))
            connection.execute("COMMIT")
