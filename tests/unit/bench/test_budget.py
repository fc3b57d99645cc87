"""How rounds are sized and repeated, with a clock that moves by hand."""

import pytest

from mainspring.bench.budget import BenchStopped, MeasurementBudget
from mainspring.bench.figures import Percentiles, RateFigure, Size
from mainspring.testing import ManualClock


class Work:
    """Takes a millisecond each, and twice as long in its first long round."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.counts: list[int] = []

    def __call__(self, count: int) -> None:
        is_disturbed = count == 100 and 100 not in self.counts
        self.counts.append(count)
        self.clock.advance(count / 1_000 * (2 if is_disturbed else 1))


def test_rounds_grow_until_they_can_be_measured_and_the_best_counts() -> None:
    clock = ManualClock()
    budget, work = MeasurementBudget(seconds=1, jobs=100, clock=clock), Work(clock)
    budget.begin()
    rate = budget.best_rate(budget.timed(work), first=5)
    assert work.counts[:4] == [5, 20, 80, 100]  # 0.08 s are too short to say anything
    assert set(work.counts[3:]) == {100}
    assert rate == RateFigure(per_second=1_000, rounds=len(work.counts) - 3)
    assert 1 <= budget.spent < 1.2


def test_a_slow_machine_is_measured_too() -> None:
    clock = ManualClock()
    budget = MeasurementBudget(seconds=1, jobs=100, clock=clock)
    budget.begin()
    rate = budget.best_rate(budget.timed(lambda count: clock.advance(30 * count)), first=1)
    assert rate.per_second == pytest.approx(1 / 30)
    assert rate.rounds == 1


def test_a_request_to_stop_is_obeyed_after_the_round() -> None:
    clock = ManualClock()
    work = Work(clock)
    budget = MeasurementBudget(seconds=1, jobs=100, clock=clock, is_stopped=lambda: len(work.counts) == 2)
    budget.begin()
    with pytest.raises(BenchStopped):
        budget.best_rate(budget.timed(work))
    assert work.counts == [1, 4]


def test_progress_is_told_in_seconds_with_the_best_rate_so_far() -> None:
    clock = ManualClock()
    told: list[tuple[float, float | None]] = []
    budget = MeasurementBudget(seconds=1, jobs=1_000, clock=clock, on_progress=lambda *news: told.append(news))
    budget.begin()
    budget.best_rate(budget.timed(Work(clock)), first=600)
    assert told == [(0, None), (pytest.approx(0.6), pytest.approx(1_000)), (1, pytest.approx(1_000))]


def test_a_spread_has_percentiles_and_words() -> None:
    spread = Percentiles.of([float(number) for number in range(200, 0, -1)])
    assert (spread.p50, spread.p99, spread.longest, spread.samples) == (101, 199, 200, 200)
    assert Percentiles.of([3.0]) == Percentiles(3, 3, 3, 1)
    assert (str(spread), spread.note) == ("101.00 / 199.00 / 200.00 ms", "p50 / p99 / max of 200")
    assert str(RateFigure(12_345.6, 3)) == "12,346/s"
    assert str(Size(195.6, 100)) == "196 bytes"
