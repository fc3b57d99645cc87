"""Taking the vital signs of a worker: whether its control sequence turns, the store answers, and work is taken.

They are taken in the control sequence, about once a second, from before the start until after the stop. If that
sequence hangs, so do they: whoever looks at `turned_ns` notices, and no thread of its own pretends otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.clock import Clock
from mainspring.vital_signs import Health, WorkerState


class Vitals:
    """Keeps the signs. Belongs to the control sequence."""

    def __init__(self, clock: Clock, on_turn: Callable[[Health], None]) -> None:
        self._clock = clock
        self._on_turn = on_turn
        self._answered: int | None = None
        self._trouble: str | None = None
        self.state = WorkerState.STARTING
        self.stall: str | None = None

    def answered(self) -> None:
        """The store has answered."""
        self._answered = self._clock.monotonic_ns()
        self._trouble = None

    def failed(self, error: Exception) -> None:
        """The store has refused, or cannot be reached."""
        self._trouble = str(error)

    def turn(self, jobs: int, trouble: Exception | None) -> None:
        """Show that the sequence turns, with how many jobs, and why no more can be taken if so."""
        told = str(trouble) if trouble is not None else self._trouble
        self._on_turn(Health(self.state, self._clock.monotonic_ns(), self._answered, told, self.stall, jobs))
