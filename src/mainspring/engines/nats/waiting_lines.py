"""Waiting lines: the jobs that wait for a limiter, one line for each group of jobs under the same limits.

Each waiting job has a message in its line. The message is stored in one transaction with the record of the job and
with the record of the limiter, which counts the waiting jobs. The message is deleted after the transaction in
which the job leaves the line. If the deletion is lost, the message is stale. Readers recognize a stale message,
because the record of the job says where the job waits.

The first job of a line is the job with the smallest (turn, place). The record of the limiter contains the first
jobs of each line, the front of the line. So the transaction that ends a job finds the next job without reading the
line. When the front is used up, the next `FRONT` jobs are read from the messages; in most lines these are the
oldest messages. A line is mixed if a job was added behind jobs with a later position. In a mixed line, the order
is exact among the first `MIXED_PAGE` messages.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from msgspec import Struct

from mainspring.engines.nats.job_records import StoredJob, decode, encode
from mainspring.engines.nats.limiters import Limiter, LimiterGroup, Waiter, admission_of, limiters_of
from mainspring.engines.nats.subject_names import from_token
from mainspring.engines.nats.transaction import Transaction
from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.jobs.limits import family_of

FRONT = 32
"""How many jobs the fronts of all lines of a limiter contain together.

The lines share this number equally. If there are more lines, the front of each contains one job.
"""
MIXED_PAGE = 64


class WaitingJob(Struct, frozen=True, array_like=True):
    """The message of a job that waits for a limiter: a sequence, a limit or a queue."""

    turn: int
    place: int
    limiters: tuple[str, ...]
    """All limiters of the job. They are read together with the job."""


class _LineReader:
    """The jobs of a line (under the same limits, waiting for a limiter) that a transaction has read.

    They fill the front of the line, which the record of the limiter contains.
    """

    def __init__(self, subject: str, page: int) -> None:
        self.subject = subject
        self.page = page
        self.position = 0
        """The revision up to which the line was read."""
        self.found: list[Waiter] = []
        self.is_at_end = False


class WaitingLines:
    """Reads and changes lines within one transaction. Reads include the changes of the same transaction.

    A line has the jobs under the same limits that wait for one limiter: a sequence, a limit or a queue.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._names = transaction.names
        # the jobs that this transaction has added: by limiter and group, then by job id
        self._appended: dict[tuple[str, str], dict[str, Waiter]] = {}

    def append(self, limiter: Limiter, group: LimiterGroup, job: StoredJob) -> None:
        """Add a job to a line of jobs that wait for a limiter: a sequence, limit or queue.

        The caller writes the records of the job and the limiter.
        """
        position = (job.turn, job.place)
        if group.waiting and position < (group.turn, group.place):
            group.is_mixed = True
        else:
            group.turn, group.place = position
            group.is_mixed = group.is_mixed and group.waiting > 0
        limiters = limiters_of(job)
        waiter = Waiter(*position, job.id, tuple(name for name in limiters if name != limiter.name))
        is_complete = len(group.front) == group.waiting
        if is_complete or (group.front and waiter < group.front[-1]):
            insort(group.front, waiter)
            del group.front[_room(limiter) :]
        group.waiting += 1
        subject = self._names.waiting_job(limiter.name, group.name, job.id)
        self._transaction.batch.put(subject, encode(WaitingJob(*position, limiters)))
        self._appended.setdefault((limiter.name, group.name), {})[job.id] = waiter

    def remove(self, limiter: Limiter, group: LimiterGroup, job_id: str) -> None:
        """Remove a job from a line of jobs that wait for a limiter: a sequence, limit or queue.

        The caller writes the records of the job and the limiter.
        """
        group.waiting -= 1
        self._forget(limiter, group, job_id)

    def _forget(self, limiter: Limiter, group: LimiterGroup, job_id: str) -> None:
        group.front[:] = [waiter for waiter in group.front if waiter.job_id != job_id]
        self._appended.get((limiter.name, group.name), {}).pop(job_id, None)
        self.delete_message(limiter.name, group.name, job_id)

    def delete_message(self, limiter: str, group: str, job_id: str) -> None:
        """Delete the message that says that a job waits for a sequence, limit or queue: it no longer waits."""
        self._transaction.batch.purge(self._names.waiting_job(limiter, group, job_id))

    def first(self, limiter: Limiter, group: LimiterGroup) -> StoredJob | None:
        """Return the first job of a line, which waits for a limiter (a sequence, limit or queue).

        Return None if there is none, or a lagging replica lacks its message.

        Take jobs that no longer wait out of the front of the line, which the limiter's record has, and delete
        their messages.
        """
        while group.waiting:
            if not group.front:
                self.fill([(limiter, group)])
            if not group.front:
                return None
            waiter = group.front[0]
            self._transaction.prefetch(self._records_of(waiter))
            job = self._transaction.job(waiter.job_id)
            if job is not None and _waits_in(job, limiter, group):
                return job
            self._forget(limiter, group, waiter.job_id)
        return None

    def prefetch(self, heads: Iterable[tuple[Limiter, LimiterGroup, int]], also: Iterable[str]) -> None:
        """Read the first jobs of many lines with their other limiters, and the records of the subjects in `also`.

        A line has jobs that wait for a limiter: a sequence, limit or queue.

        `heads` has the limiter and the group of each line, and how many jobs of the line to read.
        """
        wanted = [head for head in heads if head[1].waiting]
        self.fill([(limiter, group) for limiter, group, _ in wanted if not group.front])
        waiters = [waiter for _, group, most in wanted for waiter in group.front[:most]]
        self._transaction.prefetch([*also, *(record for waiter in waiters for record in self._records_of(waiter))])

    def _records_of(self, waiter: Waiter) -> list[str]:
        names = self._names
        return [names.job(waiter.job_id), *(names.limiter(family_of(other), other) for other in waiter.others)]

    # -- reading the messages

    def fill(self, lines: Sequence[tuple[Limiter, LimiterGroup]]) -> None:
        """Fill the fronts of lines (the first waiting jobs, in the record of a sequence, limit or queue) from the
        messages of waiting jobs.

        Each request to the server reads a page of every line. Stale messages are deleted. If the messages of a
        line are not in order (`is_mixed`), its front stays as it is if a lagging replica lacks messages.
        """
        readers = [
            _LineReader(self._names.line(limiter.name, group.name), MIXED_PAGE if group.is_mixed else FRONT)
            for limiter, group in lines
        ]
        while unread := [
            index for index, reader in enumerate(readers) if not reader.found and not reader.is_at_end
        ]:
            self._read_pages([(readers[index], *lines[index]) for index in unread])
        for reader, (limiter, group) in zip(readers, lines, strict=True):
            appended = self._appended.get((limiter.name, group.name), {})
            waiters = [waiter for waiter in reader.found if waiter.job_id not in appended]
            last = max(waiters, default=None)
            waiters += [own for own in appended.values() if reader.is_at_end or (last and own < last)]
            if group.is_mixed and reader.is_at_end and len(waiters) < group.waiting:
                continue  # a replica lags behind, and may lack the message of the first job
            group.front[:] = sorted(waiters)[: _room(limiter)]

    def _read_pages(self, readers: Sequence[tuple[_LineReader, Limiter, LimiterGroup]]) -> None:
        """Read the next page of messages of each line of waiting jobs, and delete the stale ones among them."""
        transaction = self._transaction
        page = max(reader.page for reader, _, _ in readers)
        pages = transaction.scan_each([(reader.subject, reader.position) for reader, _, _ in readers], most=page)
        waiters = [
            [_decode(limiter, *entry) for entry in found if entry[1].data]
            for found, (_, limiter, _) in zip(pages, readers, strict=True)
        ]
        transaction.prefetch_jobs(waiter.job_id for some in waiters for waiter in some)
        for found, some, (reader, limiter, group) in zip(pages, waiters, readers, strict=True):
            for waiter in some:
                job = transaction.job(waiter.job_id)
                if job is not None and _waits_in(job, limiter, group):
                    reader.found.append(waiter)
                else:
                    self.delete_message(limiter.name, group.name, waiter.job_id)
            reader.position = max((message.revision for _, message in found), default=reader.position)
            reader.is_at_end = len(found) < page


def _room(limiter: Limiter) -> int:
    return max(1, FRONT // len(limiter.groups))


def _decode(limiter: Limiter, subject: str, message: StoredMessage) -> Waiter:
    waiting = decode(message.data, WaitingJob)
    others = tuple(name for name in waiting.limiters if name != limiter.name)
    return Waiter(waiting.turn, waiting.place, from_token(subject.rpartition(".")[2]), others)


def _waits_in(job: StoredJob, limiter: Limiter, group: LimiterGroup) -> bool:
    """Return whether a job waits in a line for a limiter: a sequence, limit or queue.

    A job that got the place of an ended one by a hand-over does not, although its record may still say so: see
    `handover`.
    """
    admission = admission_of(job)
    return (admission.limiter, admission.group) == (limiter.name, group.name) and job.id not in limiter.holders
