"""The retry policy and the timeout of a single job, where they differ from those of its handler.

They are stored as headers of the job, which every engine stores already and gives to workers with the lease. A
follow-up job, and a job that a handler submits, inherits the headers of the job before it, except those in
`RESERVED`. A follow-up job has the id of the job before it in such a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from mainspring.jobs.retry import Retry
from mainspring.jobs.timestamps import to_microseconds

RETRY = "mainspring-retry"
TIMEOUT = "mainspring-timeout"
SIGNATURE = "mainspring-signature"
"""The header that has the signature of the job: see `signing`."""
PREDECESSOR = "mainspring-predecessor"
"""The header of a follow-up job with the id of the job that it follows."""
RESERVED = frozenset({RETRY, TIMEOUT, SIGNATURE, PREDECESSOR})


class StoredRetry(msgspec.Struct, frozen=True):
    """The numbers of a job's own retry policy, as stored; delays are microseconds.

    The handler names the exceptions.
    """

    max_attempts: int
    base: int
    factor: float
    max_delay: int
    jitter: float = 0.0


_decode_retry = msgspec.json.Decoder(StoredRetry).decode


def policy_headers(retry: Retry | None, timeout: int | None) -> dict[str, str]:
    """Return the headers that store a job's own retry policy, and its own timeout in microseconds.

    None stands for the policy or the timeout of the handler, and makes no header.
    """
    headers = {}
    if retry is not None:
        stored = StoredRetry(
            retry.max_attempts,
            to_microseconds(retry.base, "base"),
            float(retry.factor),
            to_microseconds(retry.max_delay, "max_delay"),
            float(retry.jitter),
        )
        headers[RETRY] = msgspec.json.encode(stored).decode()
    if timeout is not None:
        headers[TIMEOUT] = str(timeout)
    return headers


def inheritable(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers that a follow-up job, or a job that the handler submits, inherits: all but `RESERVED`."""
    return {name: value for name, value in (headers or {}).items() if name not in RESERVED}


def retry_of(headers: Mapping[str, str] | None, default: Retry) -> Retry:
    """Return the retry policy of a job: its own numbers, if its headers have some, with the exceptions of
    `default`.

    `default` is the policy of its handler. The default applies also if the header cannot be read.
    """
    if headers is None or RETRY not in headers:
        return default
    try:
        stored = _decode_retry(headers[RETRY])
        return replace(
            default,
            max_attempts=stored.max_attempts,
            base=stored.base / 1e6,
            factor=stored.factor,
            max_delay=stored.max_delay / 1e6,
            jitter=stored.jitter,
        )
    except (msgspec.MsgspecError, ValueError, TypeError):  # written by another program
        return default


def timeout_of(headers: Mapping[str, str] | None, default: int | None) -> int | None:
    """Return the timeout of a job in microseconds: its own, if its headers have one, else `default`, the
    handler's.
    """
    text = None if headers is None else headers.get(TIMEOUT)
    is_number = text is not None and text.isascii() and text.isdecimal() and 0 < len(text) <= len(str(2**53))
    return int(text) if text is not None and is_number else default
