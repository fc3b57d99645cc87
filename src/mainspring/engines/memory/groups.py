"""Groups: jobs of one lane with the same buckets, of which only the first can be claimed.

So a limit that is reached costs one look for each group, however many jobs wait in it. A group that was refused
is parked: out of the claims until its bucket may admit it, or until another job comes first. Groups with a key
take turns: after a start, the next job of the group is ready no sooner than that start and comes behind those who
were ready by then.
"""

from __future__ import annotations

from typing import TypeAlias

from mainspring.engines.memory.claims import Claims, Lane, Pick, lane_of
from mainspring.engines.memory.line import Line, Stand
from mainspring.engines.memory.parking import Parking
from mainspring.jobs.engine import HEAD_START, JobRecord
from mainspring.jobs.limits import Bucket, Refusal, is_fair

GroupKey: TypeAlias = tuple[Lane, tuple[Bucket, ...]]


class Group:
    """Jobs that are admitted or refused alike."""

    __slots__ = ("buckets", "first", "is_fair", "lane", "last_start", "line")

    def __init__(self, lane: Lane, buckets: tuple[Bucket, ...]) -> None:
        self.lane = lane
        self.buckets = buckets
        self.is_fair = is_fair(buckets)
        self.line = Line()
        self.first: Stand | None = None  # as it stands among the claims, or is parked
        self.last_start = (0, 0)  # instant and turn

    def order(self) -> tuple[int, int, int]:
        """Return when the first job is ready, its turn among those ready at that instant, and its place."""
        assert self.first is not None
        due, place = self.first[0]
        instant, turn = self.last_start
        return (due, 0, place) if due > instant else (instant, turn, place)


class Groups:
    """All groups that have jobs."""

    def __init__(self, claims: Claims, parking: Parking) -> None:
        self._claims = claims
        self._parking = parking
        self._groups: dict[GroupKey, Group] = {}
        self._by_first: dict[str, Group] = {}
        self._last_turn = 0

    def add(self, job: JobRecord, place: int) -> None:
        """Let a job be claimed when it is the first of its group."""
        key = (lane_of(job), job.limits)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
        group.line.enter(job.id, job.due, place)
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
        if group is None or group.first is None:
            return None
        ready, turn, place = group.order()
        return (ready - HEAD_START * job.priority, turn, place, group.first[1])

    # -- parking

    def park(self, job: JobRecord, refusal: Refusal) -> None:
        """Put the group of a job aside, which was refused."""
        group = self._groups[lane_of(job), job.limits]
        self._claims.withdraw(job.id)
        self._parking.park(job.id, group.lane, group.order(), refusal)
        self._parking.mark(bucket for bucket in group.buckets if bucket != refusal.bucket)

    def refresh(self, now: int) -> None:
        """Let the groups be claimed again that may be admitted by now."""
        for job_id in self._parking.release(now):
            self._offer(self._by_first[job_id])

    def _show(self, group: Group) -> None:
        """Let the first of a group be claimed, whoever it is now."""
        first = group.line.first()
        if first == group.first:
            return
        if group.first is not None:
            job_id = group.first[1]
            del self._by_first[job_id]
            if not self._parking.leave(job_id):
                self._claims.withdraw(job_id)
                self._parking.mark(group.buckets)
        group.first = first
        if first is not None:
            self._by_first[first[1]] = group
            self._offer(group)

    def _offer(self, group: Group) -> None:
        if group.first is not None:
            self._claims.add(group.lane, *group.order(), group.first[1])
