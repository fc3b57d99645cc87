"""The overview: problems first, lateness as the headline, backlog, history, and the timing wheel as a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mainspring.jobs.statistics import Statistics
from mainspring.security.permissions import Scope
from mainspring.web.api.store_state import StatisticsView, statistics_view
from mainspring.web.dashboard import charts, problem_cards, wheel_clock
from mainspring.web.dashboard.formats import axis_duration, compact, duration
from mainspring.web.dashboard.history import RANGES, RECENT, History, Period, history_source, range_of
from mainspring.web.dashboard.page import Page, PageCall
from mainspring.web.dashboard.snapshots import Source

if TYPE_CHECKING:
    from mainspring.app import Mainspring

MAX_GROUPS = 10
"""The largest number of pairs of queue and job type that the overview lists."""


async def _read_statistics(app: Mainspring) -> Statistics:
    return await app.statistics_async()


STATISTICS: Source[Statistics] = Source(name="statistics", read=_read_statistics)
"""The statistics of the store, of all queues. A page must pass them to `statistics_view`, which leaves out the
queues and job types that the caller may not see."""


async def load(call: PageCall) -> Mapping[str, Any]:
    """Return the template context of the overview."""
    permissions = call.identity.permissions
    shown = range_of(call.query.get("range"))
    found, recent, history, rings = await asyncio.gather(
        call.get(STATISTICS),
        call.get(history_source(RECENT, permissions)),
        call.get(history_source(shown, permissions)),
        asyncio.gather(*(call.get(source) for source in wheel_clock.SOURCES.values())),
    )
    statistics = statistics_view(found, call.identity)
    cards, is_examining = await problem_cards.gather(call, statistics)
    clock = wheel_clock.WheelClock(
        now=call.now.timestamp(),
        counts=dict(zip(wheel_clock.SOURCES, rings, strict=True)),
        permissions=permissions,
        scheduled=statistics.scheduled,
        is_exact=statistics.is_exact,
    )
    seconds = RECENT.span.total_seconds()
    return {
        "statistics": statistics,
        "recent": recent.total,
        "recent_label": RECENT.label,
        "rate": _rate(recent.total.completed / seconds),
        "history": history,
        "shown_range": shown,
        "ranges": RANGES,
        "cards": cards,
        "is_examining": is_examining,
        "clock": clock,
        "throughput_chart": _throughput_chart(history),
        "lateness_chart": _lateness_chart(history),
        "groups": _busiest(statistics),
        "levels": _levels(statistics),
        "is_new": _is_new(statistics, history.total),
    }


def _rate(per_second: float) -> str:
    """Return a throughput as text: per second, or per minute if it is below one per second."""
    if per_second == 0:
        return "0 /s"
    return f"{compact(per_second)} /s" if per_second >= 1 else f"{compact(per_second * 60)} /min"


def _is_new(statistics: StatisticsView, total: Period) -> bool:
    """Return whether the store seems to have had no jobs yet: none are stored, and the history has no activity."""
    return not (statistics.groups or total.submitted or total.attempts)


def _busiest(statistics: StatisticsView) -> list[Any]:
    """Return at most ten pairs of queue and job type, those with the most due, running and blocked jobs first.

    Pairs that have only dead letters are left out.
    """
    return sorted(
        (group for group in statistics.groups if group.due + group.running + group.blocked + group.scheduled),
        key=lambda group: (
            -(group.due + group.running + group.blocked),
            -group.scheduled,
            group.queue,
            group.type,
        ),
    )[:MAX_GROUPS]


def _levels(statistics: StatisticsView) -> list[dict[str, Any]]:
    """Return the levels of the timing wheels of this process, with their numbers of timers.

    The list is empty if the process has no timers, or the caller may not see them.
    """
    timers = None if statistics.process is None else statistics.process.timers
    if timers is None:
        return []
    names = (("near", "268 ms"), ("mid", "73 min"), ("far", "52 days"))
    return [
        {"name": name, "width": width, "timers": timers.occupancy[place], "slots": timers.slots[place]}
        for place, (name, width) in enumerate(names)
    ]


def _throughput_chart(history: History) -> Any:
    is_long = (history.until - history.since).total_seconds() > 2 * 86_400
    data = [
        charts.Column(
            label=f"{period.start:%d %b %H:%M}" if is_long else f"{period.start:%H:%M}",
            values=(period.completed, period.other, period.failed),
        )
        for period in history.periods
    ]
    return charts.columns(
        data,
        ("info", "idle", "bad"),
        names=("completed", "canceled or snoozed", "failed"),
        title=f"Ended attempts: {history.total.completed:,} completed, {history.total.failed:,} failed",
        ticks=charts.time_ticks(history.since, history.until),
    )


def _lateness_chart(history: History) -> Any:
    total = history.total
    return charts.lines(
        [
            charts.Line(name="p50", values=[period.lateness_at(0.5) for period in history.periods], has_area=True),
            charts.Line(
                name="p99", values=[period.lateness_at(0.99) for period in history.periods], kind="second"
            ),
        ],
        title=f"Lateness: p50 {duration(total.lateness_at(0.5))}, p99 {duration(total.lateness_at(0.99))}",
        ticks=charts.time_ticks(history.since, history.until),
        unit=axis_duration,
        is_logarithmic=True,
    )


def pages(_app: Mainspring) -> list[Page]:
    """Return the declaration of the overview."""
    return [
        Page(
            name="overview",
            path="/",
            title="Overview",
            scopes=(Scope.READ,),
            load=load,
            live=("problems", "headline", "tiles", "clock", "charts", "groups"),
        ),
    ]
