"""The engine on one SQLite file.

Everything a worker does to a batch of jobs is a handful of statements in one transaction. Leases have no expiry of
their own: a job belongs to an incarnation of a worker, and that one holds a file lock and has a heartbeat.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from mainspring.clock import Clock, SystemClock
from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.commands import Commands
from mainspring.engines.sqlite.database import Database, Durability, Probe
from mainspring.engines.sqlite.lanes import Lanes
from mainspring.engines.sqlite.presence import Listener, Presence
from mainspring.engines.sqlite.reading import count, find
from mainspring.engines.sqlite.rows import (
    PENDING,
    RUNNING,
    LeaseRow,
    are_equal,
    completed_rows,
    equal_rows,
    first_dues,
    lease_rows,
    new_rows,
    outcome_rows,
    pairs_of_integers,
    strings,
    to_json,
    to_lease,
)
from mainspring.errors import EngineUnavailable
from mainspring.jobs.engine import (
    FRESH,
    HEAD_START,
    MAX_CRASHES,
    Capability,
    Changed,
    Command,
    Demand,
    FreshShare,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    Page,
    Query,
    Swept,
    Taken,
    WorkerInfo,
)
from mainspring.jobs.instants import to_instant
from mainspring.jobs.status import JobStatus
from mainspring.jobs.vigil import Vigil

BUSY_TIMEOUT_SECONDS = 30.0
NEAR = 2_500_000  # microseconds: jobs due sooner wake workers, the others are found by a look once a second


logger = logging.getLogger("mainspring.sqlite")


class SqliteEngine:
    """Jobs in one file. Several processes may use it at once; each is woken by the others' submits."""

    capabilities = frozenset(
        {
            Capability.ATOMIC_UNIT,
            Capability.ATOMIC_BATCH,
            Capability.VIRTUAL_TIME,
            Capability.BACKUP,
            Capability.SHARED,
        }
    )

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        busy_timeout: float = BUSY_TIMEOUT_SECONDS,
        max_crashes: int = MAX_CRASHES,
        is_shared: bool = True,
        probe: Probe | None = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise ValueError(f"durability must be 'full' or 'normal', got {durability!r}")
        self.path = os.path.realpath(path)  # all who come by a link must find the same locks
        self._clock = clock or SystemClock()
        self._max_crashes = max_crashes
        self._is_shared = is_shared
        self._database = Database(
            self.path, durability=durability, busy_timeout=busy_timeout, is_shared=is_shared, probe=probe
        )
        self._database.after_commit = self._announce
        self._database.after_rollback = self._take_back
        self._lanes = Lanes(self._database)
        self._commands = Commands(self._database, self.now)
        self._presence = Presence(self.path)
        self._listeners: dict[int, Listener] = {}
        self._wake: Callable[[], None] = _nothing
        self._must_wake = False  # set inside of a unit, acted upon after its commit
        self._must_wake_others = False
        self._arrived: list[int] = []  # workers of this unit, which leave again if it is rolled back
        self._buried: list[int] = []  # workers whose files go when this unit is committed
        self._fresh = FreshShare()
        self._vigil = Vigil(self._clock)

    start_lead = 10_000

    @property
    def description(self) -> str:
        return f"SQLite file {self.path}"

    def now(self) -> int:
        return to_instant(self._clock.now(), "now")

    def open(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._database.open()

    def close(self) -> None:
        for worker in list(self._listeners):
            self._listeners.pop(worker).close()
        self._presence.close()
        self._database.close()
        self._lanes.forget()

    def unit(self, *, durable: bool) -> AbstractContextManager[None]:
        return self._database.unit(durable=durable)

    def _wake_up(self) -> None:
        self._wake()

    def _announce(self) -> None:
        must_wake, self._must_wake = self._must_wake, False
        must_wake_others, self._must_wake_others = self._must_wake_others, False
        buried, self._buried = self._buried, []
        self._arrived.clear()
        try:
            for worker in buried:
                self._presence.forget(worker)
            if must_wake:
                self._wake()
            if must_wake_others and self._is_shared:
                self._presence.wake_others()
        except Exception:  # what was committed is committed: nobody may take this for a failure of it
            logger.exception("%s: workers could not be woken; they look once a second", self.description)

    def _wake_all(self) -> None:
        """Wake this process and all others, once the current unit is committed."""
        self._must_wake = self._must_wake_others = True

    def _take_back(self) -> None:
        self._must_wake = self._must_wake_others = False
        self._buried.clear()
        self._lanes.forget()
        for worker in self._arrived:
            self._end_presence(worker)
        self._arrived.clear()

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[str | None]:
        if not jobs:
            return []
        write = self._database.write
        now = self.now()
        with self.unit(durable=True):
            lanes = self._lanes.numbers({(job.queue, job.type, job.priority) for job in jobs})
            last = write(sql.LAST_SEQ)
            if are_equal(jobs):
                first = jobs[0]
                lane = lanes[first.queue, first.type, first.priority]
                write(sql.INSERT_EQUAL, (equal_rows(jobs), now, lane, first.due, first.codec))
            else:
                write(sql.INSERT, (new_rows(jobs, lanes), now))
            is_complete = self._database.changes() == len(jobs)
            self._must_wake = True
            self._must_wake_others |= min(job.due for job in jobs) <= now + NEAR
            return [None] * len(jobs) if is_complete else self._conflicts([job.id for job in jobs], last)

    def _conflicts(self, ids: list[str], last: int) -> list[str | None]:
        taken = set(strings(self._database.write(sql.IN_THE_WAY, (to_json(ids), last))))
        answers: list[str | None] = []
        for job_id in ids:
            answers.append(job_id if job_id in taken else None)
            taken.add(job_id)  # a second one of the same batch is in the way of itself
        return answers

    def change(self, commands: Sequence[Command]) -> list[Changed]:
        with self.unit(durable=True):
            answers = self._commands.carry_out(commands)
            self._wake_all()  # something may have become due, or is to be stopped
            return answers

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        with self.unit(durable=True):
            number: int = self._database.write(
                sql.ENROLL, (worker.name, worker.process, to_json(worker.types), self.now())
            )
            if self._is_shared:  # before the commit: whoever sees the worker finds its lock held
                self._arrived.append(number)
                self._begin_presence(number)
            return number

    def _begin_presence(self, worker: int) -> None:
        self._presence.arrive(worker)
        self._listeners[worker] = Listener(
            self._presence.make_pipe(worker),
            self._database.watch(),
            self._wake_up,
            name=f"mainspring-listener-{worker}",
        )

    def _end_presence(self, worker: int) -> None:
        listener = self._listeners.pop(worker, None)
        if listener is not None:
            listener.close()
        self._presence.depart(worker)

    def renew(self, worker: int) -> bool:
        with self.unit(durable=False):
            self._database.write(sql.RENEW, (worker, self.now()))
            return self._database.changes() == 1

    def leave(self, worker: int) -> None:
        with self.unit(durable=False):
            self._database.write(sql.GIVE_BACK_HELD, (worker,))
            has_left_jobs = self._database.write(sql.HAS_OWNER, (worker,))  # the next sweep rescues them
            self._database.write(sql.DECLARE_DEAD if has_left_jobs else sql.LEAVE, (worker,))
        self._end_presence(worker)

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        write = self._database.write
        now = self.now()
        leases: list[Lease] = []
        dues: list[int] = []
        is_more = False
        with self.unit(durable=False):
            if not write(sql.IS_ENROLLED, (worker,)):
                return Taken([], None, is_more=False, stops=[], is_alive=False)
            for demand in demands:
                lanes = self._lanes.matching(demand.types, demand.queues)
                if not lanes:
                    continue
                due = self._take_due(worker, demand, lanes, now, now + start_lead)
                is_more |= len(due) >= demand.starts
                leases += due
                next_due = write(sql.NEXT_DUE, (lanes, now + start_lead))
                if demand.ahead > 0 and next_due is not None and next_due <= now + lead:
                    leases += self._take_ahead(worker, demand, lanes, now + start_lead, now + lead)
                    next_due = write(sql.NEXT_DUE, (lanes, now + start_lead))
                if next_due is not None:
                    dues.append(next_due)
            stops = strings(write(sql.STOPS, (worker,)))
        return Taken(leases, min(dues, default=None), is_more, stops)

    def _take_due(self, worker: int, demand: Demand, lanes: str, now: int, until: int) -> list[Lease]:
        if demand.starts <= 0:
            return []
        first, first_suspect = first_dues(self._database.write(sql.FIRST_DUE, (lanes,)))
        rows = [] if first is None or first > until else self._pick_due(demand, lanes, now, until)
        if demand.suspects and first_suspect is not None and first_suspect <= until:
            rows += lease_rows(self._database.write(sql.PICK_SUSPECTS, (lanes, 1, until)))
            rows = sorted(rows, key=self._rank)[: demand.starts]
        if rows:
            self._database.write(sql.MARK_STARTED, (to_json([row.seq for row in rows]), worker, now))
        return [to_lease(row, self._lanes.describe(row.lane), is_started=True) for row in rows]

    def _pick_due(self, demand: Demand, lanes: str, now: int, until: int) -> list[LeaseRow]:
        rows = lease_rows(self._database.write(sql.PICK_DUE, (lanes, demand.starts, until)))
        share = self._fresh.share(demand.starts, rows[0].due if len(rows) == demand.starts else now, now)
        if not share:
            return rows
        fresh = lease_rows(self._database.write(sql.PICK_AHEAD, (lanes, share, now - FRESH, until)))
        chosen = {row.seq for row in fresh}
        return [row for row in rows if row.seq not in chosen][: demand.starts - len(fresh)] + fresh

    def _rank(self, row: LeaseRow) -> tuple[int, int]:
        _, _, priority = self._lanes.describe(row.lane)
        return row.due - HEAD_START * priority, row.seq

    def _take_ahead(self, worker: int, demand: Demand, lanes: str, after: int, until: int) -> list[Lease]:
        rows = lease_rows(self._database.write(sql.PICK_AHEAD, (lanes, demand.ahead, after, until)))
        if rows:
            self._database.write(sql.MARK_HELD, (to_json([row.seq for row in rows]), worker))
        return [to_lease(row, self._lanes.describe(row.lane), is_started=False) for row in rows]

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        batch = to_json([(lease.ref, lease.token) for lease in leases])
        with self.unit(durable=False):
            current = set(pairs_of_integers(self._database.write(sql.CURRENT, (batch, worker, PENDING))))
            self._database.write(sql.START, (batch, worker, self.now()))
        return [(lease.ref, lease.token) in current for lease in leases]

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        if not outcomes:
            return []
        completed = [outcome for outcome in outcomes if outcome.kind is OutcomeKind.COMPLETED]
        others = [outcome for outcome in outcomes if outcome.kind is not OutcomeKind.COMPLETED]
        now = self.now()
        accepted: set[tuple[Hashable, int]] = set()
        with self.unit(durable=True):
            if completed:
                accepted |= self._settle(sql.COMPLETE, completed_rows(completed), completed, worker, now)
            if others:
                accepted |= self._settle(sql.SETTLE, outcome_rows(others, now), others, worker, now)
                self._wake_all()
        return [(outcome.lease.ref, outcome.lease.token) in accepted for outcome in outcomes]

    def _settle(
        self, statement: str, batch: str, outcomes: list[Outcome], worker: int, now: int
    ) -> set[tuple[Hashable, int]]:
        """Carry out one statement for all; if some are refused, find out which and carry it out for the rest."""
        write = self._database.write
        accepted: set[tuple[Hashable, int]]
        write("SAVEPOINT settling")
        write(statement, (batch, worker, now))
        if self._database.changes() != len(outcomes):
            write("ROLLBACK TO settling")
            accepted = set(pairs_of_integers(write(sql.CURRENT, (batch, worker, RUNNING))))
            write(statement, (batch, worker, now))
        else:
            accepted = {(outcome.lease.ref, outcome.lease.token) for outcome in outcomes}
        write("RELEASE settling")
        return accepted

    def sweep(self, worker: int) -> Swept:
        write = self._database.write
        now = self.now()
        with self.unit(durable=True):
            dead = self._find_dead(worker)
            batch = to_json(dead)
            rescued = strings(write(sql.RESCUED, (batch, self._max_crashes))) if dead else []
            quarantined = strings(write(sql.QUARANTINED, (batch, self._max_crashes))) if dead else []
            if dead:
                write(sql.RESCUE, (batch, self._max_crashes, now))
                write(sql.RELEASE, (batch,))
                write(sql.BURY, (batch,))
                self._buried += dead
                self._wake_all()
            waiting = tuple(strings(write(sql.WAITING, (now,))))
        return Swept(rescued, quarantined, waiting)

    def _find_dead(self, worker: int) -> list[int]:
        others = dict(pairs_of_integers(self._database.write(sql.OTHERS, (worker,))))
        silent = set(self._vigil.find_silent(others))
        return [
            number for number in others if number in silent or (self._is_shared and self._presence.is_dead(number))
        ]

    # -- readers

    def find(self, query: Query) -> Page:
        with self._database.reader() as connection:
            return find(connection, query)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        with self._database.reader() as connection:
            return count(connection, queue=queue, type_=type)

    def backup(self, path: str) -> None:
        """Write a consistent, compact copy while everybody works on."""
        target = Path(path).absolute()
        if target.exists():
            raise FileExistsError(f"{target} exists; a backup is written to a new file")
        try:
            self._database.copy_to(str(target))
        except apsw.Error as error:
            target.unlink(missing_ok=True)
            raise EngineUnavailable(
                engine=self.description,
                reason=f"the backup to {target} failed ({error})",
                remedy="check that its directory exists, is writable and has room",
            ) from error


def _nothing() -> None:
    return None
