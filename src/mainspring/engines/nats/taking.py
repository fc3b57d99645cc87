"""Taking jobs: messages become leases, by a change of their records that only one worker can make.

A message is a hint, the record decides. What a message means follows from the record:

    over, or queued for later   the message is outdated: acknowledged, and that is all
    PENDING, nobody's           taken: started if due, held if due soon; left if there is no room
    in the hands of a live one  it will be needed if that one dies: back for the rest of the lease
    in the hands of a dead one  the job is rescued first
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from functools import partial

from msgspec import Struct

from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hand, Hands
from mainspring.engines.nats.intake import Intake
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.lanes import Lane, Lanes
from mainspring.engines.nats.messages import ACK, Message, Pull, nak
from mainspring.engines.nats.queueing import LEAD, Queueing
from mainspring.engines.nats.rescuing import Rescuing
from mainspring.engines.nats.rooms import Room
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, decode_job
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.engine import SUSPECT_CRASHES, Demand, EventKind, Lease, Outcome, OutcomeKind, Taken
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.status import JobStatus

EARLY = MICROSECONDS // 2  # how much earlier than planned the server may deliver
MOST_ROUNDS = 4
MOST_AT_ONCE = 400
MOST_TRIES = 20
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
        book: SettingsBook,
        gates: Gates,
        queueing: Queueing,
        workers: Workers,
        rescuing: Rescuing,
        chores: Chores,
        journal: Journal,
    ) -> None:
        self._workshop = workshop
        self._streams = streams
        self._intake = intake
        self._hands = hands
        self._lanes = lanes
        self._book = book
        self._gates = gates
        self._queueing = queueing
        self._workers = workers
        self._rescuing = rescuing
        self._chores = chores
        self._journal = journal
        self.stops: set[str] = set()
        """Jobs in our hands that somebody wants stopped."""

    def take(self, worker: int, demands: Sequence[Demand], lead: int, start_lead: int) -> Taken:
        """Lease jobs."""
        if not self._workers.is_enrolled(worker):
            return Taken([], None, False, [], is_alive=False)
        if self._book.must_refresh:
            self._book.refresh()
            self.give_back_paused()
        self._chores.carry_out()
        if self._lanes.must_read:
            self._lanes.read_new(self._workshop.open())
        lanes = [lane for lane in self._lanes.all if lane.queue not in self._book.paused]
        rooms = [Room(demand, lanes) for demand in demands]
        leases: list[Lease] = []
        is_more = False
        for room in rooms:
            is_more |= self._fill(worker, room, Leads(lead, start_lead), leases)
        if self._workshop.link.is_connected:
            self._intake.arm(self._consumers(rooms))
        stops = [job_id for job_id in self.stops if self._is_hers(job_id, worker)]
        self.stops.clear()
        return Taken(leases, None, is_more, stops)

    def _is_hers(self, job_id: str, worker: int) -> bool:
        hand = self._hands.get(job_id)
        return hand is not None and hand.worker == worker

    def _consumers(self, rooms: list[Room]) -> list[str]:
        """Name those from which a message may come by itself: where there is room, and the chores."""
        lanes = [lane for room in rooms if room.starts for lane in room.lanes]
        consumers = self._streams.consumers_of(self._lanes.all[lane] for lane in lanes)
        return [*consumers.values(), self._chores.consumer()]

    def _fill(self, worker: int, room: Room, leads: Leads, leases: list[Lease]) -> bool:
        """Fill one room, adding to the leases; return whether due jobs were left for lack of room.

        What was taken must reach its worker: if the connection goes now, there is no more for this time.
        """
        try:
            return self._fill_until_full(worker, room, leads, leases)
        except EngineUnavailable:
            if not leases:
                raise
            return True

    def _fill_until_full(self, worker: int, room: Room, leads: Leads, leases: list[Lease]) -> bool:
        pending: dict[Lane, int | None] = dict.fromkeys(room.lanes)  # how many more there are, as far as we know
        is_left = False
        for _ in range(MOST_ROUNDS if self._workshop.link.is_connected else 0):
            messages = self._find(room, pending)
            if not messages:
                break
            for decision in self._accept(worker, room, messages, leads):
                is_left |= decision.fate is Fate.LEFT
                if decision.job is not None and decision.fate in (Fate.STARTED, Fate.HELD):
                    is_started = decision.fate is Fate.STARTED
                    leases.append(transitions.lease_of(decision.job, decision.job.place, is_started=is_started))
            if not room.starts:
                break
        may_be_more = not room.starts and any(count != 0 for count in pending.values())
        return is_left or may_be_more

    def _find(self, room: Room, pending: dict[Lane, int | None]) -> list[Message]:
        """Return messages: those that came by themselves, and what the lanes have."""
        here = self._intake.take_jobs(self._lanes.all[lane][:-1] for lane in room.lanes)
        lanes = [lane for lane in room.lanes if pending[lane] != 0]
        if len(here) >= room.starts or not lanes:
            return here
        asked = room.shares(lanes)
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
        must_read = False
        accepted: list[Decision] = []
        for _ in range(MOST_TRIES):
            workspace = self._workshop.open()
            self._read(workspace, messages, everything=must_read)
            decisions = [self._decide(workspace, worker, room, message, leads) for message in messages]
            missed = self._workshop.commit_each(workspace)
            stored = [decision for decision in decisions if self._subject_of(decision.message) not in missed]
            self._note(workspace, worker, stored)
            accepted += stored
            for decision in decisions:
                if self._subject_of(decision.message) in missed:
                    room.take_back(
                        decision.job, is_start=decision.fate is Fate.STARTED, is_hold=decision.fate is Fate.HELD
                    )
            messages = [message for message in messages if self._subject_of(message) in missed]
            if not messages:
                return accepted
            must_read = True  # somebody was quicker with these
        self._workshop.link.send([(message.reply, nak(1)) for message in messages])
        return accepted

    def _read(self, workspace: Workspace, messages: list[Message], *, everything: bool) -> None:
        """Read the records; a message that was stored with its record carries it, and stands right behind it."""
        unknown = []
        for message in messages:
            if everything or message.is_fired or message.deliveries > 1 or not message.data:
                unknown.append(self._subject_of(message))
            else:
                workspace.know_job(decode_job(message.data), message.revision - 1)
        workspace.prefetch(unknown)
        jobs = (workspace.job_at(self._subject_of(message)) for message in messages)
        self._gates.prefetch(workspace, [job for job in jobs if job is not None and job.is_gated])

    def _subject_of(self, message: Message) -> str:
        return self._workshop.names.jobs + message.subject.rpartition(".")[2]

    def _decide(self, workspace: Workspace, worker: int, room: Room, message: Message, leads: Leads) -> Decision:
        job = workspace.job_at(self._subject_of(message))
        if job is None or job.is_over:
            return self._decide_without_job(workspace, message)
        if job.owner is not None:
            return self._decide_about_owned(workspace, message, job)
        if job.is_gated and not is_ready(job):
            return Decision(message, Fate.DROPPED)  # it waits before its gates
        if job.due > workspace.now + max(leads.hold, LEAD) + EARLY:
            if job.is_gated:
                delay = min(MOST_DELAY, (job.due - workspace.now) / MICROSECONDS)
                return Decision(message, Fate.POSTPONED, job, delay=delay)
            # Its schedule may be gone: the server deletes it when it fires, even if it was replaced meanwhile. And
            # whoever made the job ready may have had another time: a message is not dropped without another one.
            self._queueing.enqueue(workspace, job)
            return Decision(message, Fate.DROPPED)
        if job.expires is not None and job.expires <= workspace.now:
            self._chores.expire(workspace, job)
            return Decision(message, Fate.DROPPED)
        if job.queue in self._book.paused or (job.crashes >= SUSPECT_CRASHES and not room.suspects):
            return Decision(message, Fate.LEFT)
        if job.due <= workspace.now + leads.start:
            return self._decide_to_start(workspace, worker, room, message, job)
        if room.ahead and not job.is_gated:
            room.ahead -= 1
            room.suspects -= job.crashes >= SUSPECT_CRASHES
            held = transitions.held(job, worker)
            workspace.put_job(held)
            return Decision(message, Fate.HELD, held)
        return Decision(message, Fate.LEFT)

    def _decide_without_job(self, workspace: Workspace, message: Message) -> Decision:
        """Drop a message that leads nowhere; but it may have been stored before its record, which is to come."""
        is_early = (
            workspace.entry(self._subject_of(message)).revision == 0 and message.deliveries < MOST_DELIVERIES
        )
        if is_early:
            return Decision(message, Fate.POSTPONED, delay=0.05 * 4**message.deliveries)
        return Decision(message, Fate.DROPPED)

    def _decide_to_start(
        self, workspace: Workspace, worker: int, room: Room, message: Message, job: StoredJob
    ) -> Decision:
        if not room.starts:
            return Decision(message, Fate.LEFT)
        room.starts -= 1
        room.suspects -= job.crashes >= SUSPECT_CRASHES
        started = transitions.started(job, worker, workspace.now, is_held=False)
        if job.is_gated:
            started = self._gates.started(workspace, started)
        workspace.put_job(started)
        self._journal.write(workspace, EventKind.STARTED, started)
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

    # -- afterwards

    def _note(self, workspace: Workspace, worker: int, decisions: list[Decision]) -> None:
        """Keep what is ours, acknowledge what is outdated, give back what is not for us."""
        revisions = workspace.revisions()
        answers: list[tuple[str, bytes]] = []
        left: list[Message] = []
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
                    left.append(message)
                case _:
                    answers.append((message.reply, ACK))
        self._intake.put_back(left)
        self._workshop.link.send(answers)

    def give_back_paused(self) -> None:
        """Give back what is held of queues that were paused: their starts are refused."""
        paused = [hand for hand in self._hands.all() if hand.job.queue in self._book.paused]
        for hand in paused:
            if hand.job.status is JobStatus.PENDING:
                self._workshop.carry_through(partial(self._give_back, hand))

    def _give_back(self, hand: Hand, workspace: Workspace) -> None:
        job = workspace.job(hand.job.id)
        if job is not None and (job.owner, job.status) == (hand.worker, JobStatus.PENDING):
            self._queueing.enqueue(workspace, transitions.taken_back(job))
        workspace.draft.send(hand.reply, ACK)
        workspace.draft.then(partial(self._hands.drop, hand.job.id))

    # -- starting what is held

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark held jobs RUNNING."""
        must_read = False
        open_leases = list(leases)
        accepted: set[tuple[str, int]] = set()
        for _ in range(MOST_TRIES):
            workspace = self._workshop.open()
            if must_read:
                workspace.prefetch_jobs(lease.id for lease in open_leases)
            jobs = [self._start(workspace, worker, lease, must_read=must_read) for lease in open_leases]
            missed = self._workshop.commit_each(workspace)
            decided = [
                (lease, job)
                for lease, job in zip(open_leases, jobs, strict=True)
                if workspace.names.job(lease.id) not in missed
            ]
            self._note_starts(workspace, worker, decided)
            accepted |= {(lease.id, lease.token) for lease, job in decided if job is not None}
            open_leases = [lease for lease in open_leases if workspace.names.job(lease.id) in missed]
            if not open_leases:
                break
            must_read = True
        return [(lease.id, lease.token) in accepted for lease in leases]

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
        workspace.put_job(started)
        self._journal.write(workspace, EventKind.STARTED, started)
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


def _revision(message: Message) -> int:
    return message.revision
