"""Remote workers: programs in any language that claim, run and settle jobs over HTTP.

`RemoteWorkers` calls the engine for them. It keeps nothing about a worker in memory: the store has the worker, its
last heartbeat and its leases. So each request may go to another process, also after a restart.

Invariants
- A job is leased, fenced, limited and retried as with a worker of the application: the same calls of the engine
  and the same `OutcomeFactory` are used.
- A worker is alive as long as its heartbeats come within its lease. After that, the next `Engine.sweep` of any
  process rescues its jobs. While a process serves remote workers, it sweeps once a second.
- A job that started more than one lease ago, and that its worker does not name in a heartbeat that lists jobs, is
  interrupted: the answer to the claim was lost, and no program runs the job.
- The caller of a claim that waits is checked before each look for jobs, and once more before it gets jobs: a token
  that was revoked meanwhile gets none.
- A job that was asked to stop, and that its worker does not settle within two thirds of a lease, ends as CANCELED
  with the next heartbeat or claim of the worker. If there is none, a rescue ends it when the lease has ended.
- A signed job is verified before a worker gets it, and again before its outcome makes or signs anything.
- The answer to a settlement says nothing about jobs of types and queues that the worker does not serve.
- The methods are coroutines, which wait for the engine without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mainspring.errors import EngineUnavailable, WorkerNotFound
from mainspring.jobs.engine import Capability, Demand, Engine, Taken
from mainspring.jobs.handlers import Handler
from mainspring.jobs.io_layer import REPORT, SETTLE, AsyncReply, IoLayer, Operation, SingleOperation
from mainspring.jobs.job_policies import timeout_of
from mainspring.jobs.off_loop import OffLoop
from mainspring.jobs.records import (
    STATUS_AFTER,
    Cause,
    Direction,
    JobRecord,
    Lease,
    Outcome,
    OutcomeKind,
    Progress,
    ProgressReport,
    Query,
    RemoteTerms,
    RunningLease,
    WorkerInfo,
    WorkerRecord,
    is_suspect,
    refusal,
)
from mainspring.jobs.status import JobStatus
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.jobs.worker.attempt_log import log_dead_letter, log_failure, log_refusal, log_retry
from mainspring.jobs.worker.lease_table import LeasedJob
from mainspring.jobs.worker.maintenance import log_rescue
from mainspring.jobs.worker.outcomes import FollowUpFactory, OutcomeFactory, for_interruption, masked
from mainspring.jobs.worker.slots import Slots
from mainspring.plurals import format_count
from mainspring.security.permissions import Permissions, Scope

if TYPE_CHECKING:
    from mainspring.jobs.manager import JobManager
    from mainspring.jobs.signing import JobSigner

POLL_SECONDS = 1.0
"""A claim that waits for jobs asks the engine again at least this often, to find jobs that other processes
submit.
"""
SWEEP_SECONDS = 1.0

T = TypeVar("T")

logger = logging.getLogger("mainspring.remote")

_SLOTS = Slots(1, None)  # remote workers count their own slots


class RemoteJob(Struct, frozen=True):
    """A job that a remote worker has claimed."""

    lease: Lease
    timeout: int | None
    """How many microseconds the attempt may take; None for no limit."""


class Claimed(Struct, frozen=True):
    """The answer to a claim: the jobs that the remote worker got, and whether it should go on, be quiet (claim no
    more jobs) or end.
    """

    jobs: list[RemoteJob]
    direction: Direction
    lease: int
    """The lease of the worker in microseconds, which the server may have shortened."""
    is_full: bool = False
    """Whether nothing was claimed because the worker has as many jobs as it may have."""


class Held(Struct, frozen=True):
    """A job that a remote worker, in a request, says it is running; perhaps with the progress of the job."""

    id: str
    token: int
    progress: Progress | None = None


class HeldState(Struct, frozen=True):
    """The state of a job that a remote worker runs, in the answer to its heartbeat."""

    id: str
    token: int
    state: Literal["run", "stop", "lost"]
    """`run`: go on; `stop`: end the attempt; `lost`: the worker has no lease of the job with this fencing
    token.
    """
    reason: Literal["cancel", "timeout"] | None = None
    """Why to stop: `cancel` if the job was asked to stop, `timeout` if its timeout has passed; None unless
    `stop`.
    """


class Beaten(Struct, frozen=True):
    """The answer to a heartbeat: whether the worker should go on, be quiet (claim no more jobs) or end, and the
    state of each job it named.
    """

    direction: Direction
    jobs: list[HeldState]
    lease: int
    """The lease of the worker in microseconds, which the server may have shortened."""


class Settlement(Struct, frozen=True):
    """An outcome that a remote worker reports for a job that it has claimed.

    `make` builds the outcome from the leased job. It is not called if the worker has lost the lease, or if the
    signature of the job does not match.
    """

    id: str
    token: int
    make: Callable[[OutcomeFactory, LeasedJob], Outcome]
    is_release: bool = False
    """Whether the worker gives the job back without a result, so that another worker can run it."""


class Settled(Struct, frozen=True):
    """The answer to one settlement, or to one progress report, of a remote worker."""

    id: str
    token: int
    is_accepted: bool
    status: JobStatus | None
    """The status of the job after the settlement; None if it was refused."""
    due: int | None = None
    """When the job is due again, in microseconds since 1970; None unless `status` is PENDING."""
    problem: str | None = None
    """Why the settlement was refused; None if it was accepted."""


class RemoteWorkers:
    """Enrolls remote workers; claims and settles jobs, and stores heartbeats and progress, on their behalf."""

    def __init__(
        self,
        manager: JobManager,
        io: IoLayer,
        off_loop: OffLoop,
        store_declarations: Callable[[], None],
    ) -> None:
        self._manager = manager
        self._engine = manager.engine
        self._io = io
        self._off_loop = off_loop
        self._store_declarations = store_declarations
        self._signer = manager.signer
        self._on_settled = manager.waiter.announce
        engine = manager.engine
        follow_ups = FollowUpFactory(manager.registry, manager.submission.new_id, engine.now, engine.latest)
        self._factory = OutcomeFactory(
            manager.serializer, engine.now, follow_ups, latest=engine.latest, max_result=manager.max_payload
        )
        self._registry = manager.registry
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}  # of claims that wait for jobs
        self._claiming: Counter[int] = Counter()  # how many jobs requests in flight may claim, by worker
        self._claiming_lock = Lock()
        self._sweeper: asyncio.Task[None] | None = None

    # -- workers

    async def enroll(self, info: WorkerInfo) -> int:
        """Store a remote worker, after storing what the code declares, and return the number of the worker.

        From then on, this process rescues the jobs of dead workers once a second. Raises `EngineUnavailable` if
        the engine has no remote workers.
        """
        self._require_possible()
        await self._off_loop.write(self._store_declarations)
        number = await self._call(lambda engine: engine.enroll(info))
        self._keep_sweeping()
        return number

    def _require_possible(self) -> None:
        if Capability.REMOTE_WORKERS not in self._engine.capabilities:
            raise EngineUnavailable(
                engine=self._engine.description,
                reason="this engine has no remote workers",
                remedy="use a SQLite or NATS store, or run the handlers in a worker of the application",
            )

    async def _find(self, number: int, caller: str) -> tuple[WorkerRecord, RemoteTerms]:
        """Return the living remote worker with this number, and its terms.

        Raises `WorkerNotFound` if there is none, or if another caller has enrolled it.
        """
        for record in await self._read(self._engine.workers):
            terms = record.info.remote
            if record.number == number and terms is not None and not record.is_gone and terms.caller == caller:
                return record, terms
        raise WorkerNotFound(number=number)

    async def _renew(self, number: int, terms: RemoteTerms, longest_lease: int) -> RemoteTerms:
        """Store a heartbeat of a worker, shorten a lease that is too long, and return the terms from now on."""
        if not await self._call(lambda engine: engine.renew(number, longest_lease=longest_lease), durable=False):
            raise WorkerNotFound(number=number)
        return replace(terms, lease=min(terms.lease, longest_lease))

    async def leave(self, number: int, caller: str) -> list[str]:
        """Remove a remote worker from the store, and return the ids of the jobs that it was running.

        These jobs run again on other workers, and no attempt is used up. A job that runs at most once ends
        instead. A job of a type that this process does not declare is rescued later, and charged a crash. Raises
        `WorkerNotFound` if the caller has no such worker.
        """
        await self._find(number, caller)
        left = await self._read(self._engine.leased, number)
        await self._interrupt(number, left)
        await self._call(lambda engine: engine.leave(number))
        return [running.lease.id for running in left]

    async def has(self, number: int, caller: str) -> bool:
        """Return whether a caller has a living remote worker with this number."""
        try:
            await self._find(number, caller)
        except WorkerNotFound:
            return False
        return True

    async def remove(self, number: int, check: Callable[[WorkerRecord], None]) -> list[str]:
        """Remove a worker for an operator, as `JobManager.remove_worker` does, and rescue its jobs at once."""
        left = await self._off_loop.write(self._manager.remove_worker, number, check=check)
        self._keep_sweeping()
        log_rescue(await self._call(lambda engine: engine.sweep(0)))
        return left

    # -- claims

    async def claim(
        self,
        number: int,
        caller: str,
        *,
        jobs: int,
        seconds: float,
        most_held: int,
        longest_lease: int,
        authorize: Callable[[], Awaitable[Permissions]],
        is_over: Callable[[], Awaitable[bool]],
    ) -> Claimed:
        """Claim up to `jobs` due jobs for a remote worker; wait up to `seconds` for the first one.

        The claim is a heartbeat of the worker, too. Returns no job if none became due in time, or if the worker
        was told to be quiet (claim no more jobs) or to end. Together with the jobs that it has not settled, the
        worker gets at most `most_held`; if it has so many already, the answer has `is_full` True and no job, and
        the call returns at once. A lease that is longer than `longest_lease` microseconds is shortened to it.

        `authorize` returns what the caller may do at this moment, and raises an error if its token was revoked or
        has expired. It is called before each look for jobs, and before jobs are returned: after an error, they are
        handed back. `is_over` returns True once the client has gone or the server stops; then no job is claimed.
        Raises `WorkerNotFound` if the caller has no such worker.
        """
        loop = asyncio.get_running_loop()
        deadline, renewed = loop.time() + seconds, float("-inf")
        self._keep_sweeping()
        while True:
            wake = asyncio.Event()
            self._waiting[wake] = loop  # before the claim, so that no job that comes during the claim is missed
            try:
                allowed = await authorize()
                worker, terms = await self._find(number, caller)
                if await is_over():
                    return Claimed([], terms.direction, terms.lease)
                if loop.time() - renewed >= min(terms.lease, longest_lease) / MICROSECONDS / 3:
                    terms = await self._renew(number, terms, longest_lease)  # a claim is a heartbeat, too
                    renewed = loop.time()
                if terms.direction is not Direction.RUN:
                    return Claimed([], terms.direction, terms.lease)
                taken = await self._take_within(most_held, worker, jobs, allowed)
                if taken is None:
                    return Claimed([], terms.direction, terms.lease, is_full=True)
                leases = await self._allowed_leases(number, taken.leases, authorize)
                if leases or loop.time() >= deadline:
                    found = [RemoteJob(lease, self._timeout_of(lease)) for lease in leases]
                    return Claimed(found, terms.direction, terms.lease)
                pause = min(self._pause(taken), deadline - loop.time())
                try:
                    await asyncio.wait_for(wake.wait(), max(pause, 0.001))
                except TimeoutError:
                    continue
            except WorkerNotFound:
                await (
                    authorize()
                )  # the worker may have been removed because its token has ended: that is the error
                raise
            finally:
                self._waiting.pop(wake, None)

    async def _allowed_leases(
        self, number: int, leases: Sequence[Lease], authorize: Callable[[], Awaitable[Permissions]]
    ) -> Sequence[Lease]:
        """Return the leases of jobs that the caller may still have, and hand the others back.

        If the caller may have none any more, hand all back, and raise the error.
        """
        if not leases:
            return ()
        refused = leases
        try:
            allowed = await authorize()
            refused = [each for each in leases if not allowed.allows(Scope.WORK, type=each.type, queue=each.queue)]
        finally:
            await self._settle(number, [Outcome(lease, OutcomeKind.HANDED_BACK) for lease in refused])
        return [lease for lease in leases if lease not in refused]

    async def _take_within(self, most: int, worker: WorkerRecord, jobs: int, allowed: Permissions) -> Taken | None:
        """Lease jobs to a worker, which then has at most `most`; return None if it has so many already.

        Requests of the same worker to this server reserve room for the jobs that they may claim. A request that
        finds all room reserved gets no job. A request to another server does not see the reservations.
        """
        number = worker.number
        with self._claiming_lock:
            reserved = self._claiming[number]
            self._claiming[number] += jobs
        try:
            running = await self._end_ignored_stops(worker, await self._read(self._engine.leased, number))
            if len(running) >= most:
                return None
            room = min(jobs, most - len(running) - reserved)
            if room <= 0:
                return Taken([], None, is_more=True, stops=[])
            return await self._take(worker, room, running, allowed)
        finally:
            with self._claiming_lock:
                self._claiming[number] -= jobs
                if not self._claiming[number]:
                    del self._claiming[number]

    async def _end_ignored_stops(
        self, worker: WorkerRecord, running: Sequence[RunningLease]
    ) -> Sequence[RunningLease]:
        """End the jobs that a worker was asked to stop two thirds of a lease ago; return the other jobs.

        A worker that sends its heartbeats in time has so one lease for an answer, at most.
        """
        assert worker.info.remote is not None
        before = self._engine.now() - worker.info.remote.lease * 2 // 3
        ignored = [each for each in running if each.stop_asked is not None and each.stop_asked <= before]
        if not ignored:
            return running
        logger.warning(
            "remote worker %d (%s) did not stop %s within its lease; canceled without its answer: %s",
            worker.number,
            worker.info.name,
            format_count(len(ignored), "job"),
            ", ".join(each.lease.id for each in ignored[:5]),
        )
        error = "canceled: its worker did not stop it within its lease"
        await self._settle(
            worker.number, [Outcome(each.lease, OutcomeKind.CANCELED, error=error) for each in ignored]
        )
        return [each for each in running if each not in ignored]

    async def _take(
        self,
        worker: WorkerRecord,
        jobs: int,
        running: Sequence[RunningLease],
        allowed: Permissions,
    ) -> Taken:
        handlers = self._handlers(worker, allowed.types)
        once = tuple(name for name, handler in handlers.items() if handler.options.at_most_once)
        demand = Demand(
            types=tuple(handlers),
            starts=jobs,
            ahead=0,
            queues=_both(worker.info.queues, allowed.queues),
            suspects=not any(is_suspect(each.lease) for each in running),
            at_most_once=once,
            at_most_once_starts=jobs,
        )

        def take(engine: Engine) -> Taken:
            take = engine.take if self._signer is None else partial(self._signer.take, engine)
            return take(worker.number, [demand], lead=0, start_lead=0)

        taken = await self._call(take)
        if not taken.is_alive:
            raise WorkerNotFound(number=worker.number)
        if self._signer is not None:
            taken = await self._verified(worker.number, taken, self._signer)
        if taken.leases and self._engine.is_followed:  # the handlers begin now
            await self._report(worker.number, [ProgressReport(lease, None) for lease in taken.leases])
        return taken

    async def _verified(self, number: int, taken: Taken, signer: JobSigner) -> Taken:
        """Return the claim without the jobs whose signature is not valid, and make these jobs dead letters."""
        problems = {lease.id: signer.problem_of(lease) for lease in taken.leases}
        refusals = [refusal(each, text) for each in taken.leases if (text := problems[each.id]) is not None]
        await self._settle(number, refusals)
        return replace(taken, leases=[lease for lease in taken.leases if problems[lease.id] is None])

    def _handlers(self, worker: WorkerRecord, types: Collection[str] | None) -> dict[str, Handler]:
        """Return, by job type, the `app.remote_job` handlers whose jobs a worker may claim.

        These types are those that the worker has enrolled for, that this process declares, and that are in `types`
        (None for all).
        """
        names = [name for name in worker.info.types if types is None or name in types]
        known = {name: self._registry.get(name) for name in names if name in self._registry}
        return {name: handler for name, handler in known.items() if handler.is_remote}

    def _pause(self, taken: Taken) -> float:
        """Return after how many seconds a waiting claim asks the engine again, unless a wake-up comes first."""
        instants = [at for at in (taken.next_due, taken.next_look) if at is not None]
        first = (min(instants) - self._engine.now()) / MICROSECONDS if instants else POLL_SECONDS
        return min(POLL_SECONDS, max(0.0, first))

    def _timeout_of(self, lease: Lease) -> int | None:
        default = self._registry.get(lease.type).longest_run if lease.type in self._registry else None
        return timeout_of(lease.headers, default)

    @property
    def waiting(self) -> int:
        """How many claims of remote workers this process is serving now: those that take jobs or wait for some."""
        return len(self._waiting)

    def wake(self) -> None:
        """Make the claims that wait for jobs ask the engine again at once. Any thread may call it."""
        for event, loop in list(self._waiting.items()):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop was closed
                self._waiting.pop(event, None)

    # -- heartbeats

    async def beat(self, number: int, caller: str, held: Sequence[Held] | None, *, longest_lease: int) -> Beaten:
        """Store a heartbeat of a remote worker and the progress of its jobs; return the state of each listed job.

        A lease that is longer than `longest_lease` microseconds is shortened to it.

        `held` are the jobs that the worker says it runs. With None, it does not list them, and no job is given up.
        Otherwise, jobs that started more than one lease ago and are not in `held` are interrupted: they run again
        elsewhere, or end if they run at most once. Raises `WorkerNotFound` if the caller has no such worker.
        """
        self._keep_sweeping()
        worker, terms = await self._find(number, caller)
        terms = await self._renew(number, terms, longest_lease)
        leased = await self._end_ignored_stops(worker, await self._read(self._engine.leased, number))
        running = {each.lease.id: each for each in leased}
        given = held or ()
        current = {each.id: found for each in given if (found := _match(running, each.id, each.token)) is not None}
        news = [(current[each.id].lease, each.progress) for each in given if each.id in current and each.progress]
        if news:
            reports = [ProgressReport(lease, self._masked(lease, progress)) for lease, progress in news]
            await self._report(number, reports)
        if held is not None:
            before = self._engine.now() - terms.lease
            lost = [each for each in running.values() if each.lease.id not in current and each.started < before]
            await self._interrupt(number, lost)
        states = [self._state_of(each, current.get(each.id)) for each in given]
        return Beaten(terms.direction, states, terms.lease)

    def _state_of(self, held: Held, running: RunningLease | None) -> HeldState:
        if running is None:
            return HeldState(held.id, held.token, "lost")
        if running.is_asked_to_stop:
            return HeldState(held.id, held.token, "stop", "cancel")
        if self._is_overdue(running) is not None:
            return HeldState(held.id, held.token, "stop", "timeout")
        return HeldState(held.id, held.token, "run")

    def _is_overdue(self, running: RunningLease) -> int | None:
        """Return the timeout of a running job in microseconds if the job has run at least that long; else None."""
        timeout = self._timeout_of(running.lease)
        is_over = timeout is not None and self._engine.now() - running.started >= timeout
        return timeout if is_over else None

    # -- settlements

    async def settle(self, number: int, caller: str, settlements: Sequence[Settlement]) -> list[Settled]:
        """Store the outcomes that a remote worker reports; return an answer for each settlement, in order.

        A settlement that is repeated gets the same answer. Raises `WorkerNotFound` if the caller has no such
        worker, and `EngineUnavailable` if this process does not declare the type of a job.
        """
        worker, _ = await self._find(number, caller)
        running = {each.lease.id: each for each in await self._read(self._engine.leased, number)}
        jobs = {each.id: self._job_of(running, each, worker) for each in settlements}
        ends = [(job, self._outcome_of(each, job)) for each in settlements if (job := jobs[each.id]) is not None]
        for job, outcome in ends:
            self._log_end(job, outcome)
        answers = await self._settle(number, [outcome for _, outcome in ends])
        accepted = {
            outcome.lease.id: outcome for (_, outcome), answer in zip(ends, answers, strict=True) if answer
        }
        others = [each.id for each in settlements if each.id not in accepted]
        found = await self._read(self._engine.find, Query(ids=tuple(others))) if others else None
        records = {} if found is None else {each.id: each for each in found.records if _serves(worker.info, each)}
        return [
            _accepted(each, accepted[each.id], running[each.id])
            if each.id in accepted
            else _refused(each, records.get(each.id), number)
            for each in settlements
        ]

    def _job_of(
        self, running: Mapping[str, RunningLease], settlement: Settlement, worker: WorkerRecord
    ) -> LeasedJob | None:
        found = _match(running, settlement.id, settlement.token)
        if found is None:
            return None
        if found.lease.type not in self._registry:
            raise EngineUnavailable(  # the worker repeats the request after this error, perhaps elsewhere
                engine=self._engine.description,
                reason=f"this process does not declare the job type {found.lease.type!r}",
                remedy="declare it with app.remote_job, or let another server of the store answer",
            )
        return self._leased_job(found, worker.number)

    def _leased_job(self, running: RunningLease, number: int) -> LeasedJob:
        job = LeasedJob(running.lease, self._registry.get(running.lease.type), _SLOTS, _ignore, number)
        job.is_asked_to_stop = running.is_asked_to_stop
        job.timed_out_after = self._is_overdue(running)
        job.ready_at = running.started
        return job

    def _outcome_of(self, settlement: Settlement, job: LeasedJob) -> Outcome:
        # The lease was read from the store again, and may have been changed there since the job was verified.
        problem = None if self._signer is None else self._signer.change_of(job.lease)
        outcome = settlement.make(self._factory, job) if problem is None else refusal(job.lease, problem)
        outcome.began = job.ready_at
        outcome.took = max(0, self._engine.now() - job.ready_at)
        if self._signer is not None:
            self._signer.finish(outcome)
        return outcome

    def _log_end(self, job: LeasedJob, outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.FAILED:
            log_failure(job.context, outcome, None)
        elif outcome.kind is OutcomeKind.RETRY:
            log_retry(job.context, outcome, self._engine.now(), None)

    async def _settle(self, number: int, outcomes: Sequence[Outcome]) -> list[bool]:
        if not outcomes:
            return []
        reply: AsyncReply[list[bool]] = AsyncReply(asyncio.get_running_loop())
        size = sum(len(outcome.result or b"") for outcome in outcomes)
        self._io.dispatch(Operation(SETTLE, outcomes, reply, worker=number, size=size))
        answers = await reply.future
        for outcome, is_accepted in zip(outcomes, answers, strict=True):
            if not is_accepted:
                log_refusal(outcome)
            elif outcome.kind is OutcomeKind.FAILED:
                log_dead_letter(outcome)
        self._on_settled([outcome.lease.id for outcome, answer in zip(outcomes, answers, strict=True) if answer])
        return answers

    async def _interrupt(self, number: int, running: Sequence[RunningLease]) -> None:
        """End attempts of a remote worker that no program runs any more. The jobs run again; at-most-once jobs
        end.

        Jobs of types that this process does not declare are left alone.
        """
        jobs = [self._leased_job(each, number) for each in running if each.lease.type in self._registry]
        await self._settle(number, [for_interruption(job) for job in jobs])

    async def _report(self, number: int, reports: Sequence[ProgressReport]) -> None:
        reply: AsyncReply[list[bool]] = AsyncReply(asyncio.get_running_loop())
        self._io.dispatch(Operation(REPORT, reports, reply, worker=number, durable=False))
        await reply.future

    async def report(self, number: int, caller: str, held: Sequence[Held]) -> list[Settled]:
        """Store the progress of jobs that a remote worker runs; return an answer for each, in order.

        A report about a job that the worker does not run is refused. Raises `WorkerNotFound` if the caller has no
        such worker.
        """
        await self._find(number, caller)
        running = {each.lease.id: each for each in await self._read(self._engine.leased, number)}
        found = [(each, _match(running, each.id, each.token)) for each in held]
        reports = [
            ProgressReport(current.lease, self._masked(current.lease, each.progress))
            for each, current in found
            if current is not None and each.progress is not None
        ]
        if reports:
            await self._report(number, reports)
        return [
            Settled(each.id, each.token, True, JobStatus.RUNNING)
            if current is not None
            else Settled(each.id, each.token, False, None, problem=_not_running(each))
            for each, current in found
        ]

    def _masked(self, lease: Lease, progress: Progress) -> Progress:
        if progress.note is None or lease.type not in self._registry:
            return progress
        job = LeasedJob(lease, self._registry.get(lease.type), _SLOTS, _ignore, 0)
        return replace(progress, note=masked(job, progress.note))

    # -- calls of the engine

    async def _call(self, call: Callable[[Engine], T], *, durable: bool = True) -> T:
        reply: AsyncReply[T] = AsyncReply(asyncio.get_running_loop())
        self._io.dispatch(SingleOperation(call, reply, durable=durable))
        return await reply.future

    async def _read(self, call: Callable[..., T], *arguments: Any) -> T:
        return await self._off_loop.read(call, *arguments)

    # -- sweeping

    def _keep_sweeping(self) -> None:
        """Start the asyncio task that rescues jobs of dead workers once a second, unless it runs in this event
        loop.
        """
        loop = asyncio.get_running_loop()
        if self._sweeper is None or self._sweeper.done() or self._sweeper.get_loop() is not loop:
            self._sweeper = loop.create_task(self._sweep_regularly())

    async def _sweep_regularly(self) -> None:
        while True:
            try:
                log_rescue(await self._call(lambda engine: engine.sweep(0), durable=False))
            except EngineUnavailable as error:
                if self._manager.is_closed:
                    return
                logger.warning("jobs of dead workers could not be rescued; the next try is in a second: %s", error)
            except Exception:  # the task must go on
                logger.exception("jobs of dead workers could not be rescued; the next try is in a second")
            await asyncio.sleep(SWEEP_SECONDS)


def _match(running: Mapping[str, RunningLease], job_id: str, token: int) -> RunningLease | None:
    """Return the lease of a running job; None if the worker does not run it, or has it with another fencing
    token.
    """
    found = running.get(job_id)
    return found if found is not None and found.lease.token == token else None


def _accepted(settlement: Settlement, outcome: Outcome, running: RunningLease) -> Settled:
    status = STATUS_AFTER[outcome.kind]
    if status is JobStatus.PENDING and running.is_asked_to_stop:
        status = JobStatus.CANCELED
    due = (outcome.due if outcome.due is not None else running.lease.due) if status is JobStatus.PENDING else None
    return Settled(settlement.id, settlement.token, True, status, due)


def _refused(settlement: Settlement, record: JobRecord | None, number: int) -> Settled:
    """Return the answer to a settlement whose lease has ended.

    If the settlement repeats one that was stored before, the answer is that it was accepted. Otherwise it is a
    refusal with the reason: no such job, another worker has the job, or the lease ended without this result.
    """
    job_id, token = settlement.id, settlement.token
    if record is None:
        return Settled(job_id, token, False, None, problem=f"there is no job {job_id!r}")
    if record.token != token:
        problem = (
            f"the fencing token of job {job_id} is {record.token} now, and this one is {token}: another worker "
            "has claimed the job since; drop the result"
        )
        return Settled(job_id, token, False, None, problem=problem)
    if record.owner is not None:
        problem = f"worker {record.owner} runs job {job_id}, and this is worker {number}; drop the result"
        return Settled(job_id, token, False, None, problem=problem)
    if not record.starts or _ended_without(record, settlement):
        problem = (
            f"the lease of job {job_id} has ended without this result: the worker sent no heartbeat in time, or "
            "did not name the job in one; drop the result"
        )
        return Settled(job_id, token, False, None, problem=problem)
    due = record.due if record.status is JobStatus.PENDING else None
    return Settled(job_id, token, True, record.status, due)


def _not_running(held: Held) -> str:
    return f"this worker does not run job {held.id} with fencing token {held.token}; stop the attempt"


def _serves(worker: WorkerInfo, record: JobRecord) -> bool:
    """Return whether a worker serves the type and the queue of a job, so that it could have claimed it."""
    return record.type in worker.types and (worker.queues is None or record.queue in worker.queues)


def _ended_without(record: JobRecord, settlement: Settlement) -> bool:
    """Return whether the last attempt of a job ended by a crash, or an interruption, instead of by this
    settlement.
    """
    last = record.history[-1] if record.history else None
    if last is None or last.number != record.starts:
        return False
    return last.cause == Cause.CRASH or (last.cause == Cause.DEPLOY and not settlement.is_release)


def _both(first: tuple[str, ...] | None, second: Collection[str] | None) -> tuple[str, ...] | None:
    """Return the names that are in both collections. None stands for all names: None and None make None."""
    if second is None:
        return first
    return tuple(second) if first is None else tuple(name for name in first if name in second)


def _ignore(*_report: object) -> None:
    return None
