"""Arriving: the jobs of another store, with everything that they have been through.

They come in the order of their submission, in drafts that also say how far the move has come (`receipts`): none
arrives twice, and none is left out. They keep ids, times, tokens, attempts and their turn in a sequence. A job
that is here already under the same id, and is not from this move, is never overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.receipts import Receipt, Receipts
from mainspring.engines.nats.stored import StoredJob, decode_job, encode, to_record
from mainspring.engines.nats.workspace import TooLarge, Workshop, Workspace
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transfers import CHANGED, MISSING, TAKEN, Deviation, TravellingJob

MOST_PUTS = 900
"""In one draft, by estimate."""
MOST_BYTES = 4_000_000
GATED_PUTS = 6
MOVED = (JobStatus.PENDING, JobStatus.FAILED)
AT_ONCE = 50
"""Removals in one draft."""
ROOM_FOR_THE_REST = 65_536
"""Of a message, beside what a job brings along."""


class Arrivals:
    """Takes in jobs that are moved here. Called by the mover alone."""

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
        """How large a job may be."""
        return self._workshop.link.max_payload - ROOM_FOR_THE_REST

    def store(self, move_id: str, jobs: Sequence[TravellingJob]) -> None:
        """Store jobs that are not here yet, and say in the same drafts that they are."""
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

    def _store_part(self, move_id: str, part: Sequence[TravellingJob]) -> None:
        tries: list[None] = []

        def work(workspace: Workspace) -> None:
            receipt = self._receipts.require(workspace, move_id)
            wanted = [job for job in part if job.place > receipt.position]
            if not wanted or not self._receipts.keep_open(workspace, move_id):
                return  # it was stored, only the answer to that was lost
            self._prefetch(workspace, wanted, is_first_try=not tries)
            tries.append(None)
            for job in wanted:
                self._add(workspace, job, receipt)
            self._receipts.write(workspace, replace(receipt, position=part[-1].place))

        self._workshop.carry_through(work)

    def _prefetch(self, workspace: Workspace, jobs: Sequence[TravellingJob], *, is_first_try: bool) -> None:
        """Read at once what jobs depend on. At first, their ids are believed to be free."""
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

    def _add(self, workspace: Workspace, job: TravellingJob, receipt: Receipt) -> None:
        if workspace.job(job.record.id) is not None:
            return  # of somebody else: it is told when all is compared
        stored = _make_job(job, receipt.base, receipt.id)
        if stored.status is JobStatus.PENDING:
            if stored.sequence is not None and stored.turn <= workspace.now < stored.due:
                # Its turn came before, and it waits for its next attempt: nobody behind it passes.
                stored = self._gates.hold_sequence(workspace, stored)
            self._queueing.enqueue(workspace, stored)
        else:  # how long dead letters are kept is for the workers here to say
            workspace.put(workspace.names.job(stored.id), encode(stored))
        uniqueness.claim(workspace, stored)

    def compare(self, move_id: str, jobs: Sequence[TravellingJob]) -> list[Deviation]:
        """Read jobs back, and say which are not here as they were there."""
        receipt = self._receipts.require(self._workshop.open(), move_id)
        names = self._workshop.names
        found = self._workshop.link.read(names.job(job.record.id) for job in jobs)
        deviations = []
        for job in jobs:
            data = found[names.job(job.record.id)].data
            stored = decode_job(data) if data else None
            problem = _problem_of(job, stored, receipt)
            if problem is not None:
                deviations.append(Deviation("job", job.record.id, problem))
        return deviations

    def removing(self, move_id: str) -> Iterator[int]:
        """Take the jobs of a move away again; yields after each batch how many it had."""
        link, names = self._workshop.link, self._workshop.names
        position, last = 0, link.last_sequence(names.stream)  # behind that are only our own marks
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


def _make_job(job: TravellingJob, base: int, move_id: str) -> StoredJob:
    """Return the record of a job as it stands here; the name of the move tells it from others with its id."""
    fields = {name: getattr(job.record, name) for name in job.record.__struct_fields__}
    return StoredJob(**fields, place=base + job.place, turn=job.turn, nonce=move_id)


def _fitting(jobs: Sequence[TravellingJob]) -> Sequence[TravellingJob]:
    """Return as many jobs as one draft takes."""
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


def _problem_of(job: TravellingJob, stored: StoredJob | None, receipt: Receipt) -> str | None:
    if stored is None:
        return MISSING
    is_same = to_record(stored) == job.record
    if stored.nonce != receipt.id:
        return None if is_same else TAKEN  # the same one came with an earlier move that was given up
    is_in_line = (stored.turn, stored.place) == (job.turn, receipt.base + job.place)
    return None if is_same and is_in_line else CHANGED


def _prefetch_jobs(workspace: Workspace, jobs: Sequence[StoredJob]) -> None:
    workspace.prefetch_jobs(job.id for job in jobs)
