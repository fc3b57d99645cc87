"""Who works on the jobs of a store, and what waits for them: as operators see it, all at once.

What a worker itself notices of what waits, a little with every sweep, is in `waiting`.
"""

from __future__ import annotations

from msgspec import Struct


class WorkerInfo(Struct, frozen=True):
    """A worker as it presents itself: one start of one process."""

    name: str
    process: int
    types: tuple[str, ...]


class WorkerState(Struct, frozen=True):
    """A worker as the store knows it."""

    number: int
    info: WorkerInfo
    heartbeat: int
    """When it last showed that it lives."""
    is_gone: bool
    """Whether it is known to be dead, and its jobs wait for a rescue; one that is only silent may still live."""


class Backlog(Struct, frozen=True):
    """Jobs of one queue and one handler that are due, and that a worker with room could take."""

    queue: str
    type: str
    count: int
    """How many: of those behind each other in a sequence, or under the same limits, the first one counts."""
    oldest: int
    """Since when the first of them could be taken."""
