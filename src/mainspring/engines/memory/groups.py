"""Groups: jobs of one lane with the same buckets, of which only the first can be claimed.

So a limit that is reached costs one look for each group, however many jobs wait in it. A group that was refused
is parked: out of the claims until its bucket frees, until the instant of its next token, or until another job
comes first. Groups with a key take turns: after a start, the next job of the group is ready no sooner than that
start and comes behind those who were ready by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TypeAlias

from mainspring.engines.memory.claims import Claims, Lane, Pick, lane_of
from mainspring.engines.memory.line import Line, Stand
from mainspring.jobs.engine import HEAD_START, JobRecord
from mainspring.jobs.limits import Bucket, Refusal, family_of, is_fair

GroupKey: TypeAlias = tuple[Lane, tuple[Bucket, ...]]


class Group:
    """Jobs that are admitted or refused alike."""

    __slots__ = ("is_fair", "lane", "last_start", "line", "parked_by", "shown")

    def __init__(self, lane: Lane, buckets: tuple[Bucket, ...]) -> None:
        self.lane = lane
        self.is_fair = is_fair(buckets)
        self.line = Line()
        self.shown: Stand | None = None  # the first, as it stands among the claims unless it is parked
        self.last_start = (0, 0)  # instant and turn
        self.parked_by: Bucket | None = None

    def rank(self, stand: Stand) -> tuple[int, int]:
        """Return when the first job is ready, and its turn among those who are ready at that instant."""
        due, _, _ = stand
        instant, turn = self.last_start
        return (due, 0) if due > instant else (instant, turn)


class Groups:
    """All groups that have jobs, and those that are parked."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._groups: dict[GroupKey, Group] = {}
        self._parked: dict[Bucket, set[Group]] = {}
        self._timers: list[tuple[int, Bucket]] = []
        self._last_turn = 0

    def add(self, job: JobRecord, place: int) -> None:
        """Let a job be claimed when it is the first of its group."""
        key = (lane_of(job), job.limits)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
        group.line.enter(job.due, place, job.id)
        self._show(group)

    def remove(self, job: JobRecord) -> None:
        """Let a job not be claimed any more."""
        key = (lane_of(job), job.limits)
        group = self._groups[key]
        group.line.leave(job.id)
        self._show(group)
        if not group.line:
            del self._groups[key]

    def note_start(self, job: JobRecord, now: int) -> None:
        """Let others have their turn before the next job of this one's group; called before it leaves."""
        group = self._groups[lane_of(job), job.limits]
        if group.is_fair:
            self._last_turn += 1
            group.last_start = (now, self._last_turn)

    def first_after(self, job: JobRecord) -> Pick | None:
        """Return who can be claimed of the group of a job that has just left it."""
        group = self._groups.get((lane_of(job), job.limits))
        if group is None or group.shown is None:
            return None
        ready, turn = group.rank(group.shown)
        return (ready - HEAD_START * job.priority, turn, group.shown[1], group.shown[2])

    # -- parking

    def park(self, job: JobRecord, refusal: Refusal) -> None:
        """Put the group of a job aside, which was refused."""
        group = self._groups[lane_of(job), job.limits]
        self._claims.withdraw(job.id)
        group.parked_by = refusal.bucket
        self._parked.setdefault(refusal.bucket, set()).add(group)
        if refusal.until is not None:
            heappush(self._timers, (refusal.until, refusal.bucket))

    def free(self, buckets: Iterable[Bucket]) -> None:
        """Let the groups be looked at again that were refused by these buckets."""
        for bucket in buckets:
            for group in self._parked.pop(bucket, ()):
                group.parked_by = None
                self._offer(group)

    def free_family(self, family: str) -> None:
        """Let the groups be looked at again that were refused by any bucket of a family."""
        self.free([bucket for bucket in self._parked if family_of(bucket) == family])

    def free_until(self, now: int) -> None:
        """Let the groups be looked at again whose tokens are there by now."""
        while self._timers and self._timers[0][0] <= now:
            _, bucket = heappop(self._timers)
            self.free([bucket])

    def next_token(self) -> int | None:
        """Return the first instant at which a group that is parked has a token."""
        while self._timers and self._timers[0][1] not in self._parked:
            heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _show(self, group: Group) -> None:
        """Let the first of a group be claimed, whoever it is now."""
        first = group.line.first()
        if first == group.shown:
            return
        if group.parked_by is not None:
            parked = self._parked[group.parked_by]
            parked.discard(group)
            if not parked:
                del self._parked[group.parked_by]
            group.parked_by = None
        elif group.shown is not None:
            self._claims.withdraw(group.shown[2])
        group.shown = first
        self._offer(group)

    def _offer(self, group: Group) -> None:
        if group.shown is not None:
            ready, turn = group.rank(group.shown)
            self._claims.add(group.lane, ready, turn, *group.shown[1:])
