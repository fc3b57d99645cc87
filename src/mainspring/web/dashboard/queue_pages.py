"""The pages of queues: depth, rates and limits, pause and resume, and what still runs while a queue is drained.

Invariants
- Depths come from the statistics of the store, and rates from its counts by minute. No page counts jobs.
- A caller sees the numbers of the job types and queues that it may read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mainspring.clock import to_nanoseconds
from mainspring.jobs.activity_rows import ActivityRow
from mainspring.jobs.handlers import Handler
from mainspring.jobs.policies import names_of
from mainspring.plurals import format_count
from mainspring.security.permissions import Identity, Scope
from mainspring.web.api.queues import QueueView
from mainspring.web.dashboard import charts
from mainspring.web.dashboard.formats import duration, rough_duration
from mainspring.web.dashboard.page import Action, ActionCall, Done, Page, PageCall
from mainspring.web.dashboard.queue_rates import MINUTES, QueueRates, rates_by_queue
from mainspring.web.dashboard.running_jobs import running_jobs
from mainspring.web.dashboard.snapshots import Source

if TYPE_CHECKING:
    from mainspring.app import Mainspring

SHOWN_RUNNING = 50


async def _read_activity(app: Mainspring) -> list[ActivityRow]:
    return await app.activity_async(since=timedelta(minutes=MINUTES))


LAST_HOUR: Source[list[ActivityRow]] = Source(name="activity of an hour", read=_read_activity, seconds=2.0)


async def _rates(call: PageCall) -> dict[str, QueueRates]:
    rows: list[ActivityRow] = await call.get(LAST_HOUR)
    return rates_by_queue(readable_rows(rows, call.identity), call.now)


def readable_rows(rows: Iterable[ActivityRow], identity: Identity) -> list[ActivityRow]:
    """Return the rows of activity whose queue and job type the caller may read."""
    return [row for row in rows if identity.allows(Scope.READ, type=row.type, queue=row.queue)]


async def _list(call: PageCall) -> Mapping[str, Any]:
    queues: list[QueueView] = (await call.api("list_queues")).queues
    rates = await _rates(call)
    rows = [{"queue": queue, "rates": rates.get(queue.name, QueueRates())} for queue in queues]
    return {
        "rows": rows,
        "totals": {
            name: sum(getattr(queue, name) for queue in queues)
            for name in ("due", "blocked", "scheduled", "running", "dead_letters")
        },
        "is_exact": all(queue.is_exact for queue in queues),
        "paused": [queue.name for queue in queues if queue.is_paused],
    }


async def _queue(call: PageCall) -> Mapping[str, Any]:
    name = call.path["name"]
    queues: list[QueueView] = (await call.api("list_queues")).queues
    queue = next((each for each in queues if each.name == name), None)
    if queue is None:
        return {"queue": None, "title": name}
    statistics = await call.api("get_statistics")
    running = await running_jobs(call, queue=name, limit=SHOWN_RUNNING)
    rates = (await _rates(call)).get(name, QueueRates())
    return {
        "title": name,
        "queue": queue,
        "rates": rates,
        "chart": _chart(rates, call.now),
        "late": [_short(rates.lateness_at(share)) for share in (0.5, 0.99)],
        "depth": queue.due + queue.blocked + queue.scheduled,
        "groups": [group for group in statistics.groups if group.queue == name],
        "limits": _limits(call, name),
        "running": running,
        "is_draining": queue.is_paused and queue.running > 0,
    }


def _short(seconds: float | None) -> str:
    """Return a duration in seconds as text that fits into a tile: with only one unit from a minute on."""
    return duration(seconds) if seconds is None or seconds < 60 else rough_duration(seconds)


def _chart(rates: QueueRates, now: datetime) -> Markup:
    """Return a chart of the attempts of a queue that completed or failed in each minute of the last hour."""
    first = now.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    data = [
        charts.Column(label=f"{first + timedelta(minutes=minute):%H:%M} UTC", values=[ended, failed])
        for minute, (ended, failed) in enumerate(zip(rates.ended, rates.failed, strict=True))
    ]
    ticks = charts.time_ticks(first, first + timedelta(minutes=MINUTES))
    names = ["completed", "failed"]
    return charts.columns(data, ["ok", "bad"], title="attempts per minute", names=names, ticks=ticks)


def _limits(call: PageCall, queue: str) -> list[dict[str, str]]:
    """Return the limits of this process's handlers in a queue, as texts, if the caller may read their jobs."""
    found = []
    for handler in sorted(call.app.registry.all(), key=lambda each: each.name):
        if handler.options.queue == queue and call.may("read", type=handler.name, queue=queue):
            texts = describe_limits(handler)
            if texts:
                found.append({"type": handler.name, "text": "; ".join(texts)})
    return found


def describe_limits(handler: Handler) -> list[str]:
    """Return the limits of a handler as texts, such as `at most 5 at once for each customer`.

    The texts about its sequences and batches are among them. The list is empty if it has none of these options.
    """
    options, found = handler.options, []
    if options.concurrency is not None:
        found.append(f"at most {options.concurrency.n:,} at once{_by(options.concurrency.by)}")
    if options.rate is not None:
        seconds = to_nanoseconds(options.rate.per, "per") / 1e9
        found.append(f"{format_count(options.rate.n, 'start')} in {duration(seconds)}{_by(options.rate.by)}")
    if handler.sequence_by:
        found.append(f"one after the other{_by(handler.sequence_by)}")
    if options.batch is not None:
        found.append(f"in batches of up to {options.batch:,}")
    return found


def _by(names: str | tuple[str, ...] | None) -> str:
    given = names_of(names)
    return f" for each {' and '.join(given)}" if given else ""


# -- actions


async def _pause(call: ActionCall) -> Done:
    answer = await call.api("pause_queue", path={"name": call.path["name"]}, body={})
    state = "Paused" if answer.is_changed else "It was paused already:"
    return Done(message=f"{state} queue {answer.name}. Running jobs continue.")


async def _resume(call: ActionCall) -> Done:
    answer = await call.api("resume_queue", path={"name": call.path["name"]}, body={})
    state = "Resumed" if answer.is_changed else "It was not paused:"
    return Done(message=f"{state} queue {answer.name}.")


async def _drain(call: ActionCall) -> Done:
    """Pause a queue, and show its page, which lists the jobs that still run."""
    answer = await call.api("pause_queue", path={"name": call.path["name"]}, body={})
    return Done(
        message=f"Paused queue {answer.name}. This page shows the jobs that still run, until there are none.",
        location=call.url("queues", answer.name),
    )


def pages(_app: Mainspring) -> list[Page]:
    """Return the declarations of the pages of queues."""
    return [
        Page(
            name="queues",
            path="/queues",
            title="Queues",
            scopes=(Scope.READ,),
            load=_list,
            live=("queue_table",),
        ),
        Page(
            name="queue",
            path="/queues/{name}",
            title="Queue",
            scopes=(Scope.READ,),
            load=_queue,
            live=("queue_state",),
            section="queues",
        ),
    ]


def actions(_app: Mainspring) -> list[Action]:
    """Return the declarations of the actions that pause, resume and drain a queue."""
    scopes = (Scope.OPERATE,)
    return [
        Action(name="queue-pause", path="/queues/{name}/pause", scopes=scopes, serve=_pause),
        Action(name="queue-resume", path="/queues/{name}/resume", scopes=scopes, serve=_resume),
        Action(name="queue-drain", path="/queues/{name}/drain", scopes=scopes, serve=_drain),
    ]
