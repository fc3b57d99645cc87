"""Jobs under new limits: when a deploy declares or changes limits, jobs that wait already are put under them.

So are jobs without limits that were submitted by code which does not know them yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from mainspring.jobs.engine import Command, Engine, JobRecord, Query, Regroup
from mainspring.jobs.handlers import Handler, Registry
from mainspring.jobs.info import decode_any
from mainspring.jobs.limit_book import Family, LimitBook
from mainspring.jobs.status import JobStatus

PAGE = 1_000

logger = logging.getLogger("mainspring.worker")


def regroup(
    engine: Engine,
    change: Callable[[Sequence[Command]], object],
    registry: Registry,
    book: LimitBook,
    changed: set[str],
) -> None:
    """Put waiting jobs under the limits that hold now; `changed` names the families that are new or different."""
    commands: list[Command] = []
    moved = 0
    for handler, record in _concerned(engine, registry, book, changed):
        given = decode_any(record.payload, record.codec)
        limits = book.buckets(handler, record.queue, given if isinstance(given, dict) else {})
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
) -> Iterator[tuple[Handler, JobRecord]]:
    by_type = (
        Query(status=JobStatus.PENDING, type=handler.name, limit=PAGE, is_limited=_all_or_none(families, changed))
        for handler in registry.all()
        if (families := book.families(handler, ""))
    )
    by_queue = (
        Query(status=JobStatus.PENDING, queue=queue, limit=PAGE, is_limited=_all_or_none(families, changed))
        for queue in book.queues()
        if (families := book.of_queue(queue))
    )
    for query in chain(by_type, by_queue):
        for record in _all(engine, query):
            if record.type in registry:
                yield registry.get(record.type), record


def _all_or_none(families: tuple[Family, ...], changed: set[str]) -> bool | None:
    """Say which jobs to look at: all if a limit has changed, else those that are under none."""
    return None if any(family.name in changed for family in families) else False


def _all(engine: Engine, query: Query) -> Iterator[JobRecord]:
    while True:
        page = engine.find(query)
        yield from page.records
        if page.end is None:
            return
        query = Query(status=query.status, queue=query.queue, type=query.type, limit=query.limit, after=page.end)
