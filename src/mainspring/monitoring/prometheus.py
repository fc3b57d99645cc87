"""A collector for prometheus_client: exports what this process did and, on demand, what the store holds.

Invariants
- Nothing is counted here. A scrape converts snapshots of the application, so a process without scrapes pays
  nothing.
- A scrape without `store=True` never touches the store, and neither does the registration of the collector.
- A store that fails or hangs costs the metrics of the store, never those of the process.
- The number of label values is bounded. Further queues are exported together as `other`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from mainspring.app import Mainspring
from mainspring.clock import NANOSECONDS, Duration, to_nanoseconds
from mainspring.foreground.health_rules import passed_checks
from mainspring.jobs.activity import OTHER, Activity
from mainspring.jobs.histogram import Histogram
from mainspring.jobs.statistics import GroupStatistics, ProcessStatistics, Statistics
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.jobs.worker_status import Liveness, WorkerStatus
from mainspring.monitoring import metrics
from mainspring.monitoring.metrics import METRICS, Metric, MetricKind, MetricScope
from mainspring.runners.future import TaskFuture
from mainspring.runners.validation import require_instance, require_positive

try:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.metrics_core import Metric as Family
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("PrometheusCollector needs prometheus_client: pip install 'mainspring[metrics]'") from error

MAX_QUEUES = 200
STORE_SECONDS = 5.0  # shorter than the 10 s after which Prometheus gives a scrape up
LEVELS = ("open", "near", "mid", "far")  # the current slot of the wheel, and its levels, nearest first

logger = logging.getLogger("mainspring.monitoring")

Sample: TypeAlias = tuple[Sequence[str], float]
StoreReading: TypeAlias = tuple[Statistics, list[WorkerStatus]]


class PrometheusCollector(Collector):
    """Exports the metrics of an application: `prometheus_client.REGISTRY.register(PrometheusCollector(app))`.

    By default it exports what this process did and has. Register one in each process that submits or runs jobs.

    - `app`: the application
    - `store`: whether to export also what the store holds; one process of the installation is enough for it
    - `max_queues`: how many queues of the store are exported separately; further ones are together `other`
    - `timeout`: how long a scrape waits for the store
    """

    def __init__(
        self,
        app: Mainspring,
        *,
        store: bool = False,
        max_queues: int = MAX_QUEUES,
        timeout: Duration = STORE_SECONDS,
    ) -> None:
        self._app = require_instance(app, Mainspring, "app", "PrometheusCollector(app)")
        self._store = _StoreReader(app, to_nanoseconds(timeout, "timeout") / NANOSECONDS) if store else None
        self._queues = _BoundedNames(require_positive(max_queues, "max_queues", "queues"))

    def describe(self) -> Iterable[Family]:
        """Return the metrics without values. The registry compares their names with those of other collectors."""
        return [
            _family(metric)
            for metric in METRICS.values()
            if metric.scope is MetricScope.PROCESS or self._store is not None
        ]

    def collect(self) -> Iterable[Family]:
        """Return the metrics with their current values. prometheus_client calls this for each scrape.

        The metrics of the process are left out if the application is not open. With `store=True`, the call opens
        the application and waits for the store; if it does not answer in time, its only metric is `store_up`.
        """
        # The store is read first: a scrape opens an application that was closed, and then it has process metrics.
        of_store = [] if self._store is None else list(self._collect_store(self._store))
        return [*self._collect_process(), *of_store]

    # -- what this process did and has

    def _collect_process(self) -> Iterator[Family]:
        manager = self._app.manager_if_open()
        if manager is None:
            return
        if manager.recorder is not None:
            yield from self._collect_activity(manager.recorder.snapshot())
        yield from _process_families(manager.process_statistics())
        health = manager.worker_health
        checks = {} if health is None else passed_checks(health, now=manager.clock.monotonic_ns())
        yield _gauge(metrics.WORKER_HEALTHY, (((name,), is_passed) for name, is_passed in checks.items()))

    def _collect_activity(self, activity: Activity) -> Iterator[Family]:
        yield _counter(metrics.SUBMITTED, activity.submitted)
        yield _counter(metrics.ATTEMPTS, activity.attempts)
        yield _counter(metrics.RETRIES, activity.retries)
        yield _histogram(metrics.LATENESS, activity.lateness, MICROSECONDS)
        yield _histogram(metrics.DURATION, activity.duration, MICROSECONDS)
        engine = (self._app.url.partition(":")[0],)
        yield _histogram(metrics.COMMIT_SECONDS, {engine: activity.commit_seconds}, MICROSECONDS)
        yield _histogram(metrics.COMMIT_OPERATIONS, {engine: activity.commit_operations}, 1)

    # -- what the store holds

    def _collect_store(self, store: _StoreReader) -> Iterator[Family]:
        reading = store.read()
        yield _gauge(metrics.STORE_UP, [((), reading is not None)])
        if reading is not None:
            statistics, workers = reading
            yield from _queue_families(self._sum_up(statistics, workers))
            upcoming = () if statistics.fullest_slot is None else (statistics.fullest_slot,)
            names = [(self._queues.bounded(slot.queue),) for slot in upcoming]
            yield _gauge(metrics.UPCOMING_SLOT, zip(names, (slot.jobs for slot in upcoming), strict=True))
            yield _gauge(metrics.UPCOMING_AVERAGE, zip(names, (slot.average for slot in upcoming), strict=True))
            states = [worker.state for worker in workers]
            yield _gauge(metrics.WORKERS, (((state,), states.count(state)) for state in Liveness))

    def _sum_up(self, statistics: Statistics, workers: Sequence[WorkerStatus]) -> Mapping[str, _QueueGauges]:
        running = [worker for worker in workers if worker.state is not Liveness.DEAD]
        gauges: dict[str, _QueueGauges] = {}
        for group in statistics.groups:
            gauges.setdefault(self._queues.bounded(group.queue), _QueueGauges()).add(group, running)
        return gauges


class _QueueGauges:
    """The counts of jobs in the store for one queue, or for all queues that are exported together as `other`."""

    def __init__(self) -> None:
        self.due = self.blocked = self.scheduled = self.running = 0
        self.dead_letters = 0
        self.without_worker = 0
        self.oldest_due = 0.0

    def add(self, group: GroupStatistics, workers: Iterable[WorkerStatus]) -> None:
        """Add the counts of one queue and job type; `workers` are those that are not dead."""
        self.due += group.due
        self.blocked += group.blocked
        self.scheduled += group.scheduled
        self.running += group.running
        self.dead_letters += group.dead_letters
        if group.oldest_due is not None:
            self.oldest_due = max(self.oldest_due, group.oldest_due.total_seconds())
        if not any(_can_run(worker, group) for worker in workers):
            self.without_worker += group.due


def _can_run(worker: WorkerStatus, group: GroupStatistics) -> bool:
    return group.type in worker.types and (worker.queues is None or group.queue in worker.queues)


class _BoundedNames:
    """Limits label values: the first `most` names stay as they are, later ones become `other`.

    If scrapes overlap, a few names more may stay as they are.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: set[str] = set()

    def bounded(self, name: str) -> str:
        """Remember and return the name; return `other` instead if `most` other names are remembered already."""
        if name in self._names:
            return name
        if len(self._names) >= self._most:
            return OTHER
        self._names.add(name)
        return name


class _StoreReader:
    """Reads the store on another thread, and waits for its answer at most `seconds`."""

    def __init__(self, app: Mainspring, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._reading: tuple[int, TaskFuture[StoreReading]] | None = None
        self._has_failed = False

    def read(self) -> StoreReading | None:
        """Return the statistics and the workers of the store; None if it fails, or does not answer in time.

        Log a warning at the first failure, and a message when the store can be read again.
        """
        try:
            reading = self._begin().result(self._seconds)
        except TimeoutError:
            self._failed(f"no answer within {self._seconds:g} s")
            return None
        except Exception as error:
            self._failed(str(error) or repr(error))
            return None
        if self._has_failed:
            self._has_failed = False
            logger.info("the metrics of the store can be read again")
        return reading

    def _begin(self) -> TaskFuture[StoreReading]:
        """Begin to read the store and return the future; return that of an earlier scrape if it still waits."""
        process, before = os.getpid(), self._reading
        if before is not None and before[0] == process and not before[1].done():
            return before[1]
        future = self._app.off_loop.submit(self._read_now, writes=False)
        self._reading = process, future
        return future

    def _read_now(self) -> StoreReading:
        return self._app.statistics(), self._app.workers()

    def _failed(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("the metrics of the store are not exported until it can be read again: %s", reason)


# -- families of samples


def _process_families(process: ProcessStatistics) -> Iterator[Family]:
    yield _gauge(metrics.SLOTS, (((slots.kind,), slots.slots) for slots in process.slots))
    yield _gauge(metrics.SLOTS_BUSY, (((slots.kind,), slots.busy) for slots in process.slots))
    wheel = process.timers
    if wheel is not None:
        yield _by_level(metrics.WHEEL_TIMERS, wheel.open, wheel.occupancy)
        yield _by_level(metrics.WHEEL_SLOTS, min(wheel.open, 1), wheel.slots)
        yield _by_level(metrics.WHEEL_FULLEST, wheel.open, wheel.fullest_slots)
    tasks = [
        ((pool.name, state), float(getattr(pool, state)))
        for pool in process.pools
        for state in ("queued", "active", "delayed")
    ]
    yield _gauge(metrics.POOL_TASKS, tasks)


def _by_level(metric: Metric, in_open_slot: int, by_level: Iterable[int]) -> Family:
    return _gauge(
        metric, (((level,), value) for level, value in zip(LEVELS, (in_open_slot, *by_level), strict=True))
    )


def _queue_families(queues: Mapping[str, _QueueGauges]) -> Iterator[Family]:
    states = ("due", "blocked", "scheduled", "running")
    jobs = [((name, state), getattr(queue, state)) for name, queue in queues.items() for state in states]
    yield _gauge(metrics.JOBS, jobs)
    for metric, field in (
        (metrics.WITHOUT_WORKER, "without_worker"),
        (metrics.OLDEST_DUE, "oldest_due"),
        (metrics.DEAD_LETTERS, "dead_letters"),
    ):
        yield _gauge(metric, [((name,), getattr(queue, field)) for name, queue in queues.items()])


def _counter(metric: Metric, counts: Mapping[Any, int]) -> Family:
    """Convert counts, whose keys are label values, to a counter of prometheus_client."""
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family


def _gauge(metric: Metric, samples: Iterable[Sample]) -> Family:
    family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, histograms: Mapping[Any, Histogram], unit: int) -> Family:
    """Convert histograms, whose keys are label values, to one of prometheus_client; divide values by `unit`."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, histogram in histograms.items():
        bounds = [str(bound / unit) for bound in histogram.bounds]  # "0.001", "5.0": as Prometheus writes them
        buckets = list(zip([*bounds, "+Inf"], accumulate(histogram.counts), strict=True))
        family.add_metric(labels, buckets, sum_value=histogram.sum / unit)
    return family


_EMPTY = {
    MetricKind.COUNTER: lambda metric: _counter(metric, {}),
    MetricKind.GAUGE: lambda metric: _gauge(metric, ()),
    MetricKind.HISTOGRAM: lambda metric: _histogram(metric, {}, 1),
}


def _family(metric: Metric) -> Family:
    return _EMPTY[metric.kind](metric)
