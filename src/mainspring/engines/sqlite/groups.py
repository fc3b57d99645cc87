"""Groups: the jobs of one lane under the same limits. A group has a name, which says what it is, and a number.

The name is a JSON text of the lane and the buckets, and stands in a table, with the count of the jobs that are in
the group: the last one that is deleted takes it along. The number stands with the jobs and in the indexes, and is
what a claim returns: it is short. It follows from the name, so nobody has to hand it out or look it up. That two
of a million groups share a number has a chance of one to ten million.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

import msgspec

from mainspring.jobs.limits import is_fair

REMEMBERED = 10_000
POSITIVE = 0x7FFF_FFFF_FFFF_FFFF  # what an INTEGER of SQLite holds

_parts = msgspec.json.Decoder(tuple[str | int, ...]).decode


@lru_cache(REMEMBERED)
def to_group(lane: int, limits: tuple[str, ...]) -> str | None:
    """Name the group of a job."""
    return msgspec.json.encode((lane, *limits)).decode() if limits else None


@lru_cache(REMEMBERED)
def number_of(group: str | None) -> int | None:
    """Return the number of a group."""
    if group is None:
        return None
    return int.from_bytes(blake2b(group.encode(), digest_size=8).digest(), "big") & POSITIVE


@lru_cache(REMEMBERED)
def limits_of(group: str | None) -> tuple[str, ...]:
    """Return the buckets of a group."""
    return () if group is None else _parts(group)[1:]  # type: ignore[return-value]


@lru_cache(REMEMBERED)
def takes_turns(group: str) -> bool:
    """Answer whether jobs of a group take turns with those of others."""
    return is_fair(limits_of(group))
