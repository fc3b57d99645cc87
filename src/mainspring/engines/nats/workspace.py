"""Optimistic transactions: a `Workspace` reads and writes, and `Workshop` repeats the work until it commits.

A workspace remembers the revision of each record that it reads. The commit stores all writes, if each written
record still has that revision; otherwise it stores nothing, and the work is repeated with current data. So the
code that uses a workspace is plain: it reads, decides and writes, as if it were alone.

Rule: a record that a decision depends on must be written by that transaction, or by every transaction that could
make the decision wrong. Records that are only read are not checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from mainspring.engines.nats.drafts import MOST_PUTS, Draft, Put, StreamEntry
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names, from_token
from mainspring.engines.nats.stored import StoredJob, decode, decode_job, encode
from mainspring.errors import EngineUnavailable
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS

T = TypeVar("T")
Item = TypeVar("Item")
S = TypeVar("S", bound=Struct)

MOST_TRIES = 200
PAUSE_SECONDS = 0.001


class TooLarge(Exception):
    """The writes of a transaction do not fit into one batch of the server."""


class Workspace:
    """The reads and writes of one attempt of a transaction."""

    def __init__(
        self,
        link: Link,
        names: Names,
        now: int,
        retention: Mapping[JobStatus, int],
        on_end: Callable[[Workspace, StoredJob, int], None],
    ) -> None:
        self.names = names
        self._retention = retention
        self._on_end = on_end
        self.now = now
        """The time of the transaction, by the server's clock, in microseconds."""
        self.draft = Draft()
        """For unconditional writes, and for actions after the commit."""
        self.keeper: object = None
        """The state that `gates` keeps for this transaction."""
        self._link = link
        self._read: dict[str, StreamEntry] = {}
        self._jobs: dict[str, StoredJob | None] = {}  # as last read or written here
        self._written: dict[str, tuple[bytes, Mapping[str, str] | None]] = {}
        self._announced: dict[str, str] = {}  # subjects of messages, by the subject of the job's record
        self._places: dict[str, int] = {}  # of written records, their index in the draft
        self._first = 0

    # -- anything

    def prefetch(self, subjects: Iterable[str]) -> None:
        """Read many subjects at once, except those that were read already."""
        self._read.update(self._link.read(subject for subject in subjects if subject not in self._read))

    def know(self, subject: str, revision: int, data: bytes) -> None:
        """Treat a subject as read, with this content."""
        self._read[subject] = StreamEntry(revision, data)

    def get(self, subject: str) -> bytes:
        """Return the data of a subject, as written here or else as read; empty if there is none."""
        written = self._written.get(subject)
        return self.entry(subject).data if written is None else written[0]

    def entry(self, subject: str) -> StreamEntry:
        """Return the message of a subject as it was read."""
        if subject not in self._read:
            self.prefetch([subject])
        return self._read[subject]

    def put(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Write the data of a subject, if no other process changes it first; empty data clears it for good."""
        self.entry(subject)
        self._written[subject] = (data, headers)

    def get_struct(self, subject: str, kind: type[S]) -> S | None:
        """Return the decoded data of a subject; None if there is none."""
        data = self.get(subject)
        return decode(data, kind) if data else None

    def put_struct(self, subject: str, value: Struct) -> None:
        """Encode a struct and write it to a subject."""
        self.put(subject, encode(value))

    def forget(self, subject: str) -> None:
        """Replace the data of a subject with a tombstone, which expires; until then readers see the deletion."""
        self.put(subject, b"", {"Nats-TTL": "604800s"})

    def scan(self, subject: str, *, after: int = 0, most: int = 1_000) -> list[tuple[str, StreamEntry]]:
        """Return the messages of subjects with a wildcard, in the order in which they were stored."""
        return self._link.scan(subject, after=after, most=most)

    # -- jobs

    def job(self, job_id: str) -> StoredJob | None:
        """Return a job; None if there is none."""
        if job_id not in self._jobs:
            data = self.get(self.names.job(job_id))
            self._jobs[job_id] = decode_job(data) if data else None
        return self._jobs[job_id]

    def job_at(self, subject: str) -> StoredJob | None:
        """Return the job whose record has this subject; None if there is none."""
        return self.job(from_token(subject.removeprefix(self.names.jobs)))

    def know_job(self, job: StoredJob, revision: int) -> None:
        """Treat a job as read, with the revision of its record."""
        self._read[self.names.job(job.id)] = StreamEntry(revision, b"")
        self._jobs[job.id] = job

    def prefetch_jobs(self, job_ids: Iterable[str]) -> None:
        """Read many jobs at once."""
        self.prefetch(self.names.job(job_id) for job_id in job_ids)

    def put_job(self, job: StoredJob) -> None:
        """Write the record of a job; the server deletes that of an ended job when its retention is over."""
        kept = self._retention.get(job.status) if job.is_over else None
        headers = None
        if kept is not None:
            left = max(1, ((job.finished or self.now) + kept - self.now) // MICROSECONDS)
            headers = {"Nats-TTL": f"{left}s"}
            self._on_end(self, job, left)
        self.put(self.names.job(job.id), encode(job), headers)
        self._jobs[job.id] = job

    def forget_job(self, job_id: str) -> None:
        """Delete a job."""
        self.forget(self.names.job(job_id))
        self._jobs[job_id] = None

    def announce(self, subject: str, job: StoredJob) -> None:
        """Store a message with the content of a job's record right behind that record, which is written here.

        The worker that gets the message knows the record and its revision, and need not read it.
        """
        self._announced[self.names.job(job.id)] = subject

    def purge(self, *subjects: str) -> None:
        """Empty subjects after the commit."""
        self.draft.purge(*subjects)

    def withdraw(self, subject: str) -> None:
        """Undo `announce` for a subject."""
        self._announced = {record: place for record, place in self._announced.items() if place != subject}

    # -- committing

    def revisions(self) -> dict[str, int]:
        """Return the revisions of all records that were stored here, by subject."""
        return {subject: self._first + place for subject, place in self._places.items()}

    def last_record(self) -> int:
        """Return the revision of the last job record that was stored here; 0 if there was none."""
        jobs = self.names.jobs
        return max((at for subject, at in self.revisions().items() if subject.startswith(jobs)), default=0)

    def note_stored(self, first: int) -> None:
        """Record that all writes were stored, with this revision for the first."""
        self._first = first

    @property
    def written(self) -> list[str]:
        """The subjects that are written here."""
        return list(self._written)

    def separate_puts(self) -> list[Put] | None:
        """Return the writes, if they are only job records, which need not be stored as one batch; else None."""
        draft = self.draft
        if self._announced or draft.puts or draft.sends or draft.purges or draft.has_more:
            return None
        are_jobs = all(subject.startswith(self.names.jobs) for subject in self._written)
        if not self._written or not are_jobs:
            return None
        return [
            Put(subject, data, self._read[subject].revision, headers)
            for subject, (data, headers) in self._written.items()
        ]

    def note_each(self, revisions: dict[str, int | None]) -> None:
        """Record the revisions of records that were stored one by one."""
        self._places = {subject: revision for subject, revision in revisions.items() if revision is not None}

    def finish(self) -> Draft:
        """Return all writes as a draft: each record with its message behind it, then the unconditional writes."""
        changes = Draft()
        for subject, (data, headers) in self._written.items():
            self._places[subject] = changes.put(subject, data, self._read[subject].revision, headers)
            announced = self._announced.get(subject)
            if announced is not None:
                changes.put(announced, data)
        changes.puts.extend(self.draft.puts)
        if len(changes) > MOST_PUTS:
            raise TooLarge
        changes.sends, changes.purges = self.draft.sends, self.draft.purges
        return changes


class Workshop:
    """Makes workspaces, and runs transactions until they commit."""

    def __init__(self, link: Link, names: Names) -> None:
        self.link = link
        self.names = names
        self.on_end: Callable[[Workspace, StoredJob, int], None] = lambda _workspace, _job, _seconds: None
        """Called for an ended job that the server deletes after some seconds."""
        self.retention: dict[JobStatus, int] = {}
        """After how many microseconds the server deletes ended jobs, by status; a missing status: never."""

    def now(self) -> int:
        """Return the server's time, in microseconds."""
        return self.link.now()

    def open(self) -> Workspace:
        """Begin a transaction: return a new workspace."""
        return Workspace(self.link, self.names, self.now(), self.retention, self.on_end)

    def carry_through(self, work: Callable[[Workspace], T]) -> T:
        """Run work in new transactions until one commits; return the result of that one."""
        for attempt in range(MOST_TRIES):
            workspace = self.open()
            result = work(workspace)
            if self.commit(workspace):
                return result
            time.sleep(PAUSE_SECONDS * random.random() * min(attempt, 20))  # noqa: TID251 - back-off
        raise EngineUnavailable(
            engine=f"NATS at {self.link.address}",
            reason=f"others have changed the same things {MOST_TRIES} times in a row",
            remedy="try again; if it goes on, many jobs share one sequence, limit or unique key",
        )

    def commit_each(self, workspace: Workspace) -> set[str]:
        """Store the writes of a workspace; return the subjects of those that failed: another process was faster.

        Records that do not depend on each other are stored one by one: a batch costs the server some milliseconds
        more, and twice the work for each record.
        """
        puts = workspace.separate_puts()
        if puts is None:
            return set() if self.commit(workspace) else set(workspace.written)
        revisions = self.link.store_each(puts)
        workspace.note_each(dict(zip((put.subject for put in puts), revisions, strict=True)))
        self.link.note_record(workspace.last_record())
        return {put.subject for put, revision in zip(puts, revisions, strict=True) if revision is None}

    def commit(self, workspace: Workspace) -> bool:
        """Store the writes of a workspace as one; False if another process was faster."""
        first = self.link.commit(workspace.finish())
        if first is None:
            return False
        workspace.note_stored(first)
        self.link.note_record(workspace.last_record())
        workspace.draft.settle()
        return True

    def carry_through_many(
        self,
        items: Sequence[Item],
        work: Callable[[Workspace, Item], T],
        *,
        before: Callable[[Workspace, Sequence[Item]], None] | None = None,
        at_once: int = 200,
    ) -> list[T]:
        """Run the same work for many items, in as few transactions as possible; each item sees earlier changes."""
        results: list[T] = []
        while items:
            part = items[:at_once]
            try:
                results += self.carry_through(partial(_do_all, part, work, before))
            except TooLarge:
                if len(part) == 1:
                    raise
                at_once = max(1, len(part) // 4)
                continue
            items = items[len(part) :]
        return results


def _do_all(
    items: Sequence[Item],
    work: Callable[[Workspace, Item], T],
    before: Callable[[Workspace, Sequence[Item]], None] | None,
    workspace: Workspace,
) -> list[T]:
    if before is not None:
        before(workspace, items)
    return [work(workspace, item) for item in items]
