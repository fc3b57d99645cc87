"""A workspace: what somebody reads and changes as one, on the assumption that nobody else does meanwhile.

Everything that is read is remembered with its revision, and what is written is stored only if that revision is
still there. If it is not, the whole work is done again from what is there now. So the code that works on a
workspace is plain: it reads, decides and writes, as if it were alone.

Rule: whatever a decision depends on must be written by it, or by everybody who could make it wrong.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct

from mainspring.engines.nats.drafts import MOST_PUTS, Draft, Entry, Put
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names, from_token
from mainspring.engines.nats.stored import StoredJob, decode, decode_job, encode
from mainspring.errors import EngineUnavailable
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.status import JobStatus

T = TypeVar("T")
Item = TypeVar("Item")
S = TypeVar("S", bound=Struct)

MOST_TRIES = 200
PAUSE_SECONDS = 0.001


class TooLarge(Exception):
    """The work does not fit into what the server takes as one."""


class Workspace:
    """Reads and writes of one attempt."""

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
        """The instant at which all of it happens, in the server's time."""
        self.draft = Draft()
        """For what is stored whatever was there before, and for what is done afterwards."""
        self.keeper: object = None
        """What the gates know of this workspace."""
        self._link = link
        self._read: dict[str, Entry] = {}
        self._jobs: dict[str, StoredJob | None] = {}  # as last read or written here
        self._written: dict[str, tuple[bytes, Mapping[str, str] | None]] = {}
        self._announced: dict[str, str] = {}  # by the subject of their record
        self._places: dict[str, int] = {}  # of what is written, in the draft
        self._first = 0

    # -- anything

    def prefetch(self, subjects: Iterable[str]) -> None:
        """Read many at once, what was not read yet."""
        self._read.update(self._link.read(subject for subject in subjects if subject not in self._read))

    def know(self, subject: str, revision: int, data: bytes) -> None:
        """Take something as read."""
        self._read[subject] = Entry(revision, data)

    def get(self, subject: str) -> bytes:
        """Return what a subject holds, as written here or else as read; empty for nothing."""
        written = self._written.get(subject)
        return self.entry(subject).data if written is None else written[0]

    def entry(self, subject: str) -> Entry:
        """Return what a subject held when it was read."""
        if subject not in self._read:
            self.prefetch([subject])
        return self._read[subject]

    def put(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Let a subject hold something else, if nobody changes it meanwhile; empty: nothing, for good."""
        self.entry(subject)
        self._written[subject] = (data, headers)

    def get_struct(self, subject: str, kind: type[S]) -> S | None:
        """Return what a subject holds, decoded."""
        data = self.get(subject)
        return decode(data, kind) if data else None

    def put_struct(self, subject: str, value: Struct) -> None:
        """Let a subject hold this."""
        self.put(subject, encode(value))

    def forget(self, subject: str) -> None:
        """Let a subject hold nothing: a mark that vanishes, so that nobody takes it for what it was."""
        self.put(subject, b"", {"Nats-TTL": "604800s"})

    def scan(self, subject: str, *, after: int = 0, most: int = 1_000) -> list[tuple[str, Entry]]:
        """Return what subjects with a wildcard hold, in the order in which it was stored."""
        return self._link.scan(subject, after=after, most=most)

    # -- jobs

    def job(self, job_id: str) -> StoredJob | None:
        """Return a job."""
        if job_id not in self._jobs:
            data = self.get(self.names.job(job_id))
            self._jobs[job_id] = decode_job(data) if data else None
        return self._jobs[job_id]

    def job_at(self, subject: str) -> StoredJob | None:
        """Return the job whose record stands there."""
        return self.job(from_token(subject.removeprefix(self.names.jobs)))

    def know_job(self, job: StoredJob, revision: int) -> None:
        """Take a job as read."""
        self._read[self.names.job(job.id)] = Entry(revision, b"")
        self._jobs[job.id] = job

    def prefetch_jobs(self, job_ids: Iterable[str]) -> None:
        """Read many jobs at once."""
        self.prefetch(self.names.job(job_id) for job_id in job_ids)

    def put_job(self, job: StoredJob) -> None:
        """Let a job be like this; the server forgets one that has ended when its time is over."""
        kept = self._retention.get(job.status) if job.is_over else None
        headers = None
        if kept is not None:
            left = max(1, ((job.finished or self.now) + kept - self.now) // MICROSECONDS)
            headers = {"Nats-TTL": f"{left}s"}
            self._on_end(self, job, left)
        self.put(self.names.job(job.id), encode(job), headers)
        self._jobs[job.id] = job

    def forget_job(self, job_id: str) -> None:
        """Let a job be gone."""
        self.forget(self.names.job(job_id))
        self._jobs[job_id] = None

    def announce(self, subject: str, job: StoredJob) -> None:
        """Store, right behind the record of a job that is written here, a message that carries it.

        Who gets the message knows the record and its revision, and need not read it.
        """
        self._announced[self.names.job(job.id)] = subject

    def purge(self, *subjects: str) -> None:
        """Take messages away."""
        self.draft.purge(*subjects)

    def withdraw(self, subject: str) -> None:
        """Announce nothing there after all."""
        self._announced = {record: place for record, place in self._announced.items() if place != subject}

    # -- the end

    def revisions(self) -> dict[str, int]:
        """Return the revisions of everything that was stored here, by subject."""
        return {subject: self._first + place for subject, place in self._places.items()}

    def last_record(self) -> int:
        """Return the revision of the last job that was stored here; 0 if there was none."""
        jobs = self.names.jobs
        return max((at for subject, at in self.revisions().items() if subject.startswith(jobs)), default=0)

    def note_stored(self, first: int) -> None:
        """It was stored, beginning with this revision."""
        self._first = first

    @property
    def written(self) -> list[str]:
        """The subjects that are written here."""
        return list(self._written)

    def separate_puts(self) -> list[Put] | None:
        """Return what is to be stored, if it is job records that need not be stored as one."""
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
        """Records were stored each for itself, with these revisions."""
        self._places = {subject: revision for subject, revision in revisions.items() if revision is not None}

    def finish(self) -> Draft:
        """Return everything as a draft: records first, then what they announce."""
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
    """Makes workspaces, and carries work through."""

    def __init__(self, link: Link, names: Names) -> None:
        self.link = link
        self.names = names
        self.on_end: Callable[[Workspace, StoredJob, int], None] = lambda _workspace, _job, _seconds: None
        """Called for a job that the server forgets after some seconds."""
        self.retention: dict[JobStatus, int] = {}
        """After how many microseconds the server forgets jobs that ended like this; those not named never."""

    def now(self) -> int:
        """Return the server's time."""
        return self.link.now()

    def open(self) -> Workspace:
        """Return a new workspace."""
        return Workspace(self.link, self.names, self.now(), self.retention, self.on_end)

    def carry_through(self, work: Callable[[Workspace], T]) -> T:
        """Do work until nobody was quicker; what it returned then."""
        for attempt in range(MOST_TRIES):
            workspace = self.open()
            result = work(workspace)
            if self.commit(workspace):
                return result
            time.sleep(PAUSE_SECONDS * random.random() * min(attempt, 20))  # noqa: TID251 - others come first
        raise EngineUnavailable(
            engine=f"NATS at {self.link.address}",
            reason=f"others have changed the same things {MOST_TRIES} times in a row",
            remedy="try again; if it goes on, many jobs share one sequence, limit or unique key",
        )

    def commit_each(self, workspace: Workspace) -> set[str]:
        """Store what a workspace has; return the records with which somebody was quicker.

        Records that have nothing to do with each other are stored each for itself: a draft costs the server some
        milliseconds more, and twice the work for each of them.
        """
        puts = workspace.separate_puts()
        if puts is None:
            return set() if self.commit(workspace) else set(workspace.written)
        revisions = self.link.store_each(puts)
        workspace.note_each(dict(zip((put.subject for put in puts), revisions, strict=True)))
        self.link.note_record(workspace.last_record())
        return {put.subject for put, revision in zip(puts, revisions, strict=True) if revision is None}

    def commit(self, workspace: Workspace) -> bool:
        """Store what a workspace has; False if somebody was quicker."""
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
        """Do the same work for many, in as few drafts as possible; each sees what those before it did."""
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
