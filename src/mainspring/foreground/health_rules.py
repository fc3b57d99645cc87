"""The rule that decides whether a worker is healthy.

`mainspring healthcheck`, `/healthz`, `/readyz` and the metric `mainspring_worker_healthy` use this rule, so they
agree. The watchdog of systemd gets its signs of life from the same reports (`health_publisher.py`): it restarts a
worker that is not LIVE.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

from mainspring.clock import NANOSECONDS, Clock
from mainspring.worker_health import WorkerHealth, WorkerState

DEFAULT_ALLOWED_NS = 15 * NANOSECONDS
"""The default of how old the last health report and the last answer of the store may be, in nanoseconds."""


class HealthLevel(IntEnum):
    """The level of health that a check requires of a worker."""

    LIVE = 1
    """The worker's control layer runs. A worker that is not live must be restarted."""
    READY = 2
    """The worker is live, has started and is not stopping, and its store answers."""
    HEALTHY = 3
    """The worker is ready, and reports no stall: no due jobs that no worker claims."""


class ProblemKind(StrEnum):
    """The kind of a worker's health problem.

    It reveals no data of the store, so callers without a token may see it.
    """

    GONE = "gone"
    SILENT = "silent"
    STARTING = "starting"
    STOPPING = "stopping"
    STORE = "store"
    STALLED = "stalled"


class HealthProblem(NamedTuple):
    """Why a worker is not healthy enough: the kind for programs, and a text with the remedy for people."""

    kind: ProblemKind
    text: str


def find_problem(
    health: WorkerHealth, level: HealthLevel, *, engine: str, now: int, allowed: int = DEFAULT_ALLOWED_NS
) -> HealthProblem | None:
    """Return the problem that keeps a worker below a level of health; None if it has the level.

    - `health`: the last report of the worker
    - `level`: the level of health that is required
    - `engine`: the description of its store, for the text
    - `now`: a reading of the monotonic clock, in nanoseconds
    - `allowed`: how old the last report and the last answer of the store may be, in nanoseconds
    """
    silence = _silence(health, now, allowed)
    if silence is not None:
        return HealthProblem(ProblemKind.SILENT, silence)
    if level is HealthLevel.LIVE:
        return None
    if health.state is WorkerState.STARTING:
        return HealthProblem(ProblemKind.STARTING, "has not started yet; wait for it")
    if health.state is WorkerState.STOPPING:
        return HealthProblem(ProblemKind.STOPPING, "is stopping")
    trouble = _store_trouble(health, engine, now, allowed)
    if trouble is not None:
        return HealthProblem(ProblemKind.STORE, trouble)
    if level is HealthLevel.HEALTHY and health.stall is not None:
        return HealthProblem(ProblemKind.STALLED, health.stall)
    return None


def passed_checks(health: WorkerHealth, *, now: int, allowed: int = DEFAULT_ALLOWED_NS) -> dict[str, bool]:
    """Return for each part of the rule whether a worker passes it. A stopping worker has only `responsive`.

    - `responsive`: the worker has reported its health in time
    - `store`: the store has answered in time, and the worker can use it
    - `claims`: the worker has found no due jobs that no worker claims
    """
    checks = {"responsive": _silence(health, now, allowed) is None}
    if health.state is not WorkerState.STOPPING:  # a stopping worker asks the store for nothing
        checks["store"] = _store_trouble(health, "the store", now, allowed) is None
        checks["claims"] = health.stall is None
    return checks


def _silence(health: WorkerHealth, now: int, allowed: int) -> str | None:
    age = now - health.turned_ns
    if 0 <= age <= allowed:
        return None
    return f"has reported no health {_since(age)}: it may hang or be suspended; restart it"


def _store_trouble(health: WorkerHealth, engine: str, now: int, allowed: int) -> str | None:
    if health.trouble is not None:
        return f"cannot use its store: {health.trouble}"
    if health.answered_ns is None:
        return f"has had no answer from its store yet; check {engine}"
    silence = now - health.answered_ns
    if silence > allowed:
        return f"has had no answer from its store for {_seconds(silence)}; check {engine}"
    return None


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / NANOSECONDS:.0f} s"


def _since(nanoseconds: int) -> str:
    return f"for {_seconds(nanoseconds)}" if nanoseconds >= 0 else "since before the last boot"


class OwnHealth:
    """The last health report of the worker in this process. Any thread may use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest: WorkerHealth | None = None

    def update(self, health: WorkerHealth) -> None:
        """Keep the latest health report of the worker, in place of the one before."""
        self._latest = health

    def problem(self, level: HealthLevel) -> HealthProblem | None:
        """Return the problem that keeps the worker below a level of health; None if it has the level.

        Before its first report the worker counts as starting: live, but not ready.
        """
        health = self._latest
        if health is None:
            starting = HealthProblem(ProblemKind.STARTING, "has not started yet; wait for it")
            return None if level is HealthLevel.LIVE else starting
        return find_problem(health, level, engine="the store", now=self._clock.monotonic_ns())
