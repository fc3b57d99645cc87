"""Starting what is held: PENDING becomes RUNNING just before a job is due, if it is still ours."""

from __future__ import annotations

from collections.abc import Sequence

from mainspring.engines.nats.hands import Hands
from mainspring.engines.nats.journal import Journal
from mainspring.engines.nats.messages import nak
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.stored import StoredJob, change
from mainspring.engines.nats.workspace import Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.records import Lease
from mainspring.jobs.status import JobStatus

MOST_TRIES = 20


class Starting:
    """Commits starts."""

    def __init__(self, workshop: Workshop, hands: Hands, book: SettingsBook, journal: Journal) -> None:
        self._workshop = workshop
        self._hands = hands
        self._book = book
        self._journal = journal

    def start(self, worker: int, leases: Sequence[Lease]) -> list[bool]:
        """Mark held jobs RUNNING."""
        left = list(leases)
        accepted: set[tuple[str, int]] = set()
        try:
            for attempt in range(MOST_TRIES):
                left = self._try(worker, left, accepted, must_read=attempt > 0)
                if not left:
                    break
        except EngineUnavailable:
            if not accepted:
                raise
        return [(lease.id, lease.token) in accepted for lease in leases]

    def _try(
        self, worker: int, leases: list[Lease], accepted: set[tuple[str, int]], *, must_read: bool
    ) -> list[Lease]:
        """Store starts; return those with whose jobs somebody was quicker."""
        workspace = self._workshop.open()
        if must_read:
            workspace.prefetch_jobs(lease.id for lease in leases)
        jobs = [self._start(workspace, worker, lease, must_read=must_read) for lease in leases]
        missed = self._workshop.commit_each(workspace)
        decided = [
            (lease, job)
            for lease, job in zip(leases, jobs, strict=True)
            if workspace.names.job(lease.id) not in missed
        ]
        self._note_starts(workspace, worker, decided)
        accepted |= {(lease.id, lease.token) for lease, job in decided if job is not None}
        return [lease for lease in leases if workspace.names.job(lease.id) in missed]

    def _start(self, workspace: Workspace, worker: int, lease: Lease, *, must_read: bool) -> StoredJob | None:
        hand = self._hands.get(lease.id)
        if hand is None or not hand.is_of(lease, worker):
            return None
        if not must_read:
            workspace.know_job(hand.job, hand.revision)
        job = workspace.job(lease.id)
        if job is not None and must_read and transitions.is_leased(job, lease, worker, JobStatus.RUNNING):
            workspace.put_job(job)  # it was stored the first time, of which only the answer was lost
            return job
        if job is None or not transitions.is_leased(job, lease, worker, JobStatus.PENDING):
            return None
        if job.queue in self._book.paused:
            return None
        started = transitions.started(job, worker, workspace.now, is_held=True)
        started = change(started, is_start_untold=self._journal.is_heard(workspace))
        workspace.put_job(started)
        return started

    def _note_starts(
        self, workspace: Workspace, worker: int, decided: Sequence[tuple[Lease, StoredJob | None]]
    ) -> None:
        revisions = workspace.revisions()
        for lease, job in decided:
            hand = self._hands.get(lease.id)
            if hand is None or hand.worker != worker:
                continue
            if job is not None:
                hand.job, hand.revision = job, revisions[workspace.names.job(job.id)]
            elif hand.is_of(lease, worker) and hand.job.status is JobStatus.PENDING:
                self._hands.drop(lease.id)  # cancelled, put off, or taken from us
                self._workshop.link.send([(hand.reply, nak(0))])
