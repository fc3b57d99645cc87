"""The results of measurements: a rate, a spread of durations, or a size, as text and as numbers for scripts.

Figures depend on the machine, its load, its system and the versions of the software, so these are recorded, too.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

MOUNTS = Path("/proc/self/mountinfo")


def machine() -> dict[str, Any]:
    """Return facts on this machine: processors, load, system, architecture, versions of Python and Mainspring."""
    return {
        "cpus": cpus(),
        "load": load(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "mainspring": version("mainspring"),
    }


def cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """Return the load average of the last minute; None if the system does not provide it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def file_system(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """Return the type of the file system of a folder; None if the system does not provide it."""
    if not mounts.exists():
        return None
    found: dict[Path, str] = {}
    for line in mounts.read_text().splitlines():
        mount, _, kind = line.partition(" - ")  # man 5 proc
        found[Path(mount.split()[4].encode().decode("unicode_escape"))] = kind.split()[0]
    here = folder.resolve()
    return next((found[parent] for parent in (here, *here.parents) if parent in found), None)


@dataclass(frozen=True, slots=True)
class RateFigure:
    """A rate: how many items per second were done in the best of some rounds."""

    per_second: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.per_second:,.0f}/s"

    @property
    def note(self) -> str:
        """A text that says how the figure was computed: `best of 5` rounds."""
        return f"best of {self.rounds}"

    @property
    def numbers(self) -> dict[str, Any]:
        """The figure as a dict for JSON output."""
        return {"per_second": round(self.per_second, 1), "rounds": self.rounds}


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of durations, in milliseconds."""

    p50: float
    p99: float
    longest: float
    samples: int

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Percentiles:
        """Compute the percentiles of durations in milliseconds; there must be at least one."""
        ordered = sorted(milliseconds)
        last = len(ordered) - 1
        middle, late = (ordered[min(last, int(share * len(ordered)))] for share in (0.5, 0.99))
        return cls(middle, late, ordered[last], len(ordered))

    def __str__(self) -> str:
        return f"{self.p50:.2f} / {self.p99:.2f} / {self.longest:.2f} ms"

    @property
    def note(self) -> str:
        """A text that says what the figures are, and of how many samples: `p50 / p99 / max of 500`."""
        return f"p50 / p99 / max of {self.samples:,}"

    @property
    def numbers(self) -> dict[str, Any]:
        """The figures as a dict for JSON output."""
        return {
            "p50_ms": round(self.p50, 3),
            "p99_ms": round(self.p99, 3),
            "max_ms": round(self.longest, 3),
            "samples": self.samples,
        }


@dataclass(frozen=True, slots=True)
class Size:
    """The mean size of one item, in bytes."""

    bytes_each: float
    samples: int

    def __str__(self) -> str:
        return f"{self.bytes_each:,.0f} bytes"

    @property
    def note(self) -> str:
        """A text that says how the figure was computed: `mean of 5,000` samples."""
        return f"mean of {self.samples:,}"

    @property
    def numbers(self) -> dict[str, Any]:
        """The figure as a dict for JSON output."""
        return {"bytes": round(self.bytes_each), "samples": self.samples}


Result: TypeAlias = RateFigure | Percentiles | Size
