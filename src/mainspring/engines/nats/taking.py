"""Taking jobs: messages become leases, by a change of their records that only one worker can make.

What was taken must reach its worker: whatever may fail is done before, and what fails afterwards is not told.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.deciding import Deciding, Decision, Fate, Leads, subject_of
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hand, Hands
from mainspring.engines.nats.intake import Intake
from mainspring.engines.nats.lanes import Lane, Lanes
from mainspring.engines.nats.messages import ACK, Message, Pull, nak
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.rooms import Room, Shares
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stops import Stops
from mainspring.engines.nats.stored import decode_job
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import TooLarge, Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.records import Lease
from mainspring.jobs.status import JobStatus

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
