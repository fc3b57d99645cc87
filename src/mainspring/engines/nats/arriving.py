"""Takes over the jobs, settings and schedules of another store: the receiving side of `mainspring migrate`.

Jobs arrive in the order of their submission, with ids, times, fencing tokens, attempts and their turn in a
sequence. The receipt of a move is its checkpoint. It is written in one transaction (a `Workspace`) with the jobs
that it confirms. So no job arrives twice and none is left out, even if the move is interrupted and the jobs have
run since. A schedule continues at its next occurrence. A job, setting or schedule that exists already and is not
from this move is not overwritten, except for a schedule that never fired here.

A stage may follow only certain stages: finishing a move and undoing it at the same time cannot both succeed. No
worker enrolls while a move is under way: both sides write first and read afterwards, the worker its heartbeat and
the mover its receipt, so at least one of them sees the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.naming import to_token
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.scheduling import Agenda
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, decode, decode_job, encode, to_record
from mainspring.engines.nats.stored_schedules import (
    KEPT_JOBS,
    KEPT_OCCURRENCES,
    Skipped,
    StoredSchedule,
    read_schedule,
)
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import TooLarge, Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs.commands import Arrangement, PauseQueue, PutLimit
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


class Receipt(Struct, frozen=True, array_like=True):
    """The checkpoint of a move."""

    id: str
    source: str
    """Where the jobs come from, for display."""
    base: int
    """Added to the places of its jobs, so that they come before all jobs that are submitted later."""
    stage: MigrationStage = MigrationStage.MOVING
    position: int = 0
    """All jobs up to this place of the source have arrived."""
    has_settings: bool = False


class Receipts:
    """Reads and writes the receipts of moves."""

    def __init__(self, workshop: Workshop, workers: Workers) -> None:
        self._workshop = workshop
        self._workers = workers

    def subject(self, move_id: str) -> str:
        """Return the subject of a move's receipt."""
        return self._workshop.names.moves + to_token(move_id)

    def find(self, move_id: str) -> Receipt | None:
        """Return the receipt of a move, as the server has it now; None if there is none."""
        return self.read(self._workshop.open(), move_id)

    def read(self, workspace: Workspace, move_id: str) -> Receipt | None:
        """Return the receipt of a move as a transaction reads it; None if there is none."""
        return workspace.get_struct(self.subject(move_id), Receipt)

    def require(self, workspace: Workspace, move_id: str) -> Receipt:
        """Return the receipt of a move in progress; raises `EngineUnavailable` if it was deleted."""
        receipt = self.read(workspace, move_id)
        if receipt is None:
            raise EngineUnavailable(
                engine=self._description,
                reason=f"nothing is known here of the move {move_id}",
                remedy="check the servers and the prefix, and whether the stream was deleted",
            )
        return receipt

    def write(self, workspace: Workspace, receipt: Receipt) -> None:
        """Write a receipt within a transaction."""
        workspace.put_struct(self.subject(receipt.id), receipt)

    def begin(self, move_id: str, source: str, last: int) -> Receipt:
        """Write the receipt of a move, unless there is one; from then on no worker enrolls here."""

        def work(workspace: Workspace) -> Receipt:
            receipt = self.read(workspace, move_id)
            if receipt is None:
                receipt = Receipt(move_id, source, base=workspace.now * 1_000 - last - 1)
                self.write(workspace, receipt)
            return receipt

        return self._workshop.carry_through(work)

    def keep_open(self, workspace: Workspace, move_id: str) -> bool:
        """Return whether a move is under way; if it is, the transaction commits only while it still is."""
        receipt = self.require(workspace, move_id)
        if receipt.stage not in (MigrationStage.MOVING, MigrationStage.COMPLETE):
            raise self._overtaken(receipt)
        if receipt.stage is MigrationStage.MOVING:
            self.write(workspace, receipt)
        return receipt.stage is MigrationStage.MOVING

    def turn_to(self, move_id: str, stage: MigrationStage, *, after: Collection[MigrationStage]) -> None:
        """Set the stage of a move, unless it is set already; the stage before must be one of `after`."""

        def work(workspace: Workspace) -> None:
            receipt = self.require(workspace, move_id)
            if receipt.stage is stage:
                return
            if receipt.stage not in after:
                raise self._overtaken(receipt)
            self.write(workspace, replace(receipt, stage=stage))

        self._workshop.carry_through(work)

    def _overtaken(self, receipt: Receipt) -> EngineUnavailable:
        return EngineUnavailable(
            engine=self._description,
            reason=f"another process continues the move from {receipt.source}; its stage is now: {receipt.stage}",
            remedy="run the same command again, which says what can be done now",
        )

    @property
    def _description(self) -> str:
        return f"NATS at {self._workshop.link.address}, prefix {self._workshop.names.prefix!r}"

    def forget(self, move_id: str) -> None:
        """Delete the receipt of a move that was undone."""
        self._workshop.carry_through(lambda workspace: workspace.forget(self.subject(move_id)))

    def find_workers(self) -> list[str]:
        """Return the names of the live workers of this store."""
        return [sign.name for sign in self._workers.read_all().values() if not sign.has_left]

    def find_open(self, source: str | None = None) -> list[Receipt]:
        """Return the receipts of moves that are not complete, from all sources or from one."""
        found = self._workshop.link.scan(f"{self._workshop.names.moves}*")
        receipts = [decode(entry.data, Receipt) for _, entry in found if entry.data]
        return [
            receipt
            for receipt in receipts
            if receipt.stage is not MigrationStage.COMPLETE and source in (None, receipt.source)
        ]

    def require_no_move(self) -> None:
        """Refuse a worker while a move is under way: it would run jobs before earlier ones have arrived."""
        for receipt in self.find_open():
            raise EngineUnavailable(
                engine=self._description,
                reason=f"jobs are being moved here from {receipt.source}, and workers wait for the last",
                remedy="finish it with the same mainspring migrate, or take it back with --undo",
            )


MOST_PUTS = 900
"""Messages in one transaction, by estimate."""
MOST_BYTES = 4_000_000
GATED_PUTS = 6
MOVED = (JobStatus.PENDING, JobStatus.FAILED)
AT_ONCE = 50
"""Removals or schedules in one transaction."""
ROOM_FOR_THE_REST = 65_536
"""Bytes of a message that are reserved beside the data of a moved job."""


class Arrivals:
    """Stores jobs that are moved here. Called by the mover only."""

    def __init__(
        self,
        workshop: Workshop,
        receipts: Receipts,
        *,
        queueing: Queueing,
        gates: Gates,
    ) -> None:
        self._workshop = workshop
        self._receipts = receipts
        self._queueing = queueing
        self._gates = gates

    @property
    def most_bytes(self) -> int:
        """The size limit of a job."""
        return self._workshop.link.max_payload - ROOM_FOR_THE_REST

    def store(self, move_id: str, jobs: Sequence[MigratedJob]) -> None:
        """Store jobs that have not arrived yet, and advance the receipt in the same transactions."""
        most = len(jobs)
        while jobs:
            part = _fitting(jobs)[:most]
            try:
                self._store_part(move_id, part)
            except TooLarge:
                if len(part) == 1:
                    raise
                most = len(part) // 4 or 1
                continue
            jobs = jobs[len(part) :]

    def _store_part(self, move_id: str, part: Sequence[MigratedJob]) -> None:
        tries: list[None] = []

        def work(workspace: Workspace) -> None:
            receipt = self._receipts.require(workspace, move_id)
            wanted = [job for job in part if job.place > receipt.position]
            if not wanted or not self._receipts.keep_open(workspace, move_id):
                return  # stored before: the answer was lost, or another mover was faster
            self._prefetch(workspace, wanted, is_first_try=not tries)
            tries.append(None)
            for job in wanted:
                self._add(workspace, job, receipt)
            self._receipts.write(workspace, replace(receipt, position=part[-1].place))

        self._workshop.carry_through(work)

    def _prefetch(self, workspace: Workspace, jobs: Sequence[MigratedJob], *, is_first_try: bool) -> None:
        """Read in bulk the records that jobs depend on. The first try assumes that their ids are free."""
        names, records = workspace.names, [job.record for job in jobs]
        if is_first_try:
            for record in records:
                workspace.know(names.job(record.id), 0, b"")
        else:
            workspace.prefetch_jobs(record.id for record in records)
        keys = [names.key(record.unique_key) for record in records if record.unique_key is not None]
        keys += [
            names.occurrence(record.schedule, record.occurrence)
            for record in records
            if record.schedule is not None and record.occurrence is not None
        ]
        workspace.prefetch(keys)
        gated = [_make_job(job, 0, "") for job in jobs]
        self._gates.prefetch(workspace, [job for job in gated if job.is_gated and not job.is_over])

    def _add(self, workspace: Workspace, job: MigratedJob, receipt: Receipt) -> None:
        if workspace.job(job.record.id) is not None:
            return  # another job has this id: `compare` reports it
        stored = _make_job(job, receipt.base, receipt.id)
        if stored.status is JobStatus.PENDING:
            if stored.sequence is not None and stored.turn <= workspace.now < stored.due:
                # It held the sequence before, and waits for its retry: no job behind it may pass.
                stored = self._gates.hold_sequence(workspace, stored)
            self._queueing.enqueue(workspace, stored)
        else:  # without expiry: the workers here decide how long dead letters are kept
            workspace.put(workspace.names.job(stored.id), encode(stored))
        uniqueness.claim(workspace, stored)

    def compare(self, move_id: str, jobs: Sequence[MigratedJob]) -> list[MigrationDifference]:
        """Read jobs back; return those that differ from the source."""
        receipt = self._receipts.require(self._workshop.open(), move_id)
        names = self._workshop.names
        found = self._workshop.link.read(names.job(job.record.id) for job in jobs)
        deviations = []
        for job in jobs:
            data = found[names.job(job.record.id)].data
            stored = decode_job(data) if data else None
            problem = _problem_of(job, stored, receipt)
            if problem is not None:
                deviations.append(MigrationDifference("job", job.record.id, problem))
        return deviations

    def removing(self, move_id: str) -> Iterator[int]:
        """Delete the jobs of a move; yields the number of jobs after each batch."""
        link, names = self._workshop.link, self._workshop.names
        position, last = 0, link.last_sequence(names.stream)  # beyond that are only our own tombstones
        while position < last and (found := link.scan(f"{names.jobs}>", after=position)):
            position = found[-1][1].revision
            jobs = [decode_job(entry.data) for _, entry in found if entry.data]
            ours = [job for job in jobs if job.nonce == move_id]
            self._workshop.carry_through_many(ours, self._remove, before=_prefetch_jobs, at_once=AT_ONCE)
            yield len(ours)

    def _remove(self, workspace: Workspace, ours: StoredJob) -> None:
        job = workspace.job(ours.id)
        if job is None or job.nonce != ours.nonce or job.status not in MOVED:
            return
        freed = self._queueing.dequeue(workspace, job) if job.status is JobStatus.PENDING else job
        workspace.forget_job(job.id)
        uniqueness.release(workspace, freed)


def _make_job(job: MigratedJob, base: int, move_id: str) -> StoredJob:
    """Return the record of a moved job; the id of the move tells it from other jobs with its id."""
    fields = {name: getattr(job.record, name) for name in job.record.__struct_fields__}
    return StoredJob(**fields, place=base + job.place, turn=job.turn, nonce=move_id)


def _fitting(jobs: Sequence[MigratedJob]) -> Sequence[MigratedJob]:
    """Return as many jobs as fit into one transaction, by estimate."""
    puts = size = 0
    for number, job in enumerate(jobs):
        record = job.record
        is_gated = record.sequence is not None or bool(record.limits)
        puts += 2 + (record.expires is not None) + (record.unique_key is not None) + (record.schedule is not None)
        puts += GATED_PUTS * is_gated
        size += 2 * len(record.payload)
        if number and (puts > MOST_PUTS or size > MOST_BYTES):
            return jobs[:number]
    return jobs


def _problem_of(job: MigratedJob, stored: StoredJob | None, receipt: Receipt) -> str | None:
    if stored is None:
        return MISSING
    is_same = to_record(stored) == job.record
    if stored.nonce != receipt.id:
        return None if is_same else TAKEN  # an earlier move that was abandoned brought the same job
    is_in_line = (stored.turn, stored.place) == (job.turn, receipt.base + job.place)
    return None if is_same and is_in_line else CHANGED


def _prefetch_jobs(workspace: Workspace, jobs: Sequence[StoredJob]) -> None:
    workspace.prefetch_jobs(job.id for job in jobs)


class Inheritance:
    """Takes over settings and schedules. Called by the mover only."""

    def __init__(
        self, workshop: Workshop, receipts: Receipts, *, gates: Gates, agenda: Agenda, book: SettingsBook
    ) -> None:
        self._workshop = workshop
        self._receipts = receipts
        self._gates = gates
        self._agenda = agenda
        self._book = book

    # -- settings

    def arrangements(self, settings: MigratedSettings) -> list[Arrangement]:
        """Return the pauses and limits to arrange here; a limit that exists here already stays as it is."""
        self._book.refresh()
        known = {limit.family for limit in self._book.list_limits()}
        limits = [limit for limit in settings.limits if limit.family not in known]
        return [*(PauseQueue(queue, is_paused=True) for queue in settings.paused), *limits]

    def note_settings(self, move_id: str, settings: MigratedSettings) -> None:
        """Take over how many tokens of rates are used up, and record that all settings have arrived."""

        def use_up(workspace: Workspace, rate: tuple[str, int]) -> None:
            self._gates.use_up(workspace, *rate)

        def note(workspace: Workspace) -> None:
            receipt = self._receipts.require(workspace, move_id)
            self._receipts.write(workspace, replace(receipt, has_settings=True))

        self._workshop.carry_through_many(list(settings.rates.items()), use_up, before=self._prefetch_gates)
        self._workshop.carry_through(note)

    def _prefetch_gates(self, workspace: Workspace, rates: Sequence[tuple[str, int]]) -> None:
        self._gates.prefetch_named(workspace, [bucket for bucket, _ in rates])

    def compare_settings(self, settings: MigratedSettings) -> list[MigrationDifference]:
        """Return the pauses and limits that differ from the source."""
        self._book.refresh()
        here = {limit.family: limit for limit in self._book.list_limits()}
        paused = [
            MigrationDifference("queue", queue, "is not paused there")
            for queue in settings.paused
            if queue not in self._book.paused
        ]
        return paused + [
            MigrationDifference("limit", limit.family, TAKEN if limit.family in here else MISSING)
            for limit in settings.limits
            if not _is_same(limit, here.get(limit.family))
        ]

    # -- schedules

    def store_schedules(self, move_id: str, schedules: Sequence[MigratedSchedule]) -> None:
        """Store schedules as they were; one that never fired here is only a declaration, and is replaced."""

        def work(workspace: Workspace, schedule: MigratedSchedule) -> None:
            record = schedule.record
            there = read_schedule(workspace, record.name)
            if there.nonce == move_id or (there.record is not None and there.record.last_due is not None):
                return
            if not self._receipts.keep_open(workspace, move_id):
                return  # another mover was faster, so workers may have started
            revision = 0 if there.record is None else there.record.revision + 1
            stored = StoredSchedule(
                replace(record, revision=max(record.revision, revision)), schedule.alive[-KEPT_JOBS:], move_id
            )
            self._agenda.write(workspace, record.name, stored)
            left_out = Skipped(schedule.left_out[-KEPT_OCCURRENCES:])
            workspace.put_struct(workspace.names.skipped(record.name), left_out)

        self._workshop.carry_through_many(schedules, work, before=_prefetch_schedules, at_once=AT_ONCE)

    def compare_schedules(self, move_id: str, schedules: Sequence[MigratedSchedule]) -> list[MigrationDifference]:
        """Read schedules back; return those that differ from the source."""
        workspace = self._workshop.open()
        deviations = []
        for start in range(0, len(schedules), AT_ONCE):
            part = schedules[start : start + AT_ONCE]
            _prefetch_schedules(workspace, part)
            for schedule in part:
                problem = _problem_of_schedule(workspace, schedule, move_id)
                if problem is not None:
                    deviations.append(MigrationDifference("schedule", schedule.record.name, problem))
        return deviations

    def remove_schedules(self, move_id: str) -> None:
        """Delete the schedules of a move."""

        def work(workspace: Workspace, name: str) -> None:
            if read_schedule(workspace, name).nonce == move_id:
                self._agenda.write(workspace, name, StoredSchedule(None))
                workspace.forget(workspace.names.skipped(name))

        names = [record.name for record in self._agenda.read_all()]
        self._workshop.carry_through_many(names, work, before=_prefetch_named, at_once=AT_ONCE)


def _problem_of_schedule(workspace: Workspace, schedule: MigratedSchedule, move_id: str) -> str | None:
    name = schedule.record.name
    stored = read_schedule(workspace, name)
    if stored.record is None:
        return MISSING
    if stored.nonce != move_id:
        return TAKEN
    skipped = workspace.get_struct(workspace.names.skipped(name), Skipped) or Skipped()
    here = (replace(stored.record, revision=0), stored.jobs, skipped.occurrences)
    there = (
        replace(schedule.record, revision=0),
        schedule.alive[-KEPT_JOBS:],
        schedule.left_out[-KEPT_OCCURRENCES:],
    )
    return None if here == there else CHANGED


def _prefetch_schedules(workspace: Workspace, schedules: Sequence[MigratedSchedule]) -> None:
    _prefetch_named(workspace, [schedule.record.name for schedule in schedules])


def _prefetch_named(workspace: Workspace, schedules: Sequence[str]) -> None:
    subjects = workspace.names
    workspace.prefetch([*map(subjects.schedule, schedules), *map(subjects.skipped, schedules)])


def _is_same(limit: PutLimit, other: PutLimit | None) -> bool:
    return other is not None and (limit.most, limit.per) == (other.most, other.per)
