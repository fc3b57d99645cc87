"""How a worker is, at one instant: what it leaves for others to read, who need nothing else of the package."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class WorkerState(StrEnum):
    """How far a worker is."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Health(Struct, frozen=True):
    """The vital signs of a worker. Times are those of the monotonic clock."""

    state: WorkerState
    turned_ns: int
    """When the control sequence turned last."""
    answered_ns: int | None
    """When the store has last answered as hoped;"""
    trouble: str | None
    """and what it said since then, if that was an error."""
    stall: str | None
    """What the watchdog complains of."""
    jobs: int
    """How many are in the hands of the worker."""
