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
        self._lock = Lock()  # guards the counter
        self._used: Counter[str] = Counter()

    @contextmanager
    def use(self, caller: str) -> Iterator[None]:
        """Return a context manager that takes a place for a caller; raise `Refused` (429) if it has its share."""
        with self._lock:
            if self._used[caller] >= self._most:
                raise refuse(
                    429,
                    self._problem,
                    f"this caller has {self._most:,} {self._what}, which is its share of {self._limit}; close "
                    f"some, use another token, or raise {self._limit} or caller_share of HttpLimits",
                    retry_after="10",
                )
            self._used[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._used[caller] -= 1
                if not self._used[caller]:
                    del self._used[caller]
