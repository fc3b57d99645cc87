"""The report of a worker's shutdown.

A process that runs no jobs uses this module, too. So the module imports no part of a worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from mainspring.plurals import format_count

PATIENCE_FOR_ANSWERS = 10.0  # how long a shutdown waits for the store after the grace, in seconds of real time
MAX_NAMED = 5  # how many jobs the text of a report names


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """The result of a shutdown of the worker, from `JobManager.shutdown`. `str()` returns it as a sentence."""

    interrupted: int = 0
    """How many jobs were still running when the grace was over.

    They will run again, and no attempt is used up. Those that were asked to stop are canceled instead, and the
    others that run at most once become dead letters.
    """
    left: tuple[str, ...] = ()
    """The ids of jobs that the store did not confirm as settled in time. Other workers will rescue them."""
    has_left: bool = True
    """Whether the store confirmed that the worker has left. If not, other workers will declare it dead."""
    was_running: bool = True
    """False if there was no worker to stop, because the manager was not started or was shut down already."""
    already_shut_down: bool = False
    """True if an earlier shutdown has stopped the worker.

    The fields `interrupted`, `left` and `has_left` are those of the earlier report.
    """

    @property
    def is_clean(self) -> bool:
        """Whether every handler finished, and the store confirmed every outcome and that the worker has left."""
        return self.interrupted == 0 and not self.left and self.has_left

    def __str__(self) -> str:
        if self.already_shut_down:
            return "the worker was shut down already"
        if not self.was_running:
            return "there was no worker to shut down"
        parts: list[str] = []
        if self.interrupted:
            what = format_count(self.interrupted, "job was", "jobs were")
            parts.append(f"{what} interrupted, to run again unless canceled or at_most_once=True")
        if self.left:
            parts.append(
                f"the store did not confirm the end of {format_count(len(self.left), 'job')} in time ("
                f"{', '.join(self.left[:MAX_NAMED])}{', ...' if len(self.left) > MAX_NAMED else ''}), "
                f"other workers rescue {'it' if len(self.left) == 1 else 'them'}"
            )
        if not self.has_left:
            parts.append("the store did not confirm in time that the worker has left")
        return "the worker is shut down" + (f": {'; '.join(parts)}" if parts else "")
