"""Implements `Idempotency-Key`: a request that is repeated with the same key is not carried out twice.

The store has a record for each caller and key: see `jobs/request_records.py`. So it does not matter which process
gets the repetition, or whether the first one was killed.

- The same key with another method, path, query, content type or body is refused with 422.
- While the first request is carried out, a repetition is refused with 409. If the first server has died, the
  repetition is carried out after `BUSY_SECONDS`.
- Answers that a repetition could change are not kept: 401, 403, 408, 425, 429 and 5xx. Then the next repetition is
  carried out, with the same ids for its jobs.

The key is a string of structured fields (RFC 9651) as in draft-ietf-httpapi-idempotency-key-header: `"8e03978e"`.
Most clients leave the quotation marks out, so that is accepted, and is the same key.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil
from secrets import token_hex
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.errors import MainspringError
from mainspring.jobs.handle import ManagerProvider, open_manager
from mainspring.jobs.ids import first_id
from mainspring.jobs.manager import JobManager
from mainspring.jobs.request_records import NewRequest, RequestEnd, RequestIds, RequestRecord
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.http_limits import HttpLimits
from mainspring.security.permissions import Identity
from mainspring.web.problems import Problem, Refused, problem_of, refuse

HEADER = b"idempotency-key"
MAX_KEY = 255
BUSY_SECONDS = 10.0
"""If a request has no answer after this time, in seconds, a repetition with the same key is carried out.

Both make jobs with the same ids, so that a slow server does no harm.
"""
MAX_ANSWER = 262_144
"""The size of the largest compressed answer that is kept, in bytes. That of 10,000 jobs has about 30 KiB."""
MAX_UNPACKED = 8_388_608
"""The size of the largest answer that is kept, before it is compressed, in bytes. No more is decompressed, so that
a program that can write to the store cannot use up the memory of the server."""
COMPRESSED_FROM = 1_024
PASSING = frozenset({401, 403, 408, 425, 429})
"""The statuses below 500 whose answers are not kept, because a repetition may be answered differently."""
REPLAYED = "Idempotency-Replayed"
_BARE = re.compile(r"[!#-+\--\[\]-~]+", re.ASCII)  # no blanks, commas, quotation marks and backslashes
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', re.ASCII)
_ESCAPED = re.compile(r"\\(.)")

logger = logging.getLogger("mainspring.http")


def parse_key(text: str) -> str:
    """Return the key in the value of `Idempotency-Key`; raise `Refused` if it is malformed."""
    given = text.strip(" \t")
    string = _STRING.fullmatch(given)
    if string is not None:
        key = _ESCAPED.sub(r"\1", string[1])
    elif _BARE.fullmatch(given):
        key = given
    else:
        raise _malformed("it is no string of visible ASCII characters")
    if not key:
        raise _malformed("it is empty")
    if len(key) > MAX_KEY:
        raise _malformed(f"it has {len(key):,} characters, the limit is {MAX_KEY}")
    return key


def _malformed(problem: str) -> Refused:
    return refuse(
        400,
        "idempotency-key-invalid",
        f'the header Idempotency-Key is malformed: {problem}; send a random key, such as a UUID: "8e03978e-40d5"',
    )


def digest_of(*parts: bytes) -> str:
    """Return a hash of the parts of a request.

    Each part is hashed with its length, so that parts cannot be mixed.
    """
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8))
        found.update(part)
    return found.hexdigest()


# -- answers


class StoredAnswer(Struct, frozen=True, array_like=True):
    """The answer to a request with an idempotency key, as the store keeps it, to repeat it for the same key.

    The stored data have the fields by position, so add new fields at the end.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    """The body of the answer in JSON; empty for a problem, and if the answer is too large to be kept."""
    problem: str | None = None
    """The type of the problem; None if the answer is not a problem."""
    detail: str = ""
    members: dict[str, Any] = {}
    is_too_large: bool = False


_decode_answer = msgspec.msgpack.Decoder(StoredAnswer).decode


def encode_answer(answer: StoredAnswer) -> bytes:
    """Encode an answer for the store, compressed if it is long; of one that is too large, only the status."""
    data = msgspec.msgpack.encode(answer)
    packed = b"z" + zlib.compress(data, 6) if len(data) >= COMPRESSED_FROM else b"-" + data
    if len(packed) <= MAX_ANSWER and len(data) <= MAX_UNPACKED:
        return packed
    short = StoredAnswer(answer.status, {}, b"", is_too_large=True)
    return b"-" + msgspec.msgpack.encode(short)


def decode_answer(data: bytes) -> StoredAnswer | None:
    """Decode an answer that `encode_answer` has encoded; return None for other data, and for too many."""
    try:
        return _decode_answer(_unpack(data[1:]) if data[:1] == b"z" else data[1:])
    except (zlib.error, msgspec.MsgspecError):
        return None


def _unpack(packed: bytes) -> bytes:
    """Decompress data up to `MAX_UNPACKED`; raise `zlib.error` if they become larger, or are not complete."""
    stream = zlib.decompressobj()
    data = stream.decompress(packed, MAX_UNPACKED + 1)
    if not stream.eof or len(data) > MAX_UNPACKED:
        raise zlib.error(f"the data are cut, or become larger than {MAX_UNPACKED:,} bytes")
    return data


def is_kept(status: int) -> bool:
    """Return whether an answer with this status is kept, and repeated for the same key."""
    return status < 500 and status not in PASSING


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnswer:
    """The answer to a request that may change something, with its body encoded as JSON."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class IdempotentWrites:
    """Carries out requests with an idempotency key; a repetition with the same key gets the stored answer.

    - `source`: the application, whose store keeps the keys
    - `limits`: how long and how many keys are kept
    """

    def __init__(self, source: ManagerProvider, limits: HttpLimits) -> None:
        self._source = source
        self._limits = limits

    async def perform(
        self,
        identity: Identity,
        key: str,
        digest: str,
        carry_out: Callable[[RequestIds], Awaitable[WriteAnswer]],
    ) -> WriteAnswer:
        """Carry out a request with a key, or return or raise the answer that the same request got before.

        Raises `Refused` if the key was used for another request, if the first request is still in progress, if its
        answer was too large to be kept, or if the caller has too many keys.

        - `identity`: the caller, to whom the key belongs
        - `key`: the key, see `parse_key`
        - `digest`: a hash of the request, see `digest_of`
        - `carry_out`: carries the request out. Its jobs must have the ids that it gets.
        """
        manager = await open_manager(self._source)
        record, request = await self._begin(manager, identity, key, digest)
        if record.digest != digest:
            raise refuse(
                422,
                "idempotency-key-reused",
                f"the key {key!r} was used for another request; send the same method, path, query, content "
                "type and body again, or another key",
            )
        if record.answer is not None:
            return _repeat(decode_answer(record.answer), key)
        if record.owner != request.owner:
            seconds = max(1, ceil((record.busy_until - manager.engine.now()) / MICROSECONDS))
            raise refuse(
                409,
                "idempotency-key-busy",
                f"the first request with the key {key!r} is still being carried out; try again in {seconds} s",
                retry_after=str(seconds),
            )
        return await self._carry_out(manager, record, request, carry_out)

    async def _begin(
        self, manager: JobManager, identity: Identity, key: str, digest: str
    ) -> tuple[RequestRecord, NewRequest]:
        request = NewRequest(
            caller=identity.caller,
            key=key,
            digest=digest,
            first_id=first_id(manager.engine.now()),
            owner=token_hex(8),
            kept=round(self._limits.idempotency_seconds * MICROSECONDS),
            busy=round(BUSY_SECONDS * MICROSECONDS),
            most=self._limits.idempotency_keys,
        )
        record = await manager.begin_request(request)
        if record is None:
            hours = self._limits.idempotency_seconds / 3_600
            raise refuse(
                429,
                "too-many-idempotency-keys",
                f"the store has no room for another idempotency key: it keeps at most "
                f"{self._limits.idempotency_keys:,} of a token, each for {hours:g} h; send fewer requests with a "
                "key, such as batches, or send no key",
                retry_after="60",
            )
        return record, request

    async def _carry_out(
        self,
        manager: JobManager,
        record: RequestRecord,
        request: NewRequest,
        carry_out: Callable[[RequestIds], Awaitable[WriteAnswer]],
    ) -> WriteAnswer:
        stored: StoredAnswer | None = None
        try:
            answer = await carry_out(RequestIds(record.first_id, is_resumed=record.first_id != request.first_id))
            stored = StoredAnswer(answer.status, dict(answer.headers), answer.body)
        except Refused as refused:
            stored = _stored_problem(refused.problem)
            raise
        except MainspringError as error:
            stored = _stored_problem(problem_of(error))
            raise
        finally:
            is_repeatable = stored is not None and is_kept(stored.status)
            end = RequestEnd(
                caller=record.caller,
                key=record.key,
                owner=request.owner,
                answer=encode_answer(stored) if stored is not None and is_repeatable else None,
            )
            try:
                await manager.end_request(end)
            except MainspringError as error:  # no reason to refuse a request that was carried out
                logger.warning(
                    "the answer for an idempotency key could not be stored, so a repetition of the request may be "
                    "carried out, with the same job ids: %s",
                    error,
                )
        return answer


def _stored_problem(problem: Problem) -> StoredAnswer:
    return StoredAnswer(
        problem.status,
        dict(problem.headers),
        b"",
        problem=problem.type,
        detail=problem.detail,
        members=dict(problem.members),
    )


def _repeat(stored: StoredAnswer | None, key: str) -> WriteAnswer:
    """Return the answer that the first request got; raise `Refused` if it is a problem, or was not kept.

    `stored` is None if the store has an answer that cannot be decoded.
    """
    if stored is None:
        logger.error("the stored answer for the idempotency key %r cannot be read: the store was changed", key)
        raise refuse(
            409,
            "idempotency-answer-too-large",
            f"the request with the key {key!r} was carried out, and its answer in the store is damaged or too "
            "large; read the objects that it has changed",
        )
    if stored.is_too_large:
        raise refuse(
            409,
            "idempotency-answer-too-large",
            f"the request with the key {key!r} was carried out, with the status {stored.status}, and its answer "
            "is too large to be kept; read the objects that it has changed",
        )
    if stored.problem is not None:
        headers = {**stored.headers, REPLAYED: "true"}
        raise Refused(
            Problem(
                status=stored.status,
                type=stored.problem,
                detail=stored.detail,
                headers=headers,
                members=stored.members,
            )
        )
    return WriteAnswer(status=stored.status, body=stored.body, headers={**stored.headers, REPLAYED: "true"})
