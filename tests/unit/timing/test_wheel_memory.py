"""What the timing wheel costs in memory, and that it gives it back."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from mainspring.timing import TimerEntry, TimingWheel

pytestmark = pytest.mark.long

HOUR = 3600 * 10**9
YEAR = 8766 * HOUR
START = 14 * 24 * HOUR
BURST = 100_000
FEWER = 40_000

Wheel = TimingWheel[None]


class Ledger:
    """Traces memory from its entry on."""

    def __enter__(self) -> "Ledger":
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        tracemalloc.stop()

    @property
    def used(self) -> int:
        return tracemalloc.get_traced_memory()[0]


def scattered(count: int, span: int) -> list[int]:
    """Due times all over the span, in no order."""
    return [START + 1 + n * 0x9E3779B97F4A7C15 % span for n in range(count)]


@pytest.mark.parametrize(("span", "limit"), [(HOUR, 130), (10 * YEAR, 130)])
def test_a_pending_timer_is_small(span: int, limit: int) -> None:
    dues = scattered(BURST, span)
    with Ledger() as ledger:
        wheel = Wheel(now=START)
        for due in dues:
            wheel.insert(due, None)
        assert ledger.used / len(dues) < limit


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
def test_memory_is_given_back_after_a_burst(
    count: int, span: int, empty: Callable[[Wheel, list[TimerEntry]], None]
) -> None:
    dues = scattered(count, span)
    with Ledger() as ledger:
        wheel = Wheel(now=START)
        entries = [wheel.insert(due, None) for due in dues]
        full = ledger.used
        empty(wheel, entries)
        del entries
        assert len(wheel) <= 1
        assert ledger.used < min(full / 3, 3_500_000)  # some thousand hollow slots are allowed


def test_a_wheel_mostly_canceled_is_as_small_as_what_is_left() -> None:
    dues = scattered(FEWER, HOUR // 10)
    with Ledger() as ledger:
        wheel = Wheel(now=START)
        entries = [wheel.insert(due, None) for due in dues]
        full = ledger.used
        cancel_all(wheel, entries[FEWER // 20 :])
        del entries
        assert len(wheel) == FEWER // 20
        assert ledger.used < full / 4


@pytest.mark.parametrize("left", [1, 10])
def test_a_slot_mostly_canceled_is_as_small_as_what_is_left(left: int) -> None:
    with Ledger() as ledger:
        wheel = Wheel(now=START)
        before = ledger.used
        entries = [wheel.insert(START + 10**9 + n, None) for n in range(2_000)]
        full = ledger.used - before
        assert wheel.statistics().slots == (1, 0, 0)
        cancel_all(wheel, entries[left:])
        del entries[left:]
        assert ledger.used - before < full / 20
        assert wheel.statistics().slots == (1, 0, 0)
