"""Reading: single jobs from the records themselves, lists and counts from the projection."""

from __future__ import annotations

from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, to_record
from mainspring.engines.nats.workspace import Workshop
from mainspring.jobs.engine import Situation
from mainspring.jobs.queries import Page, Query
from mainspring.jobs.records import JobRecord
from mainspring.jobs.status import JobStatus


class Reading:
    """Answers questions about jobs. From any thread."""

    def __init__(self, workshop: Workshop, projector: Projector, *, gates: Gates, book: SettingsBook) -> None:
        self._workshop = workshop
        self._projector = projector
        self._gates = gates
        self._book = book

    def find(self, query: Query) -> Page:
        """List jobs."""
        if query.ids is None:
            return self._projector.catch_up().find(query)
        workspace = self._workshop.open()
        workspace.prefetch_jobs(query.ids)
        jobs = [job for job_id in dict.fromkeys(query.ids) if (job := workspace.job(job_id)) is not None]
        wanted = [
            to_record(job)
            for job in sorted(jobs, key=_place, reverse=query.newest_first)
            if _is_wanted(job, query)
        ]
        return Page(wanted, None)

    def counts(self, *, queue: str | None, type_: str | None) -> dict[JobStatus, int]:
        """Count jobs by state."""
        return self._projector.catch_up().counts(queue=queue, type=type_)

    def queues(self) -> tuple[str, ...]:
        """List the queues in which there are jobs: a lane is kept longer than its last job."""
        return self._projector.catch_up().queues()

    def situation(self, job_id: str) -> Situation | None:
        """Say why a job is where it is."""
        workspace = self._workshop.open()
        job = workspace.job(job_id)
        if job is None:
            return None
        self._book.refresh()
        is_pending = job.status is JobStatus.PENDING
        refusal, holders = self._gates.refusal_of(workspace, job) if is_pending and job.limits else (None, ())
        return Situation(
            record=to_record(job),
            is_queue_paused=job.queue in self._book.paused,
            behind=self._gates.behind(workspace, job) if is_pending and job.sequence is not None else None,
            full_bucket=None if refusal is None else refusal.bucket,
            limited_until=None if refusal is None else refusal.until,
            bucket_holders=holders,
            unique_holder=uniqueness.find_alive_holder(workspace, job),
        )


def _place(job: StoredJob) -> int:
    return job.place


def _is_wanted(job: JobRecord, query: Query) -> bool:
    return (
        query.status in (None, job.status)
        and query.queue in (None, job.queue)
        and query.type in (None, job.type)
        and query.is_replayed in (None, job.replayed_as is not None)
        and query.is_limited in (None, bool(job.limits))
        and query.is_bound in (None, bool(job.limits) or job.sequence is not None)
        and (query.due_until is None or job.due <= query.due_until)
    )
