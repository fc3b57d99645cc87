"""Requests with an `Idempotency-Key`: what a store keeps of them, and how a repeated request is recognised.

A server calls `Engine.begin_requests` before it carries a request out, and `Engine.end_requests` afterwards. The
record has the first id of the jobs that the request makes, so that a repetition makes jobs with the same ids: the
engine refuses those that are stored already. So no repetition makes a second job, whenever the first server died.

Invariants
- A caller and a key have one record. Its digest and its first id never change before it expires.
- An answer that is stored is never replaced.
- One request at a time owns a record. A second one may take it over when `busy_until` is past: then the first
  server has died, or is slow. Both may carry the request out at the same time, which is safe, because both make
  the same ids.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from mainspring.jobs.ids import ids_from, nth_id

MAX_REQUESTS = 1_000_000
"""How many requests of all callers a store keeps at most."""


class RequestRecord(Struct, frozen=True, array_like=True):
    """A request with an idempotency key as it is stored.

    Times are microseconds since 1970; add new fields at the end.
    """

    caller: str
    """The id of the caller's token, or another name of the caller."""
    key: str
    """The value of `Idempotency-Key`."""
    digest: str
    """A hash of the request: its method, its path and its body."""
    first_id: str
    """The id of the first job that the request makes. The ids of the others follow it: see `ids.ids_from`."""
    owner: str
    """A random name of the server's call that last began to carry out this request."""
    busy_until: int
    """Until when no other request with this key may carry it out; 0 after it has ended."""
    created: int
    expires: int
    answer: bytes | None = None
    """The encoded answer for repetitions; None while the request runs, or if a repetition must carry it out
    again.
    """

    def is_expired(self, now: int) -> bool:
        """Return whether the record has expired, so that a new request may use its key."""
        return now >= self.expires


class NewRequest(Struct, frozen=True, kw_only=True):
    """A request that a server is about to carry out."""

    caller: str
    key: str
    digest: str
    first_id: str
    """The id of the first job that the request makes.

    If the key is stored already, the stored id is used instead.
    """
    owner: str
    kept: int
    """How many microseconds the key is kept."""
    busy: int
    """After how many microseconds another request with this key may carry it out, if this one has not ended."""
    most: int
    """How many requests of this caller the store keeps at most."""


class RequestEnd(Struct, frozen=True, kw_only=True):
    """The end of a request: its answer, or None if a repetition must carry it out again, with the same ids."""

    caller: str
    key: str
    owner: str
    answer: bytes | None = None


class RequestIds:
    """The ids of the jobs that one request makes, in order. A repetition of the request gets the same ids."""

    def __init__(self, first: str, *, is_resumed: bool = False) -> None:
        self._first = first
        self._used = 0
        self.is_resumed = is_resumed
        """Whether an earlier request with the same key began without an answer, so that it may have stored some
        jobs.
        """

    def take(self, count: int = 1) -> list[str]:
        """Return the next `count` ids of the request, in order, behind those of earlier calls."""
        first = nth_id(self._first, self._used)
        self._used += count
        return ids_from(first, count)


def begun(before: RequestRecord | None, request: NewRequest, now: int) -> RequestRecord:
    """Return the record to store for a request that begins, given the stored record of its key or None.

    The result is `before`, unchanged, if that has an answer, belongs to a request with another content, or is
    still being carried out. The caller may carry the request out if the record has its `owner`, its digest and no
    answer.
    """
    if before is None or before.is_expired(now):
        return RequestRecord(
            caller=request.caller,
            key=request.key,
            digest=request.digest,
            first_id=request.first_id,
            owner=request.owner,
            busy_until=now + request.busy,
            created=now,
            expires=now + request.kept,
        )
    if before.answer is not None or before.digest != request.digest or now < before.busy_until:
        return before
    return replace(before, owner=request.owner, busy_until=now + request.busy)


def ended(before: RequestRecord | None, end: RequestEnd, now: int) -> RequestRecord | None:
    """Return the record to store for a request that ends, with its answer.

    Returns None, so that nothing is stored, if there is no record, if it has expired or has an answer, or if
    another request has taken it over.
    """
    if before is None or before.is_expired(now) or before.owner != end.owner or before.answer is not None:
        return None
    return replace(before, busy_until=0, answer=end.answer)
