"""Keeps what is known about the time of the server: bounds, as requests and their replies have shown them.

- A reply has the time at which the server made it. The request was sent before, and the reply came afterwards: so
  when the request was sent, the server's time was at most this, and when the reply came, at least this. How a
  round trip divides into the way there and the way back does not matter.
- The bounds drift apart with the age of a sample, because two clocks may differ in speed by `DRIFT`. Another
  sample can only narrow them. Samples that contradict each other, or come from different servers, show that the
  server's clock was set, or is another one: then the last sample alone counts.
- Between two samples, the earliest time never goes back.

Instants are microseconds. `monotonic` is the local clock that no one sets.
"""

from __future__ import annotations

from typing import NamedTuple

DRIFT = 5_000  # one microsecond in so many: 200 ppm, twice as much as two quartz clocks usually differ


class TimeSample(NamedTuple):
    """A reply of a server: when the request was sent, when the reply came, and the server's time in between."""

    sent: int
    received: int
    server: int
    source: str = ""
    """The name of the server. Servers of a cluster have clocks of their own."""


class TimeBounds(NamedTuple):
    """The earliest and the latest time that the server may have had at an instant of the local clock."""

    monotonic: int
    earliest: int
    latest: int
    source: str = ""

    def earliest_at(self, monotonic: int) -> int:
        """Return the earliest time that the server may have at a later instant of the local clock."""
        elapsed = monotonic - self.monotonic
        return self.earliest + elapsed - _drift_of(elapsed)

    def latest_at(self, monotonic: int) -> int:
        """Return the latest time that the server may have at a later instant of the local clock."""
        elapsed = monotonic - self.monotonic
        return self.latest + elapsed + _drift_of(elapsed)


def _drift_of(elapsed: int) -> int:
    return -(-elapsed // DRIFT)  # rounded up


def bounds_of(sample: TimeSample) -> TimeBounds:
    """Return the bounds that a single sample shows, for the instant at which its reply came.

    All instants are cut to microseconds, which may make each of them one too small.
    """
    trip = sample.received - sample.sent
    latest = sample.server + trip + _drift_of(trip) + 3
    return TimeBounds(sample.received, sample.server - 1, latest, sample.source)


def narrowed(known: TimeBounds | None, sample: TimeSample) -> TimeBounds:
    """Return the bounds that follow from what is known and from a new sample."""
    new = bounds_of(sample)
    if known is None or known.source != new.source:
        return new
    monotonic = max(known.monotonic, new.monotonic)  # another thread may have added a later sample meanwhile
    earliest = max(known.earliest_at(monotonic), new.earliest_at(monotonic))
    latest = min(known.latest_at(monotonic), new.latest_at(monotonic))
    return new if earliest > latest else TimeBounds(monotonic, earliest, latest, new.source)
