"""Claims jobs: decides about each delivery, and stores the decisions in the records of the jobs.

A delivery is a message about a job. The record of the job decides whether the job is claimed. If several workers
try to change the record at once, only one of them succeeds.

    record of the job            decision
    missing                      the delivery goes back to the server for a while; the fifth one is dropped
    ended, or in another lane    the delivery is outdated, and is acknowledged
    waits for a limiter          the same; the job gets a new message when it is admitted
    PENDING, without an owner    the job is claimed: started if due, held if due soon, left if no slot is free
    owned by this process        its lease gets the new delivery; if it has no lease, the job is handed back
    owned by another live worker the delivery goes back to the server for the rest of the lease
    owned by a dead worker       the job is rescued

A held job becomes RUNNING just before it is due, if the same worker still owns it. A claimed job must reach its
worker: every step that may fail comes before the claim, and an error after the claim is not raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import partial

from msgspec import Struct

from mainspring.engines.nats.admission import AdmissionControl
from mainspring.engines.nats.deliveries import ACK, Delivery, nak
from mainspring.engines.nats.delivery_buffer import DeliveryBuffer
from mainspring.engines.nats.event_log import NatsEventLog
from mainspring.engines.nats.job_records import StoredJob, change, decode_job
from mainspring.engines.nats.leases import ActiveLease, ActiveLeases
from mainspring.engines.nats.limiters import is_ready
from mainspring.engines.nats.queueing import LEAD, JobQueue, NatsLane
from mainspring.engines.nats.reminders import ReminderHandler
from mainspring.engines.nats.repair import NatsJobRescuer
from mainspring.engines.nats.settings_cache import SettingsCache
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.transaction import BatchTooLarge, Transaction, TransactionManager
from mainspring.engines.nats.workers import WorkerRegistry
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.engine import Demand
from mainspring.jobs.records import JobRecord, Lease, Outcome, OutcomeKind, is_suspect
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

EARLY = MICROSECONDS // 2  # how much earlier than scheduled the server may deliver a message
MAX_DELAY_SECONDS = 5.0
MAX_DELIVERIES = 5  # how often a message without a job record is delivered before it is dropped
MAX_TRIES = 20

logger = logging.getLogger("mainspring.nats")


class FreeSlots:
    """The free slots of one demand of a worker, and the lanes (queue, type, priority) whose jobs it accepts."""

    __slots__ = ("ahead", "at_most_once_starts", "demand", "lanes", "starts", "suspects")

    def __init__(self, demand: Demand, lanes: Iterable[NatsLane]) -> None:
        self.demand = demand
        self.starts = demand.starts
        self.ahead = demand.ahead
        self.suspects = int(demand.suspects)
        self.at_most_once_starts = demand.at_most_once_starts
        self.lanes = [
            lane
            for lane in lanes
            if lane.type in demand.types and (demand.queues is None or lane.queue in demand.queues)
        ]

    def free(self) -> tuple[int, int, int, int]:
        """Return how many more jobs of four kinds this demand accepts, as a tuple.

        The kinds are: jobs that start now; jobs that are leased before they are due; jobs of either kind with two
        crashes; and jobs that start of the types in `Demand.at_most_once`.
        """
        return self.starts, self.ahead, self.suspects, self.at_most_once_starts

    def restore(self, free: tuple[int, int, int, int]) -> None:
        """Set the numbers of free slots back to those that `free` returned."""
        self.starts, self.ahead, self.suspects, self.at_most_once_starts = free

    def is_at_most_once(self, type_: str) -> bool:
        """Return whether jobs of this type must not start a second time: see `Demand.at_most_once`."""
        return type_ in self.demand.at_most_once

    @property
    def has_closed_lanes(self) -> bool:
        """Whether no more jobs of the types in `Demand.at_most_once` can start, so that none are fetched."""
        return bool(self.demand.at_most_once) and not self.at_most_once_starts

    def open_lanes(self) -> list[NatsLane]:
        """Return the lanes (queue, type and priority) from which jobs are fetched: see `has_closed_lanes`."""
        if not self.has_closed_lanes:
            return self.lanes
        return [lane for lane in self.lanes if not self.is_at_most_once(lane.type)]

    def release(self, job: JobRecord | None, *, is_start: bool, is_hold: bool) -> None:
        """Count the slot of a job as free again, because its claim was not stored."""
        self.starts += is_start
        self.ahead += is_hold
        if job is not None and (is_start or is_hold):
            self.suspects += is_suspect(job)
            self.at_most_once_starts += is_start and self.is_at_most_once(job.type)


class ClaimResult(Enum):
    """The result of a decision about a delivery and its job."""

    DROPPED = auto()
    """The delivery is outdated, and is acknowledged."""
    LEFT = auto()
    """No slot is free for such a job, or its queue is paused: the delivery stays in the buffer for a moment."""
    STARTED = auto()
    HELD = auto()
    ADOPTED = auto()
    """This process has the lease of the job already: the delivery replaces the earlier delivery."""
    POSTPONED = auto()
    """The delivery goes back to the server for a while: the job is owned or not due, or its record is missing."""
    REQUEUED = auto()
    """The job was rescued or handed back. If the job runs again, it has a new message."""


class LeadTimes(Struct, frozen=True, gc=False):
    """How long before their due time jobs are leased, and how long before it their starts are stored, in
    microseconds.
    """

    hold: int
    start: int


class ClaimDecision(Struct, frozen=True, gc=False):
    """The decision about a delivery and its job."""

    delivery: Delivery
    result: ClaimResult
    job: StoredJob | None = None
    delay: float = 0.0


def subject_of(names: SubjectNames, delivery: Delivery) -> str:
    """Return the subject of the record of a delivery's job."""
    return names.jobs + delivery.subject.rpartition(".")[2]


class ClaimDecider:
    """Decides for each delivery whether its job is claimed. `ClaimResult` lists the possible decisions."""

    def __init__(
        self,
        *,
        leases: ActiveLeases,
        settings_cache: SettingsCache,
        admission: AdmissionControl,
        job_queue: JobQueue,
        workers: WorkerRegistry,
        rescuer: NatsJobRescuer,
        reminders: ReminderHandler,
        event_log: NatsEventLog,
    ) -> None:
        self.leases = leases
        self._settings_cache = settings_cache
        self.admission = admission
        self._job_queue = job_queue
        self._workers = workers
        self._rescuer = rescuer
        self._reminders = reminders
        self._event_log = event_log

    def decide(
        self, transaction: Transaction, worker: int, slots: FreeSlots, delivery: Delivery, leads: LeadTimes
    ) -> ClaimDecision:
        """Decide about a delivery, and return the decision. The caller must commit the transaction.

        The changes of records are added to the transaction, and the slot of a claimed job is taken from `slots`.
        """
        job = transaction.job_at(subject_of(transaction.names, delivery))
        if job is None or job.is_over:
            return self._decide_without_job(transaction, delivery)
        if delivery.subject != transaction.names.ready_of(job.queue, job.type, job.priority, job.id):
            # A refused submit has stored this message. The job that the store accepted has another message.
            return ClaimDecision(delivery, ClaimResult.DROPPED)
        if job.owner is not None:
            return self._decide_about_owned(transaction, delivery, job)
        if job.needs_admission and not is_ready(job):
            return ClaimDecision(delivery, ClaimResult.DROPPED)  # the job waits for its sequence or limits
        if job.due > transaction.now + max(leads.hold, LEAD) + EARLY:
            return self._decide_about_early(transaction, delivery, job)
        if transitions.has_expired(job, transaction.now):
            self._reminders.expire(transaction, job)
            return ClaimDecision(delivery, ClaimResult.DROPPED)
        if job.queue in self._settings_cache.paused or (is_suspect(job) and not slots.suspects):
            return ClaimDecision(delivery, ClaimResult.LEFT, job)
        if job.due <= transaction.now + leads.start:
            return self._decide_to_start(transaction, worker, slots, delivery, job)
        return self._decide_to_hold(transaction, worker, slots, delivery, job)

    def _decide_to_hold(
        self, transaction: Transaction, worker: int, slots: FreeSlots, delivery: Delivery, job: StoredJob
    ) -> ClaimDecision:
        if not slots.ahead or job.needs_admission:
            return ClaimDecision(delivery, ClaimResult.LEFT, job)
        slots.ahead -= 1
        slots.suspects -= is_suspect(job)
        held = transitions.held(job, worker)
        transaction.put_job(held)
        return ClaimDecision(delivery, ClaimResult.HELD, held)

    def _decide_about_early(self, transaction: Transaction, delivery: Delivery, job: StoredJob) -> ClaimDecision:
        if job.needs_admission:
            delay = min(MAX_DELAY_SECONDS, (job.due - transaction.now) / MICROSECONDS)
            return ClaimDecision(delivery, ClaimResult.POSTPONED, job, delay=delay)
        # The delivery came too early. Either the server has published an earlier scheduled message of this job,
        # and has deleted the scheduled message that replaced it meanwhile; or the clock of the process that queued
        # the job was wrong. So a new message is stored.
        self._job_queue.enqueue(transaction, job)
        return ClaimDecision(delivery, ClaimResult.DROPPED)

    def _decide_without_job(self, transaction: Transaction, delivery: Delivery) -> ClaimDecision:
        """Drop the delivery of an ended job; postpone a delivery whose job record may be stored later."""
        has_record = transaction.stored(subject_of(transaction.names, delivery)).revision > 0
        if not has_record and delivery.deliveries < MAX_DELIVERIES:
            return ClaimDecision(delivery, ClaimResult.POSTPONED, delay=0.05 * 4**delivery.deliveries)
        return ClaimDecision(delivery, ClaimResult.DROPPED)

    def _decide_to_start(
        self, transaction: Transaction, worker: int, slots: FreeSlots, delivery: Delivery, job: StoredJob
    ) -> ClaimDecision:
        at_most_once = slots.is_at_most_once(job.type)
        if not slots.starts or (at_most_once and not slots.at_most_once_starts):
            return ClaimDecision(delivery, ClaimResult.LEFT, job)
        slots.starts -= 1
        slots.suspects -= is_suspect(job)
        slots.at_most_once_starts -= at_most_once
        started = transitions.started(job, worker, transaction.now, is_held=False)
        started = change(
            started, is_start_unreported=self._event_log.has_listener(transaction), at_most_once=at_most_once
        )
        if job.needs_admission:
            started = self.admission.record_start(transaction, started)
        transaction.put_job(started)
        return ClaimDecision(delivery, ClaimResult.STARTED, started)

    def _decide_about_owned(self, transaction: Transaction, delivery: Delivery, job: StoredJob) -> ClaimDecision:
        active = self.leases.get(job.id)
        if active is not None and (active.worker, active.job.token) == (job.owner, job.token):
            return ClaimDecision(delivery, ClaimResult.ADOPTED, job)
        if self._workers.is_enrolled(job.owner or 0):
            # This process claimed the job, but the server's reply was lost. So no worker has got the lease.
            self._hand_back(transaction, job)
            return ClaimDecision(delivery, ClaimResult.REQUEUED, job)
        lease_left = self._workers.lease_left(job.owner or 0, transaction.now)
        if lease_left > 0 and self._workers.has_no_record_of(job.owner or 0, job.id):
            self._hand_back(transaction, job)
            return ClaimDecision(delivery, ClaimResult.REQUEUED, job)
        if lease_left > 0:
            return ClaimDecision(delivery, ClaimResult.POSTPONED, job, delay=lease_left / MICROSECONDS)
        self._rescuer.rescue(transaction, job)
        return ClaimDecision(delivery, ClaimResult.REQUEUED, job)

    def _hand_back(self, transaction: Transaction, job: StoredJob) -> None:
        is_running = job.status is JobStatus.RUNNING
        lease = transitions.lease_of(job, job.id, is_started=is_running)
        after = transitions.settled(job, Outcome(lease, OutcomeKind.HANDED_BACK), transaction.now)
        if job.needs_admission and is_running:
            after = self.admission.release(transaction, after, keeps_sequence=True)
        if after.status is JobStatus.PENDING:
            self._job_queue.enqueue(transaction, after)
        else:
            transaction.put_job(after)


class NatsJobClaimer:
    """Turns deliveries (messages about jobs from the server) into leases: decides about each, and stores the
    decisions.
    """

    def __init__(
        self, transactions: TransactionManager, delivery_buffer: DeliveryBuffer, decider: ClaimDecider
    ) -> None:
        self._transactions = transactions
        self._delivery_buffer = delivery_buffer
        self._decider = decider
        self._leases = decider.leases
        self._admission = decider.admission

    def claim(
        self, worker: int, slots: FreeSlots, deliveries: list[Delivery], leads: LeadTimes
    ) -> list[ClaimDecision]:
        """Claim the jobs of deliveries, and return the decisions that were stored.

        If other processes keep changing the record of a job, its delivery goes back to the server, without a
        decision. If one transaction cannot store all claims, half of the deliveries go back to the buffer. Raises
        `EngineUnavailable` only if no decision was stored before.
        """
        decided: list[ClaimDecision] = []
        try:
            for attempt in range(MAX_TRIES):
                deliveries = self._try(worker, slots, deliveries, leads, decided, is_first=attempt == 0)
                if not deliveries:
                    return decided
        except BatchTooLarge:
            return decided + self._claim_fewer(worker, slots, deliveries, leads)
        except EngineUnavailable:
            if not decided:
                raise
            logger.warning(
                "%s became unavailable during a claim; the worker runs the jobs that it had claimed before, and "
                "the server delivers the others again",
                self._transactions.jetstream.address,
            )
            return decided
        self._transactions.jetstream.send([(delivery.reply, nak(1)) for delivery in deliveries])
        return decided

    def _try(
        self,
        worker: int,
        slots: FreeSlots,
        deliveries: list[Delivery],
        leads: LeadTimes,
        decided: list[ClaimDecision],
        *,
        is_first: bool,
    ) -> list[Delivery]:
        """Decide about deliveries, commit, and add the stored decisions to `decided`.

        Return the deliveries whose jobs another process has changed meanwhile.
        """
        before = slots.free()
        transaction = self._transactions.begin()
        self._read(transaction, deliveries, reads_all=not is_first)
        self._finish_handovers(transaction, deliveries)
        decisions = [self._decider.decide(transaction, worker, slots, delivery, leads) for delivery in deliveries]
        try:
            missed = self._transactions.commit_each(transaction)
        except BatchTooLarge:
            slots.restore(before)
            raise
        stored = [decision for decision in decisions if self._record_of(decision.delivery) not in missed]
        self._apply(transaction, worker, stored)
        decided += stored
        for decision in decisions:
            if self._record_of(decision.delivery) in missed:
                is_start, is_hold = decision.result is ClaimResult.STARTED, decision.result is ClaimResult.HELD
                slots.release(decision.job, is_start=is_start, is_hold=is_hold)
        return [delivery for delivery in deliveries if self._record_of(delivery) in missed]

    def _claim_fewer(
        self, worker: int, slots: FreeSlots, deliveries: list[Delivery], leads: LeadTimes
    ) -> list[ClaimDecision]:
        """Claim half of the deliveries, so that one transaction can store them. The next fetch gets the others."""
        half = len(deliveries) // 2
        self._delivery_buffer.put_back((delivery, None) for delivery in deliveries[half:])
        return self.claim(worker, slots, deliveries[:half], leads) if half else []

    def _read(self, transaction: Transaction, deliveries: list[Delivery], *, reads_all: bool) -> None:
        """Read the job records of delivered messages, and the states of the sequences and limits of these jobs.

        A message that was stored right behind the record of its job contains the record, so no read is needed.
        Nor is it for a job that this process has just made ready (`TransactionManager.ready_jobs`).
        """
        unknown = []
        for delivery in deliveries:
            subject = self._record_of(delivery)
            known = self._transactions.ready_jobs.take(delivery.revision)
            if reads_all or delivery.is_scheduled or delivery.deliveries > 1:
                unknown.append(subject)
            elif delivery.data:
                transaction.assume_job(decode_job(delivery.data), delivery.revision - 1)
            elif known is not None:
                transaction.assume_job(*known)
            else:
                unknown.append(subject)
        transaction.prefetch(unknown)
        jobs = (transaction.job_at(self._record_of(delivery)) for delivery in deliveries)
        self._admission.prefetch(transaction, [job for job in jobs if job is not None])

    def _finish_handovers(self, transaction: Transaction, deliveries: list[Delivery]) -> None:
        """Complete the hand-overs of ended jobs.

        If a process dies during a hand-over, the server delivers the message of the ended job again.
        """
        for delivery in deliveries:
            job = transaction.job_at(self._record_of(delivery))
            if job is None and delivery.limiter:
                self._transactions.run(partial(self._admission.finish_deleted, subject=delivery.limiter))
                continue
            if job is None and delivery.data:
                job = decode_job(delivery.data)
            elif job is None or not job.is_over:
                continue
            if job.needs_admission:
                self._transactions.run(partial(self._admission.finish, job=job))

    def _record_of(self, delivery: Delivery) -> str:
        return subject_of(self._transactions.names, delivery)

    def _apply(self, transaction: Transaction, worker: int, decisions: list[ClaimDecision]) -> None:
        """Carry out stored decisions: register leases, and acknowledge deliveries or return them to the server.

        Deliveries with the result LEFT are not touched: the caller keeps them.
        """
        revisions = transaction.revisions()
        replies: list[tuple[str, bytes]] = []
        for decision in decisions:
            delivery, job = decision.delivery, decision.job
            match decision.result:
                case ClaimResult.STARTED | ClaimResult.HELD if job is not None:
                    revision = revisions[transaction.names.job(job.id)]
                    self._leases.put(ActiveLease(worker, job, revision, delivery.reply))
                case ClaimResult.ADOPTED if job is not None:
                    active = self._leases.get(job.id)
                    if active is not None:
                        active.reply = delivery.reply
                case ClaimResult.POSTPONED:
                    replies.append((delivery.reply, nak(decision.delay)))
                case ClaimResult.LEFT:
                    continue
                case _:
                    replies.append((delivery.reply, ACK))
        self._transactions.jetstream.send(replies)


class StartWriter:
    """Stores the starts of jobs that workers of this process have leased before they were due."""

    def __init__(
        self,
        transactions: TransactionManager,
        leases: ActiveLeases,
        settings_cache: SettingsCache,
        event_log: NatsEventLog,
    ) -> None:
        self._transactions = transactions
        self._leases = leases
        self._settings_cache = settings_cache
        self._event_log = event_log

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark jobs RUNNING that were leased before they were due; return for each lease whether its job may run.

        A job may not run if it was canceled, rescheduled or claimed by another worker, or if its queue is paused:
        then its lease is dropped. Nor may it run if the start could not be stored. Raises `EngineUnavailable` only
        if no start was stored before.
        """
        left = list(leases)
        accepted: set[tuple[str, int]] = set()
        try:
            for attempt in range(MAX_TRIES):
                left = self._try(worker, left, accepted, must_read=attempt > 0)
                if not left:
                    break
        except EngineUnavailable:
            if not accepted:
                raise
        return [(lease.id, lease.token) in accepted for lease in leases]

    def _try(
        self, worker: int, leases: list[Lease], accepted: set[tuple[str, int]], *, must_read: bool
    ) -> list[Lease]:
        """Store starts, and add the ids and tokens of the started leases to `accepted`.

        Return the leases whose jobs another process has changed meanwhile.
        """
        transaction = self._transactions.begin()
        if must_read:
            transaction.prefetch_jobs(lease.id for lease in leases)
        jobs = [self._start(transaction, worker, lease, must_read=must_read) for lease in leases]
        missed = self._transactions.commit_each(transaction)
        decided = [
            (lease, job)
            for lease, job in zip(leases, jobs, strict=True)
            if transaction.names.job(lease.id) not in missed
        ]
        self._apply_starts(transaction, worker, decided)
        accepted |= {(lease.id, lease.token) for lease, job in decided if job is not None}
        return [lease for lease in leases if transaction.names.job(lease.id) in missed]

    def _start(self, transaction: Transaction, worker: int, lease: Lease, *, must_read: bool) -> StoredJob | None:
        active = self._leases.get(lease.id)
        if active is None or not active.is_of(lease, worker):
            return None
        if not must_read:
            transaction.assume_job(active.job, active.revision)
        job = transaction.job(lease.id)
        if job is not None and must_read and transitions.is_leased(job, lease, worker, JobStatus.RUNNING):
            transaction.put_job(job)  # an earlier try was stored, and only the server's reply was lost
            return job
        if job is None or not transitions.is_leased(job, lease, worker, JobStatus.PENDING):
            return None
        if job.queue in self._settings_cache.paused:
            return None
        started = transitions.started(job, worker, transaction.now, is_held=True)
        started = change(
            started,
            is_start_unreported=self._event_log.has_listener(transaction),
            at_most_once=lease.at_most_once,
        )
        transaction.put_job(started)
        return started

    def _apply_starts(
        self, transaction: Transaction, worker: int, decided: Sequence[tuple[Lease, StoredJob | None]]
    ) -> None:
        revisions = transaction.revisions()
        for lease, job in decided:
            active = self._leases.get(lease.id)
            if active is None or active.worker != worker:
                continue
            if job is not None:
                active.job, active.revision = job, revisions[transaction.names.job(job.id)]
            elif active.is_of(lease, worker) and active.job.status is JobStatus.PENDING:
                # The job was canceled, rescheduled or claimed by another worker, or its queue is paused.
                self._leases.drop(lease.id)
                self._transactions.jetstream.send([(active.reply, nak(0))])
