"""The endpoints of queues: list them with their jobs, pause and resume them.

Invariants
- A list takes a few milliseconds, however many jobs are stored: it uses the statistics of the store, and therefore
  has no numbers of jobs that have ended.
- A token for certain job types sees the queues and the numbers of these types only. It can pause no queue, because
  a pause concerns all types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from mainspring.jobs.handle import open_manager
from mainspring.jobs.manager import JobManager
from mainspring.jobs.periodic_reads import shared_statistics
from mainspring.jobs.queues import Queue, queue_names
from mainspring.jobs.quotas import Quota
from mainspring.jobs.statistics import GroupStatistics, to_groups
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.permissions import Identity, Scope
from mainspring.web.api.decoding import checked_values
from mainspring.web.api.endpoint import OK, AnswerType, ApiAnswer, ApiCall, EmptyBody, Endpoint, NoQuery

if TYPE_CHECKING:
    from mainspring.app import Mainspring

NAME = {"name": "The name of the queue. A slash in it is written as %2F."}


class RateView(Struct, frozen=True, kw_only=True):
    """How many jobs may be submitted within a time."""

    n: int
    per: Annotated[float, Meta(description="The time in seconds.")]


class QueueView(Struct, frozen=True, kw_only=True):
    """A queue, with counts of its jobs. They include only jobs of types that the token may read."""

    name: str
    is_paused: bool
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
        bool, Meta(description="False if numbers may be too small: at most 10,000 of a type are counted.")
    ]
    max_depth: Annotated[int | None, Meta(description="How many jobs may be pending; null for no such quota.")]
    submit_rate: Annotated[
        RateView | None, Meta(description="How many jobs may be submitted within a time; null for no such quota.")
    ]


class QueueListView(Struct, frozen=True, kw_only=True):
    """The queues that the token may see, by name: those in use, with a quota, or paused."""

    queues: list[QueueView]


class ChangedQueueView(Struct, frozen=True, kw_only=True):
    """The answer to a pause or a resume of a queue."""

    name: str
    is_paused: bool
    is_changed: Annotated[bool, Meta(description="False if the queue was in this state before.")]


def readable_groups(groups: Collection[GroupStatistics], identity: Identity) -> list[GroupStatistics]:
    """Return the statistics of the queues and job types that the caller may read."""
    return [group for group in groups if identity.allows(Scope.READ, type=group.type, queue=group.queue)]


def in_seconds(age: timedelta | None) -> float | None:
    """Return an age in seconds; None for None."""
    return None if age is None else age.total_seconds()


def longest(ages: Iterable[timedelta | None]) -> float | None:
    """Return the longest of these ages in seconds; None if all are None, or if there are none."""
    return in_seconds(max((age for age in ages if age is not None), default=None))


def _list(manager: JobManager, identity: Identity) -> QueueListView:
    store = shared_statistics(manager.engine)
    groups = readable_groups(to_groups(store.groups, store.at), identity)
    quotas = manager.quotas()
    return QueueListView(
        queues=[
            _view(name, groups, quotas.get(name, Quota()), is_paused=name in store.paused)
            for name in _names(manager, groups, identity)
        ]
    )


def _names(manager: JobManager, groups: Collection[GroupStatistics], identity: Identity) -> list[str]:
    """Return the names of the queues that the caller may see: those of its job types, within its queues."""
    types, queues = identity.permissions.types, identity.permissions.queues
    if types is None:
        names = set(queue_names(manager))
    else:
        names = {group.queue for group in groups}
        names.update(handler.options.queue for handler in manager.registry.all() if handler.name in types)
        names.update(schedule.queue for schedule in manager.engine.schedules() if schedule.type in types)
    return sorted(names if queues is None else names & queues)


def _view(name: str, groups: Collection[GroupStatistics], quota: Quota, *, is_paused: bool) -> QueueView:
    own = [group for group in groups if group.queue == name]
    rate = quota.submit_rate
    return QueueView(
        name=name,
        is_paused=is_paused,
        due=sum(group.due for group in own),
        blocked=sum(group.blocked for group in own),
        scheduled=sum(group.scheduled for group in own),
        running=sum(group.running for group in own),
        dead_letters=sum(group.dead_letters for group in own),
        oldest_due=longest(group.oldest_due for group in own),
        oldest_blocked=longest(group.oldest_blocked for group in own),
        is_exact=all(group.is_exact for group in own),
        max_depth=quota.max_depth,
        submit_rate=None if rate is None else RateView(n=rate.most, per=(rate.per or 0) / MICROSECONDS),
    )


class QueueEndpoints:
    """The endpoints that list, pause and resume queues."""

    async def list(self, call: ApiCall[None, NoQuery]) -> ApiAnswer:
        """Answer all queues that the caller may see, with the numbers of their jobs."""
        manager = await open_manager(call.app)
        return ApiAnswer(content=await call.app.off_loop.read(_list, manager, call.identity))

    async def pause(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Pause a queue; do nothing if it is paused. The caller needs the right for all job types."""
        queue = _queue(call)
        is_changed = await queue.pause_async()
        return ApiAnswer(content=ChangedQueueView(name=queue.name, is_paused=True, is_changed=is_changed))

    async def resume(self, call: ApiCall[EmptyBody, NoQuery]) -> ApiAnswer:
        """Resume a queue; do nothing if it is not paused. The caller needs the right for all job types."""
        queue = _queue(call)
        is_changed = await queue.resume_async()
        return ApiAnswer(content=ChangedQueueView(name=queue.name, is_paused=False, is_changed=is_changed))


def _queue(call: ApiCall[Any, Any]) -> Queue:
    """Return the queue that the path names, whether it is in use or not.

    Raises `NotAllowed` unless the caller may operate on all job types in this queue, and `Refused` for a name that
    no queue can have.
    """
    name = call.path["name"]
    call.identity.require(Scope.OPERATE, queue=name)
    with checked_values():
        return Queue(name, call.app)


def endpoints(_app: Mainspring) -> list[Endpoint]:
    """Return the declarations of the endpoints of queues."""
    queues = QueueEndpoints()
    example = {
        "name": "orders",
        "is_paused": False,
        "due": 3,
        "blocked": 0,
        "scheduled": 120,
        "running": 8,
        "dead_letters": 1,
        "oldest_due": 0.4,
        "oldest_blocked": None,
        "is_exact": True,
        "max_depth": 100000,
        "submit_rate": {"n": 500, "per": 1.0},
    }
    return [
        Endpoint(
            name="list_queues",
            method="GET",
            path="/queues",
            subject="queues",
            summary="List queues with their jobs.",
            description=(
                "The list has all queues that jobs, handlers or schedules use, and those with a quota or a pause. "
                "Queues and job types that the token may not read are left out."
            ),
            scopes=(Scope.READ,),
            serve=queues.list,
            answers={OK: AnswerType(type=QueueListView, description="The queues.", example={"queues": [example]})},
        ),
        Endpoint(
            name="pause_queue",
            method="POST",
            path="/queues/{name}/pause",
            subject="queues",
            summary="Pause a queue: no worker starts its jobs.",
            description=(
                "Running jobs continue. A queue that has no jobs yet can be paused as well. The token must not be "
                "restricted to job types."
            ),
            scopes=(Scope.OPERATE,),
            serve=queues.pause,
            path_parameters=NAME,
            body=EmptyBody,
            answers={
                OK: AnswerType(
                    type=ChangedQueueView,
                    description="The queue is paused.",
                    example={"name": "orders", "is_paused": True, "is_changed": True},
                )
            },
            problems=("invalid-value",),
        ),
        Endpoint(
            name="resume_queue",
            method="POST",
            path="/queues/{name}/resume",
            subject="queues",
            summary="Resume a queue: workers start its jobs again.",
            description="The token must not be restricted to job types.",
            scopes=(Scope.OPERATE,),
            serve=queues.resume,
            path_parameters=NAME,
            body=EmptyBody,
            answers={
                OK: AnswerType(
                    type=ChangedQueueView,
                    description="The queue is not paused.",
                    example={"name": "orders", "is_paused": False, "is_changed": True},
                )
            },
            problems=("invalid-value",),
        ),
    ]
