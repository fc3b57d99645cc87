"""What handlers write down on a journey: what they did, and how many seconds after its start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mainspring import Mainspring

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""Where journeys with a diary begin: `time_travel(app, start=START)`."""


class Diary:
    """Entries in the order in which they were written."""

    def __init__(self, app: Mainspring) -> None:
        self._app = app
        self.entries: list[tuple[Any, float]] = []

    def write(self, what: Any) -> None:
        """Note something, with the time at which the application believes to be."""
        now = self._app.manager().clock.now()
        self.entries.append((what, (now - START).total_seconds()))

    @property
    def names(self) -> list[Any]:
        """What was noted, without the times."""
        return [what for what, _ in self.entries]

    @property
    def times(self) -> list[float]:
        """When something was noted."""
        return [time for _, time in self.entries]
