"""Updates the projection, a local copy of the job records for lists, and prunes ended jobs.

A process updates its projection when it is asked for a list: it reads the changes on the server in order, and
applies them in batches. So a list shows everything that was stored before the request.

Periodic reads, such as the updates of open pages, update it at most once a second. To apply the change of a job
takes a third of the processor time of its attempt. So while the process is busy, periodic reads see an earlier
state, unless updates take less than `PERIODIC_SHARE` of its processor time.

The server deletes ended jobs by itself if their retention was known when they ended. A process with the projection
prunes the others, a few at a time: jobs that ended under earlier settings, and jobs beyond the number to keep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from mainspring.clock import thread_ns
from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.job_records import decode_job, to_record
from mainspring.engines.nats.limiters import wait_of
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.subject_names import SubjectNames, digest, from_token
from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.errors import EngineUnavailable
from mainspring.jobs.commands import Changed, Command, Delete
from mainspring.jobs.engine import Pruned, Retention
from mainspring.jobs.pace import Pace
from mainspring.jobs.periodic_reads import PeriodicReads, computing, periodic_reads
from mainspring.jobs.projection import ProjectedJob, Projection
from mainspring.jobs.records import JobRecord, Query
from mainspring.jobs.status import JobStatus

PAGE_SIZE = 1_000
LOG_EVERY = 100_000
MAX_FILES = 16
PAUSE_SECONDS = 0.01
LAG_SECONDS = 2.0
PERIODIC_SHARE = 0.01
"""The largest share of the processor time of a busy process that updates for periodic reads take."""
REVISION_NS = 30_000
"""The expected cost of an update for each revision since the last update, in nanoseconds, until it is measured."""
RECEIVING = 1.3
"""The cost of an update, as a multiple of that of its thread: another thread receives the records."""

logger = logging.getLogger("mainspring.nats")


class Projector:
    """Keeps one projection (a local copy of the job records) up to date. Any thread may use it."""

    def __init__(
        self,
        jetstream: JetStream,
        names: SubjectNames,
        streams: Streams,
        make_projection: Callable[[str], Projection],
        pace: Pace | None = None,
    ) -> None:
        self._jetstream = jetstream
        self._names = names
        self._streams = streams
        self._make = make_projection
        self.lock = Lock()
        """Held by a thread that writes to the projection."""
        self._projection: Projection | None = None
        self._position = 0
        self._applied = 0  # the number of changes that the present update has applied
        self._pace = pace or Pace(share=PERIODIC_SHARE)
        self._revision_ns = REVISION_NS
        self._as_of: int | None = None  # when the last complete update began, by the server's time

    @property
    def is_open(self) -> bool:
        """Whether this process has opened a projection."""
        return self._projection is not None

    def catch_up(self, *, may_be_old: bool = True) -> Projection:
        """Apply all changes that were stored until now to the projection, and return it.

        For a periodic read, return an earlier state if the next update is not due, unless `may_be_old` is False.
        """
        reads = periodic_reads() if may_be_old else None
        before = self._position
        with self.lock:
            if self._position != before:
                self._jetstream.restart_deadline()  # another thread has updated the projection meanwhile
            projection = self._opened()
            now = self._jetstream.now()
            if reads is not None and self._as_of is not None and not self._is_due():
                reads.note_age((now - self._as_of) * 1_000)
                return projection
            self._update(projection, reads)
            self._as_of = now
            return projection

    def _is_due(self) -> bool:
        """Return whether a periodic read may update the projection now, because the pace allows the expected cost.

        The cost is estimated by the revisions up to the last job record that this process has stored.
        """
        revisions = max(0, self._jetstream.last_record - self._position)
        return self._pace.is_due(revisions * self._revision_ns)

    def _update(self, projection: Projection, reads: PeriodicReads | None) -> None:
        """Apply all changes that were stored until now, and tell the pace how much processor time this took."""
        began, position = thread_ns(), self._position
        self._applied = 0
        self._follow(projection)
        spent = thread_ns() - began
        if reads is not None:
            reads.add(-spent)  # the pace of updates counts it
        cost = round(spent * RECEIVING)
        self._pace.end(cost, 1.0 if reads is None else reads.availability)
        if self._applied >= PAGE_SIZE:
            self._revision_ns = cost // (self._position - position)

    def catch_up_for_maintenance(self) -> Projection:
        """Apply changes to the projection for the pruning and the repair of jobs, and return the projection.

        A projection that the settings name is always updated, because operators rely on its repairs. One that
        was opened for a list is updated as `catch_up` does: in a periodic read, its state may be old.
        """
        return self.catch_up(may_be_old=self._jetstream.settings.projection is None)

    def as_of(self, now: int) -> int:
        """Return the time of the state that `catch_up` has returned: `now`, or earlier for a periodic read."""
        return now if periodic_reads() is None or self._as_of is None else min(now, self._as_of)

    def open(self) -> Projection:
        """Return the projection without the changes of jobs since the last `catch_up`; open its file if needed."""
        with self.lock:
            return self._opened()

    def count_pending(self, queue: str, upto: int) -> int:
        """Count the pending jobs of a queue in the projection, after applying all changes up to a revision.

        In a cluster, a replica that lags behind may reply to a scan, so only the leader's reply ends the search.
        """
        with self.lock:
            projection = self._opened()
            self._applied = 0
            while self._position < upto:
                found = self._scan()
                if not found and self._jetstream.reads_leader:
                    found = self._jetstream.read_next(f"{self._names.jobs}>", after=self._position)
                if not found:
                    break  # the messages after this position are not records of jobs
                self._apply(projection, found)
                self._jetstream.restart_deadline()  # a submit may wait here while the projection is built
            return projection.count_pending(queue)

    def _opened(self) -> Projection:
        if self._projection is None:
            self._as_of = None
            self._projection = self._open()
        return self._projection

    def _open(self) -> Projection:
        """Open the projection file that the settings name, or the first of `MAX_FILES` files that can be opened.

        Each file serves one process at a time.
        """
        source = f"{self._names.stream} {self._streams.created}"
        chosen = self._jetstream.settings.projection
        if chosen is not None:
            projection = self._make(chosen)
            self._position = projection.open(source)
            return projection
        for number in range(MAX_FILES):
            projection = self._make(f"{digest(self._jetstream.address, self._names.prefix)}-{number}.db")
            try:
                self._position = projection.open(source)
            except EngineUnavailable:
                if number == MAX_FILES - 1:
                    raise
            else:
                return projection
        raise AssertionError(
            "unreachable: if no projection file can be opened, the error of the last one is raised"
        )

    def _follow(self, projection: Projection) -> None:
        waited = 0.0
        while True:
            found = self._scan()
            if found:
                self._apply(projection, found)
            elif self._position >= self._jetstream.last_record or waited >= LAG_SECONDS:
                self._jetstream.last_record = min(self._jetstream.last_record, self._position)
                return
            else:  # a replica may lack the last record of this process, or the record was deleted
                waited += PAUSE_SECONDS
                time.sleep(PAUSE_SECONDS)  # noqa: TID251 - no event tells when the replica has it

    def _scan(self) -> list[tuple[str, StoredMessage]]:
        return self._jetstream.scan(f"{self._names.jobs}>", after=self._position, most=PAGE_SIZE)

    def _apply(self, projection: Projection, found: list[tuple[str, StoredMessage]]) -> None:
        last = found[-1][1].revision
        with computing():
            changes = [self._read(subject, entry) for subject, entry in found]
        projection.apply(changes, last)
        self._position = last
        before, self._applied = self._applied, self._applied + len(found)
        if before // LOG_EVERY != self._applied // LOG_EVERY:
            total = f"{self._applied:,} changes"
            logger.info("%s is being updated: %s applied so far", projection.description, total)

    def _read(self, subject: str, entry: StoredMessage) -> ProjectedJob:
        if not entry.data:
            return ProjectedJob(from_token(subject.removeprefix(self._names.jobs)), 0, None)
        job = decode_job(entry.data)
        return ProjectedJob(job.id, job.place, to_record(job), job.search, wait_of(job))

    def lag(self) -> int:
        """Return by how many revisions the projection is behind the stream; 0 if this process has opened none."""
        if self._projection is None:
            return 0
        return max(0, self._jetstream.read_one(f"{self._names.jobs}>").revision - self._position)

    def rebuild(self) -> None:
        """Delete the content of the projection and build it again from the stream, as it is now."""
        with self.lock:
            if self._projection is not None:
                self._projection.reset()
                self._position, self._as_of = 0, None
        self.catch_up()

    def close(self) -> None:
        """Close the projection. The next process that opens its file continues where this one stopped."""
        with self.lock:
            projection, self._projection = self._projection, None
            if projection is not None:
                projection.close()


PRUNE_BATCH = 500
COUNTED_STATUSES = (JobStatus.COMPLETED, JobStatus.CANCELED)


class JobPruner:
    """Deletes ended jobs that were kept long enough, and the oldest COMPLETED and CANCELED ones if too many."""

    def __init__(self, projector: Projector, change: Callable[[Sequence[Command]], list[Changed]]) -> None:
        self._projector = projector
        self._change = change

    def prune(self, retention: Retention, now: int) -> Pruned:
        """Delete a batch of ended jobs: those kept long enough, and the oldest COMPLETED and CANCELED if too many.

        The result says how many were deleted, and whether there may be more to delete.
        """
        projection = self._projector.catch_up_for_maintenance()
        found = {record.id: record for record in self._find_old(projection, retention, now)}
        if len(found) < PRUNE_BATCH:
            found |= {record.id: record for record in self._find_excess(projection, retention, len(found))}
        chosen = list(found.values())[:PRUNE_BATCH]
        results = self._change([Delete(record.id, record.status) for record in chosen])
        deleted = sum(result.is_done for result in results)
        return Pruned(deleted, is_more=deleted > 0 and len(found) >= PRUNE_BATCH)

    def _find_old(self, projection: Projection, retention: Retention, now: int) -> Iterator[JobRecord]:
        """Yield jobs that were kept long enough.

        Only the first jobs of each status are read: they ended about first.
        """
        for status, kept in kept_by_status(retention).items():
            page = projection.find(Query(status=status, limit=PRUNE_BATCH))
            yield from (record for record in page.records if (record.finished or now) + kept <= now)

    def _find_excess(self, projection: Projection, retention: Retention, found: int) -> list[JobRecord]:
        if retention.most is None:
            return []
        counts = projection.counts()
        excess = sum(counts[status] for status in COUNTED_STATUSES) - retention.most - found
        if excess <= 0:
            return []
        most = min(excess, PRUNE_BATCH)
        pages = [projection.find(Query(status=status, limit=most)).records for status in COUNTED_STATUSES]
        return sorted((record for page in pages for record in page), key=_created)[:most]


def kept_by_status(retention: Retention) -> dict[JobStatus, int]:
    """Return how long ended jobs are kept, by status; a status that is kept for ever is left out."""
    kept = {
        JobStatus.COMPLETED: retention.completed,
        JobStatus.CANCELED: retention.canceled,
        JobStatus.FAILED: retention.failed,
    }
    return {status: time for status, time in kept.items() if time is not None}


def _created(record: JobRecord) -> int:
    return record.created
