"""Places of jobs in a projection, each for one job.

Whoever submits gives a job its place in the order of submission, by the time. Two processes may do so in the same
instant: then both jobs have the same place, and the one that comes later moves to the next that is free. It stays
there for as long as both are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from mainspring.engines.sqlite.rows import to_json
from mainspring.jobs.records import JobRecord

# batch of [place, id]: the places that others have already
TAKEN = """
SELECT value ->> 0, value ->> 1 FROM json_each(?1) JOIN jobs ON jobs.seq = value ->> 0
WHERE jobs.id <> value ->> 1
"""
# id, place: where that job is, if it was moved from that place
MOVED = "SELECT seq FROM jobs WHERE id = ?1 AND created = ?2 AND seq > ?3"
IS_TAKEN = "SELECT EXISTS (SELECT 1 FROM jobs WHERE seq = ?1)"


def with_own_places(writer: apsw.Connection, kept: Sequence[tuple[int, JobRecord]]) -> list[tuple[int, JobRecord]]:
    """Return jobs with places that no other job has, neither here nor in the store."""
    asked = to_json([(place, record.id) for place, record in kept])
    clashing: set[Any] = set(writer.execute(TAKEN, (asked,)).fetchall())
    given: set[int] = set()
    own: list[tuple[int, JobRecord]] = []
    for place, record in kept:
        if place in given or (clashing and (place, record.id) in clashing):
            place = _next_place(writer, place, record, given)  # noqa: PLW2901 - it is the one from now on
        given.add(place)
        own.append((place, record))
    return own


def _next_place(writer: apsw.Connection, place: int, record: JobRecord, given: set[int]) -> int:
    moved: int | None = writer.execute(MOVED, (record.id, record.created, place)).get
    if moved is not None:
        return moved
    while place in given or writer.execute(IS_TAKEN, (place,)).get:
        place += 1
    return place
