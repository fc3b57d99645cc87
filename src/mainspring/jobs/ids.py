"""Ids of jobs: 32 hexadecimal digits that sort by time, in the layout of UUIDv7.

The ids of one process always grow, so a database index appends them at its end. `JobIds` draws a new random part
for each millisecond, and counts up from it within the millisecond. One system call reads the random numbers for
many milliseconds, because other threads must wait for the lock of `JobIds` during the call.
"""

from __future__ import annotations

import os
from array import array
from hashlib import sha256
from threading import RLock

from mainspring.errors import LimitExceeded

MAX_ID_LENGTH = 200
DRAWN = 512  # how many random numbers one system call reads
_RANDOM_BITS = 74
_LOW = (1 << 62) - 1


_forks = 0  # how many forks separate this process from the process that imported this module


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - a number that is compared costs less than a call of `os.getpid` for each id
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class JobIds:
    """Makes ids of jobs. Many threads and forked children may use one object."""

    def __init__(self) -> None:
        self._lock = RLock()  # re-entrant, because a signal handler or finalizer may submit jobs
        self._forks = -1  # the value of the global `_forks` when the random numbers were drawn
        self._millisecond = -1
        self._low = 0
        self._random = array("Q")

    def make(self, now: int, count: int = 1) -> list[str]:
        """Make `count` growing ids. They contain the millisecond of `now`, which is in microseconds since 1970.

        If the clock was set back, they contain the latest millisecond of an earlier call.
        """
        millisecond = now // 1_000
        with self._lock:
            if millisecond > self._millisecond or self._forks != _forks:
                self._millisecond = max(millisecond, self._millisecond)
                self._low = self._draw() << (_RANDOM_BITS - 65)  # the top bit is 0, as room to count up
            first = self._low
            self._low += count
            prefix = f"{self._millisecond:012x}7"
        if count == 1:
            return [f"{prefix}{first >> 62:03x}{2 << 62 | first & _LOW:016x}"]
        return [f"{prefix}{n >> 62:03x}{2 << 62 | n & _LOW:016x}" for n in range(first, first + count)]

    def _draw(self) -> int:
        """Return 64 random bits. A forked child draws its own random numbers."""
        if not self._random or self._forks != _forks:
            self._random = array("Q", os.urandom(8 * DRAWN))
            self._forks = _forks
        return self._random.pop()


def first_id(now: int) -> str:
    """Make an id after which `ids_from` can count up to 2 ** 64 more ids. Its random part has 73 bits.

    The id is not made by a `JobIds`, because the ids that follow must belong to no other job of this process.
    """
    random = int.from_bytes(os.urandom(10)) >> 7  # the top bit of 74 is 0, as room to count up
    return _format_ids(now // 1_000, random, 1)[0]


def ids_from(first: str, count: int) -> list[str]:
    """Return the ids of `count` jobs: `first`, which `first_id` has made, and those that follow it."""
    return _format_ids(*_parts(first), count)


def nth_id(first: str, n: int) -> str:
    """Return the id that `ids_from(first, …)` has at the index `n`, counted from 0."""
    millisecond, low = _parts(first)
    return _format_ids(millisecond, low + n, 1)[0]


def _parts(job_id: str) -> tuple[int, int]:
    number = int(job_id, 16)
    return number >> 80, (number >> 64 & 0xFFF) << 62 | number & _LOW


def _format_ids(millisecond: int, low: int, count: int) -> list[str]:
    prefix = f"{millisecond:012x}7"
    return [f"{prefix}{n >> 62:03x}{2 << 62 | n & _LOW:016x}" for n in range(low, low + count)]


def require_id(job_id: object, name: str = "id") -> str:
    """Return an id or a name, such as that of a queue; raise an error if it is not valid.

    The text must be a printable string with 1 to `MAX_ID_LENGTH` characters: otherwise `TypeError`, `ValueError`
    or `LimitExceeded` is raised, with `name`, such as "queue", in its message.
    """
    if not isinstance(job_id, str):
        raise TypeError(f"{name} must be a string, got {job_id!r}")
    if not job_id or not job_id.isprintable():
        raise ValueError(f"{name} must be a non-empty printable string, got {job_id!r}")
    if len(job_id) > MAX_ID_LENGTH:
        raise LimitExceeded(
            what=f"{name} {job_id[:40]!r}..., in characters,",
            size=len(job_id),
            limit=MAX_ID_LENGTH,
            problem=f"{name} {job_id[:40]!r}... has {len(job_id):,} characters, the limit is {MAX_ID_LENGTH}",
            remedy="use a shorter one, such as a hash",
        )
    return job_id


def short_key(key: str) -> str:
    """Return a key unchanged if it can be stored, else its beginning with a hash of the whole key."""
    return key if len(key) <= MAX_ID_LENGTH else f"{key[:80]}... {sha256(key.encode()).hexdigest()}"
