"""What can be claimed, in memory: a sorted list of entries for each lane, by the instant at which they are ready.

Only jobs that may start stand here: all plain ones, and of each sequence and each group of limits the first.
Entries are withdrawn lazily: one that is no longer the live entry of its job is skipped, and dropped once
everything before it is gone.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from typing import TypeAlias

from mainspring.jobs.engine import HEAD_START, SUSPECT_CRASHES, Backlog, Demand, JobRecord

Entry: TypeAlias = tuple[int, int, int, int, str]  # ready, turn, place, version, id
Lane: TypeAlias = tuple[str, str, int, bool, bool]  # type, queue, priority, whether of suspects, whether bound
Pick: TypeAlias = tuple[int, int, int, str]  # rank, turn, place, id

MIN_DEAD = 1_000  # withdrawn entries that are not worth cleaning up


def lane_of(job: JobRecord) -> Lane:
    """Return the lane of a job; one that is bound by a sequence or by limits is not taken ahead."""
    is_bound = job.sequence is not None or bool(job.limits)
    return (job.type, job.queue, job.priority, job.crashes >= SUSPECT_CRASHES, is_bound)


class Claims:
    """Finds jobs by lane and time."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        """Queues of which nothing is found."""
        self._lanes: dict[Lane, list[Entry]] = {}
        self._heads: dict[Lane, int] = {}  # entries before it are gone
        self._live: dict[str, Entry] = {}
        self._dead = 0
        self._version = 0  # so that a job that comes back is not mistaken for its own withdrawn entry

    def add(self, lane: Lane, ready: int, turn: int, place: int, job_id: str) -> None:
        """Let a job be claimed; among those that are ready at the same instant, turn and place decide."""
        self._version += 1
        entry = (ready, turn, place, self._version, job_id)
        self._live[job_id] = entry
        insort(self._lanes.setdefault(lane, []), entry, lo=self._heads.setdefault(lane, 0))

    def withdraw(self, job_id: str) -> None:
        """Let a job not be claimed any more."""
        if self._live.pop(job_id, None) is not None:
            self._dead += 1
            if self._dead > 2 * len(self._live) + MIN_DEAD:
                self._clean_up()

    def pick(self, demand: Demand, limit: int, after: float, until: int, *, suspects: bool = False) -> list[Pick]:
        """Return the first `limit` jobs that are ready then, by their rank: that instant less a head start."""
        return self._first(self._lanes_for(demand, suspects=suspects), limit, after, until)

    def pick_ahead(self, demand: Demand, limit: int, after: int, until: int) -> list[Pick]:
        """Return the first `limit` jobs that are due then and may be held until they are."""
        lanes = [lane for lane in self._lanes_for(demand, suspects=False) if not lane[4]]
        return self._first(lanes, limit, after, until)

    def next_due(self, demand: Demand, after: int) -> int | None:
        """Return the first due time after an instant."""
        lanes = (*self._lanes_for(demand, suspects=False), *self._lanes_for(demand, suspects=True))
        firsts = [next(self._between(lane, after, inf), None) for lane in lanes]
        return min((entry[0] for entry in firsts if entry is not None), default=None)

    def due(self, now: int) -> Iterator[tuple[Lane, Iterator[Entry]]]:
        """Return the lanes that are not paused, each with what is ready by now."""
        for lane in self._lanes:
            if lane[1] not in self.paused:
                yield lane, self._between(lane, -inf, now)

    def backlog(self, now: int, may_start: Callable[[str], bool]) -> list[Backlog]:
        """Count the jobs that are due and may start, by queue and handler, paused or not."""
        found: dict[tuple[str, str], list[int]] = {}
        for lane in self._lanes:
            entries = [entry for entry in self._between(lane, -inf, now) if may_start(entry[-1])]
            found.setdefault((lane[1], lane[0]), []).extend(entry[0] for entry in entries)
        return [Backlog(queue, type_, len(due), min(due)) for (queue, type_), due in sorted(found.items()) if due]

    def _first(self, lanes: list[Lane], limit: int, after: float, until: int) -> list[Pick]:
        found: list[Pick] = []
        for lane in lanes:
            head_start = HEAD_START * lane[2]
            entries = islice(self._between(lane, after, until), limit)
            found += [(ready - head_start, turn, place, job_id) for ready, turn, place, _, job_id in entries]
        return sorted(found)[:limit]

    def _lanes_for(self, demand: Demand, *, suspects: bool) -> list[Lane]:
        return [
            lane
            for lane in self._lanes
            if lane[3] is suspects and lane[0] in demand.types and lane[1] not in self.paused
            if demand.queues is None or lane[1] in demand.queues
        ]

    def _between(self, lane: Lane, after: float, until: float) -> Iterator[Entry]:
        entries = self._lanes[lane]
        self._drop_dead(lane, entries)
        start = bisect_right(entries, (after, inf), lo=self._heads[lane])
        for index in range(start, len(entries)):  # not islice, which would walk there from the first
            entry = entries[index]
            if entry[0] > until:
                return
            if self._live.get(entry[-1]) == entry:
                yield entry

    def _clean_up(self) -> None:
        """Drop withdrawn entries that stand behind live ones."""
        self._dead = 0
        for lane, entries in self._lanes.items():
            entries[:] = [entry for entry in entries if self._live.get(entry[-1]) == entry]
            self._heads[lane] = 0

    def _drop_dead(self, lane: Lane, entries: list[Entry]) -> None:
        head = self._heads[lane]
        while head < len(entries) and self._live.get(entries[head][-1]) != entries[head]:
            head += 1
        if head > len(entries) // 2:
            del entries[:head]
            head = 0
        self._heads[lane] = head
