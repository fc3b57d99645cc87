"""What the timing wheel costs in memory, and that it gives it back."""

from collections.abc import Callable

import pytest

from mainspring.timing import TimerEntry, TimingWheel
from tests.traced_memory import TracedMemory, in_a_quiet_process

pytestmark = pytest.mark.long

HOUR = 3600 * 10**9
YEAR = 8766 * HOUR
START = 14 * 24 * HOUR
BURST = 100_000
FEWER = 40_000

Wheel = TimingWheel[None]


def scattered(count: int, span: int) -> list[int]:
    """Due times all over the span, in no order."""
    return [START + 1 + n * 0x9E3779B97F4A7C15 % span for n in range(count)]


@pytest.mark.parametrize(("span", "limit"), [(HOUR, 130), (10 * YEAR, 130)])
@in_a_quiet_process
def test_a_pending_timer_is_small(span: int, limit: int) -> None:
    dues = scattered(BURST, span)
    with TracedMemory() as memory:
        wheel = Wheel(now=START)
        for due in dues:
            wheel.insert(due, None)
        assert memory.used_by_all() / len(dues) < limit


def cancel_all(wheel: Wheel, entries: list[TimerEntry]) -> None:
    for entry in entries:
        wheel.cancel(entry)


def cancel_all_but_one_in_front(wheel: Wheel, entries: list[TimerEntry]) -> None:
    wheel.insert(START + 1, None)
    cancel_all(wheel, entries)


def fire_all_at_once(wheel: Wheel, entries: list[TimerEntry]) -> None:
    wheel.advance(START + 2 * HOUR)


def fire_all_in_the_open_slot(wheel: Wheel, entries: list[TimerEntry]) -> None:
    wheel.advance(START + 1)
    assert wheel.statistics().slots == (0, 0, 0)


def fire_all_step_by_step(wheel: Wheel, entries: list[TimerEntry]) -> None:
    for now in range(START, START + HOUR + HOUR // 1000, HOUR // 1000):
        wheel.advance(now)


@pytest.mark.parametrize(
    ("count", "span", "empty"),
    [
        (FEWER, 1, cancel_all),  # all in the open slot
        (FEWER, 1, fire_all_in_the_open_slot),
        (FEWER, HOUR, fire_all_at_once),
        (FEWER, HOUR, cancel_all_but_one_in_front),
        (BURST, HOUR, cancel_all),
        (FEWER, HOUR, fire_all_step_by_step),
    ],
)
@in_a_quiet_process
def test_memory_is_given_back_after_a_burst(
    count: int, span: int, empty: Callable[[Wheel, list[TimerEntry]], None]
) -> None:
    dues = scattered(count, span)
    with TracedMemory() as memory:
        wheel = Wheel(now=START)
        entries = [wheel.insert(due, None) for due in dues]
        full = memory.used_by_all()
        empty(wheel, entries)
        del entries
        assert len(wheel) <= 1
        memory.check_below(min(full / 3, 3_500_000))  # some thousand hollow slots are allowed


@in_a_quiet_process
def test_a_wheel_mostly_canceled_is_as_small_as_what_is_left() -> None:
    dues = scattered(FEWER, HOUR // 10)
    with TracedMemory() as memory:
        wheel = Wheel(now=START)
        entries = [wheel.insert(due, None) for due in dues]
        full = memory.used_by_all()
        cancel_all(wheel, entries[FEWER // 20 :])
        del entries
        assert len(wheel) == FEWER // 20
        memory.check_below(full / 4)


@pytest.mark.parametrize("left", [1, 10])
@in_a_quiet_process
def test_a_slot_mostly_canceled_is_as_small_as_what_is_left(left: int) -> None:
    with TracedMemory() as memory:
        wheel = Wheel(now=START)
        before = memory.used()
        entries = [wheel.insert(START + 10**9 + n, None) for n in range(2_000)]
        full = memory.used() - before
        assert wheel.statistics().slots == (1, 0, 0)
        cancel_all(wheel, entries[left:])
        del entries[left:]
        memory.check_below(before + full / 20)
        assert wheel.statistics().slots == (1, 0, 0)
