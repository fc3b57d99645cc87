"""Leases jobs to a worker: finds messages of jobs that it has room for, and claims the jobs (`claiming.py`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from math import floor

from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.claiming import Claims, Decision, Fate, Leads, Room
from mainspring.engines.nats.hands import Hand, Stops
from mainspring.engines.nats.intake import MessageIntake
from mainspring.engines.nats.messages import ACK, Message, Pull, nak
from mainspring.engines.nats.queueing import NatsLane, NatsLanes, Queueing
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.jobs import transitions
from mainspring.jobs.engine import Demand, Taken
from mainspring.jobs.records import Lease, is_suspect
from mainspring.jobs.status import JobStatus

WEIGHTS = {0: 1, 1: 3, 2: 6}
"""Shares of the free slots, by priority: urgent jobs are preferred, and every lane has a share."""
MOST_ROUNDS = 4
MOST_AT_ONCE = 400

logger = logging.getLogger("mainspring.nats")


class Shares:
    """Divides slots among lanes by priority, over any number of takes: no lane is more than one start short."""

    def __init__(self) -> None:
        self._credit: dict[NatsLane, float] = {}  # the exact shares so far, less the starts that were given

    def divide(self, starts: int, lanes: Sequence[NatsLane]) -> dict[NatsLane, int]:
        """Divide a number of starts among lanes that may have jobs; lanes that get none are left out."""
        total = sum(WEIGHTS[lane.priority] for lane in lanes)
        credit = {lane: self._credit.get(lane, 0.0) + starts * WEIGHTS[lane.priority] / total for lane in lanes}
        shares = {lane: max(0, floor(credit[lane])) for lane in lanes}
        spare = starts - sum(shares.values())
        for lane in sorted(lanes, key=lambda lane: credit[lane] - shares[lane], reverse=True)[: max(0, spare)]:
            shares[lane] += 1
        self._credit |= {lane: credit[lane] - shares[lane] for lane in lanes}
        return {lane: share for lane, share in shares.items() if share}


class LaneReader:
    """Reads messages of jobs: those that idle pulls have received, and those that are fetched from lanes."""

    def __init__(self, workshop: Workshop, streams: Streams, intake: MessageIntake, lanes: NatsLanes) -> None:
        self._workshop = workshop
        self._streams = streams
        self._intake = intake
        self._lanes = lanes
        self._shares = Shares()
        self.put_back = intake.put_back
        """Keep messages for the next take."""

    def open_lanes(self) -> list[NatsLane]:
        """Return all lanes, including those that other processes have stored."""
        if self._lanes.must_read:
            self._lanes.read_new(self._workshop.open())
        return list(self._lanes.all)

    def consumers_of(self, room: Room) -> list[str]:
        """Return the consumers of the lanes of a room, for idle pulls while there is room."""
        return list(self._streams.consumers_of(self._lanes.all[lane] for lane in room.lanes).values())

    def listen(self, consumers: list[str]) -> None:
        """Start idle pulls, so that the next message of each of these consumers wakes this process."""
        self._intake.arm(consumers)

    def find(self, room: Room, pending: dict[NatsLane, int | None], leads: Leads) -> list[Message]:
        """Return messages for a room, and note in `pending` how many more each lane has."""
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


class NatsTaking:
    """Leases jobs to workers."""

    def __init__(
        self,
        workshop: Workshop,
        reader: LaneReader,
        claims: Claims,
        *,
        workers: Workers,
        book: SettingsBook,
        queueing: Queueing,
        chores: Chores,
        stops: Stops,
    ) -> None:
        self._workshop = workshop
        self._reader = reader
        self._claims = claims
        self._workers = workers
        self._book = book
        self._queueing = queueing
        self._chores = chores
        self._stops = stops
        self._hands = stops.hands

    def take(self, worker: int, demands: Sequence[Demand], lead: int, start_lead: int) -> Taken:
        """Lease jobs to a worker, as far as its demands have room."""
        if not self._workers.is_enrolled(worker):
            return Taken([], None, False, [], is_alive=False)
        if self._book.refresh_if_needed():
            self.give_back_paused()
        self._chores.carry_out()
        lanes = [lane for lane in self._reader.open_lanes() if lane.queue not in self._book.paused]
        rooms = [Room(demand, lanes) for demand in demands]
        consumers = {room: self._reader.consumers_of(room) for room in rooms}
        chores = self._chores.consumer()
        leases: list[Lease] = []
        is_more = False
        for room in rooms:
            if any(map(is_suspect, leases)):
                room.suspects = 0
            is_more |= self._fill(worker, room, Leads(lead, start_lead), leases)
        idle = [consumer for room in rooms if room.starts for consumer in consumers[room]]
        self._reader.listen([*idle, chores])
        return Taken(leases, None, is_more, self._stops.take(worker))

    def _fill(self, worker: int, room: Room, leads: Leads, leases: list[Lease]) -> bool:
        """Fill one room, and add to the leases; return whether there may be more jobs than room."""
        try:
            return self._fill_until_full(worker, room, leads, leases)
        except Exception:
            if not leases:
                raise
            logger.exception("%s: no more jobs are taken for now", self._workshop.link.address)
            return True

    def _fill_until_full(self, worker: int, room: Room, leads: Leads, leases: list[Lease]) -> bool:
        pending: dict[NatsLane, int | None] = dict.fromkeys(
            room.lanes
        )  # how many messages are left; None: unknown
        left: list[Decision] = []
        try:
            for _ in range(MOST_ROUNDS + len(room.lanes)):
                messages = self._reader.find(room, pending, leads) if self._workshop.link.is_connected else []
                decisions = self._claims.accept(worker, room, messages, leads) if messages else []
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
            self._reader.put_back((decision.message, decision.job) for decision in left)
        # The worker takes again when a full room has room: only then do idle pulls wait on its lanes.
        return bool(left) or not room.starts

    def give_back_paused(self) -> None:
        """Give back held jobs of paused queues: their starts are refused."""
        paused = [hand for hand in self._hands.all() if hand.job.queue in self._book.paused]
        for hand in paused:
            if hand.job.status is JobStatus.PENDING:
                self._workshop.carry_through(partial(self._give_back, hand))

    def _give_back(self, hand: Hand, workspace: Workspace) -> None:
        job = workspace.job(hand.job.id)
        is_held = job is not None and (job.owner, job.status) == (hand.worker, JobStatus.PENDING)
        if job is not None and is_held:
            self._queueing.enqueue(workspace, transitions.lease_revoked(job))
        workspace.draft.send(hand.reply, ACK if is_held else nak(0))
        workspace.draft.then(partial(self._hands.drop, hand.job.id))


def _revision(message: Message) -> int:
    return message.revision
