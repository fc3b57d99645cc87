"""Divides what all callers of a server share: event streams, open pages and waiting claims.

Each of these has a limit for the whole server, and a caller gets at most a share of it, `caller_share`. So one
caller cannot take all of them, and the other callers are served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from mainspring.security.http_limits import HttpLimits
from mainspring.web.problems import refuse


class CallerCounts:
    """Counts what each caller does at this moment. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the counter
        self._counts: Counter[str] = Counter()

    @contextmanager
    def count(self, caller: str, most: int | None = None) -> Iterator[int]:
        """Return a context manager that counts one more for a caller, and yields the count with it.

        If the count is `most` already, it counts nothing and yields 0.
        """
        with self._lock:
            found = self._counts[caller]
            is_counted = most is None or found < most
            self._counts[caller] = found + is_counted
        try:
            yield found + 1 if is_counted else 0
        finally:
            with self._lock:
                self._counts[caller] -= is_counted
                if not self._counts[caller]:
                    del self._counts[caller]


class CallerShares:
    """Counts how many of the places of one kind each caller uses. Any thread may use it.

    - `limits`: the limits of the server
    - `limit`: the name of the limit of all callers, a field of `HttpLimits`
    - `problem`: the type of the problem for a caller that would use more than its share
    - `what`: the places, for the text of the problem: `streams of events`
    """

    def __init__(self, limits: HttpLimits, *, limit: str, problem: str, what: str) -> None:
        self._most = limits.share_of(limit)
        self._limit = limit
        self._problem = problem
        self._what = what
        self._counts = CallerCounts()

    @contextmanager
    def use(self, caller: str) -> Iterator[None]:
        """Return a context manager that takes a place for a caller; raise `Refused` (429) if it has its share."""
        with self._counts.count(caller, self._most) as place:
            if not place:
                raise refuse(
                    429,
                    self._problem,
                    f"this caller has {self._most:,} {self._what}, which is its share of {self._limit}; close "
                    f"some, use another token, or raise {self._limit} or caller_share of HttpLimits",
                    retry_after="10",
                )
            yield
