"""Stores, pauses, removes, lists and fires schedules.

Every change is stored only if the record has not changed since it was read, so of two workers that change or fire
a schedule at the same time one is refused. A firing advances the schedule and stores the jobs of its occurrences
in one transaction. A firing that catches up on more occurrences than fit into a transaction is stored in parts,
and the last part advances the schedule. A worker that fires it again finds which occurrences have their jobs.

The schedule cache is a copy of all schedules, so that a worker knows the next occurrence without a request. It is
refreshed after a notification of a change, and after two seconds at the latest. A refresh reads only the records
that were stored since the last one. Newer revisions replace older ones, in whatever order they arrive. The server
refuses a change that relies on an outdated copy.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from secrets import token_hex
from threading import RLock

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.audit import AuditRecorder, RecordArrangement, record_nothing
from mainspring.engines.nats.commands import NatsCommands
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.job_records import StoredJob, decode, encode
from mainspring.engines.nats.schedule_records import (
    KEPT_JOBS,
    NO_SCHEDULE,
    REMOVED_KEPT_SECONDS,
    SkippedOccurrences,
    StoredSchedule,
    add_skipped,
    read_schedule,
)
from mainspring.engines.nats.subject_names import from_token
from mainspring.engines.nats.submitting import JobSubmitter
from mainspring.engines.nats.transaction import Transaction, TransactionManager
from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.jobs.commands import PauseSchedule, PutSchedule, RemoveSchedule
from mainspring.jobs.events import Event, EventKind
from mainspring.jobs.records import NewJob
from mainspring.jobs.recurrence.schedule_records import (
    Fired,
    Firing,
    Occurrence,
    OccurrenceKind,
    Overlap,
    ScheduleRecord,
)
from mainspring.jobs.timestamps import MICROSECONDS

FRESH = 2 * MICROSECONDS
REMOVED = {"Nats-TTL": f"{REMOVED_KEPT_SECONDS}s"}


class ScheduleCache:
    """A local copy of all schedules, ordered by next occurrence. Any thread may use it."""

    def __init__(self, transactions: TransactionManager) -> None:
        self._transactions = transactions
        self._lock = RLock()  # guards the following attributes
        self._known: dict[str, tuple[int, ScheduleRecord | None]] = {}  # with the revision of the record
        self._by_due: list[tuple[int, str]] = []  # without paused schedules
        self._position = 0
        self._refreshed = 0
        self.must_refresh = True
        """Whether schedules may have changed, because a process announced a change or the connection was lost."""

    def clear(self) -> None:
        """Clear the local copy, because the stream may have been created again."""
        with self._lock:
            self._known.clear()
            self._by_due.clear()
            self._position = 0
            self.must_refresh = True

    # -- reading

    def next_firing(self) -> int | None:
        """Return the earliest next occurrence of all schedules that are not paused; None if there is none.

        The local copy that is read is at most two seconds old.
        """
        with self._lock:
            self._refresh_if_needed()
            return self._by_due[0][0] if self._by_due else None

    def find_due(self, until: int, limit: int | None, names: Iterable[str] | None = None) -> list[ScheduleRecord]:
        """List the schedules that are due by the instant `until` and not paused, the earliest first, at most
        `limit`. With `names`, only these. The local copy that is read is at most two seconds old.
        """
        wanted = None if names is None else set(names)
        found: list[ScheduleRecord] = []
        with self._lock:
            self._refresh_if_needed()
            for due, name in self._by_due:
                if due > until or len(found) == limit:
                    break
                record = self._known[name][1]
                if record is not None and (wanted is None or name in wanted):
                    found.append(record)
        return found

    def read_all(self) -> list[ScheduleRecord]:
        """List all schedules as the server has them now, by name."""
        with self._lock:
            found = self._scan(after=0)
            latest = max((entry.revision for entry in found.values()), default=0)
            for name, (revision, _) in list(self._known.items()):
                if name not in found and revision <= latest:
                    self._drop(name)
            return sorted(
                (record for _, record in self._known.values() if record is not None),
                key=lambda record: record.name,
            )

    def _refresh_if_needed(self) -> None:
        now = self._transactions.now()
        if self.must_refresh or not 0 <= now - self._refreshed < FRESH:
            self.must_refresh = False  # before the scan, so that a notification during the scan causes another one
            try:
                self._scan(self._position)
            except BaseException:
                self.must_refresh = True
                raise
            self._refreshed = now

    def _scan(self, after: int) -> dict[str, StoredMessage]:
        """Read the schedules that were stored after a revision into the copy; return their messages by name."""
        prefix = self._transactions.names.schedules
        found: dict[str, StoredMessage] = {}
        while page := self._transactions.jetstream.scan(f"{prefix}>", after=after):
            for subject, entry in page:
                name = from_token(subject.removeprefix(prefix))
                found[name] = entry
                self._update(
                    name, entry.revision, decode(entry.data, StoredSchedule) if entry.data else NO_SCHEDULE
                )
            after = page[-1][1].revision
        self._position = max(self._position, after)
        return found

    def _update(self, name: str, revision: int, stored: StoredSchedule) -> None:
        if name in self._known and self._known[name][0] > revision:
            return
        self._drop(name)
        record = stored.record
        self._known[name] = (revision, record)
        if record is not None and record.next_due is not None and not record.is_paused:
            insort(self._by_due, (record.next_due, name))

    def _drop(self, name: str) -> None:
        _, record = self._known.pop(name, (0, None))
        if record is not None and record.next_due is not None and not record.is_paused:
            del self._by_due[bisect_left(self._by_due, (record.next_due, name))]

    # -- writing

    def write(self, transaction: Transaction, name: str, stored: StoredSchedule) -> None:
        """Store a schedule in a transaction, and notify all processes."""
        subject = transaction.names.schedule(name)
        is_tombstone = stored.record is None and not stored.jobs
        transaction.put(subject, encode(stored), REMOVED if is_tombstone else None)
        self.notify(transaction)

        def update_copy() -> None:
            with self._lock:
                self._update(name, transaction.revisions()[subject], stored)

        transaction.batch.after_commit(update_copy)

    def notify(self, transaction: Transaction) -> None:
        """Notify all processes that schedules have changed, once per transaction."""
        notification = (f"{transaction.names.notifications}schedule", b"")
        if notification not in transaction.batch.sends:
            transaction.batch.send(*notification)

    def update(self, transaction: Transaction, name: str, stored: StoredSchedule) -> None:
        """Replace the local copy of a schedule, after the commit, with the record that a transaction has read.

        If there is no record, drop the schedule from the copy, and let the next reader read all schedules again.
        """
        revision = transaction.stored(transaction.names.schedule(name)).revision

        def update_copy() -> None:
            with self._lock:
                if revision:
                    self._update(name, revision, stored)
                # the tombstone has expired, so other removals may have been missed: read all schedules again
                else:
                    self._drop(name)
                    self._position = 0
                    self.must_refresh = True

        transaction.batch.after_commit(update_copy)


BATCH_SIZE = 50
"""The largest number of firings in one transaction."""
MAX_JOBS = 100
"""The largest number of jobs of one firing in one transaction."""
NEEDS_EARLIER_JOBS = (Overlap.SKIP, Overlap.REPLACE)


class FiringPart(Struct, frozen=True):
    """A firing, or a part of one that is too large for one transaction."""

    firing: Firing
    occurrences: frozenset[int | None]
    """The occurrences of the whole firing. Jobs of these are no earlier jobs for the overlap policy."""
    nonce: str
    is_last: bool = True


class FiringWriter:
    """Fires schedules: stores the jobs of their occurrences, and advances the schedules."""

    def __init__(
        self,
        transactions: TransactionManager,
        schedule_cache: ScheduleCache,
        submitter: JobSubmitter,
        commands: NatsCommands,
        event_log: NatsEventLog,
    ) -> None:
        self._transactions = transactions
        self._schedule_cache = schedule_cache
        self._submitter = submitter
        self._commands = commands
        self._event_log = event_log

    def fire_all(self, firings: Sequence[Firing], recorder: AuditRecorder | None) -> list[Fired]:
        """Fire schedules in order: many small firings in one transaction, large ones in parts.

        Return an answer for each firing. `is_done` is False if another worker has fired the schedule, or if the
        schedule was changed, paused or removed. With a recorder, which adds to the audit trail, a firing is a
        trigger.
        """
        results: list[Fired] = []
        for is_large, group in groupby(firings, lambda firing: len(firing.jobs) > MAX_JOBS):
            if is_large:
                results += map(self._fire_in_parts, group)
            else:
                results += self._run_parts([_whole(firing) for firing in group], recorder)
        return results

    def _fire_in_parts(self, firing: Firing) -> Fired:
        submitted: list[str] = []
        skipped_for: str | None = None
        for part in _parts_of(firing):
            (fired,) = self._run_parts([part])
            if not fired.is_done:
                return Fired(False)  # another worker fires the schedule, or it was changed, paused or removed
            submitted += fired.submitted
            skipped_for = skipped_for or fired.skipped_for
        return Fired(True, tuple(submitted), skipped_for)

    def _run_parts(self, parts: Sequence[FiringPart], recorder: AuditRecorder | None = None) -> list[Fired]:
        fired: dict[str, Fired] = {}

        def fire(transaction: Transaction, part: FiringPart) -> Fired:
            stored = read_schedule(transaction, part.firing.schedule)
            if stored.nonce == part.nonce:  # the firing was stored, only the reply was lost
                self._schedule_cache.update(transaction, part.firing.schedule, stored)
                self._schedule_cache.notify(transaction)
            else:
                fired[part.nonce] = self._fire(transaction, part, stored)
                if recorder is not None:
                    recorder.add_firing(transaction, part.firing, fired[part.nonce])
            return fired[part.nonce]

        return self._transactions.run_many(parts, fire, prefetch=_prefetch, batch_size=BATCH_SIZE, may_last=True)

    def _fire(self, transaction: Transaction, part: FiringPart, stored: StoredSchedule) -> Fired:
        firing, record = part.firing, stored.record
        if record is None or not _is_still_due(record, firing):
            self._schedule_cache.update(transaction, firing.schedule, stored)
            return Fired(False)
        jobs = [job for job in firing.jobs if not _has_job(transaction, job)]
        alive = _alive_jobs(transaction, stored) if jobs and firing.overlap in NEEDS_EARLIER_JOBS else None
        earlier = [job for job in alive or () if job.occurrence not in part.occurrences]
        skipped: list[Occurrence] = []
        submitted: tuple[str, ...] = ()
        if earlier and firing.overlap is Overlap.SKIP:
            skipped = [_skipped(job, earlier[0].id, transaction.now) for job in jobs]
        else:
            if firing.overlap is Overlap.REPLACE:
                for job in earlier:
                    self._commands.cancel(transaction, job)
            add, nonce = self._submitter.add, part.nonce
            submitted = tuple(job.id for job in jobs if add(transaction, job, nonce) is None)
        self._record_skipped(transaction, record, [*(firing.records if part.is_last else ()), *skipped])
        if part.is_last and firing.expected is not None:
            record = replace(record, next_due=firing.next_due, last_due=firing.last_due)
        known = stored.jobs if alive is None else tuple(job.id for job in alive)
        kept = _still_alive(transaction, (*known, *submitted), must_read=alive is not None)
        self._schedule_cache.write(transaction, firing.schedule, StoredSchedule(record, kept, part.nonce))
        return Fired(True, submitted, earlier[0].id if skipped else None)

    def _record_skipped(
        self, transaction: Transaction, schedule: ScheduleRecord, occurrences: list[Occurrence]
    ) -> None:
        add_skipped(transaction, schedule.name, occurrences)
        for occurrence in occurrences:
            note = f"{occurrence.kind}: {occurrence.note}"
            event = Event(EventKind.SKIPPED, transaction.now, schedule.name, schedule.type, schedule.queue, note)
            self._event_log.write_event(transaction, event)


def _whole(firing: Firing) -> FiringPart:
    occurrences = frozenset(job.occurrence for job in firing.jobs if job.occurrence is not None)
    return FiringPart(firing, occurrences, token_hex(8))


def _parts_of(firing: Firing) -> Iterator[FiringPart]:
    whole = _whole(firing)
    for start in range(0, len(firing.jobs), MAX_JOBS):
        end = start + MAX_JOBS
        part = replace(firing, jobs=firing.jobs[start:end])
        is_last = end >= len(firing.jobs)
        yield replace(whole, firing=part, nonce=f"{whole.nonce}-{start}", is_last=is_last)


def _is_still_due(stored: ScheduleRecord, firing: Firing) -> bool:
    if firing.expected is None:  # a trigger
        return stored.revision == firing.revision
    is_same = (stored.revision, stored.next_due) == (firing.revision, firing.expected)
    return is_same and not stored.is_paused


def _has_job(transaction: Transaction, job: NewJob) -> bool:
    """Return whether the job of an occurrence was stored before."""
    return unique_keys.find_occurrence(transaction, job) is not None


def _alive_jobs(transaction: Transaction, stored: StoredSchedule) -> list[StoredJob]:
    transaction.prefetch_jobs(stored.jobs)
    jobs = [transaction.job(job_id) for job_id in stored.jobs]
    return [job for job in jobs if job is not None and not job.is_over]


def _still_alive(transaction: Transaction, jobs: tuple[str, ...], *, must_read: bool) -> tuple[str, ...]:
    """Return the ids of the jobs that the record of a schedule keeps, at most `KEPT_JOBS`.

    Ended jobs are left out if there are more ids than that, or with `must_read`.
    """
    if must_read or len(jobs) > KEPT_JOBS:
        jobs = tuple(job.id for job in _alive_jobs(transaction, StoredSchedule(None, jobs)))
    return jobs[-KEPT_JOBS:]


def _skipped(job: NewJob, earlier: str, now: int) -> Occurrence:
    due = job.due if job.occurrence is None else job.occurrence
    note = f"job {earlier} of an earlier occurrence has not ended"
    return Occurrence(due, due, 1, OccurrenceKind.SKIPPED, note, now)


def _prefetch(transaction: Transaction, parts: Sequence[FiringPart]) -> None:
    """Read the records that firings depend on: the schedules, then the records that new jobs may conflict with.

    These are jobs with the same id or occurrence, the skipped occurrences, and earlier jobs if the overlap policy
    needs them.
    """
    names = transaction.names
    transaction.prefetch(names.schedule(part.firing.schedule) for part in parts)
    subjects: list[str] = []
    for part in parts:
        firing = part.firing
        subjects += [names.job(job.id) for job in firing.jobs]
        subjects += [names.occurrence(job.schedule or "", job.occurrence or 0) for job in firing.jobs]
        if firing.records:
            subjects.append(names.skipped(firing.schedule))
        if firing.overlap in NEEDS_EARLIER_JOBS:
            subjects += map(names.job, read_schedule(transaction, firing.schedule).jobs)
    transaction.prefetch(subjects)


class NatsSchedules:
    """Changes, fires and lists schedules. One thread writes; any thread may read."""

    def __init__(
        self,
        transactions: TransactionManager,
        submitter: JobSubmitter,
        commands: NatsCommands,
        event_log: NatsEventLog,
    ) -> None:
        self._transactions = transactions
        self.schedule_cache = ScheduleCache(transactions)
        """The local copy of all schedules."""
        self._firing_writer = FiringWriter(transactions, self.schedule_cache, submitter, commands, event_log)

    @property
    def must_refresh(self) -> bool:
        """Whether schedules may have changed, because a process announced a change or the connection was lost."""
        return self.schedule_cache.must_refresh

    @must_refresh.setter
    def must_refresh(self, value: bool) -> None:
        self.schedule_cache.must_refresh = value

    def clear(self) -> None:
        """Clear the local copy, because the stream may have been created again."""
        self.schedule_cache.clear()

    # -- changes

    def put(self, command: PutSchedule, record: RecordArrangement = record_nothing) -> bool:
        """Store a schedule if the stored one has the expected revision, or does not exist if that is None.

        Return whether it was stored. If it was, `record` is called in the same transaction. A schedule that exists
        already stays paused if it is, and keeps the time of its last occurrence.
        """

        def put(stored: ScheduleRecord | None, now: int) -> ScheduleRecord | None:
            if command.expected != (None if stored is None else stored.revision):
                return None
            if stored is None:
                return replace(command.record, revision=1, created=now)
            return replace(
                command.record,
                revision=stored.revision + 1,
                created=stored.created,
                is_paused=stored.is_paused,
                last_due=stored.last_due,
            )

        return self._change(command.record.name, put, record)

    def pause(self, command: PauseSchedule, record: RecordArrangement = record_nothing) -> bool:
        """Pause or resume a schedule; return False if it was so already, is missing, or has another revision.

        If it changes, `record` is called in the same transaction.
        """

        def pause(stored: ScheduleRecord | None, _now: int) -> ScheduleRecord | None:
            if stored is None or stored.is_paused is command.is_paused:
                return None
            if command.expected not in (None, stored.revision):
                return None
            next_due = stored.next_due if command.is_paused else command.next_due
            return replace(stored, is_paused=command.is_paused, next_due=next_due)

        return self._change(command.name, pause, record)

    def _change(
        self,
        name: str,
        change: Callable[[ScheduleRecord | None, int], ScheduleRecord | None],
        record_change: RecordArrangement,
    ) -> bool:
        """Replace the record of a schedule with the result of `change`; return False if `change` returns None."""
        nonce = token_hex(8)

        def work(transaction: Transaction) -> bool:
            stored = read_schedule(transaction, name)
            if stored.nonce == nonce:  # the change was stored, only the reply was lost
                return self._confirm(transaction, name, stored)
            record = change(stored.record, transaction.now)
            if record is not None:
                self.schedule_cache.write(transaction, name, StoredSchedule(record, stored.jobs, nonce))
                record_change(transaction, (record.type, record.queue))
            return record is not None

        return self._transactions.run(work)

    def remove(self, command: RemoveSchedule, record: RecordArrangement = record_nothing) -> bool:
        """Delete a schedule and its skipped occurrences; return False if the schedule is missing or was changed.

        Its jobs stay. If the schedule is deleted, `record` is called in the same transaction.
        """
        name, nonce = command.name, token_hex(8)

        def work(transaction: Transaction) -> bool:
            stored = read_schedule(transaction, name)
            if stored.nonce == nonce:
                return self._confirm(transaction, name, stored)
            if stored.record is None or command.expected not in (None, stored.record.revision):
                return False
            self.schedule_cache.write(transaction, name, StoredSchedule(None, stored.jobs, nonce))
            skipped = transaction.names.skipped(name)
            if transaction.get(skipped):
                transaction.delete(skipped)
            record(transaction, (stored.record.type, stored.record.queue))
            return True

        return self._transactions.run(work)

    def _confirm(self, transaction: Transaction, name: str, stored: StoredSchedule) -> bool:
        self.schedule_cache.update(transaction, name, stored)
        self.schedule_cache.notify(transaction)
        return True

    def fire_all(self, firings: Sequence[Firing], recorder: AuditRecorder | None = None) -> list[Fired]:
        """Advance schedules and store the jobs of their occurrences, each unless another worker has done so.

        Return an answer for each firing: see `FiringWriter.fire_all`.
        """
        return self._firing_writer.fire_all(firings, recorder)

    # -- reading

    def next_firing(self) -> int | None:
        """Return the earliest next occurrence of all schedules that are not paused; None if there is none."""
        return self.schedule_cache.next_firing()

    def find(self, names: Sequence[str] | None, due_until: int | None, limit: int | None) -> list[ScheduleRecord]:
        """List schedules by name; with `names`, only these, and at most `limit`.

        With `due_until`, list only those that are due by then and not paused, the earliest first.
        """
        if due_until is not None:
            return self.schedule_cache.find_due(due_until, limit, names)
        if names is None:
            return self.schedule_cache.read_all()[:limit]
        found = self._transactions.jetstream.read(map(self._transactions.names.schedule, names))
        stored = [decode(entry.data, StoredSchedule).record for entry in found.values() if entry.data]
        records = [record for record in stored if record is not None]
        return sorted(records, key=lambda record: record.name)[:limit]

    def occurrences(self, schedule: str, limit: int) -> list[Occurrence]:
        """List the occurrences of a schedule for which no job was made, the latest first."""
        data = self._transactions.jetstream.read_one(self._transactions.names.skipped(schedule)).data
        kept = decode(data, SkippedOccurrences).occurrences if data else ()
        return list(kept[: -limit - 1 : -1])
