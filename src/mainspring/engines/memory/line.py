"""A line: jobs in order, of which the first is known and any may leave.

Those who leave stay in the heap until they come to its front, or until they are the most of it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TypeAlias

Order: TypeAlias = tuple[int, ...]  # what a line is sorted by: instants and the place of submission
Stand: TypeAlias = tuple[Order, str]  # with the id of the job

MIN_GONE = 100  # those who left that are not worth cleaning up


class Line:
    """A queue, mostly by (instant, submission)."""

    __slots__ = ("_heap", "_stands")

    def __init__(self) -> None:
        self._heap: list[Stand] = []
        self._stands: dict[str, Stand] = {}

    def __len__(self) -> int:
        return len(self._stands)

    def enter(self, job_id: str, *order: int) -> None:
        """Queue up; a job that stands here already changes its stand."""
        stand = (order, job_id)
        if self._stands.get(job_id) == stand:
            return
        self._stands[job_id] = stand
        heappush(self._heap, stand)
        if len(self._heap) > 2 * len(self._stands) + MIN_GONE:
            self._heap = list(self._stands.values())
            heapify(self._heap)

    def leave(self, job_id: str) -> None:
        """Go, wherever it stands; nothing happens if it does not."""
        self._stands.pop(job_id, None)

    def first(self) -> Stand | None:
        """Return who is first."""
        heap, stands = self._heap, self._stands
        while heap and stands.get(heap[0][1]) != heap[0]:
            heappop(heap)
        return heap[0] if heap else None

    def first_until(self, instant: int) -> Stand | None:
        """Return who is first, if its time has come by then."""
        first = self.first()
        return None if first is None or first[0][0] > instant else first
