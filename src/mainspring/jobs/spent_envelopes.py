"""Envelopes of ended jobs: which signatures an engine remembers, so that no copy of a job runs again.

An engine remembers the envelope of a signed job at the latest when the job is deleted, and until the signature
ends. It stores the id that was signed, and the instant of the signature: a job with the same id that was signed
later is another job, and may run. An engine reads signatures here without keys: it does not verify them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mainspring.jobs.job_policies import SIGNATURE
from mainspring.security.signatures import read


class Envelope(NamedTuple):
    """What an engine remembers of a signed job."""

    id: str
    """The signed id. It differs from the id of the job if the job has replaced another one."""
    signed: int
    until: int


def envelope_id(job_id: str, headers: Mapping[str, str] | None) -> str:
    """Return the signed id of a job, as its headers say."""
    text = None if headers is None else headers.get(SIGNATURE)
    if text is None or not text.startswith("1r."):
        return job_id
    try:
        return bytes.fromhex(text.split(".")[-2]).decode()
    except (ValueError, IndexError):
        return job_id


def envelope_of(job_id: str, headers: Mapping[str, str] | None, due: int) -> Envelope | None:
    """Return the envelope of a stored job; None if it is not signed.

    The job of an occurrence refers to the signature of its schedule: its envelope is the id of the job. `due` is
    its due time; it is remembered for a year, because only workers know how long it is valid.
    """
    text = None if headers is None else headers.get(SIGNATURE)
    if text is None:
        return None
    if text.startswith("1s."):
        return Envelope(job_id, _LAST, due + _YEAR)
    stamp = read(text)
    return None if stamp is None else Envelope(envelope_id(job_id, headers), stamp.signed, stamp.until)


_LAST = 1 << 62
_YEAR = 366 * 86_400 * 1_000_000
