"""The endpoints that show the state of the store: workers, statistics, and the findings of `mainspring doctor`.

Invariants
- A restricted token sees the numbers of its job types and queues only, and nothing about the process of the
  server. It sees the workers that serve one of its types and queues, without their other types and queues.
- The findings of doctor concern all types and queues, and name paths and addresses. So they need the scope
  `operate` without restrictions.
- One examination runs at a time. Requests that come meanwhile share its report.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from mainspring.doctor import Finding, Report, Severity, examine
from mainspring.jobs.records import Direction
from mainspring.jobs.statistics import GroupStatistics, ProcessStatistics, Statistics, UpcomingSlot
from mainspring.jobs.worker_status import Liveness, WorkerStatus
from mainspring.security.permissions import Identity, Permissions, Scope
from mainspring.web.api.endpoint import OK, AnswerType, ApiAnswer, ApiCall, Endpoint, Instant, NoQuery
from mainspring.web.api.queues import in_seconds, longest, readable_groups

if TYPE_CHECKING:
    from mainspring.app import Mainspring


# -- workers


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker as the API shows it."""

    number: int
    name: Annotated[str, Meta(description="The host and the process id.", examples=["web-1:4711"])]
    process: int
    types: Annotated[list[str], Meta(description="The job types that the worker has handlers for.")]
    queues: Annotated[list[str] | None, Meta(description="The queues that the worker serves; null for all.")]
    state: Liveness
    heartbeat: Annotated[Instant | None, Meta(description="The last heartbeat; null if it was declared dead.")]
    slots: Annotated[
        dict[str, int],
        Meta(description="How many handlers the worker runs at once, by kind: threads, coroutines, processes."),
    ]
    version: Annotated[str | None, Meta(description="The worker's version of Mainspring; null if it is unknown.")]
    is_remote: Annotated[bool, Meta(description="Whether the worker claims jobs over HTTP.")]
    direction: Annotated[Direction, Meta(description="What a remote worker is asked to do.")]


class WorkerListView(Struct, frozen=True, kw_only=True):
    """The workers of the store, in all processes and on all machines, by number."""

    workers: list[WorkerView]


def worker_view(worker: WorkerStatus, permissions: Permissions, queue_of: Mapping[str, str]) -> WorkerView | None:
    """Return a worker as the caller may see it; None if a restricted caller must not see the worker.

    That is so if the worker serves none of the types, or none of the queues, to which the caller is restricted.
    `queue_of` has the queue of each handler of this process. A token for certain queues sees the types of these
    queues, and a token for certain types sees their queues.
    """
    types = [name for name in worker.types if permissions.types is None or name in permissions.types]
    if permissions.queues is not None:
        types = [name for name in types if queue_of.get(name) in permissions.queues]
    queues = worker.queues
    if queues is not None and (permissions.types is not None or permissions.queues is not None):
        known = permissions.queues
        if known is None:
            known = frozenset(queue for name, queue in queue_of.items() if name in (permissions.types or ()))
        queues = tuple(name for name in queues if name in known)
    if (permissions.types is not None and not types) or (permissions.queues is not None and queues == ()):
        return None
    return WorkerView(
        number=worker.number,
        name=worker.name,
        process=worker.process,
        types=sorted(types),
        queues=None if queues is None else sorted(queues),
        state=worker.state,
        heartbeat=worker.heartbeat,
        slots=dict(worker.slots),
        version=worker.version,
        is_remote=worker.is_remote,
        direction=Direction(worker.direction),
    )


# -- statistics


class GroupView(Struct, frozen=True, kw_only=True):
    """The numbers of jobs of one queue and job type."""

    queue: str
    type: str
    due: Annotated[int, Meta(description="Jobs that could start now: they wait only for a worker.")]
    blocked: Annotated[
        int, Meta(description="Jobs that are due, but wait for a pause, a limit or their sequence.")
    ]
    scheduled: Annotated[int, Meta(description="Jobs that are due later.")]
    running: int
    dead_letters: Annotated[int, Meta(description="Jobs that failed and were not replayed.")]
    oldest_due: Annotated[float | None, Meta(description="How many seconds the oldest due job has waited.")]
    oldest_blocked: Annotated[
        float | None, Meta(description="How many seconds the oldest blocked job has waited.")
    ]
    is_exact: Annotated[
        bool, Meta(description="False if a number may be too small: at most 10,000 jobs are counted.")
    ]


class UpcomingSlotView(Struct, frozen=True, kw_only=True):
    """Scheduled jobs that become due within the same slot of 268 ms."""

    queue: str
    type: str
    at: Instant
    jobs: Annotated[int, Meta(description="How many jobs the slot has; 10,000 means that many or more.")]
    at_once: Annotated[int, Meta(description="How many of them are due at the same instant.")]
    average: Annotated[float, Meta(description="How many jobs the other slots have on average.")]
    is_hot: Annotated[bool, Meta(description="Whether the slot has far more jobs than the others.")]


class SlotsView(Struct, frozen=True, kw_only=True):
    """The slots of the worker of a process for one kind of execution."""

    kind: Annotated[str, Meta(description="threads, coroutines, processes or callbacks.")]
    slots: int
    busy: int


class TimersView(Struct, frozen=True, kw_only=True):
    """The timing wheels of a process together. Lists have one element for each level, the nearest first."""

    pending: int
    occupancy: Annotated[list[int], Meta(description="Pending timers by level.")]
    slots: Annotated[list[int], Meta(description="Slots in use by level.")]
    fullest_slots: Annotated[list[int], Meta(description="Timers in the fullest slot of each level.")]


class PoolView(Struct, frozen=True, kw_only=True):
    """A thread pool of a process, with the numbers of its threads and tasks."""

    name: str
    workers: int
    queued: int
    active: int
    delayed: int
    completed: int
    failed: int


class CommitsView(Struct, frozen=True, kw_only=True):
    """The commits of a process since its start."""

    commits: int
    seconds: Annotated[float, Meta(description="How long they took together.")]
    operations: Annotated[int, Meta(description="How many calls of the engine they contained together.")]


class ProcessView(Struct, frozen=True, kw_only=True):
    """How busy the process of the server is."""

    slots: Annotated[list[SlotsView], Meta(description="The slots of its worker; empty without a worker.")]
    timers: TimersView | None
    pools: list[PoolView]
    commits: CommitsView | None


class StatisticsView(Struct, frozen=True, kw_only=True):
    """A snapshot of the jobs in the store, and of the process of the server."""

    at: Instant
    due: int
    blocked: int
    scheduled: int
    running: int
    dead_letters: int
    oldest_due: float | None
    oldest_blocked: float | None
    is_exact: bool
    groups: Annotated[
        list[GroupView],
        Meta(description="The queues and job types with jobs that have not ended, or dead letters."),
    ]
    paused_queues: list[str]
    fullest_slot: Annotated[
        UpcomingSlotView | None, Meta(description="The fullest slot of the next scheduled jobs.")
    ]
    workers: Annotated[int | None, Meta(description="How many workers are alive; null for a restricted token.")]
    process: Annotated[ProcessView | None, Meta(description="The server itself; null for a restricted token.")]


def statistics_view(statistics: Statistics, identity: Identity) -> StatisticsView:
    """Return statistics as a caller may see them: only of its job types and queues if it is restricted."""
    permissions = identity.permissions
    is_restricted = permissions.types is not None or permissions.queues is not None
    groups = readable_groups(statistics.groups, identity)
    slot = statistics.fullest_slot
    is_slot_shown = slot is not None and identity.allows(Scope.READ, type=slot.type, queue=slot.queue)
    used = {group.queue for group in groups}
    paused = [
        name
        for name in statistics.paused_queues
        if name in used or identity.allows(Scope.READ, queue=name)  # a token for certain types knows only `used`
    ]
    return StatisticsView(
        at=statistics.at,
        due=sum(group.due for group in groups),
        blocked=sum(group.blocked for group in groups),
        scheduled=sum(group.scheduled for group in groups),
        running=sum(group.running for group in groups),
        dead_letters=sum(group.dead_letters for group in groups),
        oldest_due=longest(group.oldest_due for group in groups),
        oldest_blocked=longest(group.oldest_blocked for group in groups),
        is_exact=all(group.is_exact for group in groups),
        groups=[_group_view(group) for group in groups],
        paused_queues=paused,
        fullest_slot=_slot_view(slot) if slot is not None and is_slot_shown else None,
        workers=None if is_restricted else statistics.workers,
        process=None if is_restricted else _process_view(statistics.process),
    )


def _group_view(group: GroupStatistics) -> GroupView:
    return GroupView(
        queue=group.queue,
        type=group.type,
        due=group.due,
        blocked=group.blocked,
        scheduled=group.scheduled,
        running=group.running,
        dead_letters=group.dead_letters,
        oldest_due=in_seconds(group.oldest_due),
        oldest_blocked=in_seconds(group.oldest_blocked),
        is_exact=group.is_exact,
    )


def _slot_view(slot: UpcomingSlot) -> UpcomingSlotView:
    return UpcomingSlotView(
        queue=slot.queue,
        type=slot.type,
        at=slot.at,
        jobs=slot.jobs,
        at_once=slot.at_once,
        average=slot.average,
        is_hot=slot.is_hot,
    )


def _process_view(process: ProcessStatistics) -> ProcessView:
    timers, commits = process.timers, process.commits
    return ProcessView(
        slots=[SlotsView(kind=str(each.kind), slots=each.slots, busy=each.busy) for each in process.slots],
        timers=None
        if timers is None
        else TimersView(
            pending=timers.pending,
            occupancy=list(timers.occupancy),
            slots=list(timers.slots),
            fullest_slots=list(timers.fullest_slots),
        ),
        pools=[
            PoolView(
                name=pool.name,
                workers=pool.workers,
                queued=pool.queued,
                active=pool.active,
                delayed=pool.delayed,
                completed=pool.completed,
                failed=pool.failed,
            )
            for pool in process.pools
        ],
        commits=None
        if commits is None
        else CommitsView(commits=commits.commits, seconds=commits.seconds, operations=commits.operations),
    )


# -- doctor


class FindingView(Struct, frozen=True, kw_only=True):
    """One result of a check of `mainspring doctor`."""

    check: Annotated[str, Meta(description="The name of the check.", examples=["dead-letters"])]
    severity: Severity
    what: Annotated[str, Meta(description="The observed fact, with its value.")]
    reason: Annotated[str, Meta(description="Why it matters; may be empty.")]
    remedy: Annotated[str, Meta(description="What to do; may be empty.")]
    commands: Annotated[list[str], Meta(description="Commands that apply the remedy, or show more.")]


class DoctorView(Struct, frozen=True, kw_only=True):
    """The findings of all checks of `mainspring doctor`, and the worst severity among them."""

    store: Annotated[str, Meta(description="The URL of the store, without a password.")]
    worst: Severity
    findings: list[FindingView]


def _doctor_view(report: Report) -> DoctorView:
    return DoctorView(
        store=report.store, worst=report.worst, findings=[finding_view(each) for each in report.findings]
    )


def finding_view(finding: Finding) -> FindingView:
    """Convert a finding of `mainspring doctor` to the form that the API shows, with its commands as text."""
    return FindingView(
        check=finding.check,
        severity=finding.severity,
        what=finding.what,
        reason=finding.reason,
        remedy=finding.remedy,
        commands=[shlex.join(("mainspring", *words)) for words in finding.commands],
    )


class StoreStateEndpoints:
    """The endpoints that show workers, statistics and the findings of `mainspring doctor`."""

    def __init__(self) -> None:
        self._examination: asyncio.Task[Report] | None = None

    async def workers(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer the workers of the store that the caller may see."""
        permissions = call.identity.permissions
        queue_of = {handler.name: handler.options.queue for handler in call.app.registry.all()}
        views = [worker_view(worker, permissions, queue_of) for worker in await call.app.workers_async()]
        return ApiAnswer(content=WorkerListView(workers=[view for view in views if view is not None]))

    async def statistics(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer the statistics of the store, and of the server's process if the caller is not restricted."""
        return ApiAnswer(content=statistics_view(await call.app.statistics_async(), call.identity))

    async def doctor(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Examine the store and the server's machine, and answer the findings.

        If an examination runs already, wait for it and answer its findings. Raises `NotAllowed` unless the caller
        has the scope `operate` for all types and queues.
        """
        call.identity.require(Scope.OPERATE)
        task, loop = self._examination, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._examination = loop.create_task(_examine(call.app))
        return ApiAnswer(content=_doctor_view(await asyncio.shield(task)))


async def _examine(app: Mainspring) -> Report:
    return await app.off_loop.read(examine, app, has_handlers=bool(app.registry.all()))


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints that show the state of the store."""
    state = StoreStateEndpoints()
    return [
        Endpoint(
            name="list_workers",
            method="GET",
            path="/workers",
            subject="store",
            summary="List the workers, on all machines.",
            description=(
                "A silent worker has sent no heartbeat for 45 seconds, a remote one for its lease. A dead one "
                "stays in the list until its jobs are rescued. A restricted token sees the workers that serve one "
                "of its types and queues, and of these only its types and queues, as the server declares them."
            ),
            scopes=(Scope.READ,),
            serve=state.workers,
            answers={
                OK: AnswerType(
                    type=WorkerListView, description="The workers.", example={"workers": [_WORKER_EXAMPLE]}
                )
            },
        ),
        Endpoint(
            name="get_statistics",
            method="GET",
            path="/statistics",
            subject="store",
            summary="Count the jobs of the store by queue and type.",
            description=(
                "It takes a few milliseconds, however many jobs are stored. A restricted token sees the numbers "
                "of its types and queues."
            ),
            scopes=(Scope.READ,),
            serve=state.statistics,
            answers={
                OK: AnswerType(type=StatisticsView, description="The snapshot.", example=_STATISTICS_EXAMPLE)
            },
        ),
        Endpoint(
            name="get_doctor",
            method="GET",
            path="/doctor",
            subject="store",
            summary="Check the machine of the server, the store, workers, jobs and schedules.",
            description=(
                "It takes seconds, and changes nothing. The findings name paths and addresses, so the token must "
                "not be restricted to job types or queues."
            ),
            scopes=(Scope.OPERATE,),
            serve=state.doctor,
            answers={OK: AnswerType(type=DoctorView, description="The findings.", example=_DOCTOR_EXAMPLE)},
        ),
    ]


_WORKER_EXAMPLE: dict[str, Any] = {
    "number": 3,
    "name": "web-1:4711",
    "process": 4711,
    "types": ["shop.cancel_order"],
    "queues": None,
    "state": "alive",
    "heartbeat": "2026-11-17T12:00:00Z",
    "slots": {"threads": 8, "coroutines": 100, "processes": 2},
    "version": "0.1.0",
    "is_remote": False,
    "direction": "run",
}
_NUMBERS: dict[str, Any] = {
    "due": 3,
    "blocked": 0,
    "scheduled": 120,
    "running": 1,
    "dead_letters": 1,
    "oldest_due": 0.4,
    "oldest_blocked": None,
    "is_exact": True,
}
_STATISTICS_EXAMPLE: dict[str, Any] = {
    "at": "2026-11-17T12:00:00Z",
    **_NUMBERS,
    "groups": [{"queue": "orders", "type": "shop.cancel_order", **_NUMBERS}],
    "paused_queues": [],
    "fullest_slot": None,
    "workers": 1,
    "process": {"slots": [], "timers": None, "pools": [], "commits": None},
}
_DOCTOR_EXAMPLE: dict[str, Any] = {
    "store": "sqlite:////var/lib/shop/jobs.db",
    "worst": "warning",
    "findings": [
        {
            "check": "dead-letters",
            "severity": "warning",
            "what": "1 dead letter was not replayed",
            "reason": "Its work is not done.",
            "remedy": "Look at the error, and replay it.",
            "commands": ["mainspring dlq list"],
        }
    ],
}
