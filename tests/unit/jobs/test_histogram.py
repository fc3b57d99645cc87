"""Histograms count values by bucket, and can be added."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.jobs.histogram import BOUNDS, COMMIT_BOUNDS, SIZE_BOUNDS, Histogram

SECOND = 1_000_000
values = st.lists(st.integers(-5, 8 * 3600 * SECOND), max_size=100)


def histogram_of(observed: list[int], bounds: tuple[int, ...] = BOUNDS) -> Histogram:
    histogram = Histogram(bounds=bounds)
    for value in observed:
        histogram.observe(value)
    return histogram


def test_bounds_go_from_a_millisecond_to_six_hours() -> None:
    assert BOUNDS[:4] == (1_000, 2_500, 5_000, 10_000)
    assert BOUNDS[-3:] == (3600 * SECOND, 7200 * SECOND, 21600 * SECOND)
    assert len(BOUNDS) == 22
    assert (COMMIT_BOUNDS[0], COMMIT_BOUNDS[-1]) == (100, 10 * SECOND)
    for bounds in (BOUNDS, COMMIT_BOUNDS, SIZE_BOUNDS):
        assert all(lower < upper for lower, upper in pairwise(bounds))


@pytest.mark.parametrize(
    ("value", "place"), [(-1, 0), (0, 0), (1_000, 0), (1_001, 1), (21600 * SECOND, 21), (21600 * SECOND + 1, 22)]
)
def test_a_value_belongs_to_the_first_bucket_whose_bound_it_does_not_exceed(value: int, place: int) -> None:
    histogram = histogram_of([value])
    assert histogram.counts.index(1) == place
    assert histogram.count == 1
    assert histogram.sum == max(0, value)


@given(values, values)
def test_many_values_at_once_count_as_one_by_one(first: list[int], more: list[int]) -> None:
    at_once = histogram_of(first)
    at_once.observe_all(more)
    assert at_once == histogram_of(first + more)


@given(values)
def test_many_values_count_with_few_bounds(observed: list[int]) -> None:
    at_once = Histogram(bounds=(10, 20))
    at_once.observe_all(observed)
    assert at_once == histogram_of(observed, (10, 20))


def test_many_values_are_added_to_those_before_and_bounds_are_inclusive() -> None:
    histogram = Histogram(bounds=(10, 20))
    for _ in range(2):
        histogram.observe_all([22, 21, 20, 11, 10, 1, 0, -1])
    assert (histogram.counts, histogram.sum) == ([8, 4, 4], 170)
    histogram.observe_all([5, 6, 7])  # all below the first bound
    assert (histogram.counts, histogram.sum) == ([11, 4, 4], 188)
    assert histogram.copy() == histogram


@given(values, values)
def test_the_sum_of_two_histograms_has_the_values_of_both(first: list[int], second: list[int]) -> None:
    total = histogram_of(first)
    total.add(histogram_of(second))
    assert total == histogram_of(first + second)


def test_histograms_with_different_bounds_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="same bounds"):
        Histogram().add(Histogram(bounds=(1, 2)))


def test_counts_must_match_the_bounds() -> None:
    with pytest.raises(ValueError, match="23 counts"):
        Histogram([1, 2])
    assert Histogram([1, 2], 30, bounds=(20,)).sum == 30


def test_later_values_do_not_change_a_copy() -> None:
    histogram = histogram_of([5])
    copy = histogram.copy()
    histogram.observe(7)
    assert (copy.count, copy.sum) == (1, 5)


def test_a_quantile_is_interpolated_within_its_bucket() -> None:
    histogram = Histogram([0, 10, 10, 0], bounds=(10, 20, 40))
    assert histogram.quantile(0.0) == 10
    assert histogram.quantile(0.25) == 15
    assert histogram.quantile(0.5) == 20
    assert histogram.quantile(0.75) == 30
    assert histogram.quantile(1.0) == 40


def test_a_quantile_skips_empty_buckets_and_counts_all_before_it() -> None:
    histogram = Histogram([1, 0, 1, 2, 0], bounds=(10, 20, 40, 80))
    assert histogram.quantile(0.25) == 10
    assert histogram.quantile(0.5) == 40
    assert histogram.quantile(0.75) == 60
    assert histogram.quantile(1.0) == 80


def test_a_quantile_above_the_last_bound_is_the_last_bound() -> None:
    assert Histogram([0, 1, 0, 9], bounds=(10, 20, 40)).quantile(0.9) == 40


def test_an_empty_histogram_has_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


@pytest.mark.parametrize("q", [-0.1, 1.1, 95])
def test_a_quantile_outside_of_zero_to_one_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match=f"between 0 and 1, got {q}"):
        Histogram().quantile(q)


def test_a_histogram_describes_itself() -> None:
    assert repr(histogram_of([5, 7])) == "<Histogram of 2 values, sum 12>"
    assert histogram_of([5]) != 5
