"""The bounds of the server's time hold for all delays of requests and replies, and for clocks of other speeds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.engines.nats.server_clock import DRIFT, TimeBounds, TimeSample, bounds_of, narrowed
from mainspring.jobs.timestamps import MICROSECONDS

START = 1_700_000_000 * MICROSECONDS
HOUR = 3_600 * MICROSECONDS


@dataclass
class World:
    """The time that passes, a server's clock, and the local clock, which runs at another speed."""

    parts_per_million: int = 0
    real: float = 0.0
    """Microseconds since the start."""
    source: str = "n1"
    server_shift: int = 0
    bounds: TimeBounds | None = field(default=None)

    @property
    def monotonic(self) -> int:
        return int(7_000_000 + self.real)

    @property
    def server(self) -> float:
        return START + self.server_shift + self.real * (1 + self.parts_per_million / 1_000_000)

    def ask(self, there: float, back: float) -> TimeSample:
        """Send a request that takes so long to the server, and its reply so long back."""
        sent = self.monotonic
        self.real += there
        server = int(self.server)
        self.real += back
        sample = TimeSample(sent, self.monotonic, server, self.source)
        self.bounds = narrowed(self.bounds, sample)
        return sample

    @property
    def earliest(self) -> int:
        assert self.bounds is not None
        return self.bounds.earliest_at(self.monotonic)

    @property
    def latest(self) -> int:
        assert self.bounds is not None
        return self.bounds.latest_at(self.monotonic)


delays = st.floats(0, 3 * MICROSECONDS)
steps = st.lists(st.tuples(delays, delays, st.floats(0, HOUR)), min_size=1, max_size=20)


@given(steps, st.integers(-200, 200))
def test_the_server_time_is_within_the_bounds_whatever_the_delays(
    given: list[tuple[float, float, float]], parts_per_million: int
) -> None:
    world = World(parts_per_million)
    for there, back, pause in given:
        before = world.earliest if world.bounds else 0
        world.ask(there, back)
        assert before <= world.earliest <= world.server <= world.latest
        world.real += pause
        assert world.earliest <= world.server <= world.latest


@pytest.mark.parametrize(("there", "back"), [(5_000, 0), (0, 5_000), (2_500, 2_500)])
def test_a_round_trip_says_as_much_however_it_divides(there: int, back: int) -> None:
    """The middle of the trip would be wrong by up to 2.5 ms, and jobs would start as early as that."""
    world = World()
    world.ask(there, back)
    assert world.earliest <= world.server <= world.latest
    assert world.latest - world.earliest == pytest.approx(5_000, abs=10)


def test_slow_replies_narrow_no_bounds_and_widen_none() -> None:
    world = World()
    world.ask(100, 100)
    world.ask(90_000, 90_000)
    assert world.latest - world.earliest < 200 + 2 * 180_000 / DRIFT + 20


def test_many_samples_meet_where_delays_differ() -> None:
    chance = random.Random(7)
    world = World()
    for _ in range(50):
        world.ask(chance.expovariate(1 / 2_000), chance.expovariate(1 / 2_000))
    assert world.earliest <= world.server <= world.latest
    assert world.latest - world.earliest < 1_000


def test_bounds_grow_with_the_age_of_the_last_sample() -> None:
    world = World()
    world.ask(100, 100)
    world.real += 5 * MICROSECONDS
    assert world.latest - world.earliest == pytest.approx(200 + 2 * 1_000, abs=10)


@pytest.mark.parametrize("shift", [HOUR, -HOUR, 40_000, -40_000])
def test_a_clock_that_was_set_is_believed(shift: int) -> None:
    world = World()
    world.ask(100, 100)
    world.server_shift = shift
    world.ask(100, 100)
    assert world.earliest <= world.server <= world.latest


def test_another_server_has_a_clock_of_its_own() -> None:
    world = World()
    world.ask(100, 100)
    world.source, world.server_shift = "n2", -150  # the bounds of both have instants in common
    world.ask(100, 100)
    assert world.bounds is not None
    assert world.bounds.earliest == bounds_of(TimeSample(0, 200, int(world.server) - 100, "n2")).earliest
    assert world.earliest <= world.server <= world.latest


def test_a_sample_that_another_thread_has_overtaken_still_counts() -> None:
    """Then the later sample has wide bounds and is known first."""
    later, earlier = TimeSample(5_000, 105_000, START + 55_000), TimeSample(10_000, 10_100, START + 10_050)
    bounds = narrowed(narrowed(None, later), earlier)
    assert bounds.monotonic == 105_000
    assert START + 105_000 - 100 < bounds.earliest <= START + 105_000 <= bounds.latest < START + 105_000 + 100
