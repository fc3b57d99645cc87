"""Where groups stand that were refused, until the bucket that refused them may admit one.

They stand in a line for each bucket and lane. A bucket with room for three lets three of each lane go, not all: so
one that thousands share costs no more than one that few do. Buckets are looked at when something has happened to
them: a job of theirs ended, a token's instant came, or a group that was let go did not use what it was let go for.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from mainspring.engines.memory.buckets import Buckets
from mainspring.engines.memory.claims import Lane
from mainspring.engines.memory.line import Line
from mainspring.jobs.limits import Bucket, Refusal, family_of


class Parking:
    """Groups, each known by its first job."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._lines: dict[Bucket, dict[Lane, Line]] = {}
        self._spots: dict[str, tuple[Bucket, Lane]] = {}
        self._marked: dict[Bucket, None] = {}  # to be looked at, in this order
        self._tokens: dict[Bucket, int] = {}  # when the next one is there
        self._alarms: list[tuple[int, Bucket]] = []

    @property
    def is_marked(self) -> bool:
        """Whether a bucket is to be looked at."""
        return bool(self._marked)

    def park(self, job_id: str, lane: Lane, order: tuple[int, int, int], refusal: Refusal) -> None:
        """Let a group stand in the line of the bucket that refused it."""
        lines = self._lines.setdefault(refusal.bucket, {})
        lines.setdefault(lane, Line()).enter(job_id, *order)
        self._spots[job_id] = (refusal.bucket, lane)
        self._set_alarm(refusal)

    def leave(self, job_id: str) -> bool:
        """Let a group go; answer whether it stood here."""
        spot = self._spots.pop(job_id, None)
        if spot is not None:
            bucket, lane = spot
            line = self._lines[bucket][lane]
            line.leave(job_id)
            if not line:
                del self._lines[bucket][lane]
            if not self._lines[bucket]:
                del self._lines[bucket]
        return spot is not None

    def mark(self, buckets: Iterable[Bucket]) -> None:
        """Say that something has happened to buckets."""
        for bucket in buckets:
            if bucket in self._lines:
                self._marked[bucket] = None

    def mark_family(self, family: str) -> None:
        """Say that something has happened to all buckets of a family."""
        self.mark([bucket for bucket in self._lines if family_of(bucket) == family])

    def release(self, now: int) -> list[str]:
        """Let as many groups go, by their first jobs, as the buckets have room for that something happened to."""
        while self._alarms and self._alarms[0][0] <= now:
            self.mark([self._drop_alarm()])
        released: list[str] = []
        marked, self._marked = self._marked, {}
        for bucket in marked:
            for line in list(self._lines.get(bucket, {}).values()):
                released += self._release(line, self._buckets.room(bucket, now, len(line)))
            refusal = self._buckets.look([bucket], now)
            if refusal is not None and bucket in self._lines:
                self._set_alarm(refusal)
        return released

    def next_token(self) -> int | None:
        """Return the first instant at which a bucket has a token that is waited for."""
        while self._alarms and not self._is_good(*self._alarms[0]):
            self._drop_alarm()
        return self._alarms[0][0] if self._alarms else None

    def _release(self, line: Line, room: int) -> list[str]:
        released: list[str] = []
        while len(released) < room and (first := line.first()) is not None:
            released.append(first[1])
            self.leave(first[1])
        return released

    def _set_alarm(self, refusal: Refusal) -> None:
        if refusal.until is not None and self._tokens.get(refusal.bucket) != refusal.until:
            self._tokens[refusal.bucket] = refusal.until
            heappush(self._alarms, (refusal.until, refusal.bucket))

    def _drop_alarm(self) -> Bucket:
        instant, bucket = heappop(self._alarms)
        if self._tokens.get(bucket) == instant:
            del self._tokens[bucket]
        return bucket

    def _is_good(self, instant: int, bucket: Bucket) -> bool:
        return bucket in self._lines and self._tokens.get(bucket) == instant
