"""The workers there are, by their heartbeats, and the rescue of what the dead ones had."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.clock import Clock
from mainspring.engines.memory.jobs import Jobs
from mainspring.engines.memory.journal import Journal
from mainspring.jobs.engine import EventKind, JobRecord, WorkerInfo, WorkerState
from mainspring.jobs.status import JobStatus
from mainspring.jobs.transitions import rescued
from mainspring.jobs.working.vigil import DECLARED_DEAD, Vigil


class Workers:
    """Incarnations, each with a number that is never used again."""

    def __init__(self, clock: Clock, jobs: Jobs) -> None:
        self._jobs = jobs
        self._vigil = Vigil(clock)
        self._heartbeats: dict[int, int] = {}
        self._infos: dict[int, WorkerInfo] = {}
        self._last = 0

    def enroll(self, worker: WorkerInfo, now: int) -> int:
        """Begin an incarnation."""
        self._last += 1
        self._heartbeats[self._last] = now
        self._infos[self._last] = worker
        return self._last

    def is_enrolled(self, worker: int) -> bool:
        """Answer whether a worker was neither declared dead nor has left."""
        return worker in self._heartbeats

    def renew(self, worker: int, now: int) -> bool:
        """Note a heartbeat."""
        if worker not in self._heartbeats:
            return False
        self._heartbeats[worker] = now
        return True

    def announce(self, worker: int, types: tuple[str, ...]) -> bool:
        """Note which handlers a worker knows."""
        if worker not in self._infos:
            return False
        self._infos[worker] = replace(self._infos[worker], types=types)
        return True

    def leave(self, worker: int) -> None:
        """End an incarnation: what it held goes back; if it left jobs running, it is dead from now on."""
        for job in self._jobs.of({worker}):
            if job.status is JobStatus.PENDING:
                self._jobs.put(replace(job, owner=None))
        if self._jobs.of({worker}):
            self._heartbeats[worker] = DECLARED_DEAD
        else:
            self.bury(worker)

    def find_dead(self, observer: int) -> set[int]:
        """Return the others that have been silent for too long."""
        others = {number: beat for number, beat in self._heartbeats.items() if number != observer}
        return set(self._vigil.find_silent(others))

    def bury(self, worker: int) -> None:
        """Forget a worker."""
        self._heartbeats.pop(worker, None)
        self._infos.pop(worker, None)

    def all(self) -> list[WorkerState]:
        """Return all that were not buried."""
        return [
            WorkerState(number, self._infos[number], beat, is_gone=beat == DECLARED_DEAD)
            for number, beat in self._heartbeats.items()
        ]


class Rescue:
    """Takes jobs from the dead, one by one, and remembers what became of them."""

    def __init__(self, jobs: Jobs, journal: Journal, max_crashes: int) -> None:
        self._jobs = jobs
        self._journal = journal
        self._max_crashes = max_crashes
        self.rescued: list[str] = []
        self.quarantined: list[str] = []

    def take(self, job: JobRecord, now: int) -> None:
        """Take one job."""
        after = rescued(job, now, self._max_crashes)
        self._jobs.put(after)
        if job.status is JobStatus.PENDING:
            return  # nobody ran it
        self._journal.tell_start(job, now, job.started)
        if after.status is JobStatus.CANCELED:
            self._journal.write(EventKind.CANCELED, after, now)
        elif after.status is JobStatus.FAILED:
            self._journal.write_failed(after, now)
            self.quarantined.append(job.id)
        else:
            self._journal.write(EventKind.RESCUED, after, now)
            self.rescued.append(job.id)
