"""Settles leases: stores the outcome of a job and everything that follows from it in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from secrets import token_hex

from msgspec.structs import replace

from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hands
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.messages import ACK, nak
from mainspring.engines.nats.queueing import Queueing
from mainspring.engines.nats.stored import StoredJob, change
from mainspring.engines.nats.submitting import NatsSubmitting
from mainspring.engines.nats.workspace import TooLarge, Workshop, Workspace
from mainspring.errors import EngineUnavailable
from mainspring.jobs import transitions
from mainspring.jobs.events import EventKind, event_after
from mainspring.jobs.records import Lease, Outcome, OutcomeKind, ProgressReport
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import RUNS_LATER

AT_ONCE = 300
MOST_TRIES = 50


class NatsSettling:
    """Stores outcomes and progress of jobs."""

    def __init__(
        self,
        workshop: Workshop,
        hands: Hands,
        *,
        submitting: NatsSubmitting,
        queueing: Queueing,
        gates: Gates,
        journal: NatsJournal,
    ) -> None:
        self._workshop = workshop
        self._hands = hands
        self._submitting = submitting
        self._queueing = queueing
        self._gates = gates
        self._journal = journal
        self._doubtful: dict[tuple[str, int], str] = {}  # nonces of outcomes that may have been stored

    def settle(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        """End leases; False for those that were no longer valid."""
        answers: list[bool] = []
        at_once = AT_ONCE
        while len(answers) < len(outcomes):
            part = outcomes[len(answers) : len(answers) + at_once]
            try:
                answers += self._settle_together(worker, part)
            except TooLarge:
                if len(part) == 1:
                    raise
                at_once = max(1, len(part) // 4)
        return answers

    def _settle_together(self, worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        answers: dict[int, bool] = {}
        left = dict(enumerate(outcomes))
        nonces = {number: self._nonce_of(outcome) for number, outcome in left.items()}
        doubtful = {number for number, (_, is_doubtful) in nonces.items() if is_doubtful}
        try:
            for _ in range(MOST_TRIES):
                workspace = self._workshop.open()
                self._know(workspace, worker, left, doubtful)
                for number, outcome in left.items():
                    nonce = nonces[number][0]
                    is_stored = number in doubtful and _was_stored(workspace, outcome, nonce)
                    answers[number] = is_stored or self._settle(workspace, worker, outcome, nonce)
                missed = self._workshop.commit_each(workspace)
                record_of = workspace.names.job
                doubtful = {number for number, outcome in left.items() if record_of(outcome.lease.id) in missed}
                done = [(outcome, answers[number]) for number, outcome in left.items() if number not in doubtful]
                self._let_go(worker, done)
                left = {number: left[number] for number in doubtful}
                if not left:
                    return [answers[number] for number in range(len(outcomes))]
            raise self._workshop.link.unavailable("others change the same jobs all the time", remedy="try again")
        except EngineUnavailable:
            # They may have been stored: if the worker sends them again, their nonces show it.
            for number, outcome in left.items():
                self._doubtful[outcome.lease.id, outcome.lease.token] = nonces[number][0]
            raise

    def _nonce_of(self, outcome: Outcome) -> tuple[str, bool]:
        """Return the nonce that tells an outcome from others, and whether it may have been stored already."""
        nonce = self._doubtful.pop((outcome.lease.id, outcome.lease.token), None)
        return (token_hex(8), False) if nonce is None else (nonce, True)

    def _gated(self, workspace: Workspace, outcomes: Iterable[Outcome]) -> list[StoredJob]:
        jobs = (workspace.job(outcome.lease.id) for outcome in outcomes if outcome.lease.frees_others)
        return [job for job in jobs if job is not None]

    def _know(
        self, workspace: Workspace, worker: int, outcomes: Mapping[int, Outcome], doubtful: set[int]
    ) -> None:
        """Treat the records of our leases as read; read the others, and those that another process has changed."""
        unknown = []
        for number, outcome in outcomes.items():
            hand = self._hands.get(outcome.lease.id)
            if number not in doubtful and hand is not None and hand.is_of(outcome.lease, worker):
                workspace.know_job(hand.job, hand.revision)
            else:
                unknown.append(outcome.lease.id)
        workspace.prefetch_jobs(unknown)
        self._gates.prefetch(workspace, self._gated(workspace, outcomes.values()))

    def _settle(self, workspace: Workspace, worker: int, outcome: Outcome, nonce: str) -> bool:
        job = workspace.job(outcome.lease.id)
        outcome = _with_lost_start(job, outcome, worker)
        if job is None or job.place != outcome.lease.ref or not transitions.can_settle(job, outcome, worker):
            return False
        if outcome.kind is not OutcomeKind.HANDED_BACK:
            self._journal.tell_start(workspace, job, outcome.began)
        after = change(transitions.settled(job, outcome, workspace.now), settled_by=nonce, is_start_untold=False)
        is_placed_anew = job.steps_aside and outcome.kind in RUNS_LATER
        if is_placed_anew:
            after = change(after, turn=after.due)
        if job.is_gated and job.status is JobStatus.RUNNING:
            keeps = after.status is JobStatus.PENDING and not is_placed_anew
            after = self._gates.leave(workspace, after, keeps_sequence=keeps)
        if after.status is JobStatus.PENDING:
            self._queueing.enqueue(workspace, after)
        else:
            self._end(workspace, after, outcome, nonce)
        self._tell(workspace, after, outcome)
        return True

    def _end(self, workspace: Workspace, job: StoredJob, outcome: Outcome, nonce: str) -> None:
        names = workspace.names
        if job.status is JobStatus.COMPLETED:
            if outcome.follow_up is not None:
                self._submitting.add(workspace, outcome.follow_up, nonce)
            if outcome.keep_result_until is not None:
                job = change(job, keep_result_until=outcome.keep_result_until)
                subject, chore = names.at("forget", job.id), names.chore("forget", job.id)
                workspace.draft.schedule(subject, chore, outcome.keep_result_until)
        if job.expires is not None:
            workspace.draft.purge(names.at("expire", job.id))
        workspace.put_job(job)

    def _tell(self, workspace: Workspace, job: StoredJob, outcome: Outcome) -> None:
        event = event_after(outcome.kind, job.status)
        if event is EventKind.FAILED:
            self._journal.write_failed(workspace, job)
        elif event is not None:
            self._journal.write(workspace, event, job)

    def _let_go(self, worker: int, settled: Sequence[tuple[Outcome, bool]]) -> None:
        """Acknowledge the messages of jobs that are over or queued again; give the others back to the server."""
        answers: list[tuple[str, bytes]] = []
        for outcome, is_accepted in settled:
            hand = self._hands.get(outcome.lease.id)
            if hand is not None and hand.is_of(outcome.lease, worker):
                self._hands.drop(outcome.lease.id)
                answers.append((hand.reply, ACK if is_accepted else nak(0)))
        self._workshop.link.send(answers)

    def report(self, worker: int, reports: Sequence[ProgressReport]) -> list[bool]:
        """Store that handlers begin, and the progress of jobs."""
        return self._workshop.carry_through_many(
            reports, lambda workspace, report: self._report(workspace, worker, report), before=_prefetch
        )

    def _report(self, workspace: Workspace, worker: int, report: ProgressReport) -> bool:
        job = workspace.job(report.lease.id)
        if job is None or not _is_running(job, report.lease, worker):
            return False
        if report.progress is None and not job.is_start_untold:
            return True
        self._journal.tell_start(workspace, job, workspace.now)
        after = change(job, is_start_untold=False)
        if report.progress is not None:
            after = change(after, progress=report.progress)
            self._journal.write(workspace, EventKind.PROGRESS, after)
        workspace.put_job(after)
        workspace.draft.then(lambda: self._note_report(workspace, after))
        return True

    def _note_report(self, workspace: Workspace, job: StoredJob) -> None:
        hand = self._hands.get(job.id)
        if hand is not None and (hand.job.place, hand.job.token) == (job.place, job.token):
            hand.job, hand.revision = job, workspace.revisions()[workspace.names.job(job.id)]


def _prefetch(workspace: Workspace, reports: Sequence[ProgressReport]) -> None:
    workspace.prefetch_jobs(report.lease.id for report in reports)


def _was_stored(workspace: Workspace, outcome: Outcome, nonce: str) -> bool:
    """Return whether an earlier try has stored an outcome, and only its answer was lost."""
    job = workspace.job(outcome.lease.id)
    return job is not None and (job.place, job.settled_by) == (outcome.lease.ref, nonce)


def _is_running(job: StoredJob, lease: Lease, worker: int) -> bool:
    return job.place == lease.ref and transitions.is_leased(job, lease, worker, JobStatus.RUNNING)


def _with_lost_start(job: StoredJob | None, outcome: Outcome, worker: int) -> Outcome:
    """Mark a handed-back lease as started, if its start was stored and only the answer was lost."""
    lease = outcome.lease
    is_held = outcome.kind is OutcomeKind.HANDED_BACK and not lease.is_started
    if job is None or not is_held or not _is_running(job, lease, worker):
        return outcome
    return Outcome(replace(lease, is_started=True), outcome.kind)
