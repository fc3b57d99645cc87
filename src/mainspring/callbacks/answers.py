"""The answers of receivers, and what they mean for the job.

| answer | meaning |
|---|---|
| a success code | the job is completed |
| 410, or a code of `stop` | a dead letter, without further attempts |
| 429, 503 | a retry; the receiver gets no requests for a while: see `pauses.py` |
| any other, or none | a retry |

A retry waits for `Retry-After`, if the answer has one, else as the retry policy says.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, NamedTuple

from mainspring.jobs.retry import RetryLater

LONGEST_REQUESTED = 86_400.0
"""The longest delay of a retry that a receiver can ask for by `Retry-After`, in seconds."""
GONE = 410
SLOW = frozenset({429, 503})
KEPT_HEADERS = ("content-type", "date", "etag", "location", "retry-after", "x-request-id")
MAX_KEPT_HEADER = 500


class ReceiverAnswer(NamedTuple):
    """The answer of a receiver: its status, its headers with names in lower case, and the start of its body."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_cut: bool


class ReceiverError(Exception):
    """The base class of failures of a receiver. The stored error has no traceback: no code of ours has failed."""

    shows_traceback = False


class NoAnswer(ReceiverError):
    """Raised if the receiver cannot be reached, or does not answer with HTTP. A later attempt may succeed.

    Also raised if the receiver has not answered when the job times out, or is asked to stop.
    """


class ReceiverFailed(ReceiverError):
    """The receiver answered with a failure that is neither `ReceiverGone` nor `ReceiverBusy`.

    The attempt fails, and is retried by the retry policy.
    """


class ReceiverGone(ReceiverError):
    """The receiver answered 410, or a code of `app.http_job(stop=...)`.

    The job becomes a dead letter without further attempts.
    """


class ReceiverBusy(RetryLater):
    """The receiver answered with a failure that has `Retry-After`.

    The attempt fails, and the next one waits `delay` seconds.
    """

    def __init__(self, delay: float, text: str) -> None:
        super().__init__(delay)
        self.args = (text,)


def is_success(status: int, success: Collection[int] | None) -> bool:
    """Return whether a status completes the job: one of `success`, or of 200 to 299 if that is None."""
    return 200 <= status <= 299 if success is None else status in success


def is_busy(status: int, success: Collection[int] | None, stop: Collection[int]) -> bool:
    """Return whether a status asks for a pause: 429 or 503, unless the job type gives them another meaning."""
    return status in SLOW and status not in stop and not is_success(status, success)


def judge(
    answer: ReceiverAnswer,
    what: str,
    *,
    now: datetime,
    pause: float | None = None,
    success: Collection[int] | None = None,
    stop: Collection[int] = (),
) -> None:
    """Return if the answer is a success; else raise `ReceiverGone`, `ReceiverBusy` or `ReceiverFailed`.

    - `what`: the request, for the text of the error: `POST https://hooks.example.com/orders`
    - `now`: the time, for a `Retry-After` that is a date
    - `pause`: how many seconds the receiver is paused because of this answer; None if it is not
    - `success`: the codes of a success; None for 200 to 299
    - `stop`: codes that end the job, beside 410
    """
    status = answer.status
    if is_success(status, success):
        return
    text = f"{what} was answered with {status}"
    if status == GONE or status in stop:
        raise ReceiverGone(f"{text}: no further attempts are made after this status")
    wait = retry_after(answer.headers.get("retry-after"), now)
    if pause is not None:
        text = f"{text}: this receiver gets no requests for {pause:g} s"
    if wait is not None:
        raise ReceiverBusy(wait, f"{text}, and Retry-After asks for {wait:g} s")
    hint = " (redirects are not followed: use the URL that it names)" if 300 <= status <= 399 else ""
    raise ReceiverFailed(f"{text}{hint}")


def to_result(answer: ReceiverAnswer) -> dict[str, Any]:
    """Return the job's result: the status of the answer, some headers, and the start of the body as text."""
    kept = {name: answer.headers[name][:MAX_KEPT_HEADER] for name in KEPT_HEADERS if name in answer.headers}
    return {
        "status": answer.status,
        "headers": kept,
        "body": answer.body.decode("utf-8", "replace"),
        "is_cut": answer.is_cut,
    }


def retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds that a `Retry-After` header asks for, by a number or a date.

    Return 0 for a date in the past, one day if the header asks for more, and None if it is missing or cannot be
    read.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), LONGEST_REQUESTED)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - few receivers answer so

    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, min((date - now).total_seconds(), LONGEST_REQUESTED))
