"""Numbers and names in words that one reads at a glance."""

from __future__ import annotations

from collections.abc import Collection

from mainspring.jobs.instants import MICROSECONDS, describe_duration

_SPANS = ((86_400 * 2, 86_400, "days"), (1, 1, "s"), (0.001, 0.001, "ms"))
_MINUTES_AND_HOURS = range(120, 86_400 * 2)
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
NAMED = 5


def in_seconds(seconds: float) -> str:
    """Write a duration: `3 days`, `2 h 5 min`, `90 s`, `1.2 ms`, `4 µs`."""
    if int(seconds) in _MINUTES_AND_HOURS:
        return describe_duration(round(seconds * MICROSECONDS))
    for least, unit, name in _SPANS:
        if seconds >= least:
            return f"{seconds / unit:.3g} {name}" if seconds < 10 * unit else f"{seconds / unit:,.0f} {name}"
    return f"{seconds * 1_000_000:.0f} µs"


def in_microseconds(microseconds: int) -> str:
    """Write a duration of an engine."""
    return in_seconds(microseconds / MICROSECONDS)


def in_bytes(size: int) -> str:
    """Write a size: `3.2 GiB`, `512 bytes`."""
    for least, name in _SIZES:
        if size >= least:
            return f"{size / least:.3g} {name}" if size < 1_000 * least else f"{size / least:,.0f} {name}"
    return f"{size} bytes"


def some(names: Collection[str]) -> str:
    """Name a few, and say how many more there are."""
    shown = list(names)[:NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def count(number: int, one: str, many: str | None = None) -> str:
    """Write a number of things: `1 job`, `12 jobs`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
