"""The declared limits and quotas of handlers and queues, and the update of waiting jobs when limits change.

A job is under the limits of its handler and those of its queue. A worker that starts with new or changed limits
applies them to waiting jobs. It also applies them to jobs without limits, which were submitted by code that does
not declare these limits yet. The quotas of queues (see `quotas`) concern no stored job. A worker stores them when
it starts, and any other process before its first submit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mainspring.jobs.commands import Arrangement, Changed, ChangeLimits, Command, DropLimit, PutLimit
from mainspring.jobs.engine import Engine
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.limits import Limit, bucket_of
from mainspring.jobs.policies import Concurrency, Rate, names_of
from mainspring.jobs.quotas import depth_family, is_quota, submit_rate_family
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus
from mainspring.plurals import format_count
from mainspring.runners.validation import require_instance, require_positive


class LimitFamily(Struct, frozen=True):
    """A declared limit of a handler or queue.

    It counts jobs separately (in a bucket) for each combination of values of the parameters `by`.
    """

    name: str
    limit: Limit
    by: tuple[str, ...]

    def bucket(self, handler: Handler, given: Mapping[str, Any]) -> str:
        """Return the name of the bucket (limit and key) that counts a job with the arguments `given`."""
        return bucket_of(self.name, handler.arguments.limit_key(given, self.by) if self.by else "")


class LimitRegistry:
    """The limits and quotas of queues that this process declares. Limits of handlers are in `HandlerOptions`."""

    def __init__(self) -> None:
        self._queues: dict[str, tuple[LimitFamily, ...]] = {}
        self._found: dict[tuple[Handler, str], tuple[LimitFamily, ...]] = {}  # a cache: every submit reads it
        self._quotas: dict[str, PutLimit | DropLimit] = {}  # by family
        self.version = 0
        """A number that grows with every declaration of a quota or a limit of a queue; 0 if there is none."""

    def limit_queue(self, queue: str, concurrency: Concurrency | None, rate: Rate | None) -> None:
        """Declare the limits of a queue; None for no such limit. The new limits replace those declared before."""
        if concurrency is not None:
            require_instance(concurrency, Concurrency, "concurrency", "Concurrency(5)")
        if rate is not None:
            require_instance(rate, Rate, "rate", "Rate(10, per=60)")
        self._queues[queue] = _families(f"queue {queue}", concurrency, rate)
        self._found.clear()
        self.version += 1

    def set_max_depth(self, queue: str, max_depth: int | None) -> None:
        """Declare how many jobs of a queue may be pending; None to remove a stored quota.

        The store changes when this process submits next, or when its worker starts.
        """
        if max_depth is not None:
            require_positive(max_depth, "max_depth", "pending jobs")
        self._declare(depth_family(queue), None if max_depth is None else Limit(max_depth, None))

    def set_submit_rate(self, queue: str, submit_rate: Rate | None) -> None:
        """Declare how many jobs may be submitted to a queue within a time; None to remove a stored quota.

        The store changes when this process submits next, or when its worker starts. Raises `ValueError` if the
        rate has `by=`.
        """
        if submit_rate is not None:
            require_instance(submit_rate, Rate, "submit_rate", "Rate(100, per=60)")
            if submit_rate.by is not None:
                raise ValueError(
                    f"submit_rate counts all submits to a queue, got by={submit_rate.by!r}; leave by= out"
                )
        self._declare(submit_rate_family(queue), None if submit_rate is None else submit_rate.limit)

    def _declare(self, family: str, limit: Limit | None) -> None:
        self._quotas[family] = DropLimit(family) if limit is None else PutLimit(family, limit.most, limit.per)
        self.version += 1

    def quotas(self) -> list[PutLimit | DropLimit]:
        """Return the changes for the store: put the declared quotas, drop those that are declared as None."""
        return list(self._quotas.values())

    def queues(self) -> tuple[str, ...]:
        """Return the names of the queues for which limits were declared."""
        return tuple(self._queues)

    def of_queue(self, queue: str) -> tuple[LimitFamily, ...]:
        """Return the declared limits of a queue; empty if it has none."""
        return self._queues.get(queue, ())

    def families(self, handler: Handler, queue: str) -> tuple[LimitFamily, ...]:
        """Return the limits that apply to a job of this handler in this queue.

        Raises `ValueError` if the option `by=` of one of them names a parameter that the handler redacts.
        """
        found = self._found.get((handler, queue))
        if found is None:
            options = handler.options
            own = _families(f"handler {handler.name}", options.concurrency, options.rate)
            found = own + self.of_queue(queue)
            for family in found:
                handler.require_visible(family.by, f"the {family.name}")
            self._found[handler, queue] = found
        return found

    def buckets(self, handler: Handler, queue: str, given: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the limits that must admit a job of this handler in this queue, each with the key of these
        arguments.
        """
        families = self.families(handler, queue)
        return tuple(family.bucket(handler, given) for family in families) if families else ()

    def arrangements(self, handlers: Iterable[Handler]) -> list[PutLimit | DropLimit]:
        """Return the changes for the store: put the declared limits and quotas, drop those no longer declared.

        Only limits of these handlers, and of queues that this process declares, are dropped.
        """
        known_handlers = list(handlers)
        puts = self.puts(known_handlers)
        known = {put.family for put in puts}
        mentioned = [f"handler {handler.name}" for handler in known_handlers]
        mentioned += [f"queue {queue}" for queue in self._queues]
        possible = [f"{kind} of {name}" for name in mentioned for kind in ("concurrency", "rate")]
        return [*puts, *(DropLimit(name) for name in possible if name not in known), *self.quotas()]

    def puts(self, handlers: Iterable[Handler]) -> list[PutLimit]:
        """Return the declared limits of these handlers and of queues, without quotas."""
        declared = [family for handler in handlers for family in self.families(handler, "")]
        declared += [family for families in self._queues.values() for family in families]
        return [PutLimit(family.name, family.limit.most, family.limit.per, family.by) for family in declared]


def _families(of: str, concurrency: Concurrency | None, rate: Rate | None) -> tuple[LimitFamily, ...]:
    policies = (("concurrency", concurrency), ("rate", rate))
    return tuple(
        LimitFamily(f"{kind} of {of}", policy.limit, names_of(policy.by))
        for kind, policy in policies
        if policy is not None
    )


PAGE = 1_000
SAMPLE = 100  # how many jobs with limits are compared first; if none differs, only jobs without limits are read

logger = logging.getLogger("mainspring.worker")


def store_limits(
    engine: Engine,
    arrange: Callable[[Sequence[Arrangement]], object],
    change: Callable[[Sequence[Command]], Iterable[Changed]],
    registry: HandlerRegistry,
    declared: LimitRegistry,
) -> None:
    """Store the declared limits and quotas, remove limits that are no longer declared, and update waiting jobs.

    A waiting job whose stored limits differ from the declared ones gets the declared ones. If no limit is
    declared, waiting jobs stay as they are.
    """
    arrangements = declared.arrangements(registry.all())
    stored = {limit.family: limit.by for limit in engine.limits() if not is_quota(limit.family)}
    arrange(arrangements)
    puts = [a for a in arrangements if isinstance(a, PutLimit) and not is_quota(a.family)]
    # If the store has no limits yet, its jobs with limits were submitted by code that declares the same limits.
    changed = {limit.family for limit in puts if stored and stored.get(limit.family) != limit.by}
    if puts:
        apply_limits(engine, change, registry, declared, changed)


def apply_limits(
    engine: Engine,
    change: Callable[[Sequence[Command]], Iterable[Changed]],
    registry: HandlerRegistry,
    declared: LimitRegistry,
    changed: set[str],
) -> None:
    """Put waiting jobs under the declared limits. `changed` names the limits that are new or have another `by=`.

    For other limits, jobs that have limits already are read only if a sample of them differs.
    """
    commands: dict[str, Command] = {}  # by job id: a job is found by its type, and again by its queue
    moved = 0
    for record, limits in _affected_jobs(engine, registry, declared, changed):
        if limits != record.limits:
            commands[record.id] = ChangeLimits(record.id, limits)
        if len(commands) == PAGE:
            moved += _count_done(change(list(commands.values())))
            commands.clear()
    if commands:
        moved += _count_done(change(list(commands.values())))
    if moved:
        what = format_count(moved, "waiting job")
        logger.info("%s had other limits than the code declares; the declared limits apply now", what)


def _count_done(answers: Iterable[Changed]) -> int:
    return sum(answer.is_done for answer in answers)


def _affected_jobs(
    engine: Engine, registry: HandlerRegistry, declared: LimitRegistry, changed: set[str]
) -> Iterator[tuple[JobRecord, tuple[str, ...]]]:
    """Yield the waiting jobs whose limits may have changed, each with the limits and keys (buckets) that must
    admit it now.

    A job may come twice: with the jobs of its handler, and with those of its queue.
    """
    by_type = (
        (Query(status=JobStatus.PENDING, type=handler.name, limit=PAGE), families)
        for handler in registry.all()
        if (families := declared.families(handler, ""))
    )
    by_queue = (
        (Query(status=JobStatus.PENDING, queue=queue, limit=PAGE), families)
        for queue in declared.queues()
        if (families := declared.of_queue(queue))
    )
    for query, families in chain(by_type, by_queue):
        with_limits = _with_limits(registry, declared)
        first = with_limits(engine.find(replace(query, limit=SAMPLE, is_limited=True)).records)
        must_see_all = any(family.name in changed for family in families)
        if must_see_all or any(limits != record.limits for record, limits in first):
            yield from with_limits(_find_all(engine, query))
        else:
            yield from with_limits(_find_all(engine, replace(query, is_limited=False)))


def _with_limits(
    registry: HandlerRegistry, declared: LimitRegistry
) -> Callable[[Iterable[JobRecord]], Iterator[tuple[JobRecord, tuple[str, ...]]]]:
    def with_limits(records: Iterable[JobRecord]) -> Iterator[tuple[JobRecord, tuple[str, ...]]]:
        for record in records:
            if record.type in registry:
                handler = registry.get(record.type)
                given = handler.arguments.plain(record.payload, record.codec)
                yield record, declared.buckets(handler, record.queue, given if isinstance(given, dict) else {})

    return with_limits


def _find_all(engine: Engine, query: Query) -> Iterator[JobRecord]:
    while True:
        page = engine.find(query)
        yield from page.records
        if page.end is None:
            return
        query = replace(query, after=page.end)
