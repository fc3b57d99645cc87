"""Charts as SVG, made on the server. Colours are classes of the style sheet, so they fit both themes.

Invariants
- A chart has no style attribute and no script: the content security policy allows neither.
- A chart has a title for screen readers, and a fixed height, so that nothing moves when numbers change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, floor, log10

from markupsafe import Markup, escape

from mainspring.web.dashboard.formats import compact

WIDTH, HEIGHT = 1_000, 100  # of the plot, which is stretched to the space that there is


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a chart over time."""

    label: str
    """The time or the name of the column, for its tooltip: `19:26`."""
    values: Sequence[float]
    """The parts of the column from the bottom on; one for each of the chart's kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a chart over time."""

    name: str
    values: Sequence[float | None]
    """The values, at even distances; None leaves a gap."""
    kind: str = ""
    """A class of the style sheet: empty, or `second`."""
    has_area: bool = False


@dataclass(frozen=True, slots=True)
class Ticks:
    """Labels of the time axis, each with its position as a share of the width, from 0 to 1."""

    labels: Sequence[tuple[float, str]] = field(default_factory=tuple)


def time_ticks(since: datetime, until: datetime, *, most: int = 6) -> Ticks:
    """Return labels for a time axis at round times between two instants, in steps of one minute to ten days.

    There are at most `most` + 1 labels, or more if the steps of ten days are too short for that.
    """
    span = (until - since).total_seconds()
    steps = (60, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 432_000)
    step = next((step for step in steps if span / step <= most), 864_000)
    first = ceil(since.timestamp() / step) * step
    labels = []
    at = first
    while at <= until.timestamp():
        moment = datetime.fromtimestamp(at, tz=since.tzinfo)
        labels.append(
            ((at - since.timestamp()) / span, f"{moment:%d %b}" if step >= 86_400 else f"{moment:%H:%M}")
        )
        at += step
    return Ticks(labels)


def nice_ceiling(value: float) -> float:
    """Return the smallest round number from `value` on: 1, 2, 2.5 or 5 times a power of ten; 1 for 0 and less."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next((factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= value * 0.999), 10 * power)


def columns(
    data: Sequence[Column],
    kinds: Sequence[str],
    *,
    title: str,
    names: Sequence[str] = (),
    ticks: Ticks | None = None,
    unit: Callable[[float], str] = compact,
) -> Markup:
    """Return an SVG chart of stacked columns.

    - `data`: the columns, at even distances
    - `kinds`: the colour of each part: `ok`, `bad`, `warn`, `info`, `idle`, `late`
    - `title`: what the chart shows, for screen readers
    - `names`: the name of each part, for the title of a column
    - `unit`: formats the numbers at the axis
    """
    most = nice_ceiling(max((sum(column.values) for column in data), default=0))
    step = WIDTH / max(1, len(data))
    thickness = step * 0.84
    parts = []
    for index, column in enumerate(data):
        x, y = index * step + (step - thickness) / 2, float(HEIGHT)
        bars = []
        for kind, value in zip(kinds, column.values, strict=True):
            size = HEIGHT * value / most
            if size <= 0:
                continue
            y -= size
            bars.append(
                f'<rect class="fill-{kind}" x="{x:.1f}" y="{y:.2f}" width="{thickness:.1f}" height="{size:.2f}"/>'
            )
        if bars:
            said = ", ".join(
                f"{unit(value)} {name}" for value, name in zip(column.values, names, strict=False) if value
            )
            parts.append(f"<g>{''.join(bars)}<title>{escape(column.label)}: {escape(said)}</title></g>")
    middle = [(0.5, most / 2)] if most % 2 == 0 or most >= 10 else []  # a count of 2.5 would be odd
    return _chart("".join(parts), title, [(0.0, 0.0), *middle, (1.0, most)], ticks, unit)


def lines(
    data: Sequence[Line],
    *,
    title: str,
    ticks: Ticks | None = None,
    unit: Callable[[float], str] = compact,
    is_logarithmic: bool = False,
    least: float = 0.001,
) -> Markup:
    """Return an SVG chart of lines.

    - `data`: the lines
    - `title`: what the chart shows, for screen readers
    - `is_logarithmic`: whether the axis has powers of ten, from `least` on, for values such as latencies
    """
    values = [value for line in data for value in line.values if value is not None]
    most = max(values, default=least)
    if is_logarithmic:
        decades = max(2, ceil(log10(max(most, least) / least) - 1e-9))
        most = least * 10.0**decades
        every = max(1, ceil(decades / 3))
        marks = [(step / decades, least * 10.0**step) for step in range(0, decades + 1, every)]
    else:
        most = nice_ceiling(most)
        marks = [(0.0, 0.0), (0.5, most / 2), (1.0, most)]

    def y_of(value: float) -> float:
        share = log10(max(value, least) / least) / log10(most / least) if is_logarithmic else value / most
        return HEIGHT * (1 - min(1.0, max(0.0, share)))

    parts = []
    for line in data:
        step = WIDTH / max(1, len(line.values))
        for run in _runs(line.values):
            points = [((index + 0.5) * step, y_of(value)) for index, value in run]
            if len(points) == 1:
                points = [(points[0][0] - step / 2, points[0][1]), (points[0][0] + step / 2, points[0][1])]
            path = " ".join(f"{x:.1f},{y:.2f}" for x, y in points)
            if line.has_area:
                ends = f"{points[-1][0]:.1f},{HEIGHT} {points[0][0]:.1f},{HEIGHT}"
                parts.append(f'<polygon class="area" points="{path} {ends}"/>')
            parts.append(
                f'<polyline class="line {line.kind}" points="{path}"><title>{escape(line.name)}</title></polyline>'
            )
    return _chart("".join(parts), title, marks, ticks, unit)


def spark(values: Sequence[float], *, title: str, kind: str = "info") -> Markup:
    """Return a small SVG chart of columns without axes, for tables and tiles."""
    most = max(values, default=0) or 1
    step = 100 / max(1, len(values))
    bars = "".join(
        f'<rect class="fill-{kind}" x="{index * step:.2f}" y="{28 - max(1.5, 28 * value / most):.1f}" '
        f'width="{step * 0.8:.2f}" height="{max(1.5, 28 * value / most):.1f}"/>'
        for index, value in enumerate(values)
        if value > 0
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 100 28" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{bars}</svg>'
    )


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the parts of a line between its gaps (None), each as pairs of index and value."""
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is not None:
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _chart(
    plot: str,
    title: str,
    marks: Sequence[tuple[float, float]],
    ticks: Ticks | None,
    unit: Callable[[float], str],
) -> Markup:
    """Return a chart with axes around a plot. The plot is stretched to the page; labels are placed in percent.

    - `marks`: the labels of the value axis, each with its place as a share of the height
    """
    axes = []
    for share, value in marks:
        y = f"{100 * (1 - share):.2f}%"
        axes.append(f'<line class="axis" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        axes.append(f'<text class="axis-value" x="0" y="{y}" dx="-8" dy="3.5">{escape(unit(value))}</text>')
    for share, label in (ticks or Ticks()).labels:
        end = " at-end" if share > 0.95 else " at-start" if share < 0.05 else ""
        axes.append(f'<text class="axis-time{end}" x="{100 * share:.2f}%" y="100%" dy="15">{escape(label)}</text>')
    return Markup(
        f'<div class="chart" role="img" aria-label="{escape(title)}"><svg class="plot">{"".join(axes)}</svg>'
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">{plot}</svg></div>'
    )


def even_starts(since: datetime, until: datetime, step: timedelta) -> list[datetime]:
    """Return the starts of all periods of length `step` between two times, at multiples of `step` since 1970.

    The first period contains `since`.
    """
    length = step.total_seconds()
    first = floor(since.timestamp() / length)
    last = floor((until.timestamp() - 1e-6) / length)
    return [datetime.fromtimestamp(number * length, tz=since.tzinfo) for number in range(first, last + 1)]
