"""Stores requests with an `Idempotency-Key` on NATS: a stream of its own, with a message for each caller and key.

The server deletes a message when its time to live is over. The stream is apart from that of the jobs because that
one keeps a marker for each deleted subject for a week, and because a flood of keys must not delay jobs.

A record is written only if the message that was read is still the last one of its subject, so of two processes one
finds the record of the other. It is always read from the leader of the stream.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import decode, encode
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.write_batch import StoredMessage, Write
from mainspring.errors import EngineUnavailable, RefusedByStore
from mainspring.jobs.request_records import MAX_REQUESTS, NewRequest, RequestEnd, RequestRecord, begun, ended
from mainspring.jobs.timestamps import MICROSECONDS

MAX_TRIES = 50
PAUSE_SECONDS = 0.002
RECOUNT = 60 * MICROSECONDS
RECOUNT_FULL = MICROSECONDS
MAX_COUNTED = 10_000  # callers whose counts this process remembers
TTL_MARGIN_SECONDS = 60

Item = TypeVar("Item", NewRequest, RequestEnd)


class _CountedRequests(Struct):
    """How many requests of one caller, or of all callers, are stored.

    This is the count at an instant, plus the requests that this process has added since then.
    """

    number: int
    at: int


class NatsRequests:
    """Stores the begin and the end of requests with an idempotency key. One thread at a time may use it."""

    def __init__(self, jetstream: JetStream, names: SubjectNames, streams: Streams) -> None:
        self._jetstream = jetstream
        self._names = names
        self._streams = streams
        self._counts: dict[str, _CountedRequests] = {}  # by subject
        self._has_stream = False

    def forget(self) -> None:
        """Forget that the stream exists and how many requests it has, because it may have been created again."""
        self._has_stream = False
        self._counts.clear()

    def begin(self, requests: Sequence[NewRequest]) -> list[RequestRecord | None]:
        """Store that requests begin; return the record of each, or None if its caller or the store has too many.

        If a request with the same key was stored before, return its record: see `request_records.begun`. Raise
        `RefusedByStore` if the stream of requests does not exist and this process may not create it.
        """
        return self._change_each(requests, self._begin)

    def end(self, ends: Sequence[RequestEnd]) -> list[bool]:
        """Store the answers of requests; return for each whether it was stored: see `request_records.ended`."""
        return [record is not None for record in self._change_each(ends, self._end)]

    def _begin(
        self, request: NewRequest, before: RequestRecord | None, now: int
    ) -> tuple[RequestRecord | None, bool]:
        after = begun(before, request, now)
        is_new = before is None or after.created != before.created
        if is_new and after.owner == request.owner and not self._has_room(request):
            return None, False
        return after, after != before

    @staticmethod
    def _end(end: RequestEnd, before: RequestRecord | None, now: int) -> tuple[RequestRecord | None, bool]:
        is_stored = before is not None and before.owner == end.owner and before.busy_until == 0
        if (
            is_stored and before is not None and before.answer == end.answer
        ):  # an earlier try, whose reply was lost
            return before, False
        after = ended(before, end, now)
        return after, after is not None

    def _change_each(
        self,
        items: Sequence[Item],
        decide: Callable[[Item, RequestRecord | None, int], tuple[RequestRecord | None, bool]],
    ) -> list[RequestRecord | None]:
        """Read the record of each item, let `decide` make the new one, and write those that change, with retries.

        Return the new records. Raises `EngineUnavailable` if other processes change a record again and again.
        """
        self._require_stream()
        try:
            return self._try_each(items, decide)
        except EngineUnavailable:
            self.forget()  # the stream may have been deleted
            raise

    def _try_each(
        self,
        items: Sequence[Item],
        decide: Callable[[Item, RequestRecord | None, int], tuple[RequestRecord | None, bool]],
    ) -> list[RequestRecord | None]:
        results: list[RequestRecord | None] = [None] * len(items)
        left: dict[str, list[int]] = {}  # the places of the items, by subject; those of one key are in order
        for place, item in enumerate(items):
            left.setdefault(self._subject(item), []).append(place)
        for attempt in range(MAX_TRIES):
            found = self._jetstream.read_each(list(left), self._names.requests_stream)
            now = self._jetstream.now()
            writes: list[Write] = []
            for subject, places in list(left.items()):
                current = before = _decode(found[subject])
                for place in places:
                    results[place], must_write = decide(items[place], current, now)
                    current = results[place] if must_write else current
                if current is None or current is before:
                    del left[subject]
                else:
                    writes.append(_write(subject, current, found[subject].revision, now))
            revisions = self._jetstream.store_each(writes) if writes else []
            for write, revision in zip(writes, revisions, strict=True):
                if revision is not None:
                    del left[write.subject]
            if not left:
                return results
            time.sleep(PAUSE_SECONDS * random.random() * min(attempt, 20))  # noqa: TID251 - back-off
        raise self._jetstream.unavailable(
            f"the record of an idempotency key was not stored after {MAX_TRIES} tries, because other processes "
            "changed it, or the server did not confirm it"
        )

    def _subject(self, item: NewRequest | RequestEnd) -> str:
        return self._names.request(item.caller, item.key)

    # -- the number of requests

    def _has_room(self, request: NewRequest) -> bool:
        everything = self._names.requests + ">"
        own = self._names.requests_of(request.caller)
        if not self._is_below(everything, MAX_REQUESTS) or not self._is_below(own, request.most):
            return False
        for subject in (everything, own):
            if subject in self._counts:  # counts may have been forgotten meanwhile
                self._counts[subject].number += 1
        return True

    def _is_below(self, subject: str, limit: int) -> bool:
        now = self._jetstream.monotonic()
        known = self._counts.get(subject)
        age = RECOUNT if known is None else now - known.at
        if known is None or age >= (RECOUNT_FULL if known.number >= limit else RECOUNT):
            if len(self._counts) > MAX_COUNTED:
                self._counts.clear()
            number = self._jetstream.count(subject, self._names.requests_stream)
            known = self._counts[subject] = _CountedRequests(number, now)
        return known.number < limit

    # -- the stream

    def _require_stream(self) -> None:
        if not self._has_stream and not self._streams.ensure_requests():
            raise RefusedByStore(
                engine=f"NATS at {self._jetstream.address}",
                reason=f"it has no stream {self._names.requests_stream!r}, which keeps idempotency keys",
                remedy="an operator creates it: `mainspring queues list`, with role=operator in the URL; until "
                "then, send no Idempotency-Key",
            )
        self._has_stream = True


def _decode(message: StoredMessage) -> RequestRecord | None:
    return decode(message.data, RequestRecord) if message.data else None


def _write(subject: str, record: RequestRecord, expected: int, now: int) -> Write:
    seconds = max(1, (record.expires - now) // MICROSECONDS) + TTL_MARGIN_SECONDS
    return Write(subject, encode(record), expected, {"Nats-TTL": f"{seconds}s"})
