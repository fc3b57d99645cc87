"""Charts and formats: what they draw, and that hostile names stay text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from mainspring.jobs.store_statistics import UpcomingJobs
from mainspring.security.permissions import ALL_PERMISSIONS
from mainspring.web.dashboard import charts, formats
from mainspring.web.dashboard.wheel_clock import RINGS, RingCounts, WheelClock

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
HOSTILE = '"><script>alert(1)</script>'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 s"),
        (0.00042, "420 µs"),
        (0.0042, "4.2 ms"),
        (0.9996, "1 s"),
        (1.5, "1.5 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7_500, "2 h 5 min"),
        (100_000, "1 d 3 h"),
        (-5, "\N{MINUS SIGN}5 s"),
    ],
)
def test_a_duration_is_short(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (1_000, "1k"), (12_345, "12.3k"), (999_600, "1M"), (1_234_567, "1.23M"), (2e9, "2G")],
)
def test_a_compact_number_is_short(value: float, text: str) -> None:
    assert formats.compact(value) == text


def test_a_time_is_relative_and_has_the_absolute_one_as_its_title() -> None:
    assert formats.relative(NOW - timedelta(minutes=3), NOW) == "3 min ago"
    assert formats.relative(NOW + timedelta(hours=2), NOW) == "in 2 h"
    element = formats.when(NOW - timedelta(days=2), NOW)
    assert 'title="2026-11-15 12:00:00 UTC"' in element
    assert ">2 d ago<" in element
    assert formats.when(None, NOW) == '<span class="muted">\N{EN DASH}</span>'


def parse(markup: str) -> ElementTree.Element:
    """Parse a chart; it must be well-formed, without style attributes and scripts."""
    element = ElementTree.fromstring(markup)
    for each in element.iter():
        assert "style" not in each.attrib
        assert not any(name.startswith("on") for name in each.attrib)
        assert each.tag != "script"
    return element


def test_columns_are_stacked_from_the_bottom() -> None:
    data = [charts.Column(label=HOSTILE, values=(30, 10)), charts.Column(label="b", values=(0, 0))]
    chart = parse(charts.columns(data, ("info", "bad"), names=("done", "failed"), title=HOSTILE))
    first, second = chart.iter("rect")
    assert (first.get("class"), second.get("class")) == ("fill-info", "fill-bad")
    assert float(first.get("y", "")) + float(first.get("height", "")) == 100
    assert float(second.get("y", "")) + float(second.get("height", "")) == float(first.get("y", ""))
    assert float(first.get("height", "")) == 3 * float(second.get("height", ""))
    assert chart.get("aria-label") == HOSTILE


def test_a_line_has_gaps_where_values_are_missing() -> None:
    line = charts.Line(name=HOSTILE, values=[0.001, 0.01, None, 0.1], has_area=True)
    chart = parse(charts.lines([line], title="lateness", is_logarithmic=True, unit=formats.duration))
    points = [each.get("points", "").split() for each in chart.iter("polyline")]
    assert [len(run) for run in points] == [2, 2]
    assert points[0][0].endswith(",100.00"), "the least value is at the bottom"
    assert points[1][0].endswith(",0.00"), "the greatest value is at the top"


def test_charts_without_values_have_axes() -> None:
    assert list(parse(charts.columns([], (), title="empty")).iter("line"))
    assert list(parse(charts.lines([], title="empty", is_logarithmic=True)).iter("line"))
    assert not list(parse(charts.spark([], title="empty")).iter("rect"))


def test_ticks_are_at_round_times() -> None:
    since = NOW + timedelta(minutes=7)
    labels = charts.time_ticks(since, since + timedelta(hours=1)).labels
    assert [text for _, text in labels] == ["12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]
    assert labels[0][0] == pytest.approx(3 / 60)
    days = charts.time_ticks(NOW, NOW + timedelta(days=7)).labels
    assert [text for _, text in days][:2] == ["19 Nov", "21 Nov"]


# -- the clock


def clock(now: float, **counts: dict[int, int]) -> WheelClock:
    """Return a clock with these jobs: for each ring, by the number of slots ahead."""
    found = {}
    for ring in RINGS:
        jobs = [0] * ring.slots
        for place, number in counts.get(ring.name, {}).items():
            jobs[place] = number
        groups = [UpcomingJobs("mail", "send", tuple(jobs))] if any(jobs) else []
        found[ring.name] = RingCounts(int(now // ring.slot_seconds), groups)
    return WheelClock(now=now, counts=found, permissions=ALL_PERMISSIONS, scheduled=3, is_exact=True)


def test_the_clock_turns_towards_now() -> None:
    def angle(drawn: str, ring: str) -> float:
        found = re.search(rf'data-key="{ring}" transform="rotate\((-?[\d.]+)', drawn)
        assert found is not None
        return float(found[1])

    noon = NOW.timestamp()
    before, after = clock(noon).draw(), clock(noon + 1).draw()
    assert angle(after, "minute") - angle(before, "minute") == pytest.approx(-6)
    assert angle(after, "hour") - angle(before, "hour") == pytest.approx(-0.1, abs=0.01)
    late = clock(noon + 60).draw()
    assert angle(late, "minute") - angle(before, "minute") == pytest.approx(-360), "it does not turn back"


def test_a_bar_keeps_its_place_while_the_ring_turns() -> None:
    def bar(drawn: str) -> str:
        found = re.search(r'<path class="wheel-bar[^"]*" data-key="(\d+)" d="([^"]+)"', drawn)
        assert found is not None
        return found[0].replace(" near", "")

    noon = NOW.timestamp()
    assert bar(clock(noon, minute={20: 5}).draw()) == bar(clock(noon + 15, minute={5: 5}).draw())


def test_the_clock_says_when_the_next_job_is_due() -> None:
    noon = NOW.timestamp()
    assert "none within a day" in clock(noon).draw()
    assert "next one now" in clock(noon, minute={0: 1}).draw()
    assert "next in 42 s" in clock(noon, minute={42: 1}, hour={3: 1}).draw()
    assert "next in 5 h" in clock(noon, day={5: 1}).draw()


def test_more_jobs_make_a_longer_bar() -> None:
    def length(count: int) -> float:
        drawn = parse(clock(NOW.timestamp(), minute={0: count}).draw())
        (bar,) = (each for each in drawn.iter("path") if (each.get("class") or "").startswith("wheel-bar"))
        radius = re.search(r"A([\d.]+)", bar.get("d", ""))
        assert radius is not None
        return float(radius[1])

    lengths = [length(count) for count in (1, 10, 100, 1_000, 100_000)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[1] < lengths[3] == lengths[4] <= RINGS[0].outer
