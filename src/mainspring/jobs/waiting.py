"""Jobs that could start: due jobs that lack only a worker with room and a handler.

Jobs that wait for a pause, a limit or a sequence are not among them, nor suspects while another suspect runs.
Engines report them with every sweep, which costs a look at the first jobs of each lane, however many there are.
The mark of a report stays the same while no worker takes any of these jobs.

A backlog does not starve new work: jobs that have just become due have a share of the starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mainspring.jobs.instants import MICROSECONDS

MOST_COUNTED = 100
"""More than that are not counted."""
HEAD_START = 30 * MICROSECONDS
"""By how much each step of priority lets a job overtake: what has waited longer than that is overtaken no more."""


class Waiting(Struct, frozen=True):
    """The due jobs of one handler and queue that could start."""

    type: str
    queue: str
    mark: str
    """Changes when one of them is taken, and stays the same while nobody takes any."""
    count: int
    """How many there are; `MOST_COUNTED` also stands for more."""
    oldest: str | None = None
    """The one that has waited longest, if the engine knows without a search;"""
    since: int | None = None
    """and since when."""
    rank: int | None = None
    """Where they stand in line: jobs with a lower one come first. None: nobody stands in line behind others."""
    age: int = 0
    """How many microseconds ago the engine has looked; so long nobody knows whether they still wait."""


class First(Struct, frozen=True, gc=False):
    """The first job of a lane."""

    type: str
    queue: str
    priority: int
    id: str
    token: int
    ready: int
    count: int
    """How many of this lane could start."""


def gather(firsts: Iterable[First]) -> tuple[Waiting, ...]:
    """Put the lanes of each handler and queue together, sorted by name."""
    lanes: dict[tuple[str, str], list[First]] = {}
    for first in firsts:
        lanes.setdefault((first.type, first.queue), []).append(first)
    return tuple(_together(*name, lanes[name]) for name in sorted(lanes))


def _together(type_: str, queue: str, lanes: list[First]) -> Waiting:
    oldest = min(lanes, key=lambda first: first.ready)
    return Waiting(
        type_,
        queue,
        " ".join(sorted(f"{first.id}#{first.token}" for first in lanes)),
        min(MOST_COUNTED, sum(first.count for first in lanes)),
        oldest.id,
        oldest.ready,
        min(first.ready - HEAD_START * first.priority for first in lanes),
    )


FRESH = 10 * MICROSECONDS
"""Jobs that became due within this time have a share of the starts while older ones are worked off."""
FRESH_SHARE = 4
"""One start in so many goes to them."""


class FreshShare:
    """Keeps a backlog from starving new work: while old jobs queue, every fourth start goes to a fresh one."""

    def __init__(self) -> None:
        self._credit = 0

    def share(self, starts: int, oldest_due: int, now: int) -> int:
        """Return how many of so many starts to give to jobs that have just become due."""
        if oldest_due >= now - FRESH:
            return 0
        self._credit += starts
        share, self._credit = divmod(self._credit, FRESH_SHARE)
        return share
