"""Due jobs that wait for a worker, as engines report them, and the share of starts that fresh jobs get.

`Backlog` counts due jobs for operators, also in paused queues. `WaitingJobs` tells a worker with every sweep which
due jobs lack only a worker with a free slot and the handler. It leaves out jobs that wait for a pause, a limit or
a sequence, and suspects while another suspect runs. For it the engine reads only the first jobs of each lane (job
type, queue and priority), however many there are. The mark of a report stays the same while no worker claims any
of these jobs.

`FreshShare` keeps a backlog from starving new jobs: jobs that have just become due get a share of the starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mainspring.jobs.timestamps import MICROSECONDS


class Backlog(Struct, frozen=True):
    """The due jobs of one queue and one job type that a worker with free slots could claim."""

    queue: str
    type: str
    count: int
    """How many jobs. Of the jobs in one sequence, or under the same limits, only the first one counts."""
    oldest: int
    """Since when the oldest of them could be claimed."""


MAX_COUNTED = 100
"""A report counts at most this many jobs."""
HEAD_START = 30 * MICROSECONDS
"""How much waiting time each step of priority is worth. A job that has waited longer is not overtaken any more."""


class WaitingJobs(Struct, frozen=True):
    """The due jobs of one job type and queue that could start."""

    type: str
    queue: str
    mark: str
    """A value that changes when one of the jobs is claimed, and stays the same while none is."""
    count: int
    """How many there are; `MAX_COUNTED` means that many or more."""
    oldest: str | None = None
    """The id of the job that has waited longest, if the engine knows it without a search."""
    since: int | None = None
    """Since when that job has waited."""
    rank: int | None = None
    """Their place in line: a lower rank is claimed first. None if the engine does not rank types and queues."""
    age: int = 0
    """How many microseconds ago the engine read the lanes. The jobs may have been claimed since."""


class LaneHead(Struct, frozen=True, gc=False):
    """The first job of a lane. A lane has the due jobs of one job type, queue and priority."""

    type: str
    queue: str
    priority: int
    id: str
    token: int
    ready: int
    count: int
    """How many jobs of this lane could start."""


def merge_lanes(heads: Iterable[LaneHead]) -> tuple[WaitingJobs, ...]:
    """Merge the lanes of each job type and queue into one report, sorted by name."""
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
"""Jobs that became due within this time get a share of the starts while older jobs wait."""
FRESH_SHARE = 4
"""One of this many starts goes to such a fresh job."""


class FreshShare:
    """Keeps a backlog from starving new jobs: while old jobs wait, every fourth start goes to a fresh one."""

    def __init__(self) -> None:
        self._credit = 0

    def share(self, starts: int, oldest_due: int, now: int) -> int:
        """Return how many of `starts` go to jobs that have just become due."""
        if oldest_due >= now - FRESH:
            return 0
        self._credit += starts
        share, self._credit = divmod(self._credit, FRESH_SHARE)
        return share
