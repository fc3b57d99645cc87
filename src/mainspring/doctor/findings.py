"""What checks find: how bad it is, why it matters, what to do; and how checks are carried out.

Invariant: carrying out checks never raises. A check that fails is a finding like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from mainspring.errors import EngineUnavailable


class Severity(StrEnum):
    """How bad something is, from good to bad."""

    OK = "ok"
    INFO = "info"
    """Nothing is wrong; somebody may want to know it."""
    WARNING = "warning"
    """It works now, and will hurt some day or is slower than it could be."""
    ERROR = "error"
    """Jobs do not run, or may be lost."""

    @property
    def rank(self) -> int:
        """The worse, the higher."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check has found."""

    severity: Severity
    what: str
    """What is the case, with its value."""
    reason: str = ""
    """Why it matters."""
    remedy: str = ""
    """What to do."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Commands of the program that do it, or show more, as words without its name: `("queues", "resume", "mail")`.
    `("run",)` is a worker."""
    check: str = ""
    """The name of the check: `carry_out` writes it."""


Findings: TypeAlias = Finding | Iterable[Finding]


@dataclass(frozen=True, slots=True)
class Check:
    """Something to look at; what it returns is never empty."""

    name: str
    run: Callable[[], Findings]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was found, in the order of the checks."""

    store: str
    """Where the jobs are."""
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity:
        """How bad the worst of it is."""
        return max((finding.severity for finding in self.findings), key=_rank, default=Severity.OK)

    def count(self, severity: Severity) -> int:
        """Return how many findings are just as bad as this."""
        return sum(finding.severity is severity for finding in self.findings)


def ok(what: str) -> Finding:
    """Say that something is in order."""
    return Finding(severity=Severity.OK, what=what)


def info(what: str, reason: str = "", remedy: str = "", *commands: tuple[str, ...]) -> Finding:
    """Say something that one may want to know."""
    return Finding(severity=Severity.INFO, what=what, reason=reason, remedy=remedy, commands=commands)


def warning(what: str, reason: str, remedy: str, *commands: tuple[str, ...]) -> Finding:
    """Say what will hurt some day."""
    return Finding(severity=Severity.WARNING, what=what, reason=reason, remedy=remedy, commands=commands)


def error(what: str, reason: str, remedy: str, *commands: tuple[str, ...]) -> Finding:
    """Say what is broken."""
    return Finding(severity=Severity.ERROR, what=what, reason=reason, remedy=remedy, commands=commands)


def carry_out(check: Check) -> list[Finding]:
    """Look; what goes wrong while looking is a finding, too."""
    try:
        found = check.run()
        found = [found] if isinstance(found, Finding) else list(found)
    except EngineUnavailable as problem:
        what = f"{problem.engine}: {problem.reason}"
        found = [error(what, "Without it no job is stored, and none starts.", problem.remedy)]
    except Exception as problem:  # one check that fails must not hide what the others find
        found = [
            warning(
                f"this could not be checked: {type(problem).__name__}: {problem}",
                "Nobody knows whether it is in order.",
                "Look at the machine for the cause; if there is none, report this.",
            )
        ]
    return [replace(finding, check=check.name) for finding in found]


def _rank(severity: Severity) -> int:
    return severity.rank
