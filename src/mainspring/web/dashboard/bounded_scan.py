"""Reads jobs of the store up to a number and a size, and tells how many it has read.

Pages that group jobs, or look for those of a schedule, cannot use an index. They read the newest jobs up to a
number and a size, so that a page costs the same with a million jobs, and with jobs of a megabyte each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from mainspring.jobs.records import JobRecord, Page, Query

PAGE = 200
FIRST_PAGE = 20
"""How many jobs the first read has. Later reads have up to 200, or fewer if the jobs were large."""
MAX_BYTES = 32 * 1024 * 1024
PAGE_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class BoundedScan:
    """One scan of the jobs that match a query. Iterate over it once; afterwards `is_complete` is known.

    - `find`: reads a page of jobs, such as `engine.find`
    - `query`: the filters and the order
    - `limit`: the largest number of jobs that are read
    - `max_bytes`: the scan stops when the jobs that were read have this size
    """

    find: Callable[[Query], Page]
    query: Query
    limit: int
    max_bytes: int = MAX_BYTES
    scanned: int = field(default=0, init=False)
    """How many jobs the scan has read so far."""
    is_complete: bool = field(default=False, init=False)
    """Whether the scan has read all jobs that match the query, and did not stop at a bound."""

    def __iter__(self) -> Iterator[JobRecord]:
        size = 0
        query = replace(self.query, limit=min(FIRST_PAGE, self.limit))
        while True:
            page = self.find(query)
            used = sum(map(_size_of, page.records))
            size += used
            self.scanned += len(page.records)
            yield from page.records
            if page.end is None:
                self.is_complete = True
                return
            rest = self.limit - self.scanned
            if rest <= 0 or size >= self.max_bytes:
                return
            average = max(1, used // max(1, len(page.records)))
            query = replace(query, after=page.end, limit=max(1, min(PAGE, rest, PAGE_BYTES // average)))


def _size_of(record: JobRecord) -> int:
    return len(record.payload) + len(record.result or b"") + len(record.error or "") + 500
