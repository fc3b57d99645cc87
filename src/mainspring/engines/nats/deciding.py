"""Deciding: what becomes of a message and its job.

A message is a hint, the record decides. What a message means follows from the record:

    over, or queued elsewhere   the message is outdated: acknowledged, and that is all
    PENDING, nobody's           taken: started if due, held if due soon; left if there is no room
    in the hands of a live one  it will be needed if that one dies: back for the rest of the lease
    in the hands of a dead one  the job is rescued first
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec import Struct

from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.gate_records import is_ready
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hands
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.messages import Message
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.queueing import LEAD, Queueing
from mainspring.engines.nats.rescuing import Rescuing
from mainspring.engines.nats.rooms import Room
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, change
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workspace
from mainspring.jobs import transitions
from mainspring.jobs.engine import SUSPECT_CRASHES
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.records import Outcome, OutcomeKind
from mainspring.jobs.status import JobStatus

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
        if job.queue in self._book.paused or (job.crashes >= SUSPECT_CRASHES and not room.suspects):
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
        room.suspects -= job.crashes >= SUSPECT_CRASHES
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
        room.suspects -= job.crashes >= SUSPECT_CRASHES
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
