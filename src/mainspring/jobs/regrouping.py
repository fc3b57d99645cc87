"""Jobs under new limits: when a deploy declares or changes limits, jobs that wait already are put under them.

So are jobs without limits that were submitted by code which does not know them yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from mainspring.jobs.commands import Arrangement, Command, PutLimit, Regroup
from mainspring.jobs.engine import Engine
from mainspring.jobs.handlers import Registry
from mainspring.jobs.info import decode_any
from mainspring.jobs.limit_book import LimitBook
from mainspring.jobs.queries import Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus

PAGE = 1_000
SAMPLE = 100  # jobs whose limits tell whether those of the others have changed

logger = logging.getLogger("mainspring.worker")


def store_limits(
    engine: Engine,
    arrange: Callable[[Sequence[Arrangement]], object],
    change: Callable[[Sequence[Command]], object],
    registry: Registry,
    book: LimitBook,
) -> None:
    """Store the limits that are declared here, and put waiting jobs under those that have changed."""
    arrangements = book.arrangements(registry.all())
    stored = {limit.family: limit.by for limit in engine.limits()}
    arrange(arrangements)
    declared = [a for a in arrangements if isinstance(a, PutLimit)]
    # In a store without limits, jobs that have some were submitted by code that knows them, as this does.
    changed = {limit.family for limit in declared if stored and stored.get(limit.family) != limit.by}
    if declared:
        regroup(engine, change, registry, book, changed)


def regroup(
    engine: Engine,
    change: Callable[[Sequence[Command]], object],
    registry: Registry,
    book: LimitBook,
    changed: set[str],
) -> None:
    """Put waiting jobs under the limits that hold now; `changed` names the families that have other keys now."""
    commands: list[Command] = []
    moved = 0
    for record, limits in _concerned(engine, registry, book, changed):
        if limits != record.limits:
            commands.append(Regroup(record.id, limits))
        if len(commands) == PAGE:
            change(commands)
            moved += len(commands)
            commands = []
    if commands:
        change(commands)
    if moved + len(commands):
        logger.info("%d waiting jobs were put under changed limits", moved + len(commands))


def _concerned(
    engine: Engine, registry: Registry, book: LimitBook, changed: set[str]
) -> Iterator[tuple[JobRecord, tuple[str, ...]]]:
    """Find jobs that wait, each with the limits that it should be under."""
    by_type = (
        (Query(status=JobStatus.PENDING, type=handler.name, limit=PAGE), families)
        for handler in registry.all()
        if (families := book.families(handler, ""))
    )
    by_queue = (
        (Query(status=JobStatus.PENDING, queue=queue, limit=PAGE), families)
        for queue in book.queues()
        if (families := book.of_queue(queue))
    )
    for query, families in chain(by_type, by_queue):
        with_limits = _to_limits(registry, book)
        first = with_limits(engine.find(replace(query, limit=SAMPLE, is_limited=True)).records)
        must_see_all = any(family.name in changed for family in families)
        if must_see_all or any(limits != record.limits for record, limits in first):
            yield from with_limits(_all(engine, query))
        else:
            yield from with_limits(_all(engine, replace(query, is_limited=False)))


def _to_limits(
    registry: Registry, book: LimitBook
) -> Callable[[Iterable[JobRecord]], Iterator[tuple[JobRecord, tuple[str, ...]]]]:
    def with_limits(records: Iterable[JobRecord]) -> Iterator[tuple[JobRecord, tuple[str, ...]]]:
        for record in records:
            if record.type in registry:
                given = decode_any(record.payload, record.codec)
                handler = registry.get(record.type)
                yield record, book.buckets(handler, record.queue, given if isinstance(given, dict) else {})

    return with_limits


def _all(engine: Engine, query: Query) -> Iterator[JobRecord]:
    while True:
        page = engine.find(query)
        yield from page.records
        if page.end is None:
            return
        query = replace(query, after=page.end)
