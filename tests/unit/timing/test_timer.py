"""The timer thread: in order, never early, asleep in between, and hard to kill."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from threading import Event, Thread
from typing import NoReturn
from weakref import ref

import pytest

from mainspring.clock import NANOSECONDS, SystemClock
from mainspring.testing import ManualClock
from mainspring.timing.timer import Timer
from tests.support import PATIENCE

SECOND = NANOSECONDS


class Member:
    """A timer as a member of its clock, so that `advance` takes it along."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def next_due(self) -> int | None:
        return self._timer.next_due()

    def activity(self) -> object:
        return len(self._timer)

    def settle(self, real_seconds: float) -> str | None:
        return None if self._timer.settle(real_seconds) else "the timer"


@pytest.fixture
def timer(clock: ManualClock) -> Iterator[Timer]:
    timer = Timer(clock, name="test")
    clock.attach(Member(timer))
    yield timer
    timer.close()


@pytest.fixture
def called() -> list[str]:
    return []


# -- when and in what order


def test_calls_are_made_in_order_of_due_time_and_then_of_arrival(
    timer: Timer, clock: ManualClock, called: list[str]
) -> None:
    for name, due in [("c", 3), ("a", 1), ("d", 3), ("b", 2), ("e", 3)]:
        timer.call_at(due * SECOND, partial(called.append, name))
    clock.advance(3)
    assert called == ["a", "b", "c", "d", "e"]
    assert len(timer) == 0


def test_a_late_timer_makes_up_for_everything_in_order(
    timer: Timer, clock: ManualClock, called: list[str]
) -> None:
    for name, due in [("b", 2), ("a", 1), ("c", 3)]:
        timer.call_at(due * SECOND, partial(called.append, name))
    clock.jump(100)
    assert timer.settle(PATIENCE)
    assert called == ["a", "b", "c"]


def test_no_call_is_early(timer: Timer, clock: ManualClock, called: list[str]) -> None:
    timer.call_at(5 * SECOND, partial(called.append, "a"))
    clock.advance(timedelta(seconds=5) - timedelta(microseconds=1))
    assert called == []
    clock.advance(timedelta(microseconds=1))
    assert called == ["a"]


def test_each_call_is_made_at_its_own_instant(timer: Timer, clock: ManualClock) -> None:
    instants: list[int] = []
    dues = [7, 1, SECOND, 3600 * SECOND, 86_400 * SECOND + 1]
    for due in dues:
        timer.call_at(due, lambda: instants.append(clock.monotonic_ns()))
    clock.advance(timedelta(days=2))
    assert instants == sorted(dues)


def test_what_is_overdue_is_called_at_once(timer: Timer, clock: ManualClock, called: list[str]) -> None:
    clock.jump(10)
    timer.call_at(SECOND, partial(called.append, "late"))
    timer.call_at(clock.monotonic_ns(), partial(called.append, "now"))
    assert timer.settle(PATIENCE)
    assert called == ["late", "now"]


def test_a_nearer_call_is_not_held_up_by_one_that_is_slept_for(
    timer: Timer, clock: ManualClock, called: list[str]
) -> None:
    timer.call_at(3600 * SECOND, partial(called.append, "far"))
    clock.settle()
    timer.call_at(SECOND, partial(called.append, "near"))
    clock.advance(1)
    assert called == ["near"]


def test_by_the_real_clock_calls_come_soon_after_their_time_and_never_before() -> None:
    clock = SystemClock()
    timer = Timer(clock, name="real")
    early: list[int] = []
    all_called = Event()
    left = 50

    def call(due: int) -> None:
        nonlocal left
        left -= 1
        if clock.monotonic_ns() < due:
            early.append(due)
        if left == 0:
            all_called.set()

    start = clock.monotonic_ns()
    for number in range(50):
        due = start + (number * 37 % 50) * 1_000_000
        timer.call_at(due, partial(call, due))
    assert all_called.wait(PATIENCE)
    timer.close()
    assert early == []


def test_next_due_is_never_after_the_earliest_call(timer: Timer, clock: ManualClock) -> None:
    assert timer.next_due() is None
    timer.call_at(9 * SECOND, int)
    timer.call_at(4 * SECOND, int)
    due = timer.next_due()
    assert due is not None
    assert 0 < due <= 4 * SECOND


# -- taking back


def test_a_canceled_call_is_not_made(timer: Timer, clock: ManualClock, called: list[str]) -> None:
    entry = timer.call_at(SECOND, partial(called.append, "cancelled"))
    timer.call_at(SECOND, partial(called.append, "kept"))
    assert len(timer) == 2
    assert timer.cancel(entry)
    assert len(timer) == 1
    assert not timer.cancel(entry)
    clock.advance(2)
    assert called == ["kept"]
    assert not timer.cancel(entry)


def test_a_call_is_discarded_by_a_thread_that_holds_the_lock(
    timer: Timer, clock: ManualClock, called: list[str]
) -> None:
    kept, dropped = (timer.call_at(SECOND, partial(called.append, name)) for name in ("kept", "dropped"))
    with timer.lock:
        assert timer.discard(dropped)
        assert not timer.discard(dropped)
    clock.advance(1)
    assert called == ["kept"]
    assert not timer.cancel(kept)


def test_a_call_that_was_made_cannot_be_canceled(timer: Timer, clock: ManualClock, called: list[str]) -> None:
    entry = timer.call_at(SECOND, partial(called.append, "a"))
    clock.advance(1)
    assert not timer.cancel(entry)
    assert called == ["a"]


class Thing:
    """A callback that can be watched while it is released."""

    def __call__(self) -> None:
        pass


def test_a_canceled_callback_is_released_at_once(timer: Timer) -> None:
    thing = Thing()
    reference = ref(thing)
    entry = timer.call_at(SECOND, thing)
    del thing
    assert reference() is not None
    timer.cancel(entry)
    assert reference() is None


def test_a_callback_that_was_called_is_released(timer: Timer, clock: ManualClock) -> None:
    thing = Thing()
    reference = ref(thing)
    timer.call_at(SECOND, thing)
    del thing
    clock.advance(1)
    assert reference() is None


# -- callbacks


def test_a_callback_may_use_the_timer(timer: Timer, clock: ManualClock, called: list[str]) -> None:
    """No lock is held while it runs."""

    def again(left: int) -> None:
        called.append(str(left))
        timer.cancel(timer.call_at(clock.monotonic_ns() + SECOND, called.clear))
        if left:
            timer.call_at(clock.monotonic_ns() + SECOND, partial(again, left - 1))

    timer.call_at(0, partial(again, 3))
    clock.advance(10)
    assert called == ["3", "2", "1", "0"]


def test_a_callback_may_post_something_overdue(timer: Timer, clock: ManualClock, called: list[str]) -> None:
    timer.call_at(SECOND, lambda: timer.call_at(0, partial(called.append, "overdue")))
    clock.advance(1)
    assert called == ["overdue"]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_is_logged_and_the_timer_goes_on(
    timer: Timer,
    clock: ManualClock,
    called: list[str],
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    reached = Event()

    def fail() -> NoReturn:
        raise error("as expected")

    timer.call_at(SECOND, fail)
    timer.call_at(SECOND, partial(called.append, "same time"))
    timer.call_at(2 * SECOND, reached.set)
    clock.jump(1)
    clock.jump(1)
    assert reached.wait(PATIENCE)
    assert called == ["same time"]
    (record,) = caplog.records
    assert record.getMessage() == "a callback of timer 'test' failed; the timer goes on with the others"
    assert "as expected" in caplog.text


def test_callbacks_run_one_after_another_on_one_thread(timer: Timer, clock: ManualClock) -> None:
    threads: list[int] = []
    for second in range(1, 6):
        timer.call_at(second * SECOND, lambda: threads.append(threading.get_ident()))
    clock.advance(10)
    assert len(threads) == 5
    assert set(threads) != {threading.get_ident()}
    assert len(set(threads)) == 1


# -- the thread


def test_a_timer_without_calls_has_no_thread(clock: ManualClock) -> None:
    before = threading.active_count()
    timer = Timer(clock, name="unused")
    assert timer.settle(PATIENCE)
    assert threading.active_count() == before
    timer.close()
    assert threading.active_count() == before


def test_an_idle_timer_sleeps_without_a_deadline() -> None:
    deadlines: list[int | None] = []

    class Watched(ManualClock):
        def wait(self, condition: threading.Condition, deadline_ns: int | None) -> bool:
            deadlines.append(deadline_ns)
            return super().wait(condition, deadline_ns)

    clock = Watched()
    timer = Timer(clock, name="watched")
    clock.attach(Member(timer))
    timer.call_at(SECOND, int)
    clock.advance(1)
    clock.settle()
    assert deadlines[-1] is None
    seen = len(deadlines)
    clock.advance(timedelta(days=365))
    assert len(deadlines) == seen  # it was not even woken
    timer.close()


def test_a_callback_does_not_wait_for_itself(timer: Timer, clock: ManualClock) -> None:
    settled: list[bool] = []
    timer.call_at(SECOND, lambda: settled.append(timer.settle(PATIENCE)))
    clock.advance(1)
    assert settled == [True]


def test_settle_gives_up_on_a_callback_that_does_not_end(timer: Timer, clock: ManualClock) -> None:
    entered, release = Event(), Event()

    def linger() -> None:
        entered.set()
        release.wait(PATIENCE)

    timer.call_at(SECOND, linger)
    clock.jump(1)
    assert entered.wait(PATIENCE)
    assert not timer.settle(0.01)
    release.set()
    assert timer.settle(PATIENCE)


def test_a_call_in_a_thousand_years_does_not_hurt_the_others() -> None:
    clock = SystemClock()
    timer = Timer(clock, name="patient")
    far = clock.monotonic_ns() + 1000 * 365 * 86_400 * SECOND
    timer.call_at(far, int)
    assert timer.settle(PATIENCE)
    reached = Event()
    timer.call_at(clock.monotonic_ns() + 5_000_000, reached.set)
    try:
        assert reached.wait(PATIENCE)
        assert len(timer) == 1
    finally:
        timer.close()


def test_a_timer_whose_thread_was_refused_tries_again(
    timer: Timer, clock: ManualClock, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            timer.call_at(SECOND, partial(called.append, "refused"))
    assert len(timer) == 0
    reached = Event()
    timer.call_at(SECOND, reached.set)
    clock.jump(1)
    assert reached.wait(PATIENCE)
    assert called == []


# -- closing


def test_a_closed_timer_makes_no_calls_and_takes_none(timer: Timer, clock: ManualClock, called: list[str]) -> None:
    timer.call_at(SECOND, partial(called.append, "a"))
    timer.close()
    timer.close()
    clock.advance(2)
    assert called == []
    assert len(timer) == 0
    with pytest.raises(RuntimeError, match=r"^timer 'test' is closed and takes no more callbacks$"):
        timer.call_at(3 * SECOND, int)


def threads_named(name: str) -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_closing_ends_the_thread(clock: ManualClock) -> None:
    timer = Timer(clock, name="to-be-closed")
    timer.call_at(SECOND, int)
    threads = threads_named("to-be-closed")
    assert [(thread.name, thread.daemon) for thread in threads] == [("to-be-closed-timer", True)]
    timer.close()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()


def test_a_callback_may_close_the_timer(clock: ManualClock, called: list[str]) -> None:
    timer = Timer(clock, name="self-closing")
    timer.call_at(SECOND, timer.close)
    timer.call_at(2 * SECOND, partial(called.append, "too late"))
    threads = threads_named("self-closing")
    clock.jump(1)
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    clock.jump(1)
    assert called == []


def test_many_threads_set_and_cancel(timer: Timer, clock: ManualClock) -> None:
    made: list[int] = []
    kept: list[int] = []

    def use(start: int, call: Callable[[int], None]) -> None:
        for number in range(start, start + 300):
            entry = timer.call_at(number % 7 * SECOND + 1, partial(call, number))
            if number % 3 == 0 and timer.cancel(entry):
                continue
            kept.append(number)

    users = [Thread(target=use, args=(start, made.append), daemon=True) for start in (0, 300, 600)]
    for user in users:
        user.start()
    for second in range(8):
        clock.jump(second)
    for user in users:
        user.join(PATIENCE)
    clock.advance(60)
    assert sorted(made) == sorted(kept)
    assert len(timer) == 0
