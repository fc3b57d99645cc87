"""Whether another worker is silent: only time in which this worker itself looked counts."""

import pytest

from mainspring.engines.sqlite.rescue import LONGEST_GAP_NS, STALE_NS, FailureDetector
from mainspring.engines.sqlite.schema import DECLARED_DEAD
from mainspring.testing import ManualClock

NANOSECOND = 1e-9
GAP = LONGEST_GAP_NS * NANOSECOND
STALE = STALE_NS * NANOSECOND
OTHER = 7


@pytest.fixture
def detector(clock: ManualClock) -> FailureDetector:
    return FailureDetector(clock)


def check_after(clock: ManualClock, detector: FailureDetector, *gaps: float, beat: int = 1) -> list[bool]:
    """Check at the end of each pause, in seconds; return whether the other worker was silent then."""
    answers = []
    for gap in gaps:
        clock.advance(gap)
        answers.append(detector.find_silent({OTHER: beat}) == [OTHER])
    return answers


def test_a_worker_is_silent_after_its_heartbeat_has_stayed_the_same_for_long_enough(
    clock: ManualClock, detector: FailureDetector
) -> None:
    assert check_after(clock, detector, 0, 15, 15, 14, 0.999, 0.001) == [False, False, False, False, False, True]


@pytest.mark.parametrize("before", [0, 1, GAP, STALE, 3_600])
def test_time_before_the_first_look_at_a_worker_does_not_count(
    clock: ManualClock, detector: FailureDetector, before: float
) -> None:
    assert check_after(clock, detector, before, 15, 15, 14.999) == [False] * 4
    assert check_after(clock, detector, 0.001) == [True]


def test_time_before_a_worker_came_does_not_count(clock: ManualClock, detector: FailureDetector) -> None:
    for _ in range(10):
        clock.advance(10)
        detector.find_silent({})
    assert check_after(clock, detector, 10, 15, 15, 14.999, 0.001) == [False, False, False, False, True]


def test_a_heartbeat_begins_anew(clock: ManualClock, detector: FailureDetector) -> None:
    assert check_after(clock, detector, 0, 15, 15, 14) == [False] * 4
    assert check_after(clock, detector, 1, 15, 15, 14.999, 0.001, beat=2) == [False, False, False, False, True]


def test_of_a_long_pause_of_our_own_only_a_part_counts(clock: ManualClock, detector: FailureDetector) -> None:
    assert check_after(clock, detector, 0, 3_600, 3_600, 3_600) == [False, False, False, True]


def test_a_worker_that_was_declared_dead_is_silent_at_once(clock: ManualClock, detector: FailureDetector) -> None:
    assert check_after(clock, detector, 0, beat=DECLARED_DEAD) == [True]


def test_a_worker_that_left_and_came_back_is_watched_from_its_return(
    clock: ManualClock, detector: FailureDetector
) -> None:
    assert check_after(clock, detector, 0, 15, 15, 14) == [False] * 4
    detector.find_silent({})
    assert check_after(clock, detector, 15, 15, 15, 14.999, 0.001) == [False, False, False, False, True]


def test_a_remote_worker_is_silent_after_its_own_lease(clock: ManualClock, detector: FailureDetector) -> None:
    leases = {OTHER: 3_000_000}
    found = []
    for gap in (0, 1, 1, 0.999, 0.001):
        clock.advance(gap)
        found.append(detector.find_silent({OTHER: 1}, leases) == [OTHER])
    assert found == [False, False, False, False, True]


def test_of_a_pause_of_our_own_a_third_of_a_lease_counts(clock: ManualClock, detector: FailureDetector) -> None:
    found = []
    for _ in range(4):
        clock.advance(3_600)
        found.append(detector.find_silent({OTHER: 1}, {OTHER: 3_000_000}) == [OTHER])
    assert found == [False, False, False, True]
