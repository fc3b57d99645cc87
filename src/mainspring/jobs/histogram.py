"""Histograms of durations: counts by bucket that can be added together.

All histograms of lateness and duration have the same bounds. So the counts of several processes, and of several
minutes, can be added, and a quantile of the sum is as exact as a quantile of one part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from mainspring.jobs.timestamps import MICROSECONDS

MILLISECONDS = 1_000
BOUNDS: tuple[int, ...] = (
    *(round(n * MILLISECONDS) for n in (1, 2.5, 5, 10, 25, 50, 100, 250, 500)),
    *(round(n * MICROSECONDS) for n in (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600)),
)
"""The upper bounds of the buckets for lateness and duration, in microseconds. A last bucket has no bound."""
COMMIT_BOUNDS: tuple[int, ...] = (100, 250, 500, *BOUNDS[:13])
"""The upper bounds of the buckets for the time of a commit, in microseconds: 0.1 ms to 10 s."""
SIZE_BOUNDS: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
"""The upper bounds of the buckets for the number of operations in a commit."""


class Histogram:
    """Counts of values by bucket (a range of values), and the sum of the values, which are integers, such as
    microseconds.

    A value belongs to the first bucket whose upper bound it does not exceed. One thread at a time changes it.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(
        self, counts: Iterable[int] | None = None, total: int = 0, *, bounds: tuple[int, ...] = BOUNDS
    ) -> None:
        self.bounds = bounds
        """The upper bounds of the buckets. There is one bucket more, without a bound."""
        self.counts = [0] * (len(bounds) + 1) if counts is None else list(counts)
        """The number of values in each bucket. The buckets are not cumulative."""
        self.sum = total
        """The sum of all values."""
        if len(self.counts) != len(bounds) + 1:
            raise ValueError(
                f"a histogram with {len(bounds)} bounds needs {len(bounds) + 1} counts, got {len(self.counts)}"
            )

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def observe(self, value: int) -> None:
        """Count a value. A negative value counts as zero."""
        value = max(0, value)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Sequence[int]) -> None:
        """Count many values. This is faster than `observe` for each of them."""
        if len(values) < len(self.bounds):
            for value in values:
                self.observe(value)
            return
        ordered = sorted(values)
        if ordered[0] < 0:
            ordered = [max(0, value) for value in ordered]
        before = place = 0
        for bound in self.bounds:
            after = bisect_left(ordered, bound + 1, before)  # the first value above the bound
            self.counts[place] += after - before
            before, place = after, place + 1
            if before == len(ordered):
                break
        else:
            self.counts[place] += len(ordered) - before
        self.sum += sum(ordered)

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram; raise `ValueError` if its bounds differ."""
        if other.bounds != self.bounds:
            raise ValueError(f"only histograms with the same bounds can be added: {self.bounds}, {other.bounds}")
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def copy(self) -> Histogram:
        """Return an independent histogram with the same counts."""
        return Histogram(self.counts, self.sum, bounds=self.bounds)

    def quantile(self, q: float) -> float | None:
        """Return an estimate of the value below which the share `q` of all values is; None without values.

        The estimate is linear within a bucket (a range of values). In the last bucket, which has no bound, it is
        the largest bound.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be between 0 and 1, got {q!r}")
        rank = q * self.count
        lower = seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and seen + count >= rank:
                return lower + (bound - lower) * max(0.0, rank - seen) / count
            seen += count
            lower = bound
        return float(self.bounds[-1]) if self.count else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return (self.bounds, self.counts, self.sum) == (other.bounds, other.counts, other.sum)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"<Histogram of {self.count} values, sum {self.sum}>"
