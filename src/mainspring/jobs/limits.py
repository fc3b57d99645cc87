"""Concurrency and rate limits over all workers: decides which jobs may start.

A limit is a family of buckets, one for each key. For example, `concurrency of handler shop.mail` has a bucket for
each tenant if it is limited by tenant, and a single bucket otherwise. A job names its buckets, and starts when all
of them admit it. A rate is a token bucket, stored as one number: the instant at which it will be full again.

Engines store the states of buckets. This module decides about admission for all engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

SEPARATOR = "\x1f"  # separates family and key in the name of a bucket
REMEMBERED = 10_000  # for how many combinations of buckets the order is cached

Bucket: TypeAlias = str


class Limit(Struct, frozen=True, gc=False):
    """A limit that holds for each of its keys: at most `most` jobs at once, or `most` starts within `per`."""

    most: int
    per: int | None
    """The period of a rate limit in microseconds; None for a concurrency limit."""

    @property
    def interval(self) -> int:
        """The microseconds after which a rate refills one token, rounded up so that the rate is never exceeded."""
        return -(-(self.per or 0) // self.most)


class BucketState(Struct, gc=False):
    """The state of a limit for one key (a bucket), as stored: running jobs, or when all tokens are refilled."""

    running: int = 0
    full_at: int = 0
    """For a rate: the instant at which all tokens are available again. Each start moves it forward."""


class Refusal(Struct, frozen=True, gc=False):
    """The first full bucket (limit and key) that refuses a job, and the instant from which it admits one.

    The instant is None if the bucket admits a job only when another job has ended.
    """

    bucket: Bucket
    until: int | None


def bucket_of(family: str, key: str = "") -> Bucket:
    """Return the name of the part of a limit (the bucket) that counts one key; without a key, of its only part.

    `family` is the name of the limit.
    """
    return f"{family}{SEPARATOR}{key}"


def family_of(bucket: Bucket) -> str:
    """Return the name of the limit to which a bucket belongs; a bucket is the part of a limit for one key."""
    return bucket.partition(SEPARATOR)[0]


def key_of(bucket: Bucket) -> str:
    """Return the key of a bucket (the part of a limit for one key); empty if the limit has no keys."""
    return bucket.partition(SEPARATOR)[2]


def describe_bucket(bucket: Bucket) -> str:
    """Return the name of a limit and its key, given as the name of a bucket, as a text for users."""
    family, _, key = bucket.partition(SEPARATOR)
    return f"{family}, {key}" if key else family


def is_fair(buckets: Iterable[Bucket]) -> bool:
    """Return whether one of these buckets (limit and key) has a key: jobs with different keys start in turn."""
    return any(not bucket.endswith(SEPARATOR) for bucket in buckets)


class _AdmissionState:
    """The values that all limits of one `Admission` share: the time, the changed states, and `is_tight`."""

    __slots__ = ("changed", "is_tight", "now")

    def __init__(self, now: int) -> None:
        self.now = now
        self.changed: dict[Bucket, BucketState] = {}
        self.is_tight = False


class _BucketLimit:
    """One bucket within an `Admission`, which decides which jobs may start: its limit, and its state.

    The state has the number of running jobs, or for a rate the instant at which all tokens are available. A bucket
    is the part of a limit for one key, such as one tenant.
    """

    __slots__ = ("bucket", "interval", "most", "shared", "state")

    def __init__(self, bucket: Bucket, limit: Limit, state: BucketState, shared: _AdmissionState) -> None:
        self.bucket = bucket
        self.most = limit.most
        self.interval = None if limit.per is None else limit.interval
        self.state = state
        self.shared = shared

    def room(self) -> int:
        """Return how many more jobs the bucket (a limit for one key) would admit; 0 or less if it admits none."""
        state, interval = self.state, self.interval
        if interval is None:
            return self.most - state.running
        missing = state.full_at - self.shared.now
        return self.most if missing <= 0 else self.most + -missing // interval

    def count(self, starts: int) -> None:
        """Count jobs that start: they take up room under the limit for this key, or use up its tokens."""
        state, interval, shared = self.state, self.interval, self.shared
        if interval is None:
            state.running += starts
        else:
            state.full_at = max(state.full_at, shared.now) + interval * starts
        shared.changed[self.bucket] = state

    def vacate(self, ends: int) -> None:
        """Count jobs as ended, so that a concurrency limit admits others for this key; a rate stays as it is."""
        if self.interval is None:
            self.state.running = max(0, self.state.running - ends)
            self.shared.changed[self.bucket] = self.state

    def refusal(self) -> Refusal:
        """Return the refusal of this limit for its key, with the instant from which it admits a job again.

        The instant is None for a concurrency limit, where another job must end first.
        """
        return Refusal(self.bucket, self.room_at(1))

    def room_at(self, count: int) -> int | None:
        """Return the instant, maybe a past one, from which a rate admits `count` jobs at once.

        Return None for a concurrency limit, or if `count` is greater than the rate ever admits at once.
        """
        if self.interval is None or count > self.most:
            return None
        return self.state.full_at - self.interval * (self.most - count)


class CombinedLimit:
    """All buckets (limits, each for one key) that some jobs have in common. A job starts if each admits it."""

    __slots__ = ("_limits", "_shared")

    def __init__(self, limits: list[_BucketLimit], shared: _AdmissionState) -> None:
        self._limits = limits
        self._shared = shared

    def room(self, most: int) -> int:
        """Return how many more jobs all these limits would admit: 0 to `most`."""
        for limit in self._limits:
            most = min(most, limit.room())
        return max(0, most)

    def admit(self, wanted: int) -> int:
        """Admit as many of `wanted` jobs as all these limits have room for, and count them; return how many."""
        limits = self._limits
        for limit in limits:
            room = limit.room()
            if room <= wanted:
                wanted = room
                self._shared.is_tight = True
        if wanted <= 0:
            return 0
        for limit in limits:
            limit.count(wanted)
        return wanted

    def room_at(self, count: int) -> int | None:
        """Return the instant, maybe a past one, from which all these limits admit `count` jobs at once.

        Return None if one of them is a concurrency limit or never admits so many, or if there is no limit.
        """
        instants = [limit.room_at(count) for limit in self._limits]
        known = [instant for instant in instants if instant is not None]
        return max(known) if known and len(known) == len(instants) else None

    def vacate(self, ends: int) -> None:
        """Count jobs as ended in all concurrency limits, so that these admit others; rates stay."""
        for limit in self._limits:
            limit.vacate(ends)

    def refusal(self) -> Refusal | None:
        """Return the refusal of the first full bucket (limit and key); None if all of them would admit a job."""
        for limit in self._limits:
            if limit.room() <= 0:
                return limit.refusal()
        return None


class Admission:
    """Decides for an engine which jobs the limits admit, one after another, and counts the admitted jobs.

    An engine may reuse an admission as long as nothing else changes limits or states. The engine calls `begin`
    with the new time, and `learn` with the states of further limits and keys (buckets).
    """

    def __init__(self, limits: Mapping[str, Limit], states: Mapping[Bucket, BucketState], now: int) -> None:
        self._limits = limits
        self._states = dict(states)
        self._shared = _AdmissionState(now)
        self._combined: dict[tuple[Bucket, ...], CombinedLimit] = {}

    @property
    def changed(self) -> dict[Bucket, BucketState]:
        """The new states of buckets (limit and key) that have changed since the engine last cleared this dict."""
        return self._shared.changed

    @property
    def is_tight(self) -> bool:
        """Whether one of the buckets (limit and key) that were used since `begin` may be full."""
        return self._shared.is_tight

    def __len__(self) -> int:
        """Return the size of the cache: the number of buckets (limit and key) and of combinations of them."""
        return len(self._states) + len(self._combined)

    def begin(self, now: int) -> None:
        """Set the current time to `now`, and reset `is_tight`."""
        self._shared.now = now
        self._shared.is_tight = False

    def learn(self, states: Mapping[Bucket, BucketState]) -> None:
        """Add the stored states of further buckets (limit and key)."""
        self._states.update(states)

    def refusal(self, buckets: tuple[Bucket, ...]) -> Refusal | None:
        """Return the refusal of the first bucket (limit and key) that is full; None if all would admit a job."""
        return self.limit_for(buckets).refusal()

    def admit(self, buckets: tuple[Bucket, ...]) -> Refusal | None:
        """Admit a job, count it under these limits and return None; or return the refusal of a full one."""
        return None if self.admit_many(buckets, 1) else self.refusal(buckets)

    def admit_many(self, buckets: tuple[Bucket, ...], wanted: int) -> int:
        """Admit as many of `wanted` jobs as these limits have room for, and count them; return how many."""
        return self.limit_for(buckets).admit(wanted)

    def room(self, buckets: tuple[Bucket, ...], most: int) -> int:
        """Return how many more jobs all of these limits would admit: 0 to `most`."""
        return self.limit_for(buckets).room(most)

    def room_at(self, bucket: Bucket, count: int) -> int | None:
        """Return the instant, maybe a past one, from which a rate, for one key, admits `count` jobs at once.

        Return None for a concurrency limit or an unknown limit, or if the rate never admits so many at once.
        """
        return self.limit_for((bucket,)).room_at(count)

    def limit_for(self, buckets: tuple[Bucket, ...]) -> CombinedLimit:
        """Return the limit that these buckets (limit and key) form together: all of them must admit a job.

        A bucket whose limit was deleted or is not known admits every job.
        """
        combined = self._combined.get(buckets)
        if combined is None:
            found = [
                _BucketLimit(bucket, limit, self._state(bucket), self._shared)
                for bucket, family in _in_order(buckets)
                if (limit := self._limits.get(family)) is not None
            ]
            combined = self._combined[buckets] = CombinedLimit(found, self._shared)
        return combined

    def _state(self, bucket: Bucket) -> BucketState:
        state = self._states.get(bucket)
        if state is None:
            state = self._states[bucket] = BucketState()
        return state


@lru_cache(REMEMBERED)
def _in_order(buckets: tuple[Bucket, ...]) -> list[tuple[Bucket, str]]:
    """Return each bucket with the name of its limit; buckets with a key come before those that all jobs share.

    So a job that both refuse waits for the bucket of its key.
    """
    return [(bucket, family_of(bucket)) for bucket in sorted(buckets, key=_is_shared)]


def _is_shared(bucket: Bucket) -> bool:
    return bucket.endswith(SEPARATOR)
