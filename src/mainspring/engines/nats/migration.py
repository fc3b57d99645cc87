"""Takes over the jobs, settings and schedules of another store: the receiving side of `mainspring migrate`.

Jobs arrive in the order of their submission, with ids, times, fencing tokens, attempts and their turn in a
sequence. The checkpoint of a migration is written in one transaction with the jobs that it confirms. So no job
arrives twice and none is left out, even if the migration is interrupted and the jobs have run since. A schedule
continues at its next occurrence. A job, setting or schedule that exists already and is not from this migration is
not overwritten, except for a schedule that never fired here.

A stage may follow only certain stages, so finishing a migration and undoing it at the same time cannot both
succeed. No worker enrolls during a migration: the worker writes its heartbeat and then reads the stages, and the
migrating process writes the stage and then reads the heartbeats, so at least one of them sees the other.

The checkpoint is in the main stream, because it shares transactions with the jobs. A copy in the guarded stream,
which no submitter can write, says that there is a migration and at which stage it is: workers and commands read
only that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats import unique_keys
from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.job_records import StoredJob, decode, decode_job, encode, to_record
from mainspring.engines.nats.queueing import JobQueue
from mainspring.engines.nats.schedule_records import (
    KEPT_JOBS,
    KEPT_OCCURRENCES,
    SkippedOccurrences,
    StoredSchedule,
    read_schedule,
)
from mainspring.engines.nats.scheduling import ScheduleCache
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.subject_names import to_token
from mainspring.engines.nats.tokens import NatsTokens
from mainspring.engines.nats.transaction import BatchTooLarge, Transaction, TransactionManager
from mainspring.engines.nats.workers import WorkerRegistry
from mainspring.errors import EngineUnavailable
from mainspring.jobs.commands import Arrangement, PauseQueue, PutLimit, PutToken
from mainspring.jobs.migration_records import (
    CHANGED,
    MISSING,
    TAKEN,
    MigratedJob,
    MigratedSchedule,
    MigratedSettings,
    MigrationDifference,
    MigrationStage,
)
from mainspring.jobs.status import JobStatus


class MigrationCheckpoint(Struct, frozen=True, array_like=True):
    """The progress of a migration to this store, as it is stored here."""

    id: str
    source: str
    """A description of the source store, for display."""
    base: int
    """A number that is added to the places of migrated jobs, so that they precede all jobs submitted later."""
    stage: MigrationStage = MigrationStage.MOVING
    position: int = 0
    """The place in the source up to which all jobs have arrived."""
    has_settings: bool = False


class MigrationCheckpoints:
    """Reads and writes the checkpoints of migrations to this store, which say how far they have come."""

    def __init__(self, transactions: TransactionManager, workers: WorkerRegistry) -> None:
        self._transactions = transactions
        self._workers = workers

    def subject(self, move_id: str) -> str:
        """Return the subject of the checkpoint of a migration, which says how far it has come."""
        return self._transactions.names.moves + to_token(move_id)

    def find(self, move_id: str) -> MigrationCheckpoint | None:
        """Return the checkpoint (progress) of a migration, as the server has it now; None if there is none."""
        return self.read(self._transactions.begin(), move_id)

    def read(self, transaction: Transaction, move_id: str) -> MigrationCheckpoint | None:
        """Return the checkpoint (progress) of a migration as a transaction reads it; None if there is none."""
        return transaction.get_struct(self.subject(move_id), MigrationCheckpoint)

    def require(self, transaction: Transaction, move_id: str) -> MigrationCheckpoint:
        """Return the checkpoint (stored progress) of a migration; raise `EngineUnavailable` if there is none."""
        checkpoint = self.read(transaction, move_id)
        if checkpoint is None:
            raise EngineUnavailable(
                engine=self._description,
                reason=f"the migration {move_id} has no checkpoint here",
                remedy="check the servers and the prefix, and whether the stream was deleted",
            )
        return checkpoint

    def write(self, transaction: Transaction, checkpoint: MigrationCheckpoint) -> None:
        """Write the checkpoint (progress) of a migration within a transaction."""
        transaction.put_struct(self.subject(checkpoint.id), checkpoint)

    def _publish_stage(self, checkpoint: MigrationCheckpoint) -> None:
        """Store the guarded copy of a checkpoint, by which others see that there is a migration, and its stage."""
        subject = self._transactions.names.open_move(checkpoint.id)
        self._transactions.run(lambda transaction: transaction.put_struct(subject, checkpoint))

    def begin(self, move_id: str, source: str, last: int) -> MigrationCheckpoint:
        """Write the checkpoint (progress) of a migration, unless it exists, and return it.

        From then on no worker can enroll here, until the migration is complete or undone.
        """

        def work(transaction: Transaction) -> MigrationCheckpoint:
            checkpoint = self.read(transaction, move_id)
            if checkpoint is None:
                checkpoint = MigrationCheckpoint(move_id, source, base=transaction.now * 1_000 - last - 1)
                self.write(transaction, checkpoint)
            return checkpoint

        checkpoint = self._transactions.run(work)
        self._publish_stage(checkpoint)
        return checkpoint

    def require_open(self, transaction: Transaction, move_id: str) -> bool:
        """Return True if a migration still copies jobs, and False if it is complete.

        If True, the transaction commits only while the stage stays the same. Raise `EngineUnavailable` if the
        migration is being undone or reviewed, or has no checkpoint.
        """
        checkpoint = self.require(transaction, move_id)
        if checkpoint.stage not in (MigrationStage.MOVING, MigrationStage.COMPLETE):
            raise self._stage_conflict(checkpoint)
        if checkpoint.stage is MigrationStage.MOVING:
            self.write(transaction, checkpoint)
        return checkpoint.stage is MigrationStage.MOVING

    def set_stage(self, move_id: str, stage: MigrationStage, *, after: Collection[MigrationStage]) -> None:
        """Set the stage of a migration. Do nothing if it has this stage already.

        Raise `EngineUnavailable` if its stage is not one of `after`, or if it has no checkpoint.
        """

        def work(transaction: Transaction) -> MigrationCheckpoint:
            checkpoint = self.require(transaction, move_id)
            if checkpoint.stage is stage:
                return checkpoint
            if checkpoint.stage not in after:
                raise self._stage_conflict(checkpoint)
            changed = replace(checkpoint, stage=stage)
            self.write(transaction, changed)
            return changed

        self._publish_stage(self._transactions.run(work))

    def _stage_conflict(self, checkpoint: MigrationCheckpoint) -> EngineUnavailable:
        return EngineUnavailable(
            engine=self._description,
            reason=f"the migration from {checkpoint.source} is not at the expected stage, perhaps because another "
            f"process has continued it; its stage is now: {checkpoint.stage}",
            remedy="run the same command again; it says what can be done now",
        )

    @property
    def _description(self) -> str:
        return f"NATS at {self._transactions.jetstream.address}, prefix {self._transactions.names.prefix!r}"

    def delete(self, move_id: str) -> None:
        """Delete the checkpoint (stored progress) of a migration that was undone."""
        self._transactions.run(lambda transaction: transaction.delete(self._transactions.names.open_move(move_id)))
        self._transactions.run(lambda transaction: transaction.delete(self.subject(move_id)))

    def find_workers(self) -> list[str]:
        """Return the names of the workers of this store that have not left and whose heartbeat has not expired."""
        return [record.name for record, _ in self._workers.read_all().values() if not record.has_left]

    def find_open(self, source: str | None = None) -> list[MigrationCheckpoint]:
        """Return the checkpoints (progress) of migrations that are not complete, from all sources or from one."""
        found = self._transactions.jetstream.scan_all(f"{self._transactions.names.open_moves}*")
        checkpoints = [decode(entry.data, MigrationCheckpoint) for _, entry in found if entry.data]
        return [
            checkpoint
            for checkpoint in checkpoints
            if checkpoint.stage is not MigrationStage.COMPLETE and source in (None, checkpoint.source)
        ]

    def require_no_migration(self) -> None:
        """Raise `EngineUnavailable` during a migration: a worker would run jobs before earlier ones arrive."""
        for checkpoint in self.find_open():
            raise EngineUnavailable(
                engine=self._description,
                reason=f"jobs are being moved here from {checkpoint.source}; no worker may start before that ends",
                remedy="finish it with the same mainspring migrate command, or undo it with --undo",
            )


MAX_WRITES = 900
"""The largest number of messages in one transaction, by estimate."""
MAX_BYTES = 4_000_000
WRITES_FOR_ADMISSION = 6
"""The number of messages for the limiters of one job, by estimate."""
MIGRATED = (JobStatus.PENDING, JobStatus.FAILED)
BATCH_SIZE = 50
"""The largest number of removals or schedules in one transaction."""
RESERVED_BYTES = 65_536
"""The bytes of a message that are reserved for other data than the migrated job."""


class JobImporter:
    """Stores, compares and removes the jobs of a migration. Only the process that moves jobs uses it."""

    def __init__(
        self,
        transactions: TransactionManager,
        checkpoints: MigrationCheckpoints,
        *,
        job_queue: JobQueue,
        admission: AdmissionControl,
    ) -> None:
        self._transactions = transactions
        self._checkpoints = checkpoints
        self._job_queue = job_queue
        self._admission = admission

    @property
    def max_job_bytes(self) -> int:
        """The largest size of a job that can be stored here, in bytes."""
        return self._transactions.jetstream.max_payload - RESERVED_BYTES

    def store(self, move_id: str, jobs: Sequence[MigratedJob]) -> None:
        """Store jobs that have not arrived yet, and advance the checkpoint (the stored progress) in the same
        transactions.

        A job whose id another job has here is left out: `compare` reports it. Do nothing if the migration is
        complete. Raise `EngineUnavailable` if it is being undone or reviewed, and `BatchTooLarge` if one job does
        not fit into a transaction.
        """
        limit = len(jobs)
        while jobs:
            part = _fitting(jobs)[:limit]
            try:
                self._store_part(move_id, part)
            except BatchTooLarge:
                if len(part) == 1:
                    raise
                limit = len(part) // 4 or 1
                continue
            jobs = jobs[len(part) :]

    def _store_part(self, move_id: str, part: Sequence[MigratedJob]) -> None:
        tries: list[None] = []

        def work(transaction: Transaction) -> None:
            checkpoint = self._checkpoints.require(transaction, move_id)
            missing = [job for job in part if job.place > checkpoint.position]
            if not missing or not self._checkpoints.require_open(transaction, move_id):
                return  # the batch is stored already: the reply was lost, or another process was faster
            self._prefetch(transaction, missing, is_first_try=not tries)
            tries.append(None)
            for job in missing:
                self._add(transaction, job, checkpoint)
            self._checkpoints.write(transaction, replace(checkpoint, position=part[-1].place))

        self._transactions.run(work)

    def _prefetch(self, transaction: Transaction, jobs: Sequence[MigratedJob], *, is_first_try: bool) -> None:
        """Read the unique keys, occurrences, sequences and limits of the jobs, in few requests.

        The first try assumes that the ids of the jobs are free. Later tries read the records of the jobs, too.
        """
        names, records = transaction.names, [job.record for job in jobs]
        if is_first_try:
            for record in records:
                transaction.assume(names.job(record.id), 0, b"")
        else:
            transaction.prefetch_jobs(record.id for record in records)
        keys = [names.key(record.unique_key) for record in records if record.unique_key is not None]
        keys += [
            names.occurrence(record.schedule, record.occurrence)
            for record in records
            if record.schedule is not None and record.occurrence is not None
        ]
        transaction.prefetch(keys)
        stored = [_make_job(job, 0, "") for job in jobs]
        self._admission.prefetch(transaction, [job for job in stored if not job.is_over])

    def _add(self, transaction: Transaction, job: MigratedJob, checkpoint: MigrationCheckpoint) -> None:
        if transaction.job(job.record.id) is not None:
            return  # another job has this id: `compare` reports it
        stored = _make_job(job, checkpoint.base, checkpoint.id)
        if stored.status is JobStatus.PENDING:
            if stored.sequence is not None and stored.turn <= transaction.now < stored.due:
                # The job held its sequence and waits for a retry: no job behind it may start first.
                stored = self._admission.hold_sequence(transaction, stored)
            self._job_queue.enqueue(transaction, stored)
        else:  # without expiry: the workers here decide how long dead letters are kept
            transaction.put(transaction.names.job(stored.id), encode(stored))
        unique_keys.claim(transaction, stored)

    def compare(self, move_id: str, jobs: Sequence[MigratedJob]) -> list[MigrationDifference]:
        """Read migrated jobs back; return a difference for each that is missing or differs from the source."""
        checkpoint = self._checkpoints.require(self._transactions.begin(), move_id)
        names = self._transactions.names
        found = self._transactions.jetstream.read(names.job(job.record.id) for job in jobs)
        deviations = []
        for job in jobs:
            data = found[names.job(job.record.id)].data
            stored = decode_job(data) if data else None
            problem = _problem_of(job, stored, checkpoint)
            if problem is not None:
                deviations.append(MigrationDifference("job", job.record.id, problem))
        return deviations

    def remove_jobs(self, move_id: str) -> Iterator[int]:
        """Delete the jobs of a migration that are still PENDING or FAILED, batch by batch.

        After each batch, yield how many jobs of the migration it had, including those that were not deleted.
        """
        jetstream, names = self._transactions.jetstream, self._transactions.names
        # later messages are tombstones that this loop has written
        position, last = 0, jetstream.last_sequence(names.stream)
        while position < last and (found := jetstream.scan(f"{names.jobs}>", after=position)):
            position = found[-1][1].revision
            jobs = [decode_job(entry.data) for _, entry in found if entry.data]
            ours = [job for job in jobs if job.nonce == move_id]
            self._transactions.run_many(ours, self._remove, prefetch=_prefetch_jobs, batch_size=BATCH_SIZE)
            yield len(ours)

    def _remove(self, transaction: Transaction, ours: StoredJob) -> None:
        job = transaction.job(ours.id)
        if job is None or job.nonce != ours.nonce or job.status not in MIGRATED:
            return
        freed = self._job_queue.dequeue(transaction, job) if job.status is JobStatus.PENDING else job
        transaction.delete_job(job.id)
        unique_keys.release(transaction, freed)


def _make_job(job: MigratedJob, base: int, move_id: str) -> StoredJob:
    """Return the record of a migrated job. Its nonce, which tells who has stored it, is the id of the
    migration.
    """
    fields = {name: getattr(job.record, name) for name in job.record.__struct_fields__}
    return StoredJob(**fields, place=base + job.place, turn=job.turn, nonce=move_id, search=job.search)


def _fitting(jobs: Sequence[MigratedJob]) -> Sequence[MigratedJob]:
    """Return as many of the jobs as fit into one transaction, by estimate."""
    writes = size = 0
    for number, job in enumerate(jobs):
        record = job.record
        needs_admission = record.sequence is not None or bool(record.limits)
        writes += (
            2 + (record.expires is not None) + (record.unique_key is not None) + (record.schedule is not None)
        )
        writes += WRITES_FOR_ADMISSION * needs_admission
        size += 2 * len(record.payload)
        if number and (writes > MAX_WRITES or size > MAX_BYTES):
            return jobs[:number]
    return jobs


def _problem_of(job: MigratedJob, stored: StoredJob | None, checkpoint: MigrationCheckpoint) -> str | None:
    if stored is None:
        return MISSING
    is_same = to_record(stored) == job.record
    if stored.nonce != checkpoint.id:
        return None if is_same else TAKEN  # an earlier migration, which was abandoned, has stored the same job
    is_in_line = (stored.turn, stored.place) == (job.turn, checkpoint.base + job.place)
    return None if is_same and is_in_line else CHANGED


def _prefetch_jobs(transaction: Transaction, jobs: Sequence[StoredJob]) -> None:
    transaction.prefetch_jobs(job.id for job in jobs)


class SettingsImporter:
    """Stores, compares and removes settings and schedules of a migration.

    Only the process that moves jobs uses it.
    """

    def __init__(
        self,
        transactions: TransactionManager,
        checkpoints: MigrationCheckpoints,
        *,
        admission: AdmissionControl,
        schedule_cache: ScheduleCache,
        settings_cache: SettingsCache,
        tokens: NatsTokens,
    ) -> None:
        self._transactions = transactions
        self._checkpoints = checkpoints
        self._admission = admission
        self._schedule_cache = schedule_cache
        self._tokens = tokens
        self._settings_cache = settings_cache

    # -- settings

    def arrangements(self, settings: MigratedSettings) -> list[Arrangement]:
        """Return the arrangements to make here: pauses, limits, tokens and redacted parameters of the source.

        A limit that exists here already is left out, so that it stays as it is.
        """
        self._settings_cache.refresh()
        known = {limit.family for limit in self._settings_cache.list_limits()}
        limits = [limit for limit in settings.limits if limit.family not in known]
        tokens = map(PutToken, settings.http_tokens)
        pauses = (PauseQueue(queue, is_paused=True) for queue in settings.paused)
        return [*settings.redactions, *pauses, *limits, *tokens]

    def finish_settings(self, move_id: str, settings: MigratedSettings) -> None:
        """Use up as many tokens of rate limits as in the source, and record that all settings have arrived."""

        def use_tokens(transaction: Transaction, rate: tuple[str, int]) -> None:
            self._admission.use_tokens(transaction, *rate)

        def record(transaction: Transaction) -> None:
            checkpoint = self._checkpoints.require(transaction, move_id)
            self._checkpoints.write(transaction, replace(checkpoint, has_settings=True))

        self._transactions.run_many(list(settings.rates.items()), use_tokens, prefetch=self._prefetch_limiters)
        self._transactions.run(record)

    def _prefetch_limiters(self, transaction: Transaction, rates: Sequence[tuple[str, int]]) -> None:
        self._admission.prefetch_limiters(transaction, [bucket for bucket, _ in rates])

    def compare_settings(self, settings: MigratedSettings) -> list[MigrationDifference]:
        """Return a difference for each paused queue, limit, token and job type with redacted parameters that is
        not here as in the source.
        """
        self._settings_cache.refresh()
        here = {limit.family: limit for limit in self._settings_cache.list_limits()}
        paused = [
            MigrationDifference("queue", queue, "is not paused there")
            for queue in settings.paused
            if queue not in self._settings_cache.paused
        ]
        known = {token.id for token in self._tokens.list()}
        missing = [
            MigrationDifference("token", token.name, MISSING)
            for token in settings.http_tokens
            if token.id not in known
        ]
        redacted = self._settings_cache.redactions()
        shown = [
            MigrationDifference("redaction", each.type, MISSING)
            for each in settings.redactions
            if not {*each.parameters} <= {*redacted.get(each.type, ())}
        ]
        return [
            *paused,
            *missing,
            *shown,
            *self._differing_limits(settings, here),
        ]

    def _differing_limits(
        self, settings: MigratedSettings, here: dict[str, PutLimit]
    ) -> list[MigrationDifference]:
        return [
            MigrationDifference("limit", limit.family, TAKEN if limit.family in here else MISSING)
            for limit in settings.limits
            if not _is_same(limit, here.get(limit.family))
        ]

    # -- schedules

    def store_schedules(self, move_id: str, schedules: Sequence[MigratedSchedule]) -> None:
        """Store schedules with their state.

        A schedule that exists here is replaced only if it never fired here and is not from this migration. Do
        nothing if the migration is complete.
        """

        def work(transaction: Transaction, schedule: MigratedSchedule) -> None:
            record = schedule.record
            existing = read_schedule(transaction, record.name)
            if existing.nonce == move_id or (existing.record is not None and existing.record.last_due is not None):
                return
            if not self._checkpoints.require_open(transaction, move_id):
                return  # another process has finished the migration, so workers may have started
            revision = 0 if existing.record is None else existing.record.revision + 1
            stored = StoredSchedule(
                replace(record, revision=max(record.revision, revision)), schedule.alive[-KEPT_JOBS:], move_id
            )
            self._schedule_cache.write(transaction, record.name, stored)
            left_out = SkippedOccurrences(schedule.left_out[-KEPT_OCCURRENCES:])
            transaction.put_struct(transaction.names.skipped(record.name), left_out)

        self._transactions.run_many(schedules, work, prefetch=_prefetch_schedules, batch_size=BATCH_SIZE)

    def compare_schedules(self, move_id: str, schedules: Sequence[MigratedSchedule]) -> list[MigrationDifference]:
        """Read migrated schedules back; return a difference for each that is missing or differs from the
        source.
        """
        transaction = self._transactions.begin()
        deviations = []
        for start in range(0, len(schedules), BATCH_SIZE):
            part = schedules[start : start + BATCH_SIZE]
            _prefetch_schedules(transaction, part)
            for schedule in part:
                problem = _problem_of_schedule(transaction, schedule, move_id)
                if problem is not None:
                    deviations.append(MigrationDifference("schedule", schedule.record.name, problem))
        return deviations

    def remove_schedules(self, move_id: str) -> None:
        """Delete the schedules that a migration has stored here."""

        def work(transaction: Transaction, name: str) -> None:
            if read_schedule(transaction, name).nonce == move_id:
                self._schedule_cache.write(transaction, name, StoredSchedule(None))
                transaction.delete(transaction.names.skipped(name))

        names = [record.name for record in self._schedule_cache.read_all()]
        self._transactions.run_many(names, work, prefetch=_prefetch_named, batch_size=BATCH_SIZE)


def _problem_of_schedule(transaction: Transaction, schedule: MigratedSchedule, move_id: str) -> str | None:
    name = schedule.record.name
    stored = read_schedule(transaction, name)
    if stored.record is None:
        return MISSING
    if stored.nonce != move_id:
        return TAKEN
    skipped = transaction.get_struct(transaction.names.skipped(name), SkippedOccurrences) or SkippedOccurrences()
    here = (replace(stored.record, revision=0), stored.jobs, skipped.occurrences)
    there = (
        replace(schedule.record, revision=0),
        schedule.alive[-KEPT_JOBS:],
        schedule.left_out[-KEPT_OCCURRENCES:],
    )
    return None if here == there else CHANGED


def _prefetch_schedules(transaction: Transaction, schedules: Sequence[MigratedSchedule]) -> None:
    _prefetch_named(transaction, [schedule.record.name for schedule in schedules])


def _prefetch_named(transaction: Transaction, schedules: Sequence[str]) -> None:
    subjects = transaction.names
    transaction.prefetch([*map(subjects.schedule, schedules), *map(subjects.skipped, schedules)])


def _is_same(limit: PutLimit, other: PutLimit | None) -> bool:
    return other is not None and (limit.most, limit.per) == (other.most, other.per)
