"""The report of a worker's shutdown. A process that runs no jobs needs it, so it imports no part of a worker."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE_FOR_ANSWERS = 10.0  # real seconds, after the grace, that a stop waits for the store
MAX_NAMED = 5  # jobs, in the text of a report


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """The result of `JobManager.shutdown`."""

    interrupted: int = 0
    """How many jobs ran when the grace was over: they were handed back and run again."""
    left: tuple[str, ...] = ()
    """The ids of jobs whose end or return the store did not confirm in time: other workers rescue them."""
    has_left: bool = True
    """Whether the store confirmed that the worker is gone; if not, other workers find out by its silence."""
    was_running: bool = True
    """False if there was no worker to stop: the manager was not started, or it was shut down already."""
    already_shut_down: bool = False
    """True if an earlier shutdown stopped the worker: the other fields are those of its report."""

    @property
    def is_clean(self) -> bool:
        """Whether every handler finished and the store confirmed everything."""
        return self.interrupted == 0 and not self.left and self.has_left

    def __str__(self) -> str:
        if self.already_shut_down:
            return "the worker was shut down already"
        if not self.was_running:
            return "there was no worker to shut down"
        parts = [f"{self.interrupted} jobs were interrupted and run again"] if self.interrupted else []
        if self.left:
            parts.append(
                f"the store did not confirm the end of {len(self.left)} jobs in time ("
                f"{', '.join(self.left[:MAX_NAMED])}{', ...' if len(self.left) > MAX_NAMED else ''}), "
                "other workers rescue them"
            )
        if not self.has_left:
            parts.append("the store did not confirm in time that the worker is gone")
        return "the worker is shut down" + (f": {'; '.join(parts)}" if parts else "")
