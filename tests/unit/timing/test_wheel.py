"""The timing wheel, fact by fact."""

import re
import weakref
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise

import pytest

from mainspring.timing import TimerEntry, TimingWheel
from mainspring.timing.wheel import due_of

SECOND = 10**9
HOUR = 3600 * SECOND
YEAR = 8766 * HOUR
STARTS = [0, 1, 14 * 24 * HOUR + 12345, 1_790_000_000 * SECOND]
OPEN, NEAR, MID, FAR = 1, SECOND, 5 * HOUR, 20 * YEAR  # how far away timers of each place are
PLACES = [OPEN, NEAR, MID, FAR]
TICKS = [1, 2, 1000, 1 << 28, 1 << 40]


class Item:
    """Something that can be weakly referenced."""


def steps_to(wheel: TimingWheel[str], due: int) -> int:
    """Follow `next_due` until a timer fires; how often that was, with the contract checked on the way."""
    for step in range(1, 17):
        now = wheel.next_due()
        assert now is not None
        assert now <= due
        fired = wheel.advance(now)
        if fired:
            assert now == due
            return step
        following = wheel.next_due()
        assert following is not None
        assert following > now
    pytest.fail("no timer within 16 steps")


def test_an_empty_wheel_has_nothing_due() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    assert wheel.advance(100 * YEAR) == []
    assert wheel.next_due() is None
    assert len(wheel) == 0


def test_a_timer_fires_at_its_due_time_and_not_before() -> None:
    wheel: TimingWheel[str] = TimingWheel(now=1000)
    wheel.insert(5000, "tea")
    assert wheel.advance(4999) == []
    assert wheel.advance(5000) == ["tea"]
    assert wheel.advance(5001) == []


@pytest.mark.parametrize("tick", TICKS)
@pytest.mark.parametrize("level", range(3))
@pytest.mark.parametrize("start", STARTS)
def test_a_timer_is_exact_around_every_multiple_of_a_slot(tick: int, level: int, start: int) -> None:
    span = TimingWheel(tick=tick).statistics().slot_spans[level]
    for multiple in [1, 2, 3, 64, 1023, 1024, 1025, 16_383, 16_384, 16_385]:
        for origin in [start, start // span * span]:
            for due in [origin + multiple * span + offset for offset in (-1, 0, 1)]:
                wheel: TimingWheel[str] = TimingWheel(now=start, tick=tick)
                wheel.insert(due, "timer")
                assert wheel.advance(due - 1) == []
                assert wheel.advance(due) == ["timer"]


@pytest.mark.parametrize("due", [-(10**30), -1, 0, 999, 1000])
def test_a_due_time_that_has_passed_fires_at_once(due: int) -> None:
    wheel: TimingWheel[str] = TimingWheel(now=1000)
    wheel.advance(1000)
    wheel.insert(due, "late")
    assert wheel.next_due() == due
    assert wheel.advance(1000) == ["late"]


@pytest.mark.parametrize("tick", TICKS)
def test_an_overdue_timer_fires_at_once_however_late_the_wheel_begins(tick: int) -> None:
    for due in [2**power for power in range(42, 200)]:
        now = due - 2 * tick
        wheel: TimingWheel[str] = TimingWheel(now=now, tick=tick)
        wheel.insert(due, "near")
        wheel.insert(0, "overdue")
        assert wheel.advance(now) == ["overdue"]
        assert wheel.advance(due) == ["near"]


@pytest.mark.parametrize("tick", TICKS)
def test_one_jump_fires_all_levels_in_order(tick: int) -> None:
    wheel: TimingWheel[int] = TimingWheel(now=777, tick=tick)
    dues = sorted(
        {777 + k * span + d for span in wheel.statistics().slot_spans for k in (1, 2, 5) for d in (-1, 0, 1)}
    )
    for due in reversed(dues):
        wheel.insert(due, due)
    wheel.insert(dues[-1] + 1, -1)
    assert wheel.advance(dues[-1]) == dues
    assert wheel.advance(dues[-1] + 1) == [-1]


@pytest.mark.parametrize("due", [100 * YEAR, 2**200, 2**200 + 1])
@pytest.mark.parametrize("tick", TICKS)
def test_the_range_is_unlimited(due: int, tick: int) -> None:
    wheel: TimingWheel[str] = TimingWheel(now=5, tick=tick)
    wheel.insert(due, "far")
    assert wheel.advance(due - 1) == []
    assert wheel.next_due() == due
    assert wheel.advance(due) == ["far"]


def test_equal_due_times_fire_in_order_of_arrival_wherever_they_were_inserted() -> None:
    due = 30 * YEAR + 12_345
    wheel: TimingWheel[int] = TimingWheel()
    arrivals = 0
    for distance in [30 * YEAR, 10 * YEAR, YEAR, 5 * HOUR, 3 * HOUR, HOUR, SECOND, 1000, 1]:
        wheel.advance(due - distance)
        for _ in range(3):
            wheel.insert(due, arrivals)
            arrivals += 1
    assert wheel.advance(due) == list(range(arrivals))


def test_order_is_by_due_time_between_those_sorted_and_those_that_came_later() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    for due in [1005, 1001, 1003]:
        wheel.insert(SECOND + due, due)
    wheel.advance(SECOND)  # opens the slot
    for due in [1004, 1001, 1002]:
        wheel.insert(SECOND + due, -due)
    assert wheel.advance(2 * SECOND) == [1001, -1001, -1002, 1003, -1004, 1005]


@pytest.mark.parametrize("level", [1, 2])
def test_timers_poured_down_keep_in_order_with_those_that_come_later(level: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    span = wheel.statistics().slot_spans[level]
    wheel.insert(3 * span + 5, "second")
    wheel.advance(2 * span)  # which pours the slot after this one, too
    wheel.insert(3 * span + 1, "first")
    wheel.insert(3 * span + 9, "third")
    assert wheel.next_due() == 3 * span + 1
    assert wheel.statistics().occupancy[level] == 0
    assert wheel.advance(4 * span) == ["first", "second", "third"]


def test_time_that_goes_back_breaks_nothing() -> None:
    wheel: TimingWheel[str] = TimingWheel(now=10 * SECOND)
    wheel.insert(11 * SECOND, "first")
    wheel.insert(13 * SECOND, "third")
    assert wheel.advance(10 * SECOND + 1) == []
    assert wheel.advance(3 * SECOND) == []
    wheel.insert(4 * SECOND, "past")
    wheel.insert(12 * SECOND, "second")
    assert wheel.advance(3 * SECOND) == []
    assert wheel.next_due() == 4 * SECOND
    assert wheel.advance(5 * SECOND) == ["past"]
    assert wheel.advance(20 * SECOND) == ["first", "second", "third"]
    assert wheel.advance(-(10**20)) == []


@pytest.mark.parametrize("distance", PLACES)
def test_a_timer_is_canceled_once(distance: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    entry = wheel.insert(distance, "a")
    wheel.insert(distance, "b")
    assert wheel.cancel(entry) is True
    assert wheel.cancel(entry) is False
    assert len(wheel) == 1
    assert wheel.advance(distance) == ["b"]


@pytest.mark.parametrize("distance", PLACES)
def test_what_has_fired_cannot_be_canceled(distance: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    entries = [wheel.insert(distance, "a"), wheel.insert(distance, "b")]
    assert wheel.advance(distance) == ["a", "b"]
    assert [wheel.cancel(entry) for entry in entries] == [False, False]
    assert len(wheel) == 0


@pytest.mark.parametrize("distance", PLACES)
def test_none_is_an_item_like_any_other(distance: int) -> None:
    wheel: TimingWheel[None] = TimingWheel()
    canceled = wheel.insert(distance, None)
    wheel.insert(distance, None)
    assert wheel.cancel(canceled) is True
    assert wheel.advance(distance) == [None]


def open_the_slot(wheel: TimingWheel[Item]) -> None:
    wheel.advance(FAR - 1)


def stay(wheel: TimingWheel[Item]) -> None:
    pass


@pytest.mark.parametrize(("distance", "prepare"), [*((d, stay) for d in PLACES), (FAR, open_the_slot)])
def test_cancelling_releases_the_item_at_once(distance: int, prepare: Callable[[TimingWheel[Item]], None]) -> None:
    wheel: TimingWheel[Item] = TimingWheel()
    item = Item()
    alive = weakref.ref(item)
    entry = wheel.insert(distance, item)
    del item
    prepare(wheel)
    assert alive() is not None
    wheel.cancel(entry)
    assert alive() is None


@pytest.mark.parametrize("distance", PLACES)
def test_the_wheel_is_consistent_when_a_canceled_item_is_finalised(distance: int) -> None:
    wheel: TimingWheel[object] = TimingWheel()
    lengths: list[int] = []

    class Meddler:
        def __del__(self) -> None:
            lengths.append(len(wheel))
            wheel.insert(distance, "from the finaliser")

    wheel.cancel(wheel.insert(distance, Meddler()))
    assert lengths == [0]
    assert wheel.advance(distance) == ["from the finaliser"]


@pytest.mark.parametrize("distance", PLACES)
def test_no_wake_up_comes_for_canceled_timers(distance: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    entries = [wheel.insert(distance + n, "cancelled") for n in range(100)]
    wheel.insert(50 * YEAR, "kept")
    for entry in entries:
        wheel.cancel(entry)
    assert wheel.next_due() == 50 * YEAR


def test_next_due_skips_canceled_timers_of_the_open_slot() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    sorted_ones = [wheel.insert(SECOND + n, "sorted") for n in range(4)]
    wheel.advance(SECOND - 1)
    later_ones = [wheel.insert(SECOND + n, "later") for n in range(4)]
    wheel.cancel(sorted_ones[0])
    wheel.cancel(later_ones[0])
    assert wheel.next_due() == SECOND + 1
    wheel.cancel(later_ones[1])
    wheel.cancel(sorted_ones[1])
    wheel.cancel(sorted_ones[2])
    assert wheel.next_due() == SECOND + 2
    assert wheel.advance(SECOND + 3) == ["later", "sorted", "later"]


@pytest.mark.parametrize("crowd", [1, 1000])
@pytest.mark.parametrize("tick", TICKS)
@pytest.mark.parametrize("start", STARTS)
def test_a_few_steps_lead_to_any_timer(crowd: int, tick: int, start: int) -> None:
    for distance in [1, 1000, 10**6, SECOND, HOUR, 10 * HOUR, 400 * 24 * HOUR, 10 * YEAR, 100 * YEAR, 2**200]:
        wheel: TimingWheel[str] = TimingWheel(now=start, tick=tick)
        for _ in range(crowd):
            wheel.insert(start + distance, "timer")
        assert steps_to(wheel, start + distance) <= 4


def test_next_due_of_few_timers_is_exact() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    for due in [7 * YEAR + 5, 7 * YEAR + 3, 9 * YEAR]:
        wheel.insert(due, "timer")
    assert wheel.next_due() == 7 * YEAR + 3


def test_the_example_in_the_module_docstring() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    for number in range(1000):
        wheel.insert(3 * HOUR, number)
    steps = []
    while (now := wheel.next_due()) is not None:
        steps.append((now, wheel.advance(now)))
    assert steps == [(2 << 42, []), (40_233 << 28, []), (3 * HOUR, list(range(1000)))]


def test_len_counts_what_is_pending() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    entries = [wheel.insert(distance, n) for n, distance in enumerate(PLACES)]
    assert len(wheel) == 4
    wheel.cancel(entries[2])
    assert len(wheel) == 3
    wheel.advance(NEAR)
    assert len(wheel) == 1


def test_statistics_say_what_is_where() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    for distance, count in [(OPEN, 1), (NEAR, 2), (2 * NEAR, 5), (MID, 3), (FAR, 4)]:
        for _ in range(count):
            wheel.insert(distance, "timer")
    statistics = wheel.statistics()
    assert statistics.pending == 15
    assert statistics.open == 1
    assert statistics.occupancy == (7, 3, 4)
    assert statistics.slots == (2, 1, 1)
    assert statistics.slot_spans == (2**28, 2**42, 2**52)
    assert statistics.fullest_slots == (5, 3, 4)
    assert statistics.fullest_slot == 5
    assert statistics.stale == 0


@pytest.mark.parametrize(("tick", "end"), [(1, 2), (8, 8), (1 << 28, 1 << 28)])
def test_one_slot_of_a_new_wheel_is_open(tick: int, end: int) -> None:
    wheel: TimingWheel[str] = TimingWheel(tick=tick)
    wheel.insert(end - 1, "open")
    wheel.insert(end, "near")
    statistics = wheel.statistics()
    assert (statistics.open, statistics.occupancy) == (1, (1, 0, 0))


@pytest.mark.parametrize("level", [1, 2])
def test_a_level_extends_beyond_now_by_a_whole_slot_of_the_level_above_it(level: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    span = wheel.statistics().slot_spans[level]
    now = span + 1
    wheel.insert(now + span, "timer")
    assert wheel.statistics().occupancy[level] == 1
    wheel.advance(now)
    assert wheel.statistics().occupancy[level] == 0


def test_statistics_of_two_wheels_can_be_added() -> None:
    one: TimingWheel[str] = TimingWheel()
    other: TimingWheel[str] = TimingWheel()
    for distance, count in [(OPEN, 1), (NEAR, 2), (2 * NEAR, 5), (FAR, 4)]:
        for _ in range(count):
            one.insert(distance, "timer")
    for distance, count in [(OPEN, 2), (NEAR, 9), (MID, 3)]:
        for _ in range(count):
            other.insert(distance, "timer")
    other.cancel(other.insert(OPEN, "canceled"))
    total = one.statistics() + other.statistics()
    assert (total.pending, total.open, total.stale) == (26, 3, 1)
    assert total.occupancy == (16, 3, 4)
    assert total.slots == (3, 1, 1)
    assert total.fullest_slots == (9, 3, 4)
    assert total.slot_spans == one.statistics().slot_spans


def test_statistics_of_wheels_with_other_slots_cannot_be_added() -> None:
    one: TimingWheel[str] = TimingWheel()
    other: TimingWheel[str] = TimingWheel(tick=1 << 20)
    with pytest.raises(ValueError, match=r"nanoseconds; add only statistics of wheels with the same tick$"):
        one.statistics() + other.statistics()


def test_statistics_do_not_count_canceled_timers() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    for distance in PLACES:
        wheel.cancel(wheel.insert(distance, "timer"))
    statistics = wheel.statistics()
    assert (statistics.pending, statistics.open, statistics.occupancy) == (0, 0, (0, 0, 0))
    assert statistics.slots == (0, 0, 0)
    assert statistics.fullest_slot == 0
    assert statistics.stale == 1


def test_entries_canceled_in_the_open_slot_are_swept_out() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    sorted_ones = [wheel.insert(SECOND + n, n) for n in range(1000)]
    wheel.advance(SECOND - 1)
    later_ones = [wheel.insert(SECOND + n, n) for n in range(1000)]
    for entry in sorted_ones[10:] + later_ones[10:]:
        wheel.cancel(entry)
        statistics = wheel.statistics()
        assert statistics.stale <= statistics.open + 64
    assert wheel.advance(2 * SECOND) == [n for n in range(10) for _ in range(2)]


def test_order_survives_the_sweep_of_the_open_slot() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    entries = {wheel.insert(1 + 7919 * n % 1000, 1 + 7919 * n % 1000): n for n in range(1000)}
    for entry, n in entries.items():
        if n % 10:
            wheel.cancel(entry)
    kept = sorted(1 + 7919 * n % 1000 for n in range(0, 1000, 10))
    assert [item for now in range(1001) for item in wheel.advance(now)] == kept
    assert [wheel.cancel(entry) for entry in entries] == [False] * 1000


def test_leaving_a_slot_leaves_nothing_stale() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.cancel(wheel.insert(1, "cancelled"))
    assert wheel.statistics().stale == 1
    wheel.advance(SECOND)
    assert wheel.statistics().stale == 0


class ForeignInteger:
    """Like numpy's: an integer of 64 bits, not an `int`."""

    def __lshift__(self, bits: int) -> int:
        return 0

    def __repr__(self) -> str:
        return "ForeignInteger()"


BAD_TIMES = [1.5, float("nan"), float("inf"), None, "5", True, False, Decimal(5), ForeignInteger(), [5]]


@pytest.mark.parametrize("now", [-(10**12), 0, 10**18])
@pytest.mark.parametrize("tick", [1, 1 << 28])
@pytest.mark.parametrize("due", BAD_TIMES, ids=repr)
def test_a_due_time_that_is_no_int_is_refused(now: int, tick: int, due: int) -> None:
    wheel: TimingWheel[str] = TimingWheel(now=now, tick=tick)
    with pytest.raises(TypeError, match="due must be an int of nanoseconds") as error:
        wheel.insert(due, "never")
    assert repr(due) in str(error.value)
    assert len(wheel) == 0
    assert wheel.next_due() is None


def test_refused_timers_are_not_counted() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.insert(SECOND, "tea")
    for _ in range(3):
        with pytest.raises(TypeError):
            wheel.insert("5", "no")  # type: ignore[arg-type]
    assert len(wheel) == 1


@pytest.mark.parametrize("now", BAD_TIMES, ids=repr)
def test_a_now_that_is_no_int_is_refused(now: int) -> None:
    refusal = re.escape(f"now must be an int of nanoseconds, not {now!r};")
    with pytest.raises(TypeError, match=refusal):
        TimingWheel(now=now)
    with pytest.raises(TypeError, match=refusal):
        TimingWheel[str]().advance(now)


@pytest.mark.parametrize("tick", BAD_TIMES, ids=repr)
def test_a_tick_that_is_no_int_is_refused(tick: int) -> None:
    with pytest.raises(TypeError, match=re.escape(f"tick must be an int of nanoseconds, not {tick!r};")):
        TimingWheel(tick=tick)


class Nanoseconds(int):
    """A subclass of int, as `IntEnum` and other libraries have."""


@pytest.mark.parametrize("distance", PLACES)
def test_an_int_of_a_subclass_is_a_time_like_any_other(distance: int) -> None:
    wheel: TimingWheel[str] = TimingWheel(now=Nanoseconds(), tick=Nanoseconds(SECOND))
    wheel.insert(Nanoseconds(distance), "tea")
    assert wheel.advance(Nanoseconds(distance - 1)) == []
    assert wheel.advance(Nanoseconds(distance)) == ["tea"]


@pytest.mark.parametrize("tick", [0, -1])
def test_a_tick_below_one_is_refused(tick: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 nanosecond, not {tick}"):
        TimingWheel(tick=tick)


@pytest.mark.parametrize(("tick", "span"), [(1, 1), (2, 2), (3, 4), (1000, 1024), (1 << 30, 1 << 30)])
def test_a_tick_is_rounded_up_to_a_power_of_two(tick: int, span: int) -> None:
    assert TimingWheel(tick=tick).statistics().slot_spans[0] == span


@pytest.mark.parametrize("entry", [None, "5", 1.5, [5, "item"]], ids=repr)
def test_cancelling_what_is_no_entry_is_refused(entry: TimerEntry) -> None:
    with pytest.raises(TypeError, match="cancel takes the entry that insert returned"):
        TimingWheel[str]().cancel(entry)


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 8, 2**19, 2**20, 2**27])
@pytest.mark.parametrize("direction", [-1, 1])
def test_no_pattern_of_due_times_makes_entries_collide(step: int, direction: int) -> None:
    wheel: TimingWheel[None] = TimingWheel()
    entries = [wheel.insert(YEAR + direction * n * step, None) for n in range(1000)]
    assert len({hash(entry) for entry in entries}) == 1000


def test_entries_sort_by_due_time_then_arrival() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    entries = [wheel.insert(due, "") for due in [-5, -5, 0, 3, 3, 2**200]]
    assert all(first < second for first, second in pairwise(entries))


@pytest.mark.parametrize("due", [-5, 0, 7, 10**9, 10**20])
def test_an_entry_tells_when_its_timer_is_due(due: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.insert(due, "an earlier arrival")
    assert due_of(wheel.insert(due, "item")) == due


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_a_timer_can_be_canceled_on_whatever_level_it_is_after_a_turn(level: int, slots: int) -> None:
    wheel: TimingWheel[str] = TimingWheel()
    span = wheel.statistics().slot_spans[level]
    entry = wheel.insert(slots * span + span // 2, "a")
    assert wheel.advance(span) == []
    assert wheel.cancel(entry)
    assert len(wheel) == 0
