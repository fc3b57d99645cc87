"""Formats numbers, durations and times for pages. The filters of templates are listed in `FILTERS`."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from mainspring.jobs.store_statistics import MAX_COUNTED

MISSING = "\N{EN DASH}"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def number(value: float | None) -> str:
    """Return a number as text, with separators: `12,345`; fractions below 100 as `1.23`; a dash for None."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.3g}"


def compact(value: float | None) -> str:
    """Return a number as text with three digits and a unit: `950`, `12.3k`, `1.2M`; a dash for None."""
    if value is None:
        return MISSING
    for least, unit in ((999_500_000, "G"), (999_500, "M"), (1_000, "k")):
        if value >= least:
            scaled = value / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.3g}{unit}" if scaled < 999.5 else f"{scaled:.0f}{unit}"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def count(value: int, *, is_exact: bool = True) -> str:
    """Return a count as text, with `≥` before it if it is not exact."""
    return number(value) if is_exact else f"≥ {number(value)}"


def tally(value: int, is_exact: bool) -> str:  # noqa: FBT001 - templates read better so
    """Return a count of the store's statistics as text, with `≥` if it is not exact and 10,000 or more."""
    return count(value, is_exact=is_exact or value < MAX_COUNTED)


def duration(value: float | timedelta | None) -> str:
    """Return a duration in seconds as text: `850 µs`, `4.2 ms`, `1.5 s`, `3 min 20 s`; a dash for None."""
    if value is None:
        return MISSING
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 0:
        return f"\N{MINUS SIGN}{duration(-seconds)}"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs" if seconds else "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{min(seconds, 59):.0f} s"
    whole = int(seconds)
    for (size, unit), (smaller, smaller_unit) in pairwise(_UNITS):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    raise AssertionError(seconds)


def rough_duration(seconds: float) -> str:
    """Return a duration in seconds as text, rounded down to one unit: `12 s`, `3 min`, `5 h`, `2 d`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"


def relative(at: datetime, now: datetime) -> str:
    """Return how far a time is from `now`, as text: `3 min ago`, `in 2 h`, `now`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{rough_duration(seconds)} ago" if seconds > 0 else f"in {rough_duration(-seconds)}"


def absolute(at: datetime) -> str:
    """Return date and time with the time zone as text: `2026-11-17 19:26:40 UTC`."""
    zone = at.tzname() or "UTC"
    return f"{at:%Y-%m-%d %H:%M:%S} {zone}"


def short(at: datetime, now: datetime) -> str:
    """Return a time without the date if it is today, and without the year if that is this year.

    Examples: `19:26:40 UTC`, `11-16 19:26 UTC`, `2025-11-16 19:26 UTC`.
    """
    zone = at.tzname() or "UTC"
    if at.date() == now.astimezone(at.tzinfo).date():
        return f"{at:%H:%M:%S} {zone}"
    return f"{at:%m-%d %H:%M} {zone}" if at.year == now.year else f"{at:%Y-%m-%d %H:%M} {zone}"


def axis_duration(seconds: float) -> str:
    """Return a duration of at most seven characters, for an axis: `100 ms`, `1,000 s`, `2.8 h`, `12 d`."""
    if seconds < 1:
        return duration(seconds)
    if seconds < 10_000:
        return f"{seconds:,.3g} s" if seconds < 1_000 else f"{seconds:,.0f} s"
    return f"{seconds / 3_600:.2g} h" if seconds < 200_000 else f"{seconds / 86_400:,.0f} d"


def when(at: datetime | None, now: datetime) -> Markup:
    """Return an HTML `time` element with the relative time, and the absolute one as its title; a dash for None."""
    if at is None:
        return Markup('<span class="muted">{}</span>').format(MISSING)
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(
        at.isoformat(timespec="milliseconds"), absolute(at), relative(at, now)
    )


FILTERS: dict[str, Any] = {
    "number": number,
    "compact": compact,
    "count": count,
    "tally": tally,
    "duration": duration,
    "relative": relative,
    "absolute": absolute,
    "short": short,
    "when": when,
}
"""The filters for numbers and times that templates can use, by name."""
