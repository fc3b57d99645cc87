"""Reads jobs of the store up to a bound, and says how far it has looked.

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
"""How many jobs the first read has. If these are large, later reads have fewer."""
MAX_BYTES = 32 * 1024 * 1024
PAGE_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class BoundedScan:
    """One scan. Iterate over it once; afterwards it says how far it has looked.

    - `find`: reads a page, such as `engine.find`
    - `query`: the filters and the order
    - `limit`: how many jobs it reads at most
    """

    find: Callable[[Query], Page]
    query: Query
    limit: int
    max_bytes: int = MAX_BYTES
    scanned: int = field(default=0, init=False)
    """How many jobs it has read."""
    is_complete: bool = field(default=False, init=False)
    """Whether it has read all jobs that match the filters."""

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
