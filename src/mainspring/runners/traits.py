"""What a task says of itself: how urgent it is, whether it blocks, and what becomes of it at shutdown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from mainspring.runners.checks import require_instance


class Priority(IntEnum):
    """How soon a task wants to start. Order in the ready queue is priority first, then arrival."""

    BEST_EFFORT = 0
    """Nobody waits for it: prefetching, cleaning up. Starts within a second whatever the load."""
    USER_VISIBLE = 1
    """Somebody will see the result: the default."""
    USER_BLOCKING = 2
    """Somebody waits for it right now."""


class ShutdownBehavior(Enum):
    """What shutdown does with a task."""

    CONTINUE = "continue"
    """Unstarted: dropped and counted. Running: left alone, never waited for."""
    SKIP = "skip"
    """Unstarted: dropped and counted. Running: waited for. The default."""
    BLOCK = "block"
    """Must run: shutdown waits for it, unstarted or running, as long as its timeout allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTraits:
    """The attributes of a task."""

    priority: Priority = Priority.USER_VISIBLE
    may_block: bool = False
    """The task waits for something slow: the pool may grow while it runs."""
    category: str | None = None
    """A free label that observers and error hooks see."""
    shutdown: ShutdownBehavior = ShutdownBehavior.SKIP

    def __post_init__(self) -> None:
        if not isinstance(self.priority, Priority):
            raise TypeError(f"priority must be a Priority such as Priority.USER_BLOCKING, got {self.priority!r}")
        if not isinstance(self.shutdown, ShutdownBehavior):
            raise TypeError(f"shutdown must be a ShutdownBehavior such as BLOCK, got {self.shutdown!r}")


DEFAULT_TRAITS = TaskTraits()


def require_traits(value: object) -> TaskTraits:
    """Refuse a bare priority, or anything else that is not a `TaskTraits`."""
    return require_instance(value, TaskTraits, "traits", "TaskTraits(priority=Priority.USER_BLOCKING)")
