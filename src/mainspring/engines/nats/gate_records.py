"""The records of gates (sequences, limits and pauses), and the position of a job at its gates.

A gate is a sequence, which admits one job at a time, a bucket of a limit, or a queue, which admits jobs under
limits while it is not paused. Its record counts the jobs inside and the jobs that wait. The record of each job
says where that job is. Both records are always written in one transaction, so the counts are exact.

A job holds its sequence from the moment its turn comes, also while it waits for limits. It holds either all its
limits or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from mainspring.engines.nats.naming import digest
from mainspring.engines.nats.stored import StoredJob
from mainspring.jobs.limits import SEPARATOR

SEQUENCE = f"{SEPARATOR}sequence:"  # no family is empty, so no bucket starts with a separator
QUEUE = f"{SEPARATOR}queue:"
MOST_HOLDERS = 16
MOST_GROUPS = 512
"""Beyond that, the groups of a gate share a few lines, so that its record stays small."""
SHARED_LINES = 64

AWAY, HELD, WAITS, READY, STARTED = "away", "held", "waits", "ready", "started"


def sequence_gate(sequence: str) -> str:
    """Return the name of a sequence's gate."""
    return SEQUENCE + sequence


def queue_gate(queue: str) -> str:
    """Return the name of a queue's gate."""
    return QUEUE + queue


def group_of(limits: Iterable[str]) -> str:
    """Return the name of the group of jobs under exactly these limits: what refuses one of them refuses all."""
    return digest(*sorted(set(limits)))[:16]


# -- jobs


class Standing(NamedTuple):
    """The position of a job at its gates."""

    state: str
    inside: tuple[str, ...] = ()
    gate: str = ""
    """The gate that it waits at."""
    group: str = ""
    """The line that it waits in."""
    reserved: tuple[str, ...] = ()
    """The rates that have reserved a token for it, which the start of the job uses up."""


def standing_of(job: StoredJob) -> Standing:
    """Return the position of a job."""
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
    """Return a job with another position."""
    if standing.state == AWAY:
        return replace(job, gates=())
    more: tuple[str, ...] = ()
    if standing.state == WAITS:
        more = (standing.gate, standing.group)
    elif standing.state == READY:
        more = (str(len(standing.reserved)), *standing.reserved)
    return replace(job, gates=(standing.state, *more, *standing.inside))


def is_ready(job: StoredJob) -> bool:
    """Return whether a job has passed all its gates and may start."""
    return not job.is_gated or standing_of(job).state == READY


def is_untouched(job: StoredJob) -> bool:
    """Return whether a job is not over and has no owner."""
    return not job.is_over and job.owner is None


def buckets_in(standing: Standing) -> tuple[str, ...]:
    """Return the limits that have admitted a job."""
    return tuple(name for name in standing.inside if not name.startswith(SEQUENCE))


# -- gates


class Group(Struct, array_like=True):
    """The jobs that wait at a gate in one line."""

    name: str
    waiting: int = 0
    ready: int = 0
    """How many were admitted and have not started: a few at a time, if keys take turns."""
    turn: int = 0
    place: int = 0
    """`turn` and `place` of the last job in the line."""
    is_mixed: bool = False
    """Whether a job joined behind jobs with a later position, so that the line is not in order."""


class Gate(Struct, array_like=True):
    """How many jobs a gate has admitted, how many wait, and the tokens of a rate."""

    name: str
    inside: int = 0
    holders: list[str] = field(default_factory=list)
    """Ids of some of the jobs inside."""
    turn: int = 0
    place: int = 0
    """`turn` and `place` of the job inside a sequence."""
    full_at: int = 0
    interval: int = 0
    """The interval of the rate that `full_at` was computed with."""
    reserved: int = 0
    """How many tokens of the rate are reserved for jobs that are ready."""
    groups: list[Group] = field(default_factory=list)
    """In the order of their turns: the first is next."""
    poke: int | None = None
    """When the next wake-up of this gate is due."""

    @property
    def is_waited_for(self) -> bool:
        """Whether any job waits."""
        return any(group.waiting for group in self.groups)

    def is_idle(self) -> bool:
        """Whether the record holds nothing but the tokens of a rate."""
        return not self.inside and not self.groups

    def find(self, name: str) -> Group | None:
        """Return a group with waiting or ready jobs; None if there is none of this name."""
        return next((group for group in self.groups if group.name == name), None)

    def group(self, name: str) -> Group:
        """Return a group, created if there is none; if there are too many, return one that several share."""
        group = self.find(name)
        if group is None and len(self.groups) >= MOST_GROUPS:
            name = f"shared {int(name, 16) % SHARED_LINES}"
            group = self.find(name)
        if group is None:
            group = Group(name)
            self.groups.append(group)
        return group

    def rotate(self, group: Group) -> None:
        """Move a group behind the others; remove it if it is empty."""
        self.groups.remove(group)
        if group.waiting or group.ready:
            self.groups.append(group)

    def drop(self, group: Group) -> None:
        """Remove a group if it is empty: no job waits or is ready."""
        if not (group.waiting or group.ready):
            self.groups.remove(group)

    def count_ready(self, name: str) -> None:
        """Count a ready job of a group; if there are too many groups, further ones take no turns."""
        if self.find(name) is not None or len(self.groups) < MOST_GROUPS:
            self.group(name).ready += 1

    def let_in(self, job: StoredJob) -> None:
        """Count a job in."""
        self.inside += 1
        if len(self.holders) < MOST_HOLDERS:
            self.holders.append(job.id)

    def let_out(self, job: StoredJob) -> None:
        """Count a job out."""
        self.inside -= 1
        if job.id in self.holders:
            self.holders.remove(job.id)


class Waiter(Struct, frozen=True, array_like=True):
    """The message of a job that waits in a line."""

    turn: int
    place: int
    gates: tuple[str, ...]
    """All gates of the job, which are read together with it."""
