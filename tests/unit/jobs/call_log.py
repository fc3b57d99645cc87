"""Records the calls of handlers during time travel, with the seconds since its start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mainspring import Mainspring

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""The start of time travel in these tests: `time_travel(app, start=START)`."""


class CallLog:
    """Calls in the order in which they were made."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self.entries: list[tuple[Any, float]] = []

    def record(self, what: Any) -> None:
        """Record a call, with the time by the clock of the application."""
        now = self._app.manager().clock.now()
        self.entries.append((what, (now - START).total_seconds()))

    @property
    def names(self) -> list[Any]:
        """The recorded calls, without the times."""
        return [what for what, _ in self.entries]

    @property
    def times(self) -> list[float]:
        """The times of the calls, in seconds since `START`."""
        return [time for _, time in self.entries]
