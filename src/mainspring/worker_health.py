"""The health of a worker at one instant. Workers publish it; readers need no other module of the package."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class WorkerState(StrEnum):
    """The life-cycle state of a worker."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class WorkerHealth(Struct, frozen=True):
    """The health of a worker. Times are readings of the monotonic clock."""

    state: WorkerState
    turned_ns: int
    """When the control sequence last reported its health."""
    answered_ns: int | None
    """When the store last answered without an error."""
    trouble: str | None
    """The last error of the store, if the store has not answered since."""
    stall: str | None
    """The stall that the worker has detected, if any."""
    jobs: int
    """The number of jobs that the worker holds."""
