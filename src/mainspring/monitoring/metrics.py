"""The metrics that Mainspring exports: names, kinds, labels and what they count.

A metric of a **process** says what this process did or has. Its sum over all processes of a store counts nothing
twice. A metric of the **store** says what the store holds. It is the same in every process that exports it, so
queries take the maximum over processes, not the sum.

Invariant: this module is the only list of metrics. Tests compare the collector, the documents, the alerts and the
board with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """The kind of a metric, as Prometheus calls it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricScope(StrEnum):
    """Whether a metric describes one process or the store, which all processes share."""

    PROCESS = "process"
    STORE = "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The definition of a metric: its name, kind, scope, labels and help text."""

    name: str
    """The name in queries. A counter ends with `_total`."""
    kind: MetricKind
    scope: MetricScope
    labels: tuple[str, ...]
    help: str


def _process(name: str, kind: MetricKind, labels: str, text: str) -> Metric:
    return Metric(name=name, kind=kind, scope=MetricScope.PROCESS, labels=tuple(labels.split()), help=text)


def _store(name: str, labels: str, text: str) -> Metric:
    return Metric(
        name=name, kind=MetricKind.GAUGE, scope=MetricScope.STORE, labels=tuple(labels.split()), help=text
    )


_COUNTER, _GAUGE, _HISTOGRAM = MetricKind

SUBMITTED = _process(
    "mainspring_jobs_submitted_total", _COUNTER, "queue type", "Jobs that this process has submitted and stored."
)
ATTEMPTS = _process(
    "mainspring_attempts_total", _COUNTER, "queue type outcome", "Attempts that ended in this process, by outcome."
)
RETRIES = _process(
    "mainspring_retries_total", _COUNTER, "queue type", "Attempts of this process after which a retry was planned."
)
LATENESS = _process(
    "mainspring_job_lateness_seconds",
    _HISTOGRAM,
    "queue type kind",
    "Time from the due time of a job to the begin of its handler in this process.",
)
DURATION = _process(
    "mainspring_job_duration_seconds",
    _HISTOGRAM,
    "queue type kind",
    "Time that a handler took for an attempt in this process.",
)
SLOTS = _process(
    "mainspring_slots", _GAUGE, "kind", "Handlers that the worker of this process can run at once, by execution."
)
SLOTS_BUSY = _process(
    "mainspring_slots_busy", _GAUGE, "kind", "Slots of the worker of this process that jobs occupy, by execution."
)
WORKER_HEALTHY = _process(
    "mainspring_worker_healthy",
    _GAUGE,
    "check",
    "1 if the worker of this process passes a check: responsive, store, claims; otherwise 0.",
)
WHEEL_TIMERS = _process(
    "mainspring_wheel_timers", _GAUGE, "level", "Pending timers in the timing wheels of this process, by level."
)
WHEEL_SLOTS = _process(
    "mainspring_wheel_slots_used",
    _GAUGE,
    "level",
    "Slots that have timers, in the timing wheels of this process, by level.",
)
WHEEL_FULLEST = _process(
    "mainspring_wheel_fullest_slot",
    _GAUGE,
    "level",
    "Timers in the fullest slot of the timing wheels of this process, by level.",
)
COMMIT_SECONDS = _process(
    "mainspring_store_commit_seconds", _HISTOGRAM, "engine", "Time that the commits of this process took."
)
COMMIT_OPERATIONS = _process(
    "mainspring_store_commit_operations", _HISTOGRAM, "engine", "Operations in each commit of this process."
)
POOL_TASKS = _process(
    "mainspring_pool_tasks", _GAUGE, "pool state", "Tasks in the thread pools of the application, by state."
)

JOBS = _store("mainspring_jobs", "queue state", "Jobs in the store that have not ended, by state.")
WITHOUT_WORKER = _store(
    "mainspring_jobs_without_worker",
    "queue",
    "Due jobs for which no living worker both serves the queue and has the handler.",
)
OLDEST_DUE = _store(
    "mainspring_oldest_due_seconds", "queue", "Time since the oldest due job became due; 0 without due jobs."
)
DEAD_LETTERS = _store("mainspring_dead_letters", "queue", "Jobs that failed and were not replayed.")
UPCOMING_SLOT = _store(
    "mainspring_upcoming_slot_jobs", "queue", "Scheduled jobs in the fullest slot of 268 ms of the near future."
)
UPCOMING_AVERAGE = _store(
    "mainspring_upcoming_slot_average_jobs",
    "queue",
    "Scheduled jobs in the other slots of 268 ms of the near future, on average.",
)
WORKERS = _store("mainspring_workers", "kind", "Workers of the store, by state: alive, silent, dead.")
STORE_UP = _store("mainspring_store_up", "", "1 if this process could read the store for this scrape, else 0.")

METRICS = {
    metric.name: metric
    for metric in (
        *(SUBMITTED, ATTEMPTS, RETRIES, LATENESS, DURATION, SLOTS, SLOTS_BUSY, WORKER_HEALTHY),
        *(WHEEL_TIMERS, WHEEL_SLOTS, WHEEL_FULLEST, COMMIT_SECONDS, COMMIT_OPERATIONS, POOL_TASKS),
        *(JOBS, WITHOUT_WORKER, OLDEST_DUE, DEAD_LETTERS, UPCOMING_SLOT, UPCOMING_AVERAGE, WORKERS, STORE_UP),
    )
}
"""All metrics by name."""
