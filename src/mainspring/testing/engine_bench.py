"""A bench for engines: an engine, its time, and short ways to say what a test does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec.structs import replace

from mainspring.jobs.commands import Arrangement, Cancel, Changed, Command, PauseQueue, PutLimit
from mainspring.jobs.crew import WorkerInfo
from mainspring.jobs.engine import STALE, Demand, Engine, Situation, Swept, Taken
from mainspring.jobs.instants import MICROSECONDS
from mainspring.jobs.queries import Query
from mainspring.jobs.records import Cause, JobRecord, Lease, NewJob, Outcome, OutcomeKind, Progress, ProgressReport
from mainspring.jobs.status import JobStatus
from mainspring.jobs.waiting import Waiting
from mainspring.testing.engine_time import EngineTime
from mainspring.testing.manual_clock import ManualClock

MakeEngine: TypeAlias = Callable[[ManualClock], Engine]
"""Makes an engine on this clock, which an engine without `Capability.VIRTUAL_TIME` ignores.

With `Capability.SHARED`, all that one test makes work on the same jobs.
"""

TYPE = "ping"
LEAD_SECONDS = 1.0
SOON_SECONDS = 0.9 * LEAD_SECONDS
"""Within the lead, and late in it: a slow machine has so long to take a job ahead of its time."""
START_LEAD_SECONDS = 0.01
STALE_SECONDS = STALE / MICROSECONDS
SWEEP_SECONDS = 5.0


def seconds(number: float) -> int:
    """Convert to the microseconds of an engine."""
    return round(number * MICROSECONDS)


class Bench(EngineTime):
    """What a test works with. Jobs are of the type `ping` unless it says otherwise."""

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
        """Describe a job that is due, and perhaps expires, some seconds from now."""
        now = self.now
        policies["expires"] = None if expires is None else now + seconds(expires)
        return NewJob(job_id, type, queue, priority, now + seconds(after), payload, codec, **policies)

    def submit(self, *job_ids: str, **options: Any) -> None:
        """Store jobs that are alike but for their ids."""
        answers = self.engine.submit([self.job(job_id, **options) for job_id in job_ids])
        assert answers == [None] * len(job_ids)

    def change(self, command: Command) -> Changed:
        """Carry out one command."""
        (answer,) = self.engine.change([command])
        return answer

    def cancel(self, job_id: str = "job") -> Changed:
        """Call a job off."""
        return self.change(Cancel(job_id))

    # -- operators

    def arrange(self, arrangement: Arrangement) -> bool:
        """Carry out one arrangement."""
        (is_changed,) = self.engine.arrange([arrangement])
        return is_changed

    def limit(self, family: str, most: int, *, per: float | None = None) -> bool:
        """Define a limit: so many at once, or so many in some seconds."""
        return self.arrange(PutLimit(family, most, None if per is None else seconds(per)))

    def pause(self, queue: str = "default") -> bool:
        """Let no more jobs of a queue start."""
        return self.arrange(PauseQueue(queue, is_paused=True))

    def resume(self, queue: str = "default") -> bool:
        """Let jobs of a queue start again."""
        return self.arrange(PauseQueue(queue, is_paused=False))

    # -- workers

    def enroll(self, *types: str) -> int:
        """Begin an incarnation."""
        return self.engine.enroll(WorkerInfo("tester", 1, types or (TYPE,)))

    def look(
        self,
        worker: int,
        *types: str,
        starts: int = 10,
        ahead: int = 10,
        queues: tuple[str, ...] | None = None,
        suspects: bool = True,
    ) -> Taken:
        """Take with one demand."""
        demand = Demand(types or (TYPE,), starts, ahead, queues, suspects)
        return self.look_for(worker, demand)

    def look_for(self, worker: int, *demands: Demand) -> Taken:
        """Take with these demands, and the usual leads."""
        return self.engine.take(
            worker, demands, lead=seconds(LEAD_SECONDS), start_lead=seconds(START_LEAD_SECONDS)
        )

    def look_when_there(self, look: Callable[[], Taken]) -> Taken:
        """Look for jobs that are due; on a server, until the first ones are there."""
        looks: list[Taken] = []

        def is_something() -> bool:
            looks.append(look())
            return bool(looks[-1].leases)

        self.eventually(is_something)
        return looks[-1]

    def take(self, worker: int, *types: str, **options: Any) -> list[Lease]:
        """Take with one demand; only the leases."""
        return self.look(worker, *types, **options).leases

    def take_ids(self, worker: int, *types: str, **options: Any) -> list[str]:
        """Take with one demand; only the ids, in order."""
        return [lease.id for lease in self.take(worker, *types, **options)]

    def take_when_there(self, worker: int, number: int, *types: str, **options: Any) -> list[Lease]:
        """Take so many jobs that are due: at once on virtual time, else as they come from the server."""
        leases: list[Lease] = []

        def is_enough() -> bool:
            leases.extend(self.take(worker, *types, **options))
            return len(leases) >= number

        self.eventually(is_enough)
        return leases

    def ids_when_there(self, worker: int, number: int, *types: str, **options: Any) -> list[str]:
        """Take so many jobs that are due; only the ids, in order."""
        return [lease.id for lease in self.take_when_there(worker, number, *types, **options)]

    def sorted_when_there(self, worker: int, number: int, *types: str, **options: Any) -> list[Lease]:
        """Take so many jobs that are due, in whatever order; return them by their ids."""
        return sorted(self.take_when_there(worker, number, *types, **options), key=lambda lease: lease.id)

    def begin(self, job_id: str = "job", **options: Any) -> tuple[int, Lease]:
        """Submit a job that is due, and let a new worker take and so start it."""
        worker = self.enroll()  # before its time runs
        self.submit(job_id, **options)
        return self._take_one(worker)

    def take_by_new_worker(self) -> tuple[int, Lease]:
        """Let a new worker take the only job there is to take."""
        return self._take_one(self.enroll())

    def _take_one(self, worker: int) -> tuple[int, Lease]:
        (lease,) = self.take_when_there(worker, 1)
        return worker, lease

    def settle(self, worker: int, lease: Lease, kind: OutcomeKind, **details: Any) -> bool:
        """End one lease."""
        (is_accepted,) = self.engine.settle(worker, [Outcome(lease, kind, **details)])
        return is_accepted

    def complete(self, worker: int, *leases: Lease) -> None:
        """End leases well."""
        outcomes = [Outcome(lease, OutcomeKind.COMPLETED) for lease in leases]
        assert self.engine.settle(worker, outcomes) == [True] * len(leases)

    def started(self, lease: Lease) -> Lease:
        """Return the lease of a held job after its start."""
        return replace(lease, is_started=True)

    def report_begin(self, worker: int, *leases: Lease) -> bool:
        """Report that handlers begin; answer whether all reports were accepted."""
        return all(self.engine.report(worker, [ProgressReport(lease, None) for lease in leases]))

    def report(self, worker: int, lease: Lease, done: float) -> bool:
        """Tell how far a job has come."""
        (is_accepted,) = self.engine.report(worker, [ProgressReport(lease, Progress(done, None, None, self.now))])
        return is_accepted

    def bury(self, job_id: str = "job", **options: Any) -> None:
        """Make a dead letter."""
        worker, lease = self.begin(job_id, **options)
        assert self.settle(worker, lease, OutcomeKind.FAILED, error="it broke", cause=Cause.FAILURE)

    def end(self, job_id: str, status: JobStatus) -> None:
        """Make a job that has ended like this."""
        kind = next(kind for kind in OutcomeKind if kind.value.upper() == status)
        worker, lease = self.begin(job_id)
        assert self.settle(worker, lease, kind)

    def watch(self, duration: float, *workers: int) -> Swept:
        """Let time go by while these workers live and the first one sweeps, as workers do; return all it found."""
        found = []
        for _ in range(round(duration / SWEEP_SECONDS)):
            self.pass_time(SWEEP_SECONDS)
            assert all(self.engine.renew(worker) for worker in workers)
            found.append(self.engine.sweep(workers[0]))
        rescued = [job_id for swept in found for job_id in swept.rescued]
        quarantined = [job_id for swept in found for job_id in swept.quarantined]
        return Swept(rescued, quarantined, found[-1].waiting)

    def waiting(self, worker: int) -> dict[str, Waiting]:
        """Return what could start, as a sweep tells it, by handler."""
        return {waiting.type: waiting for waiting in self.engine.sweep(worker).waiting}

    def outlive(self, *survivors: int) -> Swept:
        """Let all workers but these be silent until they count as dead."""
        return self.watch(STALE_SECONDS + 3 * SWEEP_SECONDS, *survivors)

    def crash(self, worker: int) -> Swept:
        """Let a worker die; a new one sweeps. It takes virtual time."""
        survivor = self.enroll()
        swept = self.outlive(survivor)
        assert not self.engine.renew(worker)
        self.engine.leave(survivor)
        return swept

    # -- readers

    def record(self, job_id: str = "job") -> JobRecord:
        """Return a job as the store has it."""
        (record,) = self.engine.find(Query(ids=(job_id,))).records
        return record

    def status(self, job_id: str = "job") -> JobStatus:
        """Return the state of a job."""
        return self.record(job_id).status

    def gives_up(self, worker: int, *job_ids: str) -> bool:
        """Take as a worker does until these jobs are dead letters; False if one of them was handed out."""
        taken: list[str] = []

        def are_letters() -> bool:
            taken.extend(self.take_ids(worker))
            return all(self.status(job_id) is JobStatus.FAILED for job_id in job_ids)

        return self.eventually(are_letters) and taken == []

    def is_rescued(self, worker: int, job_id: str = "job") -> bool:
        """Sweep as a worker does until a job waits again."""

        def waits_again() -> bool:
            self.engine.sweep(worker)
            return self.status(job_id) is JobStatus.PENDING

        return self.eventually(waits_again)

    def situation(self, job_id: str = "job") -> Situation:
        """Return why a job is where it is."""
        situation = self.engine.situation(job_id)
        assert situation is not None
        return situation

    def find_ids(self, **options: Any) -> list[str]:
        """List jobs."""
        return [record.id for record in self.engine.find(Query(**options)).records]
