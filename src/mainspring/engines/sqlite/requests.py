"""Stores requests with an `Idempotency-Key`. Triggers count them by caller, so that a check costs two lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple

from mainspring.engines.sqlite.store import Store
from mainspring.jobs.request_records import MAX_REQUESTS, NewRequest, RequestEnd, RequestRecord, begun, ended

PRUNED_AT_ONCE = 500
PRUNED_WITH_A_REQUEST = 20  # a store without a worker is pruned by its requests alone

READ = """
SELECT caller, key, digest, first_id, owner, busy_until, created, expires, answer FROM requests
WHERE caller = ?1 AND key = ?2
"""
WRITE = "INSERT INTO requests VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
DELETE = "DELETE FROM requests WHERE caller = ?1 AND key = ?2"
CHANGE = "UPDATE requests SET owner = ?3, busy_until = ?4, answer = ?5 WHERE caller = ?1 AND key = ?2"
COUNT = "SELECT ifnull((SELECT number FROM request_counts WHERE caller = ?1), 0)"
COUNT_ALL = "SELECT ifnull(sum(number), 0) FROM request_counts"
PRUNE = """
DELETE FROM requests WHERE rowid IN (
    SELECT rowid FROM requests INDEXED BY requests_by_expiry WHERE expires <= ?1 ORDER BY expires LIMIT ?2)
"""


class RequestWriter:
    """Stores the begin and the end of requests with an idempotency key.

    For use inside a unit (one transaction).
    """

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._now = store.now

    def begin(self, requests: Sequence[NewRequest]) -> list[RequestRecord | None]:
        """Store that requests begin; return for each request the record of its caller and idempotency key.

        The record may be that of an earlier request: see `request_records.begun`. Instead of a record, None is
        returned and nothing is stored if the caller or the store has too many requests. Some expired requests are
        deleted first.
        """
        self.prune(PRUNED_WITH_A_REQUEST * max(1, len(requests)))
        return [self._begin(request, self._now()) for request in requests]

    def _begin(self, request: NewRequest, now: int) -> RequestRecord | None:
        before = self._read(request.caller, request.key)
        after = begun(before, request, now)
        if before is None or after.created != before.created:
            if before is not None:
                self._database.write(DELETE, (request.caller, request.key))
            if not self._has_room(request):
                return None
            self._database.write(WRITE, astuple(after))
        elif after != before:
            self._change(after)
        return after

    def end(self, ends: Sequence[RequestEnd]) -> list[bool]:
        """Store the answers of requests; return for each whether it was stored: see `request_records.ended`."""
        return [self._end(end, self._now()) for end in ends]

    def _end(self, end: RequestEnd, now: int) -> bool:
        after = ended(self._read(end.caller, end.key), end, now)
        if after is not None:
            self._change(after)
        return after is not None

    def prune(self, most: int = PRUNED_AT_ONCE) -> bool:
        """Delete at most `most` expired requests; return whether there may be more."""
        self._database.write(PRUNE, (self._now(), most))
        return self._database.changes() >= most

    def _read(self, caller: str, key: str) -> RequestRecord | None:
        row: tuple[Any, ...] | None = self._database.write(READ, (caller, key))
        return None if row is None else RequestRecord(*row)

    def _change(self, record: RequestRecord) -> None:
        values = (record.caller, record.key, record.owner, record.busy_until, record.answer)
        self._database.write(CHANGE, values)

    def _has_room(self, request: NewRequest) -> bool:
        if self._database.write(COUNT, (request.caller,)) >= request.most:
            return False
        number: int = self._database.write(COUNT_ALL)
        return number < MAX_REQUESTS
