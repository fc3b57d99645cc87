"""What a measurement comes to: a rate, a spread of durations, or a size; in words, and as numbers for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Rate:
    """How many a second, in the best of some rounds."""

    per_second: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.per_second:,.0f}/s"

    @property
    def note(self) -> str:
        """Say what the figure is of the samples."""
        return f"best of {self.rounds}"

    @property
    def numbers(self) -> dict[str, Any]:
        """Return it for scripts."""
        return {"per_second": round(self.per_second, 1), "rounds": self.rounds}


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took, in milliseconds."""

    p50: float
    p99: float
    longest: float
    samples: int

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Spread:
        """Summarize durations."""
        ordered = sorted(milliseconds)
        last = len(ordered) - 1
        middle, late = (ordered[min(last, int(share * len(ordered)))] for share in (0.5, 0.99))
        return cls(middle, late, ordered[last], len(ordered))

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f} / {self.longest:.2f} ms"

    @property
    def note(self) -> str:
        """Say what the figure is of the samples."""
        return f"p50 / p99 / max of {self.samples:,}"

    @property
    def numbers(self) -> dict[str, Any]:
        """Return it for scripts."""
        return {
            "p50_ms": round(self.p50, 3),
            "p99_ms": round(self.p99, 3),
            "max_ms": round(self.longest, 3),
            "samples": self.samples,
        }


@dataclass(frozen=True, slots=True)
class Size:
    """How much one of many takes."""

    bytes_each: float
    samples: int

    def __str__(self) -> str:
        return f"{self.bytes_each:,.0f} bytes"

    @property
    def note(self) -> str:
        """Say what the figure is of the samples."""
        return f"mean of {self.samples:,}"

    @property
    def numbers(self) -> dict[str, Any]:
        """Return it for scripts."""
        return {"bytes": round(self.bytes_each), "samples": self.samples}


Result: TypeAlias = Rate | Spread | Size
