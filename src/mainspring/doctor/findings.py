"""Findings of checks, with severity, reason and remedy; runs a check and collects its findings.

Invariant: running a check never raises. A check that fails is reported as a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from mainspring.errors import EngineUnavailable
from mainspring.jobs.timestamps import MICROSECONDS, describe_duration

_SPANS = ((86_400 * 2, 86_400, "days"), (1, 1, "s"), (0.001, 0.001, "ms"))
_MINUTES_AND_HOURS = range(120, 86_400 * 2)
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
NAMED = 5


def in_seconds(seconds: float) -> str:
    """Return a duration as text: `3 days`, `2 h 5 min`, `90 s`, `1.2 ms`, `4 µs`."""
    if int(seconds) in _MINUTES_AND_HOURS:
        return describe_duration(round(seconds * MICROSECONDS))
    for least, unit, name in _SPANS:
        if seconds >= least:
            return f"{seconds / unit:.3g} {name}" if seconds < 10 * unit else f"{seconds / unit:,.0f} {name}"
    return f"{seconds * 1_000_000:.0f} µs"


def in_microseconds(microseconds: int) -> str:
    """Return a duration in microseconds as text. A negative one, which differing clocks cause, counts as 0."""
    return in_seconds(max(0, microseconds) / MICROSECONDS)


def in_bytes(size: int) -> str:
    """Return a size as text: `3.2 GiB`, `512 bytes`."""
    for least, name in _SIZES:
        if size >= least:
            return f"{size / least:.3g} {name}" if size < 1_000 * least else f"{size / least:,.0f} {name}"
    return f"{size} bytes"


def some(names: Collection[str]) -> str:
    """Return the first five names as text, and how many more there are: `a, b, c, d, e and 3 more`."""
    shown = list(names)[:NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


class Severity(StrEnum):
    """The severity of a finding, in ascending order."""

    OK = "ok"
    INFO = "info"
    """Nothing is wrong, but the user may want to know about it."""
    WARNING = "warning"
    """The store works now, but may fail later or is slower than it could be."""
    ERROR = "error"
    """Jobs do not run, or may be lost."""

    @property
    def rank(self) -> int:
        """The position in the order of severity. A higher number is worse."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result of a check of `mainspring doctor`: a fact, its severity, why it matters and what to do."""

    severity: Severity
    what: str
    """The observed fact, with its value."""
    reason: str = ""
    """Why the observed fact matters."""
    remedy: str = ""
    """The action that the finding recommends."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Commands that apply the remedy or show more, as words without `mainspring`: `("queues", "resume", "mail")`.
    `("run",)` stands for the command that starts a worker."""
    check: str = ""
    """The name of the check that made the finding. `carry_out` sets it."""


Findings: TypeAlias = Finding | Iterable[Finding]


@dataclass(frozen=True, slots=True)
class Check:
    """A named check. Running it returns its findings; there may be none."""

    name: str
    run: Callable[[], Findings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings of all checks, in the order of the checks."""

    store: str
    """The URL of the store, without a password."""
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity:
        """The highest severity among the findings; OK if there are none."""
        return max((finding.severity for finding in self.findings), key=_rank, default=Severity.OK)

    def count(self, severity: Severity) -> int:
        """Return how many findings have this severity."""
        return sum(finding.severity is severity for finding in self.findings)


def ok(what: str) -> Finding:
    """Return a finding of severity OK, about something that is in order."""
    return Finding(severity=Severity.OK, what=what)


def info(what: str, reason: str = "", remedy: str = "", *commands: tuple[str, ...]) -> Finding:
    """Return a finding of severity INFO: the user may want to know it, but nothing is wrong."""
    return Finding(severity=Severity.INFO, what=what, reason=reason, remedy=remedy, commands=commands)


def warning(what: str, reason: str, remedy: str, *commands: tuple[str, ...]) -> Finding:
    """Return a finding of severity WARNING, about something that may fail later or is slow."""
    return Finding(severity=Severity.WARNING, what=what, reason=reason, remedy=remedy, commands=commands)


def error(what: str, reason: str, remedy: str, *commands: tuple[str, ...]) -> Finding:
    """Return a finding of severity ERROR: jobs do not run, or may be lost."""
    return Finding(severity=Severity.ERROR, what=what, reason=reason, remedy=remedy, commands=commands)


def carry_out(check: Check) -> list[Finding]:
    """Run a check and return its findings. An exception of the check becomes a finding, and is not raised."""
    try:
        found = check.run()
        found = [found] if isinstance(found, Finding) else list(found)
    except EngineUnavailable as problem:
        what = f"{problem.engine}: {problem.reason}"
        found = [error(what, "Without the store, no job is stored and none starts.", problem.remedy)]
    except Exception as problem:  # a check that fails must not hide the findings of the others
        found = [
            warning(
                f"this check failed: {type(problem).__name__}: {problem}",
                "The state of the part that this check examines is unknown.",
                "Look for the cause on this machine; if there is none, report this as a bug.",
            )
        ]
    return [replace(finding, check=check.name) for finding in found]


def _rank(severity: Severity) -> int:
    return severity.rank
