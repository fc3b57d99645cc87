"""Durations, deadlines and waiting."""

import threading
from datetime import UTC, datetime, timedelta
from threading import Condition, Event, Thread

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainspring.clock import NANOSECONDS, Clock, Duration, SystemClock, deadline_after, to_nanoseconds
from mainspring.testing import ManualClock
from tests.support import PATIENCE

# -- durations


@pytest.mark.parametrize(
    ("duration", "nanoseconds"),
    [
        (0, 0),
        (0.0, 0),
        (1, 1_000_000_000),
        (0.25, 250_000_000),
        (1e-9, 1),
        (timedelta(0), 0),
        (timedelta(milliseconds=200), 200_000_000),
        (timedelta(microseconds=1), 1_000),
        (timedelta(days=1), 86_400_000_000_000),
        (timedelta.max, 86_399_999_999_999_999_999_000),
    ],
    ids=str,
)
def test_a_duration_is_seconds_or_a_timedelta(duration: Duration, nanoseconds: int) -> None:
    assert to_nanoseconds(duration, "delay") == nanoseconds


@given(st.timedeltas(min_value=timedelta(0)))
def test_no_microsecond_of_a_timedelta_is_lost(duration: timedelta) -> None:
    assert to_nanoseconds(duration, "delay") == duration // timedelta(microseconds=1) * 1_000


@given(st.integers(0, 10**30))
def test_whole_seconds_are_exact_however_many(seconds: int) -> None:
    assert to_nanoseconds(seconds, "delay") == seconds * NANOSECONDS


@pytest.mark.parametrize(
    "duration", [-1, -0.001, timedelta(microseconds=-1), float("inf"), float("-inf"), float("nan")], ids=str
)
def test_what_no_clock_can_wait_for_is_refused(duration: Duration) -> None:
    with pytest.raises(ValueError, match="delay must"):
        to_nanoseconds(duration, "delay")


@pytest.mark.parametrize("duration", ["1", None, True, [1], 1j], ids=str)
def test_what_is_no_duration_is_refused(duration: Duration) -> None:
    with pytest.raises(TypeError, match="delay must be a timedelta or a number of seconds"):
        to_nanoseconds(duration, "delay")


# -- deadlines


def test_a_deadline_is_counted_from_now() -> None:
    clock = ManualClock()
    clock.jump(100)
    assert deadline_after(clock, 2.5) == 102_500_000_000
    assert deadline_after(clock, timedelta(seconds=1)) == 101_000_000_000
    assert deadline_after(clock, 0) == 100_000_000_000


def test_without_a_time_out_there_is_no_deadline() -> None:
    assert deadline_after(ManualClock(), None) is None


def test_a_bad_time_out_is_blamed_by_its_name() -> None:
    with pytest.raises(ValueError, match="timeout must not be negative"):
        deadline_after(ManualClock(), -1)
    with pytest.raises(TypeError, match="patience must"):
        deadline_after(ManualClock(), "soon", "patience")  # type: ignore[arg-type]  # wrong on purpose


# -- the system's clock


def test_the_system_clock_is_a_clock_and_counts_forwards() -> None:
    clock: Clock = SystemClock()
    first, second = clock.monotonic_ns(), clock.monotonic_ns()
    assert first <= second
    assert clock.now().tzinfo is UTC
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)  # noqa: TID251 - compared with the real one


def notify_when_waiting(condition: Condition) -> Thread:
    """Notify once the caller has let go of the condition, that is, waits on it."""

    def notify() -> None:
        with condition:
            condition.notify_all()

    thread = Thread(target=notify, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "timeout", [None, 3600, timedelta(days=365 * 1000)], ids=["none", "hour", "thousand years"]
)
def test_a_notified_wait_returns_true(timeout: Duration | None) -> None:
    clock = SystemClock()
    condition = Condition()
    with condition:
        thread = notify_when_waiting(condition)
        assert clock.wait(condition, deadline_after(clock, timeout))
    thread.join(PATIENCE)


def test_a_wait_ends_at_its_deadline_and_not_before() -> None:
    clock = SystemClock()
    condition = Condition()
    deadline = clock.monotonic_ns() + 5_000_000
    with condition:
        while clock.wait(condition, deadline):
            assert clock.monotonic_ns() < deadline  # woken by chance, as conditions may be
    assert clock.monotonic_ns() >= deadline


def test_a_deadline_in_the_past_does_not_wait() -> None:
    clock = SystemClock()
    condition = Condition()
    let_go = Event()

    class Watched(Condition):
        def wait(self, timeout: float | None = None) -> bool:
            let_go.set()
            return super().wait(timeout)

    condition = Watched()
    with condition:
        assert not clock.wait(condition, clock.monotonic_ns())
        assert not clock.wait(condition, 0)
    assert not let_go.is_set()


def test_the_longest_wait_the_system_knows_is_long_enough() -> None:
    """What is longer must be cut to this, or waiting raises OverflowError."""
    assert timedelta(seconds=threading.TIMEOUT_MAX) > timedelta(days=365 * 100)


def test_members_are_none_of_its_business() -> None:
    class Member:
        def next_due(self) -> int | None:
            raise AssertionError("must not be called")

        def activity(self) -> object:
            raise AssertionError("must not be called")

        def settle(self, real_seconds: float) -> str | None:
            raise AssertionError("must not be called")

    clock, member = SystemClock(), Member()
    clock.attach(member)
    clock.detach(member)
    clock.detach(member)
    assert isinstance(clock.monotonic_ns(), int)
