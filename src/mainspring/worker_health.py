"""The health of a worker at one moment. Workers publish it; readers need no other module of the package."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class WorkerState(StrEnum):
    """The life-cycle state of a worker."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class WorkerHealth(Struct, frozen=True):
    """The health of a worker at one moment. Times are readings of the monotonic clock."""

    state: WorkerState
    turned_ns: int
    """When the control layer of the worker last reported its health."""
    answered_ns: int | None
    """When the store last answered without an error; None if it has not answered yet."""
    trouble: str | None
    """Why the worker cannot use its store at the moment, such as the last error; None if it can."""
    stall: str | None
    """A description of the stall that the worker has detected; None if there is none."""
    jobs: int
    """The number of jobs that the worker has leased."""
