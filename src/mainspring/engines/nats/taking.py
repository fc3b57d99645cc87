"""Claims jobs: messages become leases, by a change of their records that only one worker can make.

A message is a hint, the record decides. What a message means follows from the record:

    over, or queued elsewhere    the message is outdated: it is acknowledged
    PENDING, without an owner    claimed: started if due, held if due soon; left if there is no room
    owned by a living worker     needed if that worker dies: returned for the rest of the lease
    owned by a dead worker       the job is rescued first

A held job becomes RUNNING just before it is due, if it still has its owner. A claimed job must reach its worker:
everything that may fail is done before the claim, and what fails afterwards is not reported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import partial
from math import floor

from msgspec import Struct

from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hand, Hands, Stops
from mainspring.engines.nats.intake import Intake
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.messages import ACK, Message, Pull, nak
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.queueing import LEAD, Lane, Lanes, Queueing
from mainspring.engines.nats.repair import Rescuing
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, change, decode_job
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import TooLarge, Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.engine import Demand, Taken, is_suspect
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.records import JobRecord, Lease, Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus

WEIGHTS = {0: 1, 1: 3, 2: 6}
"""Shares of the room, by priority: urgent jobs are preferred, and nobody waits for ever."""


class Room:
    """The room of one demand."""

    __slots__ = ("ahead", "demand", "lanes", "starts", "suspects")

    def __init__(self, demand: Demand, lanes: Iterable[Lane]) -> None:
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
        """Return how much room there is."""
        return self.starts, self.ahead, self.suspects

    def reset(self, left: tuple[int, int, int]) -> None:
        """Make it as much as before."""
        self.starts, self.ahead, self.suspects = left

    def take_back(self, job: JobRecord | None, *, is_start: bool, is_hold: bool) -> None:
        """Make room again for a job that was not taken after all."""
        self.starts += is_start
        self.ahead += is_hold
        if job is not None and (is_start or is_hold):
            self.suspects += is_suspect(job)


class Shares:
    """Divides room among lanes by priority, over any number of takes: nobody is ever more than one start short."""

    def __init__(self) -> None:
        self._credit: dict[Lane, float] = {}  # what is left of the exact shares, less what was given

    def divide(self, starts: int, lanes: Sequence[Lane]) -> dict[Lane, int]:
        """Divide room for so many starts among lanes that may have jobs; those that get nothing are not named."""
        total = sum(WEIGHTS[lane.priority] for lane in lanes)
        credit = {lane: self._credit.get(lane, 0.0) + starts * WEIGHTS[lane.priority] / total for lane in lanes}
        shares = {lane: max(0, floor(credit[lane])) for lane in lanes}
        spare = starts - sum(shares.values())
        for lane in sorted(lanes, key=lambda lane: credit[lane] - shares[lane], reverse=True)[: max(0, spare)]:
            shares[lane] += 1
        self._credit |= {lane: credit[lane] - shares[lane] for lane in lanes}
        return {lane: share for lane, share in shares.items() if share}


EARLY = MICROSECONDS // 2  # how much earlier than planned the server may deliver
MOST_DELAY = 5.0
MOST_DELIVERIES = 5  # of a message without a record


class Fate(Enum):
    """What becomes of a message."""

    DROPPED = auto()
    LEFT = auto()
    """No room: it waits here for a moment."""
    STARTED = auto()
    HELD = auto()
    ADOPTED = auto()
    """Of a job in our own hands: the message replaces the one that we had."""
    POSTPONED = auto()
    """Of a job in the hands of somebody else."""
    REQUEUED = auto()
    """Its job was rescued, and comes again."""


class Leads(Struct, frozen=True, gc=False):
    """How long before their due time jobs are taken, in microseconds."""

    hold: int
    start: int


class Decision(Struct, frozen=True, gc=False):
    """What becomes of a message and its job."""

    message: Message
    fate: Fate
    job: StoredJob | None = None
    delay: float = 0.0


def subject_of(names: Names, message: Message) -> str:
    """Return the record that a message is about."""
    return names.jobs + message.subject.rpartition(".")[2]


class Deciding:
    """Decides, one message after another."""

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
        journal: Journal,
    ) -> None:
        self._hands = hands
        self._book = book
        self._gates = gates
        self._queueing = queueing
        self._workers = workers
        self._rescuing = rescuing
        self._chores = chores
        self._journal = journal

    def decide(self, workspace: Workspace, worker: int, room: Room, message: Message, leads: Leads) -> Decision:
        """Decide about a message, and write what follows."""
        job = workspace.job_at(subject_of(workspace.names, message))
        if job is None or job.is_over:
            return self._decide_without_job(workspace, message)
        if message.subject != workspace.names.ready_of(job.queue, job.type, job.priority, job.id):
            return Decision(message, Fate.DROPPED)  # of a submit that was refused: the job has another one
        if job.owner is not None:
            return self._decide_about_owned(workspace, message, job)
        if job.is_gated and not is_ready(job):
            return Decision(message, Fate.DROPPED)  # it waits before its gates
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
        # Its schedule may be gone: the server deletes it when it fires, even if it was replaced meanwhile. And
        # whoever made the job ready may have had another time: a message is not dropped without another one.
        self._queueing.enqueue(workspace, job)
        return Decision(message, Fate.DROPPED)

    def _decide_without_job(self, workspace: Workspace, message: Message) -> Decision:
        """Drop a message that leads nowhere; but it may have been stored before its record, which is to come."""
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
            started = self._gates.started(workspace, started)
        workspace.put_job(started)
        return Decision(message, Fate.STARTED, started)

    def _decide_about_owned(self, workspace: Workspace, message: Message, job: StoredJob) -> Decision:
        hand = self._hands.get(job.id)
        if hand is not None and (hand.worker, hand.job.token) == (job.owner, job.token):
            return Decision(message, Fate.ADOPTED, job)
        if self._workers.is_enrolled(job.owner or 0):
            # A take of ours whose answer was lost: it was never handed out.
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
            after = self._gates.leave(workspace, after, keeps_sequence=True)
        if after.status is JobStatus.PENDING:
            self._queueing.enqueue(workspace, after)
        else:
            workspace.put_job(after)


class Starting:
    """Commits starts."""

    def __init__(self, workshop: Workshop, hands: Hands, book: SettingsBook, journal: Journal) -> None:
        self._workshop = workshop
        self._hands = hands
        self._book = book
        self._journal = journal

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark held jobs RUNNING."""
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
        """Store starts; return those with whose jobs somebody was quicker."""
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
            workspace.put_job(job)  # it was stored the first time, of which only the answer was lost
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
                self._hands.drop(lease.id)  # cancelled, put off, or taken from us
                self._workshop.link.send([(hand.reply, nak(0))])


MOST_ROUNDS = 4
MOST_AT_ONCE = 400
MOST_TRIES = 20

logger = logging.getLogger("mainspring.nats")


class Taking:
    """Leases jobs to workers."""

    def __init__(
        self,
        workshop: Workshop,
        streams: Streams,
        intake: Intake,
        hands: Hands,
        lanes: Lanes,
        *,
        deciding: Deciding,
        book: SettingsBook,
        gates: Gates,
        queueing: Queueing,
        workers: Workers,
        chores: Chores,
        stops: Stops,
    ) -> None:
        self._workshop = workshop
        self._streams = streams
        self._intake = intake
        self._hands = hands
        self._lanes = lanes
        self._deciding = deciding
        self._book = book
        self._gates = gates
        self._queueing = queueing
        self._workers = workers
        self._chores = chores
        self._stops = stops
        self._shares = Shares()

    def take(self, worker: int, demands: Sequence[Demand], lead: int, start_lead: int) -> Taken:
        """Lease jobs."""
        if not self._workers.is_enrolled(worker):
            return Taken([], None, False, [], is_alive=False)
        if self._book.refresh_if_needed():
            self.give_back_paused()
        self._chores.carry_out()
        if self._lanes.must_read:
            self._lanes.read_new(self._workshop.open())
        lanes = [lane for lane in self._lanes.all if lane.queue not in self._book.paused]
        rooms = [Room(demand, lanes) for demand in demands]
        consumers = {room: self._consumers(room) for room in rooms}
        chores = self._chores.consumer()
        leases: list[Lease] = []
        is_more = False
        for room in rooms:
            is_more |= self._fill(worker, room, Leads(lead, start_lead), leases)
        idle = [consumer for room in rooms if room.starts for consumer in consumers[room]]
        self._intake.arm([*idle, chores])
        return Taken(leases, None, is_more, self._stops.take(worker))

    def _consumers(self, room: Room) -> list[str]:
        """Name those from which a message may come by itself while there is room."""
        return list(self._streams.consumers_of(self._lanes.all[lane] for lane in room.lanes).values())

    def _fill(self, worker: int, room: Room, leads: Leads, leases: list[Lease]) -> bool:
        """Fill one room, adding to the leases; return whether there may be more jobs than there is room for."""
        try:
            return self._fill_until_full(worker, room, leads, leases)
        except Exception:
            if not leases:
                raise
            logger.exception("%s: no more jobs are taken for now", self._workshop.link.address)
            return True

    def _fill_until_full(self, worker: int, room: Room, leads: Leads, leases: list[Lease]) -> bool:
        pending: dict[Lane, int | None] = dict.fromkeys(room.lanes)  # how many more there are, as far as we know
        left: list[Decision] = []
        try:
            for _ in range(MOST_ROUNDS + len(room.lanes)):
                messages = self._find(room, pending, leads) if self._workshop.link.is_connected else []
                decisions = self._accept(worker, room, messages, leads) if messages else []
                left += [decision for decision in decisions if decision.fate is Fate.LEFT]
                for decision in decisions:
                    if decision.job is not None and decision.fate in (Fate.STARTED, Fate.HELD):
                        is_started = decision.fate is Fate.STARTED
                        place = decision.job.place
                        leases.append(transitions.lease_of(decision.job, place, is_started=is_started))
                is_all_known = None not in pending.values()
                if not room.starts or (is_all_known and not any(pending.values())):
                    break
        finally:
            self._intake.put_back((decision.message, decision.job) for decision in left)
        # A full room is looked at again when it has room: only then are its lanes listened to.
        return bool(left) or not room.starts

    def _find(self, room: Room, pending: dict[Lane, int | None], leads: Leads) -> list[Message]:
        """Return messages: those that came by themselves, and what the lanes have."""
        until = None if room.ahead else self._workshop.now() + leads.start
        here = self._intake.take_jobs([self._lanes.all[lane][:-1] for lane in room.lanes], until)
        lanes = [lane for lane in room.lanes if pending[lane] != 0]
        if len(here) >= room.starts or not lanes:
            return here
        asked = self._shares.divide(room.starts, lanes)
        shares = {self._lanes.all[lane]: share for lane, share in asked.items()}
        consumers = self._streams.consumers_of(shares)
        pulls = [Pull(consumer, min(shares[lane], MOST_AT_ONCE)) for lane, consumer in consumers.items()]
        found = self._intake.fetch(pulls)
        for lane in asked:
            prefix = self._lanes.all[lane][:-1]
            left = [message.pending for message in found if message.subject.startswith(prefix)]
            pending[lane] = min(left) if left else 0
        # Of two messages of one job only the newer one exists on the server.
        newest = {message.subject: message for message in sorted([*here, *found], key=_revision)}
        return list(newest.values())

    # -- deciding

    def _accept(self, worker: int, room: Room, messages: list[Message], leads: Leads) -> list[Decision]:
        """Turn messages into leases; what cannot be decided now goes back to the server."""
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
        """Decide and store; return the messages of those with whose jobs somebody was quicker."""
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
        """Take what fits into one draft; the rest comes with the next take."""
        half = len(messages) // 2
        self._intake.put_back((message, None) for message in messages[half:])
        return self._accept(worker, room, messages[:half], leads) if half else []

    def _read(self, workspace: Workspace, messages: list[Message], *, everything: bool) -> None:
        """Read the records; a message that was stored with its record carries it, and stands right behind it."""
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

    # -- afterwards

    def _note(self, workspace: Workspace, worker: int, decisions: list[Decision]) -> None:
        """Keep what is ours, acknowledge what is outdated, give back what is not for us."""
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

    def give_back_paused(self) -> None:
        """Give back what is held of queues that were paused: their starts are refused."""
        paused = [hand for hand in self._hands.all() if hand.job.queue in self._book.paused]
        for hand in paused:
            if hand.job.status is JobStatus.PENDING:
                self._workshop.carry_through(partial(self._give_back, hand))

    def _give_back(self, hand: Hand, workspace: Workspace) -> None:
        job = workspace.job(hand.job.id)
        is_held = job is not None and (job.owner, job.status) == (hand.worker, JobStatus.PENDING)
        if job is not None and is_held:
            self._queueing.enqueue(workspace, transitions.taken_back(job))
        workspace.draft.send(hand.reply, ACK if is_held else nak(0))
        workspace.draft.then(partial(self._hands.drop, hand.job.id))


def _revision(message: Message) -> int:
    return message.revision
