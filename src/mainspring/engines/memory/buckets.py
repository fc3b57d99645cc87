"""The state of limits: which jobs run in each bucket, and when a rate has all its tokens again.

What it means is decided in `jobs.limits`. Jobs count from their start until they run no more, whether or not their
bucket had a limit when they started. A bucket that nobody uses is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.jobs.engine import PutLimit
from mainspring.jobs.limits import Admission, Bucket, BucketState, Limit, Refusal, family_of

MIN_FULL = 1_000  # buckets that are full again and not worth forgetting


class Buckets:
    """Admits jobs."""

    def __init__(self) -> None:
        self._definitions: dict[str, PutLimit] = {}
        self._limits: dict[str, Limit] = {}
        self._running: dict[Bucket, dict[str, None]] = {}
        self._full_at: dict[Bucket, int] = {}
        self._spent = 0  # buckets that still lacked tokens when they were last looked through

    def define(self, definition: PutLimit, now: int) -> bool:
        """Set the limit of a family; answer whether it is another one."""
        family = definition.family
        if self._definitions.get(family) == definition:
            return False
        before = self._limits.get(family)
        self._definitions[family] = definition
        limit = self._limits[family] = Limit(definition.most, definition.per)
        self._convert(family, before, limit, now)
        return True

    def definitions(self) -> list[PutLimit]:
        """Return the limits as they were defined."""
        return list(self._definitions.values())

    def drop(self, family: str) -> bool:
        """Forget the limit of a family; answer whether there was one."""
        limit = self._limits.pop(family, None)
        self._convert(family, limit, None, now=0)
        return self._definitions.pop(family, None) is not None

    def admit(self, buckets: Sequence[Bucket], now: int) -> Refusal | None:
        """Use up what a job needs to start; or say which of its buckets is full."""
        admission = self._admission(buckets, now)
        refusal = admission.admit(tuple(buckets))
        for bucket, state in admission.changed.items():
            if self._limits[family_of(bucket)].per is not None:
                self._full_at[bucket] = state.full_at
        if len(self._full_at) > 2 * self._spent + MIN_FULL:
            self._full_at = {bucket: full_at for bucket, full_at in self._full_at.items() if full_at > now}
            self._spent = len(self._full_at)
        return refusal

    def look(self, buckets: Sequence[Bucket], now: int) -> Refusal | None:
        """Say which bucket would not admit a job, and use up nothing."""
        return self._admission(buckets, now).refusal(tuple(buckets))

    def room(self, bucket: Bucket, now: int, most: int) -> int:
        """Return how many more jobs a bucket would admit, `most` at most."""
        return self._admission((bucket,), now).room((bucket,), most)

    def enter(self, buckets: Sequence[Bucket], job_id: str) -> None:
        """Count a job that runs."""
        for bucket in buckets:
            self._running.setdefault(bucket, {})[job_id] = None

    def leave(self, buckets: Sequence[Bucket], job_id: str) -> None:
        """Count it no more."""
        for bucket in set(buckets):
            jobs = self._running[bucket]
            del jobs[job_id]
            if not jobs:
                del self._running[bucket]

    def holders(self, bucket: Bucket) -> tuple[str, ...]:
        """Return the jobs that run in a bucket, the longest running first."""
        return tuple(self._running.get(bucket, ()))

    def _admission(self, buckets: Sequence[Bucket], now: int) -> Admission:
        states = {
            bucket: BucketState(len(self._running.get(bucket, ())), self._full_at.get(bucket, 0))
            for bucket in buckets
        }
        return Admission(self._limits, states, now)

    def _convert(self, family: str, before: Limit | None, after: Limit | None, now: int) -> None:
        """Let as many tokens be missing under a new rate as were under the old one; without a rate, none."""
        if before is None or before.per is None:
            return
        for bucket in [bucket for bucket in self._full_at if family_of(bucket) == family]:
            full_at = self._full_at.pop(bucket)
            if after is not None and after.per is not None:
                missing = -(-max(0, full_at - now) // before.interval)
                self._full_at[bucket] = now + missing * after.interval
