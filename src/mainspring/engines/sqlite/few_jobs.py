"""Storing a few plain jobs at once, as those of many submitters that share a commit: a row of values for each.

A batch that travels as JSON is taken apart again by SQLite, which costs more than to bind values. But each number
of rows is a statement of its own, so this is for a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from mainspring.engines.sqlite.rows import to_stored
from mainspring.jobs.records import NewJob

FEW = 32


def are_few(jobs: Sequence[NewJob]) -> bool:
    """Answer whether these jobs can be stored by `insert_few`."""
    return len(jobs) <= FEW and all(job.is_plain for job in jobs)


@cache
def insert_few(count: int) -> str:
    """Return the statement for so many jobs: ?1 now, and then id, lane, due, payload and codec of each."""
    rows = [f"(?{n}, ?{n + 1}, ?{n + 2}, ?{n + 2}, ?1, ?{n + 3}, ?{n + 4})" for n in range(2, 2 + 5 * count, 5)]
    return f"""
INSERT INTO jobs (id, lane, due, ready, created, payload, codec) VALUES {", ".join(rows)}
ON CONFLICT (id) DO NOTHING
"""


def few_rows(jobs: Iterable[NewJob], lanes: Iterable[int], now: int) -> tuple[Any, ...]:
    """Return what `insert_few` binds."""
    values: list[Any] = [now]
    for job, lane in zip(jobs, lanes, strict=True):
        values += (job.id, lane, job.due, to_stored(job.payload, job.codec), job.codec)
    return tuple(values)
