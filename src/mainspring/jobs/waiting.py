"""What waits and could start: due jobs that lack nothing but a worker with room that knows their handler.

Not among them is what a pause, a limit or a sequence holds up, or, for suspects, another one that is at work.
Engines tell it with every sweep, so it costs a look at the first jobs of each lane, however many there are.
Whether anybody takes them shows in the mark: it stays the same while nobody takes any.
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
