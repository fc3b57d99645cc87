"""Draws the timing wheel as a clock: three rings with the jobs of the next minute, hour and day, turning to now.

Each ring is a level: the outer one has 60 slots of a second, the middle one 60 of a minute, the inner one 24 of an
hour. A bar is a slot with jobs, and its length grows with the logarithm of their number. The mark at the top is
now. The rings turn towards it, and a job moves from ring to ring as a timer moves from level to level of a wheel.

The elements of a ring have fixed places by the wall clock, and only the ring turns. So an update changes few
attributes, and the style sheet makes the movement smooth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import cos, log10, pi, sin
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from mainspring.jobs.handle import open_manager
from mainspring.jobs.store_statistics import MAX_IN_PERIOD, UpcomingJobs
from mainspring.jobs.timestamps import MICROSECONDS
from mainspring.security.permissions import Permissions, Scope
from mainspring.web.dashboard.formats import duration, number
from mainspring.web.dashboard.snapshots import Source

if TYPE_CHECKING:
    from mainspring.app import Mainspring

SIZE = 468
CENTER = SIZE / 2
DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A ring of the clock, which shows the jobs of the next minute, hour or day."""

    name: str
    slots: int
    slot_seconds: int
    inner: float
    """The radius at which bars begin."""
    outer: float
    labels: tuple[str, str, str]
    """The times at three, six and nine o'clock."""
    refresh: float
    """For how many seconds the counts of this ring are shared before the store is read again."""

    @property
    def degrees(self) -> float:
        """The angle of one slot, in degrees."""
        return 360 / self.slots


RINGS = (
    Ring(
        name="minute",
        slots=60,
        slot_seconds=1,
        inner=170,
        outer=206,
        labels=("15 s", "30 s", "45 s"),
        refresh=1,
    ),
    Ring(
        name="hour",
        slots=60,
        slot_seconds=60,
        inner=119,
        outer=149,
        labels=("15 min", "30 min", "45 min"),
        refresh=4,
    ),
    Ring(name="day", slots=24, slot_seconds=3_600, inner=72, outer=98, labels=("6 h", "12 h", "18 h"), refresh=20),
)


@dataclass(frozen=True, slots=True)
class RingCounts:
    """The numbers of scheduled jobs in the slots of a ring, by queue and job type."""

    first: int
    """The number of the first slot: seconds since 1970, divided by the width of a slot."""
    jobs: Sequence[UpcomingJobs]

    def totals(self, permissions: Permissions, slots: int) -> list[int]:
        """Return for each slot how many of its jobs a caller may read."""
        totals = [0] * slots
        for group in self.jobs:
            if permissions.allows(Scope.READ, type=group.type, queue=group.queue):
                for place, count in enumerate(group.counts):
                    totals[place] += count
        return totals


async def _read(app: Mainspring, *, ring: Ring) -> RingCounts:
    manager = await open_manager(app)
    width = ring.slot_seconds * MICROSECONDS
    now = manager.engine.now()
    first = now // width
    nearer = sum(each.slots * each.slot_seconds for each in RINGS if each.slot_seconds * 60 == ring.slot_seconds)
    begin = now + nearer * MICROSECONDS  # what is nearer belongs to the ring around this one
    edges = [max(begin, (first + place) * width) for place in range(ring.slots + 1)]
    return RingCounts(first, await app.off_loop.read(manager.engine.upcoming, edges))


SOURCES: dict[str, Source[RingCounts]] = {
    ring.name: Source(name=f"upcoming {ring.name}", read=partial(_read, ring=ring), seconds=ring.refresh)
    for ring in RINGS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelClock:
    """Draws the clock with the counts of all rings, as far as a caller may read the jobs."""

    now: float
    """The current time, in seconds since 1970."""
    counts: dict[str, RingCounts]
    permissions: Permissions
    scheduled: int
    is_exact: bool

    def next_due(self) -> float | None:
        """Return the seconds until the next slot with jobs begins, 0 if it has begun.

        Return None if no job is due within a day.
        """
        for ring in RINGS:
            found = self.counts[ring.name]
            for place, count in enumerate(found.totals(self.permissions, ring.slots)):
                if count:
                    return max(0.0, (found.first + place) * ring.slot_seconds - self.now)
        return None

    def draw(self) -> Markup:
        """Return the clock as SVG."""
        parts = [self._ring(ring) for ring in RINGS]
        parts.append(_now_mark())
        parts.append(self._center())
        shown = sum(sum(self.counts[ring.name].totals(self.permissions, ring.slots)) for ring in RINGS)
        label = f"Timing wheel: {number(shown)} jobs are due within a day"
        return Markup(
            f'<svg class="wheel" viewBox="0 0 {SIZE} {SIZE}" role="img" aria-label="{escape(label)}">'
            f"{''.join(parts)}</svg>"
        )

    def _ring(self, ring: Ring) -> str:
        counts = self.counts[ring.name]
        totals = counts.totals(self.permissions, ring.slots)
        # turned by the time of the day, so that the angle goes on growing over each full turn
        angle = (self.now % DAY) / ring.slot_seconds * ring.degrees
        middle = (ring.inner + ring.outer) / 2
        turn = f"rotate({-angle:.3f} {CENTER:g} {CENTER:g})"
        track = ring.outer - ring.inner + 6
        parts = [
            f'<circle class="wheel-track" cx="{CENTER}" cy="{CENTER}" r="{middle:g}" stroke-width="{track:g}"/>',
            f'<g class="wheel-ring {ring.name}" data-key="{ring.name}" transform="{turn}">',
            _ticks(ring),
        ]
        for place, count in enumerate(totals):
            if count:
                parts.append(_bar(ring, counts.first + place, place, count))
        parts.append("</g>")
        for quarter, text in enumerate(ring.labels, start=1):
            parts.append(_label(text, quarter * 90, ring.outer + 12))
        return "".join(parts)

    def _center(self) -> str:
        due = self.next_due()
        text = "none within a day" if due is None else "next one now" if due < 1 else f"next in {duration(due)}"
        count = number(self.scheduled) if self.is_exact else f"≥ {number(self.scheduled)}"
        return "".join(
            f'<text class="{kind}" x="{CENTER:g}" y="{CENTER + y:g}" text-anchor="middle">{escape(said)}</text>'
            for kind, y, said in (
                ("wheel-label", -26, "scheduled"),
                ("wheel-count", 4, count),
                ("wheel-label", 26, text),
            )
        )


def _point(degrees: float, radius: float) -> tuple[float, float]:
    """Return the coordinates of a point at an angle, clockwise from the top, and a distance from the center."""
    radians = degrees * pi / 180
    return CENTER + radius * sin(radians), CENTER - radius * cos(radians)


def _ticks(ring: Ring) -> str:
    """Return the tick marks between the slots of a ring, as one SVG path."""
    commands = []
    for place in range(ring.slots):
        is_long = place % (ring.slots // 12) == 0
        x1, y1 = _point(place * ring.degrees, ring.inner - 2)
        x2, y2 = _point(place * ring.degrees, ring.inner + (3 if is_long else 0.5))
        commands.append(f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}")
    return f'<path class="wheel-ticks" d="{"".join(commands)}"/>'


def _bar(ring: Ring, slot: int, ahead: int, count: int) -> str:
    """Return the SVG bar of a slot with `count` jobs, which is `ahead` slots from now."""
    share = min(1.0, (1 + log10(count)) / (1 + log10(MAX_IN_PERIOD)))
    outer = ring.inner + 4 + (ring.outer - ring.inner - 4) * share
    gap = min(ring.degrees * 0.16, 60 / ring.inner)
    place = slot % ring.slots
    start, end = place * ring.degrees + gap, (place + 1) * ring.degrees - gap
    (x1, y1), (x2, y2) = _point(start, ring.inner + 4), _point(start, outer)
    (x3, y3), (x4, y4) = _point(end, outer), _point(end, ring.inner + 4)
    near = " near" if ahead * ring.slot_seconds < 10 and ring.slot_seconds == 1 else ""
    until = duration(max(1, ahead) * ring.slot_seconds)
    more = "or more " if count >= MAX_IN_PERIOD else ""
    return (
        f'<path class="wheel-bar{near}" data-key="{slot}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}'
        f"A{outer:.1f} {outer:.1f} 0 0 1 {x3:.1f} {y3:.1f}L{x4:.1f} {y4:.1f}"
        f'A{ring.inner + 4:g} {ring.inner + 4:g} 0 0 0 {x1:.1f} {y1:.1f}Z">'
        f"<title>{number(count)} {more}in about {until}</title></path>"
    )


def _label(text: str, degrees: float, radius: float) -> str:
    """Return an SVG text at an angle, turned along the ring; the one at the bottom is upright."""
    x, y = _point(degrees, radius)
    turn = 0 if degrees == 180 else degrees
    return (
        f'<text class="wheel-label" x="{x:.1f}" y="{y:.1f}" text-anchor="middle" dominant-baseline="central" '
        f'transform="rotate({turn:g} {x:.1f} {y:.1f})">{escape(text)}</text>'
    )


def _now_mark() -> str:
    """Return the SVG mark of the current time at the top, the hand of the clock."""
    top, bottom = CENTER - RINGS[0].outer - 14, CENTER - RINGS[-1].inner + 6
    return (
        f'<line class="wheel-hand" x1="{CENTER:g}" x2="{CENTER:g}" y1="{top:g}" y2="{bottom:g}"/>'
        f'<path class="wheel-tip" d="M{CENTER - 5:g} {top - 6:g}h10l-5 9z"/>'
    )
