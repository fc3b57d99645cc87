"""Envelopes: what an engine remembers of the signatures of ended jobs, so that no copy of such a job runs again.

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
    """The parts of a job's signature that an engine remembers: the id, when it was signed, and until when it is
    valid.
    """

    id: str
    """The signed id: the id of the job, or of the new job whose arguments `on_conflict="replace"` gave it."""
    signed: int
    until: int


def envelope_id(job_id: str, headers: Mapping[str, str] | None) -> str:
    """Return the id that the signature of a job covers.

    It is the job's own id, or the id of the new job whose arguments `on_conflict="replace"` gave this job.
    """
    text = None if headers is None else headers.get(SIGNATURE)
    if text is None or not text.startswith("1r."):
        return job_id
    try:
        return bytes.fromhex(text.split(".")[-2]).decode()
    except (ValueError, IndexError):
        return job_id


def envelope_of(job_id: str, headers: Mapping[str, str] | None, due: int) -> Envelope | None:
    """Return the envelope (signed id, time and end of the signature) of a stored job; None if the job has no
    signature, or one that cannot be read.

    The job of a schedule has the signature of its schedule. Its envelope has the job's own id, and ends a year
    after its due time `due`, because only workers know how long it is valid.
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
