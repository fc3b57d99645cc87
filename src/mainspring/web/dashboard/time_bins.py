"""Counts instants in bins of equal length, for small charts over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mainspring.jobs.timestamps import MICROSECONDS

MINUTE = 60 * MICROSECONDS
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BIN_LENGTHS = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY)
"""The possible lengths of bins, in microseconds."""
BINS = 30


@dataclass(frozen=True, slots=True)
class TimeBins:
    """The bins of a chart over time: `count` periods of the same length, one after the other."""

    start: int
    """The start of the first bin, in microseconds since 1970."""
    length: int
    """The length of a bin, in microseconds."""
    count: int

    def counts(self, instants: Iterable[int]) -> list[int]:
        """Return how many of these instants are in each bin. Instants outside of all bins do not count."""
        found = [0] * self.count
        for instant in instants:
            place = (instant - self.start) // self.length
            if 0 <= place < self.count:
                found[place] += 1
        return found

    def starts(self) -> Sequence[int]:
        """Return the start of each bin, in microseconds since 1970."""
        return range(self.start, self.start + self.length * self.count, self.length)


def bins_for(first: int, last: int, *, count: int = BINS) -> TimeBins:
    """Return `count` bins of the shortest length with which they reach back to `first`; the last contains `last`.

    If even the longest bins do not reach back, the earliest instants are left out.
    """
    for length in BIN_LENGTHS:
        end = last // length
        if end - first // length < count:
            return TimeBins((end - count + 1) * length, length, count)
    length = BIN_LENGTHS[-1]
    return TimeBins((last // length - count + 1) * length, length, count)


def describe_length(length: int) -> str:
    """Return the length of a bin as text: `hour`, `5 minutes`."""
    for unit, name in ((DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")):
        if length >= unit:
            number = length // unit
            return name if number == 1 else f"{number} {name}s"
    return f"{length / MICROSECONDS:g} seconds"
