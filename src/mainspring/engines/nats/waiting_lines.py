"""Waiting lines: the jobs that wait for a limiter, one line for each group of jobs under the same limits.

A waiting job is a message. It is stored together with the records of its job and of the limiter, which counts it.
It is deleted later. If the deletion is lost, the message is stale: the record of the job says where the job waits.

The first job of a line is the one with the smallest (turn, place). In most lines that is the oldest message. If a
job joined behind jobs with a later position, the order is exact among the first `MIXED_PAGE` messages.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from mainspring.engines.nats.job_records import StoredJob, decode, encode
from mainspring.engines.nats.limiters import Limiter, LimiterGroup, admission_of, limiters_of
from mainspring.engines.nats.subject_names import from_token
from mainspring.engines.nats.transaction import Transaction
from mainspring.jobs.limits import family_of

PAGE = 4
MIXED_PAGE = 64


class WaitingJob(Struct, frozen=True, array_like=True):
    """The message of a job that waits in a line."""

    turn: int
    place: int
    limiters: tuple[str, ...]
    """All limiters of the job, which are read together with it."""


class _LineEntry(NamedTuple):
    turn: int
    place: int
    job_id: str
    limiters: tuple[str, ...]


class _Line:
    """The part of a line that a transaction has read or added."""

    def __init__(self) -> None:
        self.read: dict[str, _LineEntry] = {}
        self.appended: dict[str, _LineEntry] = {}
        """The jobs that joined in this transaction."""
        self.position = 0
        """The revision up to which the line was read."""
        self.is_at_end = False

    def __len__(self) -> int:
        return len(self.read) + len(self.appended)

    def first(self) -> _LineEntry:
        """Return the job with the smallest position among those that were read or added."""
        return min((*self.read.values(), *self.appended.values()))

    def remove(self, job_id: str) -> None:
        """Remove a job from the line."""
        self.read.pop(job_id, None)
        self.appended.pop(job_id, None)


class WaitingLines:
    """Reads and changes lines within one transaction, which sees its own changes at once."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._names = transaction.names
        self._lines: dict[tuple[str, str], _Line] = {}

    def append(self, limiter: Limiter, group: LimiterGroup, job: StoredJob) -> None:
        """Add a job at the end of a line. The caller writes the records of the job and the limiter."""
        position = (job.turn, job.place)
        if group.waiting and position < (group.turn, group.place):
            group.is_mixed = True
        else:
            group.turn, group.place = position
            group.is_mixed = group.is_mixed and group.waiting > 0
        group.waiting += 1
        limiters = limiters_of(job)
        subject = self._names.waiting_job(limiter.name, group.name, job.id)
        self._transaction.batch.put(subject, encode(WaitingJob(*position, limiters)))
        self._line(limiter, group).appended[job.id] = _LineEntry(*position, job.id, limiters)

    def remove(self, limiter: Limiter, group: LimiterGroup, job_id: str) -> None:
        """Remove a job from a line. The caller writes the records of the job and the limiter."""
        group.waiting -= 1
        self._line(limiter, group).remove(job_id)
        self._transaction.batch.purge(self._names.waiting_job(limiter.name, group.name, job_id))

    def first(self, limiter: Limiter, group: LimiterGroup) -> StoredJob | None:
        """Return the next job; None: the line is empty, or a replica that lags behind does not have it yet."""
        if not group.waiting:
            return None
        line = self._line(limiter, group)
        while True:
            while not line.read and not line.is_at_end:
                self._read_page(limiter, group, line)
            if not line or (group.is_mixed and line.is_at_end and len(line) < group.waiting):
                return None
            entry = line.first()
            job = self._read_job(entry)
            if job is not None and self._waits_in(job, limiter, group):
                return job
            line.remove(entry.job_id)
            self._transaction.batch.purge(self._names.waiting_job(limiter.name, group.name, entry.job_id))

    @staticmethod
    def _waits_in(job: StoredJob, limiter: Limiter, group: LimiterGroup) -> bool:
        admission = admission_of(job)
        return (admission.limiter, admission.group) == (limiter.name, group.name)

    def _line(self, limiter: Limiter, group: LimiterGroup) -> _Line:
        return self._lines.setdefault((limiter.name, group.name), _Line())

    def _read_job(self, entry: _LineEntry) -> StoredJob | None:
        names = self._names
        limiters = [names.limiter(family_of(limiter), limiter) for limiter in entry.limiters]
        self._transaction.prefetch([names.job(entry.job_id), *limiters])
        return self._transaction.job(entry.job_id)

    def _read_page(self, limiter: Limiter, group: LimiterGroup, line: _Line) -> None:
        page = MIXED_PAGE if group.is_mixed else PAGE
        subject = self._names.line(limiter.name, group.name)
        found = self._transaction.scan(subject, after=line.position, most=page)
        for name, message in found:
            job_id = from_token(name.rpartition(".")[2])
            if message.data and job_id not in line.appended:  # else the appended entry replaces this one
                waiting = decode(message.data, WaitingJob)
                line.read[job_id] = _LineEntry(waiting.turn, waiting.place, job_id, waiting.limiters)
            line.position = max(line.position, message.revision)
        line.is_at_end = len(found) < page
