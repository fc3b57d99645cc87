"""A job in the hands of this worker, from its lease to its settlement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.jobs.handlers import Handler
from mainspring.jobs.records import Lease
from mainspring.jobs.working.progress import ReportingContext
from mainspring.jobs.working.slots import Slots

if TYPE_CHECKING:
    from mainspring.jobs.working.attempts import Call


class ActiveJob:
    """A lease and what becomes of it here.

    Starting it and ending it are claims: each is one atomic pop, so a handler thread and a shutdown that hands
    the job back can never both win.
    """

    __slots__ = (
        "_end",
        "_start",
        "call",
        "context",
        "counts_as_started",
        "handler",
        "is_asked_to_stop",
        "is_starting",
        "lease",
        "ready_at",
        "ready_ns",
        "slots",
        "timed_out_after",
    )

    def __init__(self, lease: Lease, handler: Handler, slots: Slots, report: Callable[..., object]) -> None:
        self.lease = lease
        self.handler = handler
        self.slots = slots  # that it occupies
        self.context = ReportingContext(lease, report)
        self.call: Call | None = None  # what can be done about it while it runs, if anything
        self.counts_as_started = lease.is_started  # in the slots, which it leaves as it is counted
        self.is_starting = False  # its start is being committed: wait for the answer before anything else
        self.ready_ns: int | None = None  # when it was due and could have started: by the monotonic clock,
        self.ready_at = 0  # and by the engine's
        self.is_asked_to_stop = False  # by somebody: its timeout is another matter
        self.timed_out_after: int | None = None  # microseconds, if it has
        self._start = [None]
        self._end = [None]

    def claim_start(self) -> bool:
        """Win the right to start it, or to make sure that it does not start."""
        try:
            self._start.pop()
        except IndexError:
            return False
        return True

    def claim_end(self) -> bool:
        """Win the right to say how it ended."""
        try:
            self._end.pop()
        except IndexError:
            return False
        return True

    def began(self, now_ns: int) -> int:
        """Convert a monotonic instant, that of its real start, to the engine's time."""
        return self.ready_at + self.waited(now_ns) // 1_000

    def waited(self, now_ns: int) -> int:
        """Return how long it has been ready."""
        return 0 if self.ready_ns is None else now_ns - self.ready_ns

    @property
    def is_waiting(self) -> bool:
        """Whether nobody has claimed its start."""
        return bool(self._start)

    @property
    def is_running(self) -> bool:
        """Whether its handler has started and its end has not been decided."""
        return not self._start and bool(self._end)
