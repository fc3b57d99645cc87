"""Claims jobs: turns messages into leases, by a change of the job's record that only one worker can make.

A message is a hint, the record decides. The state of the record determines what happens to the message:

    over, or queued elsewhere    the message is outdated: it is acknowledged
    PENDING, without an owner    the job is claimed: started if due, held if due soon, left if there is no room
    owned by a live worker       the message is needed if that worker dies: returned for the rest of the lease
    owned by a dead worker       the job is rescued first

A held job becomes RUNNING just before it is due, if it still has its owner. A claimed job must reach its worker:
every step that may fail comes before the claim, and an error after it is not raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from msgspec import Struct

from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hand, Hands
from mainspring.engines.nats.intake import MessageIntake
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.messages import ACK, Message, nak
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.queueing import LEAD, NatsLane, Queueing
from mainspring.engines.nats.repair import Rescuing
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, change, decode_job
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import TooLarge, Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.engine import Demand
from mainspring.jobs.records import JobRecord, Lease, Outcome, OutcomeKind, is_suspect
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

EARLY = MICROSECONDS // 2  # how much earlier than planned the server may deliver
MOST_DELAY = 5.0
MOST_DELIVERIES = 5  # of a message without a record
MOST_TRIES = 20

logger = logging.getLogger("mainspring.nats")


class Room:
    """The free slots of one demand."""

    __slots__ = ("ahead", "demand", "lanes", "starts", "suspects")

    def __init__(self, demand: Demand, lanes: Iterable[NatsLane]) -> None:
        self.demand = demand
        self.starts = demand.starts
        self.ahead = demand.ahead
        self.suspects = int(demand.suspects)
        self.lanes = [
            lane
            for lane in lanes
            if lane.type in demand.types and (demand.queues is None or lane.queue in demand.queues)
        ]

    def left(self) -> tuple[int, int, int]:
        """Return how many jobs may still start, be held, and be suspects."""
        return self.starts, self.ahead, self.suspects

    def reset(self, left: tuple[int, int, int]) -> None:
        """Set the room back to what `left` returned."""
        self.starts, self.ahead, self.suspects = left

    def take_back(self, job: JobRecord | None, *, is_start: bool, is_hold: bool) -> None:
        """Free the room of a job that was not claimed after all."""
        self.starts += is_start
        self.ahead += is_hold
        if job is not None and (is_start or is_hold):
            self.suspects += is_suspect(job)


class Fate(Enum):
    """The kinds of decision about a message."""

    DROPPED = auto()
    LEFT = auto()
    """No room: the message stays here for a moment."""
    STARTED = auto()
    HELD = auto()
    ADOPTED = auto()
    """This process has the lease of the job already: the message replaces the earlier one."""
    POSTPONED = auto()
    """Returned for a while: another worker owns the job, or it is not due, or its record is not stored yet."""
    REQUEUED = auto()
    """The job was rescued or handed back; if it runs again, it has another message."""


class Leads(Struct, frozen=True, gc=False):
    """How long before their due time jobs are held and started, in microseconds."""

    hold: int
    start: int


class Decision(Struct, frozen=True, gc=False):
    """The decision about a message and its job."""

    message: Message
    fate: Fate
    job: StoredJob | None = None
    delay: float = 0.0


def subject_of(names: Names, message: Message) -> str:
    """Return the subject of the record that a message is about."""
    return names.jobs + message.subject.rpartition(".")[2]


class Deciding:
    """Decides about messages, one after another."""

    def __init__(
        self,
        *,
        hands: Hands,
        book: SettingsBook,
        gates: Gates,
        queueing: Queueing,
        workers: Workers,
        rescuing: Rescuing,
        chores: Chores,
        journal: NatsJournal,
    ) -> None:
        self.hands = hands
        self._book = book
        self.gates = gates
        self._queueing = queueing
        self._workers = workers
        self._rescuing = rescuing
        self._chores = chores
        self._journal = journal

    def decide(self, workspace: Workspace, worker: int, room: Room, message: Message, leads: Leads) -> Decision:
        """Decide about a message, and write the changes that follow."""
        job = workspace.job_at(subject_of(workspace.names, message))
        if job is None or job.is_over:
            return self._decide_without_job(workspace, message)
        if message.subject != workspace.names.ready_of(job.queue, job.type, job.priority, job.id):
            return Decision(message, Fate.DROPPED)  # from a submit that was refused: the job has another message
        if job.owner is not None:
            return self._decide_about_owned(workspace, message, job)
        if job.is_gated and not is_ready(job):
            return Decision(message, Fate.DROPPED)  # it waits for its sequence or limits
        if job.due > workspace.now + max(leads.hold, LEAD) + EARLY:
            return self._decide_about_early(workspace, message, job)
        if job.expires is not None and job.expires <= workspace.now:
            self._chores.expire(workspace, job)
            return Decision(message, Fate.DROPPED)
        if job.queue in self._book.paused or (is_suspect(job) and not room.suspects):
            return Decision(message, Fate.LEFT, job)
        if job.due <= workspace.now + leads.start:
            return self._decide_to_start(workspace, worker, room, message, job)
        return self._decide_to_hold(workspace, worker, room, message, job)

    def _decide_to_hold(
        self, workspace: Workspace, worker: int, room: Room, message: Message, job: StoredJob
    ) -> Decision:
        if not room.ahead or job.is_gated:
            return Decision(message, Fate.LEFT, job)
        room.ahead -= 1
        room.suspects -= is_suspect(job)
        held = transitions.held(job, worker)
        workspace.put_job(held)
        return Decision(message, Fate.HELD, held)

    def _decide_about_early(self, workspace: Workspace, message: Message, job: StoredJob) -> Decision:
        if job.is_gated:
            delay = min(MOST_DELAY, (job.due - workspace.now) / MICROSECONDS)
            return Decision(message, Fate.POSTPONED, job, delay=delay)
        # Its schedule may be gone: the server deletes it when it fires, even if it was replaced meanwhile. Or the
        # process that queued the job had another time. So this message is dropped only with a new one stored.
        self._queueing.enqueue(workspace, job)
        return Decision(message, Fate.DROPPED)

    def _decide_without_job(self, workspace: Workspace, message: Message) -> Decision:
        """Drop a message without a live job; without a record, postpone it first: that may be stored after it."""
        has_record = workspace.entry(subject_of(workspace.names, message)).revision > 0
        if not has_record and message.deliveries < MOST_DELIVERIES:
            return Decision(message, Fate.POSTPONED, delay=0.05 * 4**message.deliveries)
        return Decision(message, Fate.DROPPED)

    def _decide_to_start(
        self, workspace: Workspace, worker: int, room: Room, message: Message, job: StoredJob
    ) -> Decision:
        if not room.starts:
            return Decision(message, Fate.LEFT, job)
        room.starts -= 1
        room.suspects -= is_suspect(job)
        started = transitions.started(job, worker, workspace.now, is_held=False)
        started = change(started, is_start_untold=self._journal.is_heard(workspace))
        if job.is_gated:
            started = self.gates.started(workspace, started)
        workspace.put_job(started)
        return Decision(message, Fate.STARTED, started)

    def _decide_about_owned(self, workspace: Workspace, message: Message, job: StoredJob) -> Decision:
        hand = self.hands.get(job.id)
        if hand is not None and (hand.worker, hand.job.token) == (job.owner, job.token):
            return Decision(message, Fate.ADOPTED, job)
        if self._workers.is_enrolled(job.owner or 0):
            # This process claimed the job, but the answer was lost: no worker ever got the lease.
            self._hand_back(workspace, job)
            return Decision(message, Fate.REQUEUED, job)
        lease_left = self._workers.lease_left(job.owner or 0, workspace.now)
        if lease_left > 0:
            return Decision(message, Fate.POSTPONED, job, delay=lease_left / MICROSECONDS)
        self._rescuing.rescue(workspace, job)
        return Decision(message, Fate.REQUEUED, job)

    def _hand_back(self, workspace: Workspace, job: StoredJob) -> None:
        is_running = job.status is JobStatus.RUNNING
        lease = transitions.lease_of(job, job.id, is_started=is_running)
        after = transitions.settled(job, Outcome(lease, OutcomeKind.HANDED_BACK), workspace.now)
        if job.is_gated and is_running:
            after = self.gates.leave(workspace, after, keeps_sequence=True)
        if after.status is JobStatus.PENDING:
            self._queueing.enqueue(workspace, after)
        else:
            workspace.put_job(after)


class Claims:
    """Turns messages into leases: decides about each, and stores the decisions."""

    def __init__(self, workshop: Workshop, intake: MessageIntake, deciding: Deciding) -> None:
        self._workshop = workshop
        self._intake = intake
        self._deciding = deciding
        self._hands = deciding.hands
        self._gates = deciding.gates

    def accept(self, worker: int, room: Room, messages: list[Message], leads: Leads) -> list[Decision]:
        """Claim the jobs of messages; messages that cannot be decided about now go back to the server."""
        accepted: list[Decision] = []
        try:
            for attempt in range(MOST_TRIES):
                messages = self._try(worker, room, messages, leads, accepted, is_first=attempt == 0)
                if not messages:
                    return accepted
        except TooLarge:
            return accepted + self._accept_less(worker, room, messages, leads)
        except EngineUnavailable:
            if not accepted:
                raise
            logger.warning("%s: %d jobs were taken, the rest not", self._workshop.link.address, len(accepted))
            return accepted
        self._workshop.link.send([(message.reply, nak(1)) for message in messages])
        return accepted

    def _try(
        self,
        worker: int,
        room: Room,
        messages: list[Message],
        leads: Leads,
        accepted: list[Decision],
        *,
        is_first: bool,
    ) -> list[Message]:
        """Decide and store; return the messages whose jobs another process has changed meanwhile."""
        before = room.left()
        workspace = self._workshop.open()
        self._read(workspace, messages, everything=not is_first)
        decisions = [self._deciding.decide(workspace, worker, room, message, leads) for message in messages]
        try:
            missed = self._workshop.commit_each(workspace)
        except TooLarge:
            room.reset(before)
            raise
        stored = [decision for decision in decisions if self._record_of(decision.message) not in missed]
        self._note(workspace, worker, stored)
        accepted += stored
        for decision in decisions:
            if self._record_of(decision.message) in missed:
                is_start, is_hold = decision.fate is Fate.STARTED, decision.fate is Fate.HELD
                room.take_back(decision.job, is_start=is_start, is_hold=is_hold)
        return [message for message in messages if self._record_of(message) in missed]

    def _accept_less(self, worker: int, room: Room, messages: list[Message], leads: Leads) -> list[Decision]:
        """Claim half of the messages, to fit into one transaction; the rest waits for the next take."""
        half = len(messages) // 2
        self._intake.put_back((message, None) for message in messages[half:])
        return self.accept(worker, room, messages[:half], leads) if half else []

    def _read(self, workspace: Workspace, messages: list[Message], *, everything: bool) -> None:
        """Read the records; a message that was stored right behind its record contains it, and saves the read."""
        unknown = []
        for message in messages:
            if everything or message.is_fired or message.deliveries > 1 or not message.data:
                unknown.append(self._record_of(message))
            else:
                workspace.know_job(decode_job(message.data), message.revision - 1)
        workspace.prefetch(unknown)
        jobs = (workspace.job_at(self._record_of(message)) for message in messages)
        self._gates.prefetch(workspace, [job for job in jobs if job is not None and job.is_gated])

    def _record_of(self, message: Message) -> str:
        return subject_of(self._workshop.names, message)

    def _note(self, workspace: Workspace, worker: int, decisions: list[Decision]) -> None:
        """Keep the leases, acknowledge outdated messages, return messages of jobs that others own."""
        revisions = workspace.revisions()
        answers: list[tuple[str, bytes]] = []
        for decision in decisions:
            message, job = decision.message, decision.job
            match decision.fate:
                case Fate.STARTED | Fate.HELD if job is not None:
                    revision = revisions[workspace.names.job(job.id)]
                    self._hands.put(Hand(worker, job, revision, message.reply))
                case Fate.ADOPTED if job is not None:
                    hand = self._hands.get(job.id)
                    if hand is not None:
                        hand.reply = message.reply
                case Fate.POSTPONED:
                    answers.append((message.reply, nak(decision.delay)))
                case Fate.LEFT:
                    continue
                case _:
                    answers.append((message.reply, ACK))
        self._workshop.link.send(answers)


class Starting:
    """Commits the starts of held jobs."""

    def __init__(self, workshop: Workshop, hands: Hands, book: SettingsBook, journal: NatsJournal) -> None:
        self._workshop = workshop
        self._hands = hands
        self._book = book
        self._journal = journal

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark held jobs RUNNING; return for each whether it may run."""
        left = list(leases)
        accepted: set[tuple[str, int]] = set()
        try:
            for attempt in range(MOST_TRIES):
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
        """Store starts; return the leases whose jobs another process has changed meanwhile."""
        workspace = self._workshop.open()
        if must_read:
            workspace.prefetch_jobs(lease.id for lease in leases)
        jobs = [self._start(workspace, worker, lease, must_read=must_read) for lease in leases]
        missed = self._workshop.commit_each(workspace)
        decided = [
            (lease, job)
            for lease, job in zip(leases, jobs, strict=True)
            if workspace.names.job(lease.id) not in missed
        ]
        self._note_starts(workspace, worker, decided)
        accepted |= {(lease.id, lease.token) for lease, job in decided if job is not None}
        return [lease for lease in leases if workspace.names.job(lease.id) in missed]

    def _start(self, workspace: Workspace, worker: int, lease: Lease, *, must_read: bool) -> StoredJob | None:
        hand = self._hands.get(lease.id)
        if hand is None or not hand.is_of(lease, worker):
            return None
        if not must_read:
            workspace.know_job(hand.job, hand.revision)
        job = workspace.job(lease.id)
        if job is not None and must_read and transitions.is_leased(job, lease, worker, JobStatus.RUNNING):
            workspace.put_job(job)  # the first try was stored, only the answer was lost
            return job
        if job is None or not transitions.is_leased(job, lease, worker, JobStatus.PENDING):
            return None
        if job.queue in self._book.paused:
            return None
        started = transitions.started(job, worker, workspace.now, is_held=True)
        started = change(started, is_start_untold=self._journal.is_heard(workspace))
        workspace.put_job(started)
        return started

    def _note_starts(
        self, workspace: Workspace, worker: int, decided: Sequence[tuple[Lease, StoredJob | None]]
    ) -> None:
        revisions = workspace.revisions()
        for lease, job in decided:
            hand = self._hands.get(lease.id)
            if hand is None or hand.worker != worker:
                continue
            if job is not None:
                hand.job, hand.revision = job, revisions[workspace.names.job(job.id)]
            elif hand.is_of(lease, worker) and hand.job.status is JobStatus.PENDING:
                self._hands.drop(lease.id)  # canceled, rescheduled, or taken over
                self._workshop.link.send([(hand.reply, nak(0))])
