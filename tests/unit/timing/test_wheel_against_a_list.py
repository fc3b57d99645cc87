"""The timing wheel against the simplest thing that is right: a dict, sorted when time moves."""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from mainspring.timing import TimerEntry, TimingWheel, wheel
from tests.support import amount

pytestmark = pytest.mark.long

SLOTS = [1 << 10, 1 << 14]  # in a slot of the level above
YEARS_100 = 100 * 8766 * 3600 * 10**9

ticks = st.sampled_from([1, 2, 64, 1 << 28])
starts = st.sampled_from([-(10**12), 0, 1, 12345, 10**15]) | st.integers(0, 2**61)
# In ticks: around multiples of the slots of all three levels, which lie closest together for the smallest tick.
distances = st.builds(
    lambda level, multiple, part: (level, multiple, part),
    st.integers(0, 2),
    st.integers(-1, 5) | st.sampled_from([slots + part for slots in SLOTS for part in (-1, 0, 1)]),
    st.sampled_from([-1, 0, 1]) | st.integers(0, 2**42),
)


class WheelMachine(RuleBasedStateMachine):
    """Random inserts, cancels and steps of time, each compared with the model."""

    entries: Bundle[tuple[TimerEntry, int]] = Bundle("entries")

    @initialize(start=starts, tick=ticks)
    def begin(self, start: int, tick: int) -> None:
        self.wheel: TimingWheel[int] = TimingWheel(now=start, tick=tick)
        self.spans = self.wheel.statistics().slot_spans
        self.now = start
        self.pending: dict[int, int] = {}  # number of the timer: due time
        self.count = 0
        self.is_overdue_possible = True  # until the first advance

    def nanoseconds(self, distance: tuple[int, int, int]) -> int:
        level, multiple, part = distance
        span = self.spans[level]
        return multiple * span + (part if part < 2 else part % span)

    def insert_at(self, due: int) -> tuple[TimerEntry, int]:
        number = self.count
        self.count += 1
        self.pending[number] = due
        self.is_overdue_possible |= due <= self.now
        return self.wheel.insert(due, number), number

    @rule(target=entries, distance=distances)
    def insert(self, distance: tuple[int, int, int]) -> tuple[TimerEntry, int]:
        return self.insert_at(self.now + self.nanoseconds(distance))

    @rule(target=entries, distance=distances, part=st.sampled_from([-1, 0, 1]))
    def insert_at_a_boundary(self, distance: tuple[int, int, int], part: int) -> tuple[TimerEntry, int]:
        span = self.spans[distance[0]]
        return self.insert_at((self.now // span + distance[1]) * span + part)

    @rule(target=entries, due=st.integers(-(2**64), 2**64) | st.sampled_from([YEARS_100, 2**200]))
    def insert_anywhere(self, due: int) -> tuple[TimerEntry, int]:
        return self.insert_at(due)

    @rule(target=entries, entry=entries, count=st.integers(1, 100))
    def insert_at_the_same_time(self, entry: tuple[TimerEntry, int], count: int) -> Any:
        due = self.pending.get(entry[1], self.now)
        return multiple(*(self.insert_at(due) for _ in range(count)))

    @rule(entry=entries)
    def cancel(self, entry: tuple[TimerEntry, int]) -> None:
        assert self.wheel.cancel(entry[0]) is (self.pending.pop(entry[1], None) is not None)

    @rule(picked=st.lists(entries, max_size=50))
    def cancel_many(self, picked: list[tuple[TimerEntry, int]]) -> None:
        for entry in picked:
            self.cancel(entry)

    @rule(distance=distances)
    def advance(self, distance: tuple[int, int, int]) -> None:
        self.advance_to(self.now + self.nanoseconds(distance))

    @rule()
    def follow_next_due(self) -> None:
        now = self.wheel.next_due()
        if now is not None and now < 2**100:
            self.advance_to(max(now, self.now))

    @rule()
    def advance_to_just_before_the_next(self) -> None:
        if self.pending:
            self.advance_to(min(min(self.pending.values()) - 1, 2**100))

    def advance_to(self, now: int) -> None:
        due = sorted((due, number) for number, due in self.pending.items() if due <= now)
        assert self.wheel.advance(now) == [number for _, number in due]
        for _, number in due:
            del self.pending[number]
        self.now = now
        self.is_overdue_possible = False

    @invariant()
    def counts_are_exact(self) -> None:
        if hasattr(self, "wheel"):
            statistics = self.wheel.statistics()
            assert len(self.wheel) == len(self.pending) == statistics.pending
            assert statistics.pending == statistics.open + sum(statistics.occupancy)

    @invariant()
    def next_due_keeps_its_promise(self) -> None:
        if hasattr(self, "wheel"):
            next_due = self.wheel.next_due()
            if not self.pending:
                assert next_due is None
            else:
                assert next_due is not None
                assert next_due <= min(self.pending.values())
                assert self.is_overdue_possible or next_due > self.now

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            self.advance_to(2**201)


class FrugalWheelMachine(WheelMachine):
    """The same without allowances, so that every sweep happens as early as it can."""

    def __init__(self) -> None:
        self._patches = ExitStack()
        self._patches.enter_context(patch.object(wheel, "_HOLLOW_ALLOWANCE", 0))
        self._patches.enter_context(patch.object(wheel, "_FEW", 1))
        self._patches.enter_context(patch.object(wheel, "is_roomy", bool))
        self._patches.enter_context(patch.object(wheel, "_STALE_ALLOWANCE", 0))
        super().__init__()

    def teardown(self) -> None:
        with self._patches:
            super().teardown()


TestWheel = WheelMachine.TestCase
TestWheel.settings = settings(max_examples=amount(30, thorough=60), stateful_step_count=40)
TestFrugalWheel = FrugalWheelMachine.TestCase
TestFrugalWheel.settings = settings(max_examples=amount(30, thorough=60), stateful_step_count=40)


@given(
    delays=st.lists(st.integers(0, 1 << 46), max_size=300),
    steps=st.lists(st.integers(0, 1 << 44), max_size=30),
    start=starts,
    tick=ticks,
)
@settings(max_examples=100)
def test_many_timers_fire_in_order(delays: list[int], steps: list[int], start: int, tick: int) -> None:
    wheel: TimingWheel[tuple[int, int]] = TimingWheel(now=start, tick=tick)
    expected = sorted((start + delay, number) for number, delay in enumerate(delays))
    for number, delay in enumerate(delays):
        wheel.insert(start + delay, (start + delay, number))
    fired, now = [], start
    for step in [*steps, 1 << 46]:
        now += step
        fired += wheel.advance(now)
        assert fired == [timer for timer in expected if timer[0] <= now]
    assert fired == expected
