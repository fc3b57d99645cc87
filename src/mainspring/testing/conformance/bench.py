"""The engine under test with its time, and helpers for tests that act as submitters, workers and readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from mainspring.jobs.backlog import WaitingJobs
from mainspring.jobs.commands import Arrangement, CancelJob, Changed, Command, PauseQueue, PutLimit
from mainspring.jobs.engine import STALE, Demand, Engine, Situation, Swept, Taken
from mainspring.jobs.records import (
    Cause,
    JobRecord,
    Lease,
    NewJob,
    Outcome,
    OutcomeKind,
    Progress,
    ProgressReport,
    Query,
    WorkerInfo,
)
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.testing.conformance.engine_time import EngineTime
from mainspring.testing.manual_clock import ManualClock

MakeEngine: TypeAlias = Callable[[ManualClock], Engine]
"""Creates an engine on this clock, which an engine without `Capability.VIRTUAL_TIME` ignores.

With `Capability.SHARED`, all engines that one test creates use the same store.
"""

TYPE = "ping"
NAME = "tester"  # of the workers of the bench
LEAD_SECONDS = 1.0
SOON_SECONDS = 0.9 * LEAD_SECONDS
"""A time within the lead, but near its end, so that a slow machine has time to claim a job before it is due."""
START_LEAD_SECONDS = 0.01
STALE_SECONDS = STALE / MICROSECONDS
SWEEP_SECONDS = 5.0


def seconds(number: float) -> int:
    """Convert seconds to microseconds, the unit of engines."""
    return round(number * MICROSECONDS)


class Bench(EngineTime):
    """An open engine with helpers for tests. Jobs have the type `ping` by default."""

    # -- submitters

    def job(
        self,
        job_id: str = "job",
        *,
        after: float = 0,
        type: str = TYPE,
        queue: str = "default",
        priority: int = 1,
        payload: bytes = b"{}",
        codec: str = "json",
        expires: float | None = None,
        **policies: Any,
    ) -> NewJob:
        """Return a new job that is due `after` seconds, and expires `expires` seconds, from now.

        It is not submitted.
        """
        now = self.now
        policies["expires"] = None if expires is None else now + seconds(expires)
        return NewJob(job_id, type, queue, priority, now + seconds(after), payload, codec, **policies)

    def submit(self, *job_ids: str, **options: Any) -> None:
        """Submit jobs that differ only in their ids, and require that the engine stores all of them."""
        answers = self.engine.submit([self.job(job_id, **options) for job_id in job_ids])
        assert answers == [None] * len(job_ids)

    def change(self, command: Command) -> Changed:
        """Let the engine execute one command on a job, and return its answer."""
        (answer,) = self.engine.change([command])
        return answer

    def cancel(self, job_id: str = "job") -> Changed:
        """Cancel a job, and return the engine's answer."""
        return self.change(CancelJob(job_id))

    # -- operators

    def arrange(self, arrangement: Arrangement) -> bool:
        """Let the engine make one arrangement, such as a schedule, a pause or a limit; return whether it changed
        anything.
        """
        (is_changed,) = self.engine.arrange([arrangement])
        return is_changed

    def limit(self, family: str, most: int, *, per: float | None = None) -> bool:
        """Store a limit: at most `most` jobs at once, or with `per`, `most` starts in `per` seconds.

        Return False if an equal limit was stored before.
        """
        return self.arrange(PutLimit(family, most, None if per is None else seconds(per)))

    def pause(self, queue: str = "default") -> bool:
        """Pause a queue; return whether it was not paused before."""
        return self.arrange(PauseQueue(queue, is_paused=True))

    def resume(self, queue: str = "default") -> bool:
        """Resume a queue; return whether it was paused before."""
        return self.arrange(PauseQueue(queue, is_paused=False))

    # -- workers

    def enroll(
        self, *types: str, queues: tuple[str, ...] | None = None, timeouts: dict[str, int] | None = None
    ) -> int:
        """Register a new worker for these job types, by default `ping`, and return its number."""
        return self.engine.enroll(WorkerInfo(NAME, 1, types or (TYPE,), queues, timeouts or {}))

    def names_of(self, worker: int) -> tuple[str, str]:
        """Return how the history of a job may name a worker: its name, or its number if the name is not known."""
        return NAME, str(worker)

    def look(
        self,
        worker: int,
        *types: str,
        starts: int = 10,
        ahead: int = 10,
        queues: tuple[str, ...] | None = None,
        suspects: bool = True,
    ) -> Taken:
        """Let a worker claim jobs with one demand, and return the engine's whole answer."""
        demand = Demand(types or (TYPE,), starts, ahead, queues, suspects)
        return self.look_for(worker, demand)

    def look_for(self, worker: int, *demands: Demand) -> Taken:
        """Let a worker claim jobs with these demands and the usual lead times; return the engine's whole
        answer.
        """
        return self.engine.take(
            worker, demands, lead=seconds(LEAD_SECONDS), start_lead=seconds(START_LEAD_SECONDS)
        )

    def look_when_there(self, look: Callable[[], Taken]) -> Taken:
        """Call `look` and return its last answer. Without virtual time, repeat it until there are leases.

        After a minute without leases, it returns the answer as it is.
        """
        looks: list[Taken] = []

        def is_something() -> bool:
            looks.append(look())
            return bool(looks[-1].leases)

        self.eventually(is_something)
        return looks[-1]

    def take(self, worker: int, *types: str, **options: Any) -> list[Lease]:
        """Let a worker claim jobs with one demand, and return the leases."""
        return self.look(worker, *types, **options).leases

    def take_ids(self, worker: int, *types: str, **options: Any) -> list[str]:
        """Let a worker claim jobs with one demand, and return the ids of the jobs in order."""
        return [lease.id for lease in self.take(worker, *types, **options)]

    def take_when_there(self, worker: int, number: int, *types: str, **options: Any) -> list[Lease]:
        """Let a worker claim `number` due jobs: at once with virtual time, else as the server delivers them.

        Return fewer leases if there are not as many jobs, and more if the last claim brings more.
        """
        leases: list[Lease] = []

        def is_enough() -> bool:
            leases.extend(self.take(worker, *types, **options))
            return len(leases) >= number

        self.eventually(is_enough)
        return leases

    def take_not_before(
        self, instant: int, worker: int, number: int = 1, *types: str, **options: Any
    ) -> list[Lease]:
        """Claim `number` jobs, and require that the engine hands none out before `instant`.

        A slow machine may reach the instant before the first claim. An engine with its own time may then hand jobs
        out at once.
        """
        leases = self.take(worker, *types, **options)
        assert leases == [] or self.now >= instant
        if self.now < instant:
            self.pass_time((instant - self.now) / MICROSECONDS)
        if len(leases) < number:
            leases += self.take_when_there(worker, number - len(leases), *types, **options)
        return leases

    def ids_when_there(self, worker: int, number: int, *types: str, **options: Any) -> list[str]:
        """Let a worker claim `number` due jobs, and return their ids in order."""
        return [lease.id for lease in self.take_when_there(worker, number, *types, **options)]

    def sorted_when_there(self, worker: int, number: int, *types: str, **options: Any) -> list[Lease]:
        """Let a worker claim `number` due jobs in any order, and return their leases sorted by id."""
        return sorted(self.take_when_there(worker, number, *types, **options), key=lambda lease: lease.id)

    def begin(self, job_id: str = "job", **options: Any) -> tuple[int, Lease]:
        """Submit a job, and let a new worker claim it; return the worker and the lease.

        A due job is started by this.
        """
        worker = self.enroll()  # before the submit, so that no time passes after it
        self.submit(job_id, **options)
        return self._take_one(worker)

    def take_by_new_worker(self) -> tuple[int, Lease]:
        """Let a new worker claim the only available job; return its number and the lease."""
        return self._take_one(self.enroll())

    def _take_one(self, worker: int) -> tuple[int, Lease]:
        (lease,) = self.take_when_there(worker, 1)
        return worker, lease

    def settle(self, worker: int, lease: Lease, kind: OutcomeKind, **details: Any) -> bool:
        """Settle one lease, and return whether the engine accepted the outcome."""
        (is_accepted,) = self.engine.settle(worker, [Outcome(lease, kind, **details)])
        return is_accepted

    def complete(self, worker: int, *leases: Lease) -> None:
        """Settle leases as COMPLETED, and require that the engine accepts that."""
        outcomes = [Outcome(lease, OutcomeKind.COMPLETED) for lease in leases]
        assert self.engine.settle(worker, outcomes) == [True] * len(leases)

    def started(self, lease: Lease) -> Lease:
        """Return a copy of the lease that says that the job has started. The engine is not called."""
        return replace(lease, is_started=True)

    def report_begin(self, worker: int, *leases: Lease) -> bool:
        """Report that handlers begin; return whether all reports were accepted."""
        return all(self.engine.report(worker, [ProgressReport(lease, None) for lease in leases]))

    def report(self, worker: int, lease: Lease, done: float) -> bool:
        """Report the progress of a job, and return whether the report was accepted."""
        (is_accepted,) = self.engine.report(worker, [ProgressReport(lease, Progress(done, None, None, self.now))])
        return is_accepted

    def bury(self, job_id: str = "job", **options: Any) -> None:
        """Submit a job and let its only attempt fail without a retry, so that it becomes a dead letter."""
        worker, lease = self.begin(job_id, **options)
        assert self.settle(worker, lease, OutcomeKind.FAILED, error="it broke", cause=Cause.FAILURE)

    def end(self, job_id: str, status: JobStatus) -> None:
        """Submit a job, and settle it so that it gets this final status."""
        kind = next(kind for kind in OutcomeKind if kind.value.upper() == status)
        worker, lease = self.begin(job_id)
        assert self.settle(worker, lease, kind)

    def watch(self, duration: float, *workers: int) -> Swept:
        """Let time pass while these workers send heartbeats and the first one sweeps.

        Return the rescued and quarantined jobs of all sweeps, and the waiting jobs of the last one.
        """
        found = []
        for _ in range(round(duration / SWEEP_SECONDS)):
            self.pass_time(SWEEP_SECONDS)
            assert all(self.engine.renew(worker) for worker in workers)
            found.append(self.engine.sweep(workers[0]))
        rescued = [job_id for swept in found for job_id in swept.rescued]
        quarantined = [job_id for swept in found for job_id in swept.quarantined]
        return Swept(rescued, quarantined, found[-1].waiting)

    def waiting(self, worker: int) -> dict[str, WaitingJobs]:
        """Return the waiting jobs that a sweep reports, by job type."""
        return {waiting.type: waiting for waiting in self.engine.sweep(worker).waiting}

    def outlive(self, *survivors: int) -> Swept:
        """Let time pass until all workers except `survivors` count as dead; return what the sweeps have
        rescued.
        """
        return self.watch(STALE_SECONDS + 3 * SWEEP_SECONDS, *survivors)

    def crash(self, worker: int) -> Swept:
        """Let this worker and all others die by silence, and a new one rescue their jobs; return what it rescued.

        This needs virtual time.
        """
        survivor = self.enroll()
        swept = self.outlive(survivor)
        assert not self.engine.renew(worker)
        self.engine.leave(survivor)
        return swept

    # -- readers

    def record(self, job_id: str = "job") -> JobRecord:
        """Return the stored record of a job."""
        (record,) = self.engine.find(Query(ids=(job_id,))).records
        return record

    def status(self, job_id: str = "job") -> JobStatus:
        """Return the status of a job."""
        return self.record(job_id).status

    def gives_up(self, worker: int, *job_ids: str) -> bool:
        """Claim until these jobs are dead letters, and return True.

        Return False if a job was claimed meanwhile, or if they do not become dead letters in time.
        """
        taken: list[str] = []

        def are_letters() -> bool:
            taken.extend(self.take_ids(worker))
            return all(self.status(job_id) is JobStatus.FAILED for job_id in job_ids)

        return self.eventually(are_letters) and taken == []

    def is_rescued(self, worker: int, job_id: str = "job") -> bool:
        """Sweep until a job is PENDING again; return False if it is not in time."""

        def waits_again() -> bool:
            self.engine.sweep(worker)
            return self.status(job_id) is JobStatus.PENDING

        return self.eventually(waits_again)

    def situation(self, job_id: str = "job") -> Situation:
        """Return the facts in the store that explain why a job has its status."""
        situation = self.engine.situation(job_id)
        assert situation is not None
        return situation

    def find_ids(self, **options: Any) -> list[str]:
        """Return the ids of the jobs that match a query with these filters, in order."""
        return [record.id for record in self.engine.find(Query(**options)).records]
