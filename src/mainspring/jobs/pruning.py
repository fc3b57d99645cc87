"""Forgetting jobs that have ended, by age and by count: a few at a time, so that nobody waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from mainspring.clock import Duration
from mainspring.jobs.engine import Retention
from mainspring.jobs.instants import to_microseconds
from mainspring.runners.checks import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long jobs that have ended are kept; None for ever. Dead letters stay until somebody looks at them."""

    completed: Duration | None = timedelta(days=7)
    canceled: Duration | None = timedelta(days=7)
    failed: Duration | None = None
    most: int | None = 1_000_000
    """How many that completed or were canceled, at most; the oldest go first."""

    def __post_init__(self) -> None:
        if self.most is not None:
            require_positive(self.most, "most", "jobs")
        self.retention()

    def retention(self) -> Retention:
        """As an engine knows it."""
        return Retention(
            _age(self.completed, "completed"),
            _age(self.canceled, "canceled"),
            _age(self.failed, "failed"),
            self.most,
        )


def _age(duration: Duration | None, name: str) -> int | None:
    return None if duration is None else to_microseconds(duration, name)
