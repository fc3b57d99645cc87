"""`SqliteEngine`, the engine that stores jobs in one SQLite file.

Each operation handles a whole batch of jobs with a few statements in one transaction. A lease has no expiry time:
it ends when the job is settled or handed back, or when its worker is declared dead. A worker shows that it is
alive by a file lock and by heartbeats.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import apsw
from msgspec import to_builtins

from mainspring.clock import Clock, SystemClock
from mainspring.engines.sqlite import statements as sql
from mainspring.engines.sqlite.activity import add_batch, read_counts
from mainspring.engines.sqlite.audit import AuditWriter, read_entries
from mainspring.engines.sqlite.claiming import JobClaimer
from mainspring.engines.sqlite.codec import pairs_of_integers, to_json
from mainspring.engines.sqlite.commands import Commands
from mainspring.engines.sqlite.database import Database, Durability, Probe
from mainspring.engines.sqlite.dead_letters import DeadLetterNotifier, read_handlers
from mainspring.engines.sqlite.event_log import holds_position, read_events
from mainspring.engines.sqlite.explain import situation_of
from mainspring.engines.sqlite.limits import read_limits
from mainspring.engines.sqlite.provider import DEFAULT_TIMEOUT
from mainspring.engines.sqlite.pruning import Pruner
from mainspring.engines.sqlite.reading import (
    count,
    count_up_to,
    find,
    find_queues,
    read_backlog,
    read_leased,
    read_workers,
)
from mainspring.engines.sqlite.requests import RequestWriter
from mainspring.engines.sqlite.rescue import FailureDetector, JobRescuer
from mainspring.engines.sqlite.schedules import ScheduleWriter, read_occurrences, read_schedules
from mainspring.engines.sqlite.settling import JobSettler
from mainspring.engines.sqlite.spent_envelopes import read_spent
from mainspring.engines.sqlite.statistics import count_jobs, evaluate_by, limited_jobs, paused_queues
from mainspring.engines.sqlite.store import Store, read_callback_pauses, read_redactions
from mainspring.engines.sqlite.submitting import JobInserter
from mainspring.engines.sqlite.tokens import TokenWriter, read_tokens
from mainspring.engines.sqlite.upcoming_jobs import count_upcoming
from mainspring.engines.sqlite.upcoming_slots import find_fullest_slot
from mainspring.engines.sqlite.worker_files import WakeupListener, WorkerFiles
from mainspring.errors import EngineUnavailable
from mainspring.jobs.activity import MINUTE, EngineNote
from mainspring.jobs.activity_rows import ActivityBatch, ActivityCount
from mainspring.jobs.audit import AuditEntry, AuditQuery
from mainspring.jobs.audit_drafts import AuditDraft, draft_of_store
from mainspring.jobs.backlog import Backlog
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import (
    Arrangement,
    ChangeCallbackPause,
    Changed,
    Command,
    DirectWorker,
    DropDeadLetterHandler,
    DropLimit,
    DropRedaction,
    NoteTokenUses,
    PauseQueue,
    PauseSchedule,
    PutDeadLetterHandler,
    PutLimit,
    PutRedaction,
    PutSchedule,
    PutToken,
    RemoveSchedule,
    RemoveWorker,
    RevokeToken,
    TokenArrangement,
)
from mainspring.jobs.dead_letter_jobs import DeadLetterHandler, SignLetter
from mainspring.jobs.engine import MAX_CRASHES, Capability, Demand, Pruned, Retention, Situation, Swept, Taken
from mainspring.jobs.events import EventPage
from mainspring.jobs.records import (
    COMPLETED,
    Conflict,
    Lease,
    NewJob,
    Outcome,
    Page,
    ProgressReport,
    Query,
    RunningLease,
    WorkerInfo,
    WorkerRecord,
)
from mainspring.jobs.recurrence.schedule_records import Fired, Firing, Occurrence, ScheduleRecord
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestRecord
from mainspring.jobs.status import JobStatus
from mainspring.jobs.store_statistics import LOOKAHEAD, StoreStatistics, UpcomingJobs
from mainspring.jobs.timestamps import instants_of
from mainspring.security.permissions import TOKEN_CALLER
from mainspring.security.tokens import TokenRecord, removal_reason

# A submit wakes the workers of other processes if a job is due within this time. Otherwise they find the job in
# time when they poll, once a second.
WAKE_HORIZON = 2_500_000  # microseconds


Result = TypeVar("Result")

logger = logging.getLogger("mainspring.sqlite")


class SqliteEngine:
    """Stores jobs in one SQLite file. Several processes may share the file.

    A submit in one process wakes the workers of all processes if a job is due soon.
    """

    capabilities = frozenset(Capability)

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        busy_timeout: float = DEFAULT_TIMEOUT,
        max_crashes: int = MAX_CRASHES,
        is_shared: bool = True,
        probe: Probe | None = None,
    ) -> None:
        if durability not in ("full", "normal"):
            raise ValueError(f"durability must be 'full' or 'normal', got {durability!r}")
        # The real path, because a process that opens the file by a symlink must find the same lock files.
        self.path = os.path.realpath(path)
        database = Database(
            self.path,
            durability=durability,
            busy_timeout=busy_timeout,
            is_shared=is_shared,
            probe=probe,
            clock=clock,
        )
        self._assemble(database, clock, is_shared=is_shared, max_crashes=max_crashes)

    def _assemble(self, database: Database, clock: Clock | None, *, is_shared: bool, max_crashes: int) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self.now = self.latest = instants_of(self._clock)
        self._is_shared = is_shared
        self._database.after_commit = self._after_commit
        self._database.after_rollback = self._after_rollback
        self._store = store = Store(self._database, self.now, self._wake_all)
        self._inserter = JobInserter(store)
        self._dead_letters = DeadLetterNotifier(store, self._inserter)
        self._claimer = JobClaimer(store, self._dead_letters)
        self._settler = JobSettler(store, self._inserter, self._dead_letters)
        self._commands = Commands(store)
        self._schedules = ScheduleWriter(store, self._inserter, self._commands)
        self._rescuer = JobRescuer(store, max_crashes, self._dead_letters)
        self._requests = RequestWriter(store)
        self._pruner = Pruner(store, self._requests)
        self._tokens = TokenWriter(store)
        self._audit = AuditWriter(store)
        self._worker_files = WorkerFiles(self.path)
        self._listeners: dict[int, WakeupListener] = {}
        self._wake: Callable[[], None] = _nothing
        # set inside a unit (one transaction): after its commit, the workers of this process are woken,
        self._must_wake = False
        self._must_wake_others = False  # and those of other processes
        self._enrolled: list[int] = []  # workers that this unit has enrolled; a rollback removes their files
        self._dead_workers: list[int] = []  # dead workers whose files are removed after the commit of this unit
        self._failure_detector = FailureDetector(self._clock)

    start_lead = 10_000

    @property
    def description(self) -> str:
        return f"SQLite file {self.path}"

    @property
    def is_followed(self) -> bool:
        return self._store.events.is_followed

    def open(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._database.open()

    def close(self) -> None:
        while self._listeners:  # one by one: another thread may call `leave` at the same time
            self._listeners.popitem()[1].close()
        self._worker_files.close()
        self._database.close()
        self._store.forget()

    def unit(self, *, durable: bool) -> AbstractContextManager[None]:
        return self._database.unit(durable=durable)

    def in_unit(self, function: Callable[..., Result], *arguments: Any, durable: bool = True) -> Result:
        """Call a function in one transaction and return its result.

        Any thread may call it, even one that a signal handler may interrupt.
        """
        return self._database.run(function, *arguments, durable=durable)

    def _wake_up(self) -> None:
        self._wake()

    def _after_commit(self) -> None:
        self._enrolled.clear()
        self._store.notes.keep()
        if self._tokens.is_changed:
            self._tokens.end_unit()
        try:
            while self._dead_workers:
                self._worker_files.remove(self._dead_workers[-1])
                self._dead_workers.pop()
            # Each flag is cleared after its wake-up. If an interrupt comes in between, the database calls this
            # method again.
            if self._must_wake:
                self._wake()
                self._must_wake = False
            if self._must_wake_others:
                if self._is_shared:
                    self._worker_files.wake_others(self._database.version)
                self._must_wake_others = False
        except Exception:  # not raised, because the caller would take the error for a failed commit
            logger.exception(
                "%s: the files of dead workers could not be removed, or workers could not be woken; the change is "
                "stored, and workers also poll the store once a second",
                self.description,
            )
            self._must_wake = self._must_wake_others = False

    def _wake_all(self) -> None:
        """Request that the workers of all processes are woken after the commit of the current transaction."""
        self._must_wake = self._must_wake_others = True

    def _after_rollback(self) -> None:
        must_wake = self._must_wake
        self._must_wake = self._must_wake_others = False
        self._dead_workers.clear()
        self._tokens.end_unit()
        self._store.forget()
        if must_wake:
            self._wake()  # the commit may have succeeded, if an interrupt came right after it
        for worker in self._enrolled:
            self._remove_worker_files(worker)
        self._enrolled.clear()

    # -- submitters

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        return self.in_unit(self._submit, jobs) if jobs else []

    def _submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        answers = self._inserter.submit(jobs)
        self._store.quotas.check(jobs, answers)
        self._wake_for(jobs)
        return answers

    def _wake_for(self, jobs: Sequence[NewJob]) -> None:
        """Request wake-ups for new jobs: of this process's workers, and of other processes if a job is due soon.

        They happen after the commit of the current transaction.
        """
        self._must_wake = True
        first = jobs[0].due if len(jobs) == 1 else min(job.due for job in jobs)
        self._must_wake_others |= first <= self.now() + WAKE_HORIZON

    def change(self, commands: Sequence[Command], *, audit: AuditDraft | None = None) -> list[Changed]:
        return self.in_unit(self._change, commands, audit) if commands else []

    def _change(self, commands: Sequence[Command], audit: AuditDraft | None) -> list[Changed]:
        execute = self._commands.execute
        answers = execute(commands) if audit is None else self._audit.change(execute, commands, audit)
        self._wake_all()  # a command may have made a job due, or asked a worker to stop a job
        return answers

    def arrange(self, arrangements: Sequence[Arrangement], *, audit: AuditDraft | None = None) -> list[bool]:
        return self.in_unit(self._arrange_all, arrangements, audit)

    def _arrange_all(self, arrangements: Sequence[Arrangement], audit: AuditDraft | None) -> list[bool]:
        if audit is None:
            answers = [self._arrange(arrangement) for arrangement in arrangements]
        else:
            answers = self._audit.arrange(self._arrange, arrangements, audit)
        if any(answers) and not all(isinstance(each, TokenArrangement) for each in arrangements):
            self._wake_all()
        return answers

    def _arrange(self, arrangement: Arrangement) -> bool:
        match arrangement:
            case PutSchedule() | PauseSchedule() | RemoveSchedule():
                return self._arrange_schedule(arrangement)
            case (
                PutLimit() | DropLimit() | PauseQueue() | PutRedaction() | DropRedaction() | ChangeCallbackPause()
            ):
                return self._store.settings.change(arrangement)
            case PutDeadLetterHandler() | DropDeadLetterHandler():
                return self._dead_letters.change(arrangement)
            case PutToken() | RevokeToken() | NoteTokenUses():
                return self._tokens.change(arrangement)
            case DirectWorker(number, direction):
                self._database.write(sql.DIRECT, (number, direction.value))
                return self._database.changes() == 1
            case RemoveWorker(number, reason):
                self._database.write(sql.REMOVE, (number, reason))
                return self._database.changes() == 1

    def _arrange_schedule(self, arrangement: PutSchedule | PauseSchedule | RemoveSchedule) -> bool:
        match arrangement:
            case PutSchedule():
                return self._schedules.put(arrangement)
            case PauseSchedule():
                return self._schedules.pause(arrangement)
            case RemoveSchedule():
                return self._schedules.remove(arrangement)

    # -- workers

    def enroll(self, worker: WorkerInfo) -> int:
        with self.unit(durable=True):
            remote = None if worker.remote is None else to_json(to_builtins(worker.remote))
            values = (worker.name, worker.process, *_handler_columns(worker), self.now(), remote)
            number: int = self._database.write(sql.ENROLL, values)
            if (
                self._is_shared and worker.remote is None
            ):  # before the commit, so that a process that reads the worker finds its lock held
                self._enrolled.append(number)
                self._create_worker_files(number)
            return number

    def _create_worker_files(self, worker: int) -> None:
        self._worker_files.acquire(worker)
        self._listeners[worker] = WakeupListener(
            self._worker_files.make_pipe(worker),
            self._database.change_detector(),
            self._wake_up,
            name=f"mainspring-listener-{worker}",
        )

    def _remove_worker_files(self, worker: int) -> None:
        listener = self._listeners.pop(worker, None)
        if listener is not None:
            listener.close()
        if self._is_shared:
            self._worker_files.release(worker)

    def renew(self, worker: int, *, longest_lease: int | None = None) -> bool:
        with self.unit(durable=False):
            if longest_lease is not None:
                self._database.write(sql.SHORTEN_LEASE, (worker, longest_lease))
            self._database.write(sql.RENEW, (worker, self.now()))
            return self._database.changes() == 1

    def announce(self, worker: int, info: WorkerInfo) -> bool:
        with self.unit(durable=False):
            self._database.write(sql.ANNOUNCE, (worker, *_handler_columns(info)))
            return self._database.changes() == 1

    def leave(self, worker: int) -> None:
        with self.unit(durable=False):
            self._database.write(sql.RELEASE_HELD_OF_WORKER, (worker,))
            if self._database.changes():
                self._wake_all()  # other workers must find out when these jobs are due or expire
            has_left_jobs = self._database.write(sql.HAS_OWNER, (worker,))  # the next sweep rescues these jobs
            self._database.write(sql.DECLARE_DEAD if has_left_jobs else sql.DELETE_WORKER, (worker,))
        self._remove_worker_files(worker)

    def take(self, worker: int, demands: Sequence[Demand], *, lead: int, start_lead: int) -> Taken:
        with self.unit(durable=False):
            return self._claimer.take(worker, demands, lead=lead, start_lead=start_lead)

    def spent(self, ids: Sequence[str]) -> dict[str, int]:
        if not ids:
            return {}
        with self._database.reader() as connection:
            return read_spent(connection, ids)

    def sign_letters(self, sign: SignLetter) -> None:
        self._dead_letters.sign = sign

    def leased(self, worker: int) -> list[RunningLease]:
        with self._database.reader() as connection:
            return read_leased(connection, worker)

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        with self.unit(durable=False):
            return self._settler.start(worker, leases)

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        if not outcomes:
            return []
        with self.unit(durable=True):
            answers = self._settler.settle(worker, outcomes)
            follow_ups = [outcome.follow_up for outcome in outcomes if outcome.follow_up is not None]
            if follow_ups:
                self._wake_for(follow_ups)
            if any(outcome.kind is not COMPLETED for outcome in outcomes):
                self._wake_all()  # some of the jobs may run again
            return answers

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        if not reports:  # all handlers that had begun have ended meanwhile
            return []
        with self.unit(durable=False):
            return self._settler.report(worker, reports)

    def fire(self, firings: Sequence[Firing], *, audit: AuditDraft | None = None) -> list[Fired]:
        return self.in_unit(self._fire, firings, audit)

    def _fire(self, firings: Sequence[Firing], audit: AuditDraft | None) -> list[Fired]:
        answers = self._schedules.fire(firings)
        if audit is not None:
            self._audit.put_firings(firings, answers, audit)
        if any(answer.is_done for answer in answers):
            self._wake_all()
        return answers

    def prune(self, retention: Retention) -> Pruned:
        with self.unit(durable=False):
            return self._pruner.prune(retention)

    def sweep(self, worker: int) -> Swept:
        with self.unit(durable=True):
            self._remove_unauthorized()
            dead = self._find_dead(worker)
            swept = self._rescuer.rescue(dead)
            if dead:
                self._dead_workers += dead
                self._wake_all()
            return swept

    def _remove_unauthorized(self) -> None:
        """Remove the remote workers whose token was revoked or has expired, with an audit entry for each."""
        now = self.now()
        found = pairs_of_integers(self._database.write(sql.UNAUTHORIZED, (now, TOKEN_CALLER)))
        if found:
            removals = [
                RemoveWorker(number, removal_reason(is_revoked=bool(revoked))) for number, revoked in found
            ]
            self._audit.arrange(self._arrange, removals, draft_of_store(now))

    def _find_dead(self, worker: int) -> list[int]:
        others = dict(pairs_of_integers(self._database.write(sql.OTHERS, (worker,))))
        leases = dict(pairs_of_integers(self._database.write(sql.REMOTE_LEASES)))
        silent = set(self._failure_detector.find_silent(others, leases))
        is_dead = self._worker_files.is_dead if self._is_shared else _is_never_dead
        # a remote worker has no lock
        return [number for number in others if number in silent or (number not in leases and is_dead(number))]

    # -- readers

    def find(self, query: Query) -> Page:
        with self._database.reader() as connection:
            return find(connection, query)

    def counts(self, *, queue: str | None = None, type: str | None = None) -> dict[JobStatus, int]:
        with self._database.reader() as connection:
            return count(connection, queue=queue, type_=type)

    def count_up_to(self, query: Query, most: int) -> int:
        with self._database.reader() as connection:
            return count_up_to(connection, query, most)

    def queues(self) -> tuple[str, ...]:
        with self._database.reader() as connection:
            return find_queues(connection)

    def situation(self, job_id: str) -> Situation | None:
        with self._database.reader() as connection:
            return situation_of(connection, job_id, self.now())

    def schedules(
        self, *, names: Sequence[str] | None = None, due_until: int | None = None, limit: int | None = None
    ) -> list[ScheduleRecord]:
        with self._database.reader() as connection:
            return read_schedules(connection, names, due_until, limit)

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        with self._database.reader() as connection:
            return read_occurrences(connection, schedule, limit)

    def paused_queues(self) -> tuple[str, ...]:
        with self._database.reader() as connection:
            return paused_queues(connection)

    def callback_pauses(self) -> tuple[CallbackPauseRecord, ...]:
        with self._database.reader() as connection:
            return read_callback_pauses(connection)

    def limits(self) -> list[PutLimit]:
        with self._database.reader() as connection:
            return read_limits(connection)

    def dead_letter_handlers(self) -> list[DeadLetterHandler]:
        with self._database.reader() as connection:
            return read_handlers(connection)

    def redactions(self) -> dict[str, tuple[str, ...]]:
        with self._database.reader() as connection:
            return read_redactions(connection)

    def tokens(self) -> list[TokenRecord]:
        with self._database.reader() as connection:
            return read_tokens(connection)

    @property
    def token_changes(self) -> int:
        return self._tokens.changes

    def audit_entries(self, query: AuditQuery) -> list[AuditEntry]:
        with self._database.reader() as connection:
            return read_entries(connection, query)

    def workers(self) -> list[WorkerRecord]:
        with self._database.reader() as connection:
            return read_workers(connection, self._worker_files.is_dead if self._is_shared else _is_never_dead)

    def backlog(self) -> list[Backlog]:
        with self._database.reader() as connection:
            return read_backlog(connection, self.now())

    def statistics(self, *, lookahead: int = LOOKAHEAD) -> StoreStatistics:
        with self._database.reader() as connection, connection:  # all statements see the same jobs
            paused = paused_queues(connection)
            now = self.now()  # after the first statement, so that no job counts as promoted in the future
            counted = count_jobs(connection, now, limited_jobs)
            groups = counted.add_up(paused=paused, find_full=evaluate_by(connection, now))
            fullest = find_fullest_slot(connection, now, lookahead=lookahead)
        return StoreStatistics(now, paused, groups, fullest)

    def upcoming(self, edges: Sequence[int]) -> list[UpcomingJobs]:
        with self._database.reader() as connection, connection:  # all statements see the same jobs
            found = count_upcoming(connection, edges)
        return found  # noqa: RET504 - for mypy, a transaction might swallow exceptions

    def listen(self, until: int) -> str:
        return self.in_unit(self._store.events.listen, until, durable=False)

    def events(self, after: str, limit: int) -> EventPage:
        with self._database.reader() as connection:
            return read_events(connection, after, limit)

    def holds(self, position: str) -> bool:
        with self._database.reader() as connection:
            return holds_position(connection, position, self.now())

    # -- monitoring

    def take_notes(self) -> list[EngineNote]:
        return self._store.notes.take()

    def record_activity(self, batch: ActivityBatch) -> None:
        with self.unit(durable=False):
            add_batch(self._database.write, batch, self.now())

    def activity(self, since: int, until: int, *, step: int = MINUTE) -> list[ActivityCount]:
        with self._database.reader() as connection:
            return read_counts(connection, since, until, step)

    # -- requests

    def begin_requests(self, requests: Sequence[NewRequest]) -> list[RequestRecord | None]:
        # Not durable: the commit that stores the jobs of a request makes this one durable, too.
        return self.in_unit(self._requests.begin, requests, durable=False)

    def end_requests(self, ends: Sequence[RequestEnd]) -> list[bool]:
        return self.in_unit(self._requests.end, ends)

    def backup(self, path: str) -> None:
        """Write a consistent, compact copy of the store to a new file. Processes can use the store meanwhile.

        Raises `FileExistsError` if the file exists, and `EngineUnavailable` if it cannot be written.
        """
        target = Path(path).absolute()
        if target.exists():
            raise FileExistsError(f"{target} exists; name a file that does not exist yet")
        try:
            self._database.copy_to(str(target))
        except apsw.Error as error:
            target.unlink(missing_ok=True)
            raise EngineUnavailable(
                engine=self.description,
                reason=f"the backup to {target} failed ({error})",
                remedy="check that the directory of the backup exists, is writable and has room",
            ) from error


def _nothing() -> None:
    return None


def _is_never_dead(_worker: int) -> bool:
    return False


def _handler_columns(info: WorkerInfo) -> tuple[str, str | None, str, str, str]:
    """Return the values of the columns `types`, `queues`, `timeouts`, `slots` and `version` of a worker."""
    queues = None if info.queues is None else to_json(info.queues)
    return to_json(info.types), queues, to_json(info.timeouts), to_json(info.slots), info.version
