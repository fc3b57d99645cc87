"""Limits across workers: how many jobs at once, and how many in a time, for each bucket.

A limit is a family of buckets, one for each key: `concurrency of handler shop.mail` has a bucket for each tenant
if it is limited by tenant, and one in all if not. A job names its buckets, and starts when every one of them
admits it. The rate is a token bucket kept as one number, the instant at which it would be full again.

Engines keep the state of buckets; what it means is decided here, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

SEPARATOR = "\x1f"  # between family and key: no name contains it
REMEMBERED = 10_000  # combinations of buckets

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


class _Tally:
    """What all gates of one admission share."""

    __slots__ = ("changed", "is_tight", "now")

    def __init__(self, now: int) -> None:
        self.now = now
        self.changed: dict[Bucket, BucketState] = {}
        self.is_tight = False


class _Gate:
    """One bucket of one admission: its limit and its state."""

    __slots__ = ("bucket", "interval", "most", "state", "tally")

    def __init__(self, bucket: Bucket, limit: Limit, state: BucketState, tally: _Tally) -> None:
        self.bucket = bucket
        self.most = limit.most
        self.interval = None if limit.per is None else limit.interval
        self.state = state
        self.tally = tally

    def room(self) -> int:
        """Return how many more it would admit."""
        state, interval = self.state, self.interval
        if interval is None:
            return self.most - state.running
        missing = state.full_at - self.tally.now
        return self.most if missing <= 0 else self.most + -missing // interval

    def count(self, starts: int) -> None:
        """Count starts."""
        state, interval, tally = self.state, self.interval, self.tally
        if interval is None:
            state.running += starts
        else:
            state.full_at = max(state.full_at, tally.now) + interval * starts
        tally.changed[self.bucket] = state

    def vacate(self, ends: int) -> None:
        """Count jobs that run no more."""
        if self.interval is None:
            self.state.running = max(0, self.state.running - ends)
            self.tally.changed[self.bucket] = self.state

    def refusal(self) -> Refusal:
        """Say until when it admits nobody."""
        if self.interval is None:
            return Refusal(self.bucket, None)
        return Refusal(self.bucket, self.state.full_at - self.interval * (self.most - 1))


class Gates:
    """The buckets of jobs that are under the same limits, in one admission: what each of them has to pass."""

    __slots__ = ("_gates", "_tally")

    def __init__(self, gates: list[_Gate], tally: _Tally) -> None:
        self._gates = gates
        self._tally = tally

    def room(self, most: int) -> int:
        """Return how many more jobs would be admitted, `most` at most."""
        for gate in self._gates:
            most = min(most, gate.room())
        return max(0, most)

    def admit(self, wanted: int) -> int:
        """Count in as many jobs as there is room for; return how many."""
        gates = self._gates
        for gate in gates:
            room = gate.room()
            if room <= wanted:
                wanted = room
                self._tally.is_tight = True
        if wanted <= 0:
            return 0
        for gate in gates:
            gate.count(wanted)
        return wanted

    def vacate(self, ends: int) -> None:
        """Count jobs out that run no more."""
        for gate in self._gates:
            gate.vacate(ends)

    def refusal(self) -> Refusal | None:
        """Say which bucket would refuse a job; None: it would be admitted."""
        for gate in self._gates:
            if gate.room() <= 0:
                return gate.refusal()
        return None


class Admission:
    """Decides which jobs may start, one after another, and keeps count.

    It may be kept, for as long as nobody else changes limits or states: `begin` it anew then, and `learn` states.
    """

    def __init__(self, limits: Mapping[str, Limit], states: Mapping[Bucket, BucketState], now: int) -> None:
        self._limits = limits
        self._states = dict(states)
        self._tally = _Tally(now)
        self._gates: dict[tuple[Bucket, ...], Gates] = {}

    @property
    def changed(self) -> dict[Bucket, BucketState]:
        """The buckets of those that were admitted, or counted out."""
        return self._tally.changed

    @property
    def is_tight(self) -> bool:
        """Whether a bucket may be full that somebody has tried since `begin`."""
        return self._tally.is_tight

    def __len__(self) -> int:
        """Return how many buckets and combinations of them are known."""
        return len(self._states) + len(self._gates)

    def begin(self, now: int) -> None:
        """Go on at another time."""
        self._tally.now = now
        self._tally.is_tight = False

    def learn(self, states: Mapping[Bucket, BucketState]) -> None:
        """Add states that were not there."""
        self._states.update(states)

    def refusal(self, buckets: tuple[Bucket, ...]) -> Refusal | None:
        """Say which bucket would refuse a job; None: it would be admitted."""
        return self.gates(buckets).refusal()

    def admit(self, buckets: tuple[Bucket, ...]) -> Refusal | None:
        """Count a job in; or say which of its buckets is full."""
        return None if self.admit_many(buckets, 1) else self.refusal(buckets)

    def admit_many(self, buckets: tuple[Bucket, ...], wanted: int) -> int:
        """Count in as many jobs as there is room for; return how many."""
        return self.gates(buckets).admit(wanted)

    def room(self, buckets: tuple[Bucket, ...], most: int) -> int:
        """Return how many more jobs with these buckets would be admitted, `most` at most."""
        return self.gates(buckets).room(most)

    def gates(self, buckets: tuple[Bucket, ...]) -> Gates:
        """Return what jobs with these buckets have to pass."""
        gates = self._gates.get(buckets)
        if gates is None:
            found = [
                _Gate(bucket, limit, self._state(bucket), self._tally)
                for bucket, family in _in_order(buckets)
                if (limit := self._limits.get(family)) is not None
            ]
            gates = self._gates[buckets] = Gates(found, self._tally)
        return gates

    def _state(self, bucket: Bucket) -> BucketState:
        state = self._states.get(bucket)
        if state is None:
            state = self._states[bucket] = BucketState()
        return state


@lru_cache(REMEMBERED)
def _in_order(buckets: tuple[Bucket, ...]) -> list[tuple[Bucket, str]]:
    """Return buckets with their families: whoever is full by itself does not queue up for what all share."""
    return [(bucket, family_of(bucket)) for bucket in sorted(buckets, key=_is_shared)]


def _is_shared(bucket: Bucket) -> bool:
    return bucket.endswith(SEPARATOR)
