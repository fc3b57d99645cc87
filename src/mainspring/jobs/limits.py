"""Limits across workers: how many jobs at once, and how many in a time, for each bucket.

A limit is a family of buckets, one for each key: `concurrency of handler shop.mail` has a bucket for each tenant
if it is limited by tenant, and one in all if not. A job names its buckets, and starts when every one of them
admits it. The rate is a token bucket kept as one number, the instant at which it would be full again.

Engines keep the state of buckets; what it means is decided here, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct

SEPARATOR = "\x1f"  # between family and key: no name contains it

Bucket: TypeAlias = str


class Limit(Struct, frozen=True, gc=False):
    """What holds for each bucket of a family."""

    most: int
    per: int | None
    """Microseconds; None: so many at once."""

    @property
    def interval(self) -> int:
        """How many microseconds one start uses up: rounded up, so the rate is never exceeded."""
        return -(-(self.per or 0) // self.most)


class BucketState(Struct, gc=False):
    """What an engine remembers of a bucket."""

    running: int = 0
    full_at: int = 0
    """For a rate: when all tokens are there again; each start moves it on."""


class Refusal(Struct, frozen=True, gc=False):
    """The bucket that does not admit a job, and until when; None: until another one of it ends."""

    bucket: Bucket
    until: int | None


def bucket_of(family: str, key: str = "") -> Bucket:
    """Name a bucket."""
    return f"{family}{SEPARATOR}{key}"


def family_of(bucket: Bucket) -> str:
    """Return the family of a bucket."""
    return bucket.partition(SEPARATOR)[0]


def key_of(bucket: Bucket) -> str:
    """Return the key of a bucket; empty if its limit is not by key."""
    return bucket.partition(SEPARATOR)[2]


def describe_bucket(bucket: Bucket) -> str:
    """Say which limit it is, for people."""
    family, _, key = bucket.partition(SEPARATOR)
    return f"{family}, {key}" if key else family


def is_fair(buckets: Iterable[Bucket]) -> bool:
    """Answer whether jobs with these buckets take turns with those of other keys."""
    return any(not bucket.endswith(SEPARATOR) for bucket in buckets)


class Admission:
    """Decides which jobs may start, one after another, and keeps count."""

    def __init__(self, limits: Mapping[str, Limit], states: Mapping[Bucket, BucketState], now: int) -> None:
        self._limits = limits
        self._states = dict(states)
        self._now = now
        self.changed: dict[Bucket, BucketState] = {}
        """The buckets of those that were admitted."""

    def refusal(self, buckets: Iterable[Bucket]) -> Refusal | None:
        """Say which bucket would refuse a job; None: it would be admitted."""
        for bucket, limit in self._wanted(buckets):
            if self._room(bucket, limit) <= 0:
                return Refusal(bucket, self._free_at(bucket, limit))
        return None

    def admit(self, buckets: Iterable[Bucket]) -> Refusal | None:
        """Count a job in; or say which of its buckets is full."""
        buckets = tuple(buckets)
        refusal = self.refusal(buckets)
        if refusal is not None:
            return refusal
        for bucket, limit in self._wanted(buckets):
            state = self._state(bucket)
            if limit.per is None:
                state.running += 1
            else:
                state.full_at = max(state.full_at, self._now) + limit.interval
            self.changed[bucket] = state
        return None

    def _wanted(self, buckets: Iterable[Bucket]) -> list[tuple[Bucket, Limit]]:
        wanted = [(bucket, limit) for bucket in buckets if (limit := self._limits.get(family_of(bucket)))]
        wanted.sort(key=_is_shared)  # whoever is full by itself does not wait in the line for what all share
        return wanted

    def room(self, buckets: Iterable[Bucket], most: int) -> int:
        """Return how many more jobs with these buckets would be admitted, `most` at most."""
        rooms = [self._room(bucket, limit) for bucket in buckets if (limit := self._limits.get(family_of(bucket)))]
        return max(0, min([most, *rooms]))

    def _state(self, bucket: Bucket) -> BucketState:
        return self._states.setdefault(bucket, BucketState())

    def _room(self, bucket: Bucket, limit: Limit) -> int:
        state = self._state(bucket)
        if limit.per is None:
            return limit.most - state.running
        spent = max(0, state.full_at - self._now)
        return (limit.interval * limit.most - spent) // limit.interval

    def _free_at(self, bucket: Bucket, limit: Limit) -> int | None:
        """Return when one token is there again."""
        if limit.per is None:
            return None
        return self._state(bucket).full_at - limit.interval * (limit.most - 1)


def _is_shared(entry: tuple[Bucket, Limit]) -> bool:
    return entry[0].endswith(SEPARATOR)
