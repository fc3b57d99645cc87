"""Commands on single jobs, carried out in memory."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.engines.memory.intake import Intake
from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.engines.memory.keys import ALIVE
from mainspring.jobs.engine import (
    Cancel,
    Changed,
    Command,
    Delete,
    Edit,
    EventKind,
    JobRecord,
    Regroup,
    Reopen,
    Replay,
    Reschedule,
)
from mainspring.jobs.status import FINAL, JobStatus
from mainspring.jobs.transitions import canceled, copy_of, reopened, taken_back


class Commands:
    """Carries out what users and operators ask for."""

    def __init__(self, jobs: Jobs, intake: Intake, journal: Journal) -> None:
        self._jobs = jobs
        self._intake = intake
        self._journal = journal

    def carry_out(self, command: Command, now: int) -> Changed:
        """Carry out one command, if the state of its job allows it."""
        job = self._jobs.records.get(command.id)
        if job is None:
            return Changed(False, None)
        match command:
            case Cancel():
                return Changed(self.cancel(job, now), job.status)
            case Reopen() | Replay() if job.status is JobStatus.FAILED:
                return self._run_again(job, command, now)
            case Edit() if job.status is JobStatus.FAILED:
                self._jobs.put(replace(job, payload=command.payload, codec=command.codec))
            case Delete() if job.status in FINAL and command.status in (None, job.status):
                self._jobs.remove(job)
            case Reschedule() if job.status is JobStatus.PENDING:
                self._jobs.put(replace(taken_back(job), due=command.due), is_placed_anew=True)
                self._journal.write(EventKind.RESCHEDULED, job, now)
            case Regroup() if job.status is JobStatus.PENDING:
                self._jobs.put(replace(taken_back(job), limits=command.limits))
            case _:
                return Changed(False, job.status)
        return Changed(True, job.status)

    def cancel(self, job: JobRecord, now: int) -> bool:
        """Call a job off, or ask it to stop; answer whether it will never run."""
        if job.status is JobStatus.PENDING:
            self._jobs.put(canceled(job, now))
            self._journal.write(EventKind.CANCELED, job, now)
        elif job.status is JobStatus.RUNNING:
            self._jobs.put(replace(job, stop_requested=True))
        return job.status is JobStatus.PENDING

    def _run_again(self, job: JobRecord, command: Reopen | Replay, now: int) -> Changed:
        if job.replayed_as is not None:
            return Changed(False, job.status, job.replayed_as)  # its work goes on elsewhere
        if isinstance(command, Replay):
            self._intake.add(copy_of(job, command), now)
            self._jobs.put(replace(job, replayed_as=command.new_id))
            return Changed(True, job.status)
        holder = unique_holder(self._jobs, job)
        if holder is not None:
            return Changed(False, job.status, holder, is_unique_conflict=True)
        self._jobs.put(reopened(job, command.due), is_placed_anew=True)
        self._journal.write(EventKind.REOPENED, job, now)
        return Changed(True, job.status)


def unique_holder(jobs: Jobs, job: JobRecord) -> str | None:
    """Return another job that has not ended, with the same unique key."""
    if job.unique_key is None:
        return None
    alive = (jobs.at(place).id for place in jobs.keys.newest(job.unique_key, ALIVE))
    return next((job_id for job_id in alive if job_id != job.id), None)
