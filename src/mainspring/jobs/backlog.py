"""Due jobs that wait for a worker, as engines report them, and the share of starts that fresh jobs get.

`Backlog` counts due jobs for operators, also in paused queues. `WaitingJobs` tells a worker with every sweep which
due jobs lack only a worker with a free slot and the handler. It leaves out jobs that wait for a pause, a limit or
a sequence, and suspects while another suspect runs. For it the engine reads only the first jobs of each lane (job
type, queue and priority), however many there are. The mark of a report stays the same while nothing happens to
these jobs.

`FreshShare` keeps a backlog from starving new jobs: jobs that have just become due get a share of the starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mainspring.jobs.timestamps import MICROSECONDS


class Backlog(Struct, frozen=True):
    """The due jobs of one queue and job type that wait for a worker, as operators see them."""

    queue: str
    type: str
    count: int
    """How many jobs. Of the jobs in one sequence, or under the same limits, only the first one counts."""
    oldest: int
    """The instant since which a worker could have claimed the oldest of these jobs."""


MAX_COUNTED = 100
"""The largest number of jobs in a report of waiting jobs; it means that many or more."""
HEAD_START = 30 * MICROSECONDS
"""On SQLite, by how many microseconds a job counts as due earlier for each step of its priority.

So a long wait outweighs a higher priority.
"""


class WaitingJobs(Struct, frozen=True):
    """A report on the due jobs of one job type and queue that a worker with a free slot could start."""

    type: str
    queue: str
    mark: str
    """A value that names the first job of each priority, and stays the same while nothing happens to these jobs.

    It changes when one of them is claimed, and for example also when one is canceled, or another priority has
    due jobs.
    """
    count: int
    """The number of waiting jobs; `MAX_COUNTED` means that many or more."""
    oldest: str | None = None
    """The id of the job that has waited longest, if the engine knows it without a search."""
    since: int | None = None
    """The instant since which the oldest job has waited; None if the engine does not know it."""
    rank: int | None = None
    """How urgent the most urgent of these jobs is: workers claim jobs of a lower rank first.

    None if the engine does not rank jobs.
    """
    age: int = 0
    """How many microseconds ago the engine read the jobs. Some may have been claimed since."""

    def describe(self, now: int) -> str:
        """Return a text about these jobs: number, job type and queue, and how long the oldest has waited."""
        number = f"{self.count} or more" if self.count >= MAX_COUNTED else f"{self.count}"
        jobs = "job" if self.count == 1 else "jobs"
        text = f"{number} due {jobs} of {self.type} in queue {self.queue}"
        if self.oldest is None or self.since is None:
            return text
        seconds = max(0, now - self.since) // MICROSECONDS
        return f"{text} (the oldest, {self.oldest}, for {seconds} s)"


class LaneHead(Struct, frozen=True, gc=False):
    """The first due job of a lane. A lane has the jobs of one job type, queue and priority."""

    type: str
    queue: str
    priority: int
    id: str
    token: int
    ready: int
    """The instant since which the job could have started."""
    count: int
    """How many jobs of this type, queue and priority could start."""


def merge_lanes(heads: Iterable[LaneHead]) -> tuple[WaitingJobs, ...]:
    """Merge the reports of all priorities of each job type and queue into one; sort them by type and queue."""
    lanes: dict[tuple[str, str], list[LaneHead]] = {}
    for head in heads:
        lanes.setdefault((head.type, head.queue), []).append(head)
    return tuple(_merge(*name, lanes[name]) for name in sorted(lanes))


def _merge(type_: str, queue: str, lanes: list[LaneHead]) -> WaitingJobs:
    oldest = min(lanes, key=lambda head: head.ready)
    return WaitingJobs(
        type_,
        queue,
        " ".join(sorted(f"{head.id}#{head.token}" for head in lanes)),
        min(MAX_COUNTED, sum(head.count for head in lanes)),
        oldest.id,
        oldest.ready,
        min(head.ready - HEAD_START * head.priority for head in lanes),
    )


FRESH = 10 * MICROSECONDS
"""Jobs that became due within this many microseconds get a share of the starts while older jobs wait."""
FRESH_SHARE = 4
"""While older jobs wait, one of this many starts goes to a job that has just become due."""


class FreshShare:
    """Keeps a backlog from starving new jobs: while old jobs wait, every fourth start goes to a new one."""

    def __init__(self) -> None:
        self._credit = 0

    def share(self, starts: int, oldest_due: int, now: int) -> int:
        """Return how many of the next `starts` go to jobs that have just become due; 0 if no older job waits.

        Each call counts these starts as made, and keeps fractions of a start for the next call.
        """
        if oldest_due >= now - FRESH:
            return 0
        self._credit += starts
        share, self._credit = divmod(self._credit, FRESH_SHARE)
        return share
