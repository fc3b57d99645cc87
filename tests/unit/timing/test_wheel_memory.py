"""What the timing wheel costs in memory, and that it gives it back."""

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from mainspring.timing import TimerEntry, TimingWheel

HOUR = 3600 * 10**9
YEAR = 8766 * HOUR
START = 14 * 24 * HOUR
BURST = 200_000

Wheel = TimingWheel[None]


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def used() -> int:
    return tracemalloc.get_traced_memory()[0]


def fill(wheel: Wheel, span: int, count: int = BURST) -> list[TimerEntry]:
    choose = random.Random(7).randrange
    return [wheel.insert(START + choose(1, span), None) for _ in range(count)]


@pytest.mark.parametrize(("span", "limit"), [(HOUR, 120), (10 * YEAR, 160)])
def test_a_pending_timer_is_small(span: int, limit: int) -> None:
    wheel = Wheel(now=START)
    before = used()
    fill(wheel, span)  # the entries are dropped here; the wheel has its own references
    assert (used() - before) / BURST < limit


def cancel_all(wheel: Wheel, entries: list[TimerEntry]) -> None:
    for entry in entries:
        wheel.cancel(entry)


def cancel_all_but_one_in_front(wheel: Wheel, entries: list[TimerEntry]) -> None:
    wheel.insert(START + 1, None)
    cancel_all(wheel, entries)


def fire_all_at_once(wheel: Wheel, entries: list[TimerEntry]) -> None:
    wheel.advance(START + 20 * YEAR)


def fire_all_step_by_step(wheel: Wheel, entries: list[TimerEntry]) -> None:
    for now in range(START, START + HOUR + HOUR // 1000, HOUR // 1000):
        wheel.advance(now)


@pytest.mark.parametrize("span", [1, HOUR])  # all in the open slot; over many slots
@pytest.mark.parametrize(
    "empty", [cancel_all, cancel_all_but_one_in_front, fire_all_at_once, fire_all_step_by_step]
)
def test_memory_is_given_back_after_a_burst(span: int, empty: Callable[[Wheel, list[TimerEntry]], None]) -> None:
    wheel = Wheel(now=START)
    before = used()
    entries = fill(wheel, span + 1)
    full = used() - before
    empty(wheel, entries)
    del entries
    assert len(wheel) <= 1
    kept = used() - before
    assert kept < full / 10
    assert kept < 3_500_000  # hollow slots, of which there may be some thousands


def test_a_wheel_of_which_most_is_cancelled_is_as_small_as_what_is_left() -> None:
    wheel = Wheel(now=START)
    before = used()
    entries = fill(wheel, HOUR)
    full = used() - before
    cancel_all(wheel, entries[BURST // 20 :])
    del entries
    assert len(wheel) == BURST // 20
    assert used() - before < full / 4
