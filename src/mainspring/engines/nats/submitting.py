"""Submits jobs: plain ones by the hundred in one transaction, others with the records that their policies change.

A transaction is a `Workspace`. A submit that is sent again, because its answer was lost, recognizes its own jobs
by their nonce.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from secrets import token_hex

from msgspec import Struct

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.stored import StoredJob, change, make_job
from mainspring.engines.nats.workspace import TooLarge, Workshop, Workspace
from mainspring.errors import ArgumentsTooLarge
from mainspring.jobs import transitions
from mainspring.jobs.events import EventKind
from mainspring.jobs.records import Conflict, ConflictKind, NewJob
from mainspring.jobs.status import JobStatus

ROOM_FOR_THE_REST = 65_536
"""Bytes of a message that are reserved beside the arguments of its job, for headers and errors of attempts."""
FEW = 8
"""Up to this number, plain jobs are stored one by one, which is faster."""
AT_ONCE = 450
"""Plain jobs in one transaction: two messages each, and a few for new lanes."""


class Order(Struct, frozen=True, gc=False):
    """A job to be stored, and the nonce that shows that it was."""

    job: NewJob
    nonce: str


class NatsSubmitting:
    """Stores new jobs."""

    def __init__(self, workshop: Workshop, queueing: Queueing, journal: NatsJournal) -> None:
        self._workshop = workshop
        self._queueing = queueing
        self._journal = journal
        self._last_place = 0

    def submit(self, jobs: Sequence[NewJob]) -> list[Conflict | None]:
        """Store jobs; return for each the conflict that kept it from being stored, or None."""
        for job in jobs:
            self._require_size(job)
        nonce = token_hex(8)
        orders = [Order(job, f"{nonce}{number}") for number, job in enumerate(jobs)]
        answers: list[Conflict | None] = []
        for is_plain, group in groupby(orders, lambda order: order.job.is_plain):
            part = list(group)
            if is_plain:
                for start in range(0, len(part), AT_ONCE):
                    answers += self._store_plain(part[start : start + AT_ONCE])
            else:
                answers += self._store_all(part)
        return answers

    def _require_size(self, job: NewJob) -> None:
        """Refuse a job that is too large for a message, before anything is stored."""
        limit = self._workshop.link.max_payload - ROOM_FOR_THE_REST
        if len(job.payload) > limit:
            raise ArgumentsTooLarge(handler=job.type, size=len(job.payload), limit=limit)

    def _store_plain(self, orders: list[Order]) -> list[Conflict | None]:
        """Store jobs on the assumption that their ids are free; read the records only if that turns out wrong."""
        if len({order.job.id for order in orders}) == len(orders):
            if len(orders) <= FEW and self._store_few(orders):
                return [None] * len(orders)
            workspace = self._workshop.open()
            for order in orders:
                workspace.know(workspace.names.job(order.job.id), 0, b"")
                self._store(workspace, order.job, order.nonce)
            if self._is_stored(workspace):
                return [None] * len(orders)
        return self._store_all(orders)

    def _is_stored(self, workspace: Workspace) -> bool:
        try:
            return self._workshop.commit(workspace)
        except TooLarge:  # many new lanes
            return False

    def _store_few(self, orders: list[Order]) -> bool:
        """Store jobs one by one: for each its message first and then its record, without which it is ignored.

        A batch costs the server some milliseconds, whatever its size. False: the caller must read the records.
        """
        workspace = self._workshop.open()
        if self._journal.is_heard(workspace):
            return False
        jobs = [self._make(workspace, order.job, order.nonce) for order in orders]
        if any(not self._queueing.knows_lane(job) for job in jobs):
            return False
        puts = [put for job in jobs for put in self._queueing.few_puts(workspace, job)]
        revisions = self._workshop.link.store_each(puts)
        self._workshop.link.note_record(max(revision or 0 for revision in revisions))
        return None not in revisions

    def _store_all(self, orders: list[Order]) -> list[Conflict | None]:
        return self._workshop.carry_through_many(
            orders, lambda workspace, order: self.add(workspace, order.job, order.nonce), before=_prefetch
        )

    def add(self, workspace: Workspace, job: NewJob, nonce: str) -> Conflict | None:
        """Store a job, or return the conflict that keeps it from being stored."""
        existing = workspace.job(job.id)
        if existing is not None:
            if existing.nonce != nonce:
                return Conflict(job.id, ConflictKind.ID)
            if existing.status is JobStatus.PENDING and existing.owner is None and not existing.is_gated:
                self._queueing.enqueue(workspace, existing)  # its record was stored, but perhaps not its message
            return None
        if job.unique is not None or job.schedule is not None:
            conflict = uniqueness.find_conflict(workspace, job)
            if conflict is not None:
                self._give_way(workspace, job, conflict)
                return conflict
        stored = self._store(workspace, job, nonce)
        uniqueness.claim(workspace, stored)
        return None

    def _store(self, workspace: Workspace, job: NewJob, nonce: str) -> StoredJob:
        stored = self._make(workspace, job, nonce)
        self._queueing.enqueue(workspace, stored)
        self._journal.write(workspace, EventKind.SUBMITTED, stored)
        return stored

    def _make(self, workspace: Workspace, job: NewJob, nonce: str) -> StoredJob:
        # Places grow with time, across all processes; within this one even for jobs of the same instant.
        self._last_place = max(self._last_place + 1, workspace.now * 1_000)
        return make_job(job, now=workspace.now, place=self._last_place, nonce=nonce)

    def _give_way(self, workspace: Workspace, job: NewJob, conflict: Conflict) -> None:
        existing = workspace.job(conflict.existing_id)
        assert existing is not None
        if conflict.kind is ConflictKind.UNIQUE:
            self._journal.write(workspace, EventKind.DEDUPLICATED, existing)
            return
        renewed = transitions.replaced(self._queueing.dequeue(workspace, existing), job)
        self._queueing.enqueue(workspace, change(renewed, turn=job.due))
        self._journal.write(workspace, EventKind.RESCHEDULED, renewed)


def _prefetch(workspace: Workspace, orders: Sequence[Order]) -> None:
    """Read in bulk the records that the jobs may conflict with."""
    names = workspace.names
    subjects = [names.job(order.job.id) for order in orders]
    subjects += [names.key(order.job.unique.key) for order in orders if order.job.unique is not None]
    workspace.prefetch(subjects)
