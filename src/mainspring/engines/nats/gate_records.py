"""What is kept of gates, and where a job stands before them.

A gate is a sequence, which has room for one, a bucket of a limit, or a queue, which lets jobs that are under
limits through while it is not paused. Its record says how many are inside and how many wait, not who: that is in
the record of each job. Both are always written in one draft, so the numbers are exact.

A job holds its sequence from the moment its turn comes, also while it waits for limits. Of limits it has all or
none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.engines.nats.naming import digest
from mainspring.engines.nats.stored import StoredJob
from mainspring.jobs.limits import SEPARATOR

SEQUENCE = f"{SEPARATOR}sequence:"  # no family is empty, so no bucket begins like this
QUEUE = f"{SEPARATOR}queue:"
MOST_HOLDERS = 16
MOST_GROUPS = 512
"""Beyond that, the groups of a gate share a few lines: its record stays small."""
SHARED_LINES = 64

AWAY, HELD, WAITS, READY, STARTED = "away", "held", "waits", "ready", "started"


def sequence_gate(sequence: str) -> str:
    """Name the gate of a sequence."""
    return SEQUENCE + sequence


def queue_gate(queue: str) -> str:
    """Name the gate of a queue."""
    return QUEUE + queue


def group_of(limits: Iterable[str]) -> str:
    """Name the jobs that are under exactly these limits: what refuses one of them refuses all."""
    return digest(*sorted(set(limits)))[:16]


# -- jobs


class Standing(NamedTuple):
    """Where a job stands."""

    state: str
    inside: tuple[str, ...] = ()
    gate: str = ""
    """Where it waits, and"""
    group: str = ""
    """in which line."""
    reserved: tuple[str, ...] = ()
    """The rates that have set a token aside for it: it is used up when the job starts."""


def standing_of(job: StoredJob) -> Standing:
    """Say where a job stands."""
    if not job.gates:
        return Standing(AWAY)
    state, *rest = job.gates
    if state == WAITS:
        return Standing(state, tuple(rest[2:]), rest[0], rest[1])
    if state == READY:
        number = 1 + int(rest[0])
        return Standing(state, tuple(rest[number:]), reserved=tuple(rest[1:number]))
    return Standing(state, tuple(rest))


def placed(job: StoredJob, standing: Standing) -> StoredJob:
    """Return a job that stands elsewhere."""
    if standing.state == AWAY:
        return replace(job, gates=())
    more: tuple[str, ...] = ()
    if standing.state == WAITS:
        more = (standing.gate, standing.group)
    elif standing.state == READY:
        more = (str(len(standing.reserved)), *standing.reserved)
    return replace(job, gates=(standing.state, *more, *standing.inside))


def is_ready(job: StoredJob) -> bool:
    """Answer whether a job has passed all its gates and may be started."""
    return not job.is_gated or standing_of(job).state == READY


def is_untouched(job: StoredJob) -> bool:
    """Answer whether nobody has begun with a job that is not over."""
    return not job.is_over and job.owner is None


def buckets_in(standing: Standing) -> tuple[str, ...]:
    """Return the limits inside of which a job is."""
    return tuple(name for name in standing.inside if not name.startswith(SEQUENCE))


# -- gates


class Group(Struct, array_like=True):
    """Jobs that wait before a gate in one line."""

    name: str
    waiting: int = 0
    ready: int = 0
    """How many have passed and not started: few at a time where keys take turns."""
    turn: int = 0
    place: int = 0
    """Of the last in line."""
    is_mixed: bool = False
    """Whether somebody came later than his turn: then the line is not in order."""


class Gate(Struct, array_like=True):
    """Who is inside, and who waits."""

    name: str
    inside: int = 0
    holders: list[str] = field(default_factory=list)
    """Some of those inside."""
    turn: int = 0
    place: int = 0
    """Of the one inside of a sequence."""
    full_at: int = 0
    interval: int = 0
    """Of the rate by which `full_at` was counted."""
    reserved: int = 0
    """How many tokens of the rate are set aside for jobs that are ready."""
    groups: list[Group] = field(default_factory=list)
    """The first is the next whose turn it is."""
    poke: int | None = None
    """When somebody will come to look."""

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits."""
        return any(group.waiting for group in self.groups)

    def is_idle(self) -> bool:
        """Whether there is nothing to remember but the tokens of a rate."""
        return not self.inside and not self.groups

    def find(self, name: str) -> Group | None:
        """Return a group of which somebody waits or is ready."""
        return next((group for group in self.groups if group.name == name), None)

    def group(self, name: str) -> Group:
        """Return a group, made if there is none; where there are too many, one that several share."""
        group = self.find(name)
        if group is None and len(self.groups) >= MOST_GROUPS:
            name = f"shared {int(name, 16) % SHARED_LINES}"
            group = self.find(name)
        if group is None:
            group = Group(name)
            self.groups.append(group)
        return group

    def rotate(self, group: Group) -> None:
        """Let the others be next; a group of nobody is forgotten."""
        self.groups.remove(group)
        if group.waiting or group.ready:
            self.groups.append(group)

    def drop(self, group: Group) -> None:
        """Forget a group if it is of nobody."""
        if not (group.waiting or group.ready):
            self.groups.remove(group)

    def count_ready(self, name: str) -> None:
        """Count one of a group that is ready; where groups are too many, they take no turns."""
        if self.find(name) is not None or len(self.groups) < MOST_GROUPS:
            self.group(name).ready += 1

    def let_in(self, job: StoredJob) -> None:
        """Count a job."""
        self.inside += 1
        if len(self.holders) < MOST_HOLDERS:
            self.holders.append(job.id)

    def let_out(self, job: StoredJob) -> None:
        """Count it no more."""
        self.inside -= 1
        if job.id in self.holders:
            self.holders.remove(job.id)


class Waiter(Struct, frozen=True, array_like=True):
    """A message in a line."""

    turn: int
    place: int
    gates: tuple[str, ...]
    """All gates of the job: to be read along with it."""
