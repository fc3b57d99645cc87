"""A seeded user of one SQLite store, and a ledger of its own: what the store has confirmed, and when.

The ledger is a list in memory. It knows of each job what was attempted and what was confirmed, and compares that
with a store that a fault has left.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import apsw

from mainspring.engines.sqlite import SqliteEngine
from mainspring.errors import MainspringError
from mainspring.jobs.records import Lease, OutcomeKind, Query
from mainspring.jobs.status import JobStatus
from mainspring.testing import ManualClock
from mainspring.testing.conformance.bench import Bench
from tests.stress.disk_recorder import STORE

ENDS = {
    OutcomeKind.COMPLETED: JobStatus.COMPLETED,
    OutcomeKind.FAILED: JobStatus.FAILED,
    OutcomeKind.CANCELED: JobStatus.CANCELED,
}
LARGE = b'"' + b"x" * 20_000 + b'"'  # a payload of several pages


class Ledger:
    """What the user has attempted, and what the store has confirmed after how many events of the disk."""

    def __init__(self) -> None:
        self.submits: dict[str, int | None] = {}  # attempted jobs, and when their submit was confirmed
        self.ends: dict[str, tuple[JobStatus, int | None]] = {}  # attempted ends, and when they were confirmed
        self.confirmed = 0

    def check(self, found: dict[str, JobStatus], cut: float) -> None:
        """Require that a store has all that was confirmed before `cut`, and nothing that was not attempted."""
        assert not found.keys() - self.submits.keys(), "a job came from nowhere"
        for job, at in self.submits.items():
            if at is not None and at <= cut:
                assert job in found, f"{job} was confirmed and is lost"
        for job, status in found.items():
            expected, at = self.ends.get(job, (None, None))
            if at is not None and at <= cut:
                assert status is expected, f"{job} was confirmed as {expected}, and is {status}"
            else:
                assert status in (JobStatus.PENDING, JobStatus.RUNNING, expected), f"{job} is {status}"


class DiskShop:
    """Submits, claims, settles, cancels, empties the log and reopens the store, in an order that the seed decides.

    - `position`: returns after how many events of the disk something was confirmed
    - `closing`: a context manager around each close of the store
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        position: Callable[[], int],
        closing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._closing = closing
        self.ledger = Ledger()
        self.errors: list[MainspringError] = []
        self._path = folder / STORE
        self._position = position
        self._chance = random.Random(seed)
        self._clock = ManualClock()
        self._bench: Bench | None = None
        self._worker = 0
        self._leases: list[Lease] = []
        self._waiting: list[str] = []
        self._steps: list[tuple[Callable[[], None], int]] = [
            (self.submit, 8),
            (self.claim, 4),
            (self.settle, 6),
            (self.cancel, 2),
            (self.checkpoint, 2),
            (self.reopen, 1),
        ]

    def run(self, operations: int) -> None:
        """Make so many operations. The error of the store ends an operation, and the next one follows."""
        steps, weights = zip(*self._steps, strict=True)
        for step in self._chance.choices(steps, weights, k=operations):
            try:
                self._open()
                step()
            except MainspringError as error:
                self.errors.append(error)

    def close(self) -> None:
        """Close the store."""
        if self._bench is not None:
            with self._closing():
                self._bench.engine.close()
            self._bench = None

    def _open(self) -> Bench:
        if self._bench is None:
            bench = Bench(SqliteEngine(self._path, clock=self._clock, durability="full"), self._clock)
            self._worker, self._leases = 0, []
            self._bench = bench
        if not self._worker:
            self._worker = self._bench.enroll()
        return self._bench

    def submit(self) -> None:
        """Submit some jobs in one transaction, sometimes large ones."""
        first = len(self.ledger.submits)
        ids = [f"job {number}" for number in range(first, first + self._chance.choice([1, 1, 1, 4, 30]))]
        self.ledger.submits.update(dict.fromkeys(ids))
        self._open().submit(*ids, payload=LARGE if self._chance.random() < 0.2 else b"{}")
        self.ledger.submits.update(dict.fromkeys(ids, self._position()))
        self.ledger.confirmed += len(ids)
        self._waiting += ids

    def claim(self) -> None:
        """Claim some jobs. They are RUNNING, but the disk does not have to know that yet."""
        self._leases += self._open().take(self._worker, starts=self._chance.randint(1, 5))

    def settle(self) -> None:
        """Settle a job that was claimed."""
        if self._leases:
            lease = self._leases.pop(self._chance.randrange(len(self._leases)))
            kind = self._chance.choice(list(ENDS))
            self._end(lease.id, ENDS[kind], lambda: self._open().settle(self._worker, lease, kind))

    def cancel(self) -> None:
        """Cancel a job that waits, unless it was claimed."""
        running = {lease.id for lease in self._leases}
        waiting = [job for job in self._waiting if job not in running and job not in self.ledger.ends]
        if waiting and not running:  # a claim that was not confirmed may have started any job
            job = self._chance.choice(waiting)
            self._end(job, JobStatus.CANCELED, lambda: self._open().cancel(job).status is JobStatus.PENDING)

    def _end(self, job: str, status: JobStatus, call: Callable[[], bool]) -> None:
        self.ledger.ends[job] = status, None
        if call():
            self.ledger.ends[job] = status, self._position()
            self.ledger.confirmed += 1

    def checkpoint(self) -> None:
        """Copy the log into the file, as far as possible; sometimes empty it."""
        self._open()
        mode = self._chance.choice(["PASSIVE", "RESTART", "TRUNCATE"])
        try:
            with closing(apsw.Connection(str(self._path))) as connection:
                connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except apsw.Error:  # the disk has failed; the engine reports that, too
            pass

    def reopen(self) -> None:
        """Close the store, so that SQLite copies the log into the file and deletes it."""
        self.close()


def statuses_in(path: Path) -> dict[str, JobStatus]:
    """Return all jobs of a store with their statuses, by the engine, and require that the file is undamaged."""
    clock = ManualClock()
    bench = Bench(SqliteEngine(path, clock=clock), clock)
    try:
        records = bench.engine.find(Query(limit=100_000)).records
        with closing(apsw.Connection(str(path))) as connection:
            assert connection.pragma("integrity_check") == "ok"
        return {record.id: record.status for record in records}
    finally:
        bench.engine.close()


def work_off(path: Path) -> None:
    """Let a new worker rescue and complete all jobs of a store, and require that nothing is left."""
    clock = ManualClock()
    bench = Bench(SqliteEngine(path, clock=clock, durability="normal"), clock)
    try:
        worker = bench.enroll()
        bench.outlive(worker)
        while leases := bench.take(worker, starts=500):
            bench.complete(worker, *leases)
        counts = bench.engine.counts()
        assert counts[JobStatus.PENDING] == counts[JobStatus.RUNNING] == 0
    finally:
        bench.engine.close()
