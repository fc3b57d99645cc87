"""Finds queues that have due jobs and that no worker serves, because of a typing error or a missing worker.

Each sweep tells a worker which due jobs wait, also in queues that it does not serve itself. If nothing claims the
jobs of such a queue for `stall_after`, the worker reads from the store which queues the other workers serve.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from shlex import quote

from mainspring.clock import Clock
from mainspring.jobs.backlog import WaitingJobs
from mainspring.jobs.records import WorkerRecord
from mainspring.similar_names import find_similar

LONGEST_GAP_NS = 5_000_000_000  # a longer gap between two observations counts as this much

logger = logging.getLogger("mainspring.worker")


class UnservedQueues:
    """Finds queues with due jobs that no worker serves, among those that this worker does not serve itself.

    Only the control layer uses it.
    """

    def __init__(self, clock: Clock, *, after_ns: int, queues: tuple[str, ...] | None) -> None:
        self._clock = clock
        self._after = after_ns  # 0 means never
        self._queues = queues  # the queues that this worker serves; None for all
        self._observed_ns = clock.monotonic_ns()
        self._unclaimed: dict[tuple[str, str], int] = {}  # nanoseconds without a claim, by queue and waiting jobs
        self._reported: set[str] = set()
        self.suspects: dict[str, WaitingJobs] = {}
        """The queues whose due jobs were not claimed for too long. Another worker may serve them."""
        self.problem: str | None = None
        """A description of the queues that no worker serves; None if there are none."""

    def observe(self, waiting: Collection[WaitingJobs]) -> None:
        """Compare the waiting jobs with those of the last call; set `suspects`, queues that may have no worker.

        Without any, clear `problem`.

        A reported queue stays suspected while any of its jobs waits, until `compare` finds a worker for it. Do
        nothing if this worker serves all queues, or if `after_ns` is 0.
        """
        if self._after == 0 or self._queues is None:
            return
        now = self._clock.monotonic_ns()
        gap = min(LONGEST_GAP_NS, self._after // 2, now - self._observed_ns)
        self._observed_ns = now
        before, self._unclaimed, self.suspects = self._unclaimed, {}, {}
        for jobs in waiting:
            if jobs.queue not in self._queues:
                key = (jobs.queue, f"{jobs.type} {jobs.mark}")
                self._unclaimed[key] = before[key] + gap if key in before else 0
                if self._unclaimed[key] >= self._after:
                    self.suspects.setdefault(jobs.queue, jobs)
        for jobs in waiting:
            if jobs.queue in self._reported:  # its mark may have changed because a job was canceled
                self.suspects.setdefault(jobs.queue, jobs)
        if not self.suspects:
            self._set({}, ())

    def compare(self, workers: Sequence[WorkerRecord], now: int) -> None:
        """Describe in `problem` the `suspects` that none of the living workers serves.

        Log `problem` as an error if it has a new queue, and log each queue that it no longer has. `now` is the
        time by the engine's clock.
        """
        alive = [worker.info for worker in workers if not worker.is_gone]
        unserved = {
            queue: jobs.describe(now)
            for queue, jobs in self.suspects.items()
            if not any(worker.serves(queue) for worker in alive)
        }
        served = {name for worker in alive for name in worker.queues or ()}
        self._set(unserved, sorted(served))

    def _set(self, unserved: dict[str, str], served: Sequence[str]) -> None:
        news = unserved.keys() - self._reported
        over = self._reported - unserved.keys()
        self._reported = set(unserved)
        self.problem = "; ".join(_describe(name, jobs, served) for name, jobs in unserved.items()) or None
        if news:
            logger.error("%s", self.problem)
        for name in sorted(over):
            logger.info("queue %r is served again, or none of its jobs can start now", name)


def _describe(queue: str, jobs: str, served: Sequence[str]) -> str:
    names = ", ".join(map(repr, served))
    similar = find_similar(queue, served)
    remedy = f"start a worker that serves it with --queues {quote(queue)}"
    if similar:
        remedy = f"if {similar[0]!r} is a typing error, correct it; otherwise {remedy}"
    return f"no worker serves queue {queue!r}: {jobs}; the workers serve {names}; {remedy}"
