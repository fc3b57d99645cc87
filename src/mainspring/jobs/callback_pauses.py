"""The records of receivers of callbacks that get no requests for a while, as the store has them for all workers.

A receiver that answers 429 or 503 is paused. The pause concerns one job type at its host. Jobs whose URL is an
argument share one type, so their pause concerns the URL first. A pause of the whole host concerns all job types.

Invariants
- A receiver has one record. It stays after the end of the pause until one request, a probe, has shown that the
  receiver answers again.
- A change names the record that it replaces. The engine refuses it if another process has changed the record.
- The store has at most `MOST_PAUSES` records. Those of the pauses that end first are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mainspring.jobs.timestamps import MICROSECONDS

MOST_PAUSES = 200
MOST_OF_URL = 200
LONGEST_SPREAD = 60 * MICROSECONDS
"""How long after the end of a pause the last of the jobs that were put off for it is due."""
PUT_OFF = "put off: "
"""The start of the note of a job that was put off because of a pause. The host follows, and a space."""


class CallbackPauseRecord(Struct, frozen=True, gc=False, array_like=True):
    """A paused receiver: a job type at a host, a URL, or a whole host. All times are microseconds since 1970."""

    host: str
    type: str | None
    """The job type; None for all types."""
    url: str | None
    """The URL without its query, for jobs whose URL is an argument; None for all URLs of the type."""
    status: int | None
    """The status of the answer that has caused the pause; None if a probe got no answer."""
    since: int
    until: int
    """The end of the pause. After it, one request is sent as a probe."""
    strikes: int = 1
    """How many pauses the receiver had in a row."""
    probe_until: int = 0
    """Until when a worker has to send the probe; 0 if no worker has taken it over."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The receiver, which has at most one record: host, type and URL."""
        return self.host, self.type or "", self.url or ""


def receiver_url(url: str) -> str:
    """Return the form of a URL in the records of pauses: without its query, and not longer than `MOST_OF_URL`."""
    return url.partition("?")[0][:MOST_OF_URL]


def pauses_of_job(
    pauses: Iterable[CallbackPauseRecord], type_: str, url: str | None, note: str | None
) -> list[CallbackPauseRecord]:
    """Return the pauses that concern a job: of its type or URL, and those of the whole host.

    - `url`: the argument `url` of the job, if it has one
    - `note`: the note of the job's last progress report, which names the host if the job was put off
    """
    own = None if url is None else receiver_url(url)
    found = list(pauses)
    hosts = {
        pause.host
        for pause in found
        if (pause.type == type_ and pause.url in (None, own)) or (note or "").startswith(f"{PUT_OFF}{pause.host} ")
    }
    return [
        each for each in found if each.host in hosts and each.type in (None, type_) and each.url in (None, own)
    ]


def kept_pauses(pauses: Iterable[CallbackPauseRecord]) -> tuple[CallbackPauseRecord, ...]:
    """Return the pauses that a store keeps, ordered by their receivers: at most `MOST_PAUSES`."""
    latest = sorted(pauses, key=lambda pause: pause.until, reverse=True)[:MOST_PAUSES]
    return tuple(sorted(latest, key=lambda pause: pause.key))


def replace_pause(
    pauses: Iterable[CallbackPauseRecord], before: CallbackPauseRecord | None, after: CallbackPauseRecord | None
) -> tuple[CallbackPauseRecord, ...] | None:
    """Return the pauses with `after` in the place of `before`; None if the receiver has another record than this.

    None for `before` or `after` means no record. Both are of the same receiver.
    """
    given = after or before
    assert given is not None
    by_receiver = {pause.key: pause for pause in pauses}
    if by_receiver.pop(given.key, None) != before:
        return None
    return kept_pauses((*by_receiver.values(), *([] if after is None else [after])))
