"""The clock that drives all other tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from threading import Condition

import pytest

from mainspring import TaskRunner, ThreadPool
from mainspring.testing import ManualClock, manual_clock
from tests.pools import MakePool, runners_of
from tests.support import PATIENCE, Background, Gate, WatchedClock

SECOND = 10**9
HOUR = timedelta(hours=1)


# -- the two readings


def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    assert [clock.monotonic_ns(), clock.monotonic_ns()] == [0, 0]
    assert clock.now() == clock.now() == datetime(2026, 1, 1, tzinfo=UTC)
    clock.advance(1.5)
    clock.jump(timedelta(milliseconds=500))
    assert clock.monotonic_ns() == 2 * SECOND
    assert clock.now() == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)


def test_the_start_must_be_aware() -> None:
    with pytest.raises(ValueError, match=r"aware.*2026, 5, 1.*tzinfo=UTC"):
        ManualClock(datetime(2026, 5, 1))  # noqa: DTZ001 - naive on purpose


def test_the_start_is_converted_to_utc() -> None:
    taipei = timezone(timedelta(hours=8))
    clock = ManualClock(datetime(2026, 5, 1, 8, tzinfo=taipei))
    assert clock.now() == datetime(2026, 5, 1, tzinfo=UTC)
    assert clock.now().utcoffset() == timedelta()


@pytest.mark.parametrize("difference", [timedelta(hours=3), -timedelta(days=2)])
def test_the_wall_clock_can_be_stepped_alone(pool: ThreadPool, clock: WatchedClock, difference: timedelta) -> None:
    seen: list[int] = []
    pool.post(lambda: seen.append(clock.monotonic_ns()), delay=60)
    clock.step_wall(difference)
    clock.settle()
    assert seen == []
    assert clock.now() == datetime(2026, 1, 1, tzinfo=UTC) + difference
    assert clock.monotonic_ns() == 0
    clock.advance(60)
    assert seen == [60 * SECOND]


@pytest.mark.parametrize("move", [ManualClock.advance, ManualClock.jump])
@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
def test_time_never_runs_backwards(
    move: Callable[[ManualClock, object], None], value: object, error: type[Exception]
) -> None:
    clock = ManualClock()
    with pytest.raises(error, match=f"duration must .*{value!r}"):
        move(clock, value)
    assert clock.monotonic_ns() == 0


# -- advance


def test_an_hour_of_many_delays_and_repetitions_runs_in_order_and_at_once(
    pool: ThreadPool, clock: WatchedClock
) -> None:
    seen: list[int] = []
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    sequence = pool.sequenced()
    for number in range(200):
        delay = (number * 37) % 3600 + 0.25
        sequence.post(lambda: seen.append(clock.monotonic_ns()), delay=delay)
    repetition = sequence.repeat(beat, every=60)
    clock.advance(HOUR)
    repetition.stop()
    assert len(seen) == 200
    assert seen == sorted(seen)
    assert {instant % SECOND for instant in seen} == {SECOND // 4}
    assert beats == 60
    assert clock.monotonic_ns() == 3600 * SECOND


def test_everything_due_on_the_way_has_run_on_every_runner(pool: ThreadPool, clock: WatchedClock) -> None:
    for runner in runners_of(pool):
        seen: list[int] = []

        def chain(runner: TaskRunner = runner, seen: list[int] = seen) -> None:
            seen.append(clock.monotonic_ns() // SECOND)
            if len(seen) < 20:
                runner.post(chain, delay=1)

        start = clock.monotonic_ns() // SECOND
        runner.post(chain, delay=1)
        clock.advance(20)
        assert seen == list(range(start + 1, start + 21))


def test_tasks_of_different_runners_run_in_the_order_of_their_dues(pool: ThreadPool, clock: WatchedClock) -> None:
    seen: list[int] = []
    runners = runners_of(pool)
    for due in (7, 3, 9, 1, 5, 8, 2, 10, 4, 6):
        runners[due % 5].post(seen.append, due, delay=due)
    clock.advance(10)
    assert seen == list(range(1, 11))


def test_advance_lets_what_was_posted_before_come_to_rest_first(pool: ThreadPool, clock: WatchedClock) -> None:
    seen: list[int] = []
    for _ in range(50):
        pool.post(lambda: seen.append(clock.monotonic_ns()))
    clock.advance(1)
    assert seen == [0] * 50


def test_work_that_crosses_between_pools_comes_to_rest(make_pool: MakePool, clock: WatchedClock) -> None:
    pools = [make_pool(1, name="first"), make_pool(1, name="second"), make_pool(1, name="third")]
    for turn in range(20):
        seen: list[int] = []

        def hop(left: int, seen: list[int] = seen) -> None:
            if left:
                pools[left % 3].post(hop, left - 1)
            else:
                seen.append(clock.monotonic_ns() // SECOND)

        pools[0].post(hop, 15, delay=1)
        clock.advance(5)
        assert seen == [5 * turn + 1]


def test_a_task_that_waits_by_the_clock_does_not_stop_it(pool: ThreadPool, clock: WatchedClock) -> None:
    other = pool.sequenced()
    other.post(int, delay=5)

    def wait() -> int:
        pool.sequenced().submit(int, delay=5).result(PATIENCE)
        return clock.monotonic_ns()

    future = pool.submit(wait)
    clock.advance(10)
    assert future.result(0) == 5 * SECOND


def test_a_coroutine_that_waits_for_a_delayed_task_does_not_stop_the_clock(
    pool: ThreadPool, clock: WatchedClock
) -> None:
    loop, orders = pool.asyncio(), pool.sequenced()

    async def wait() -> int:
        await orders.run(int, delay=5)
        return clock.monotonic_ns()

    future = loop.submit(wait)
    clock.advance(10)
    assert future.result(0) == 5 * SECOND


def test_advance_gives_up_and_names_the_busy_task(
    pool: ThreadPool, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()

    def stubborn_task() -> None:
        gate()

    pool.post(stubborn_task, delay=1)
    clock.jump(1)
    gate.wait_until_entered()  # so nothing but this task can keep the clock from going on
    with monkeypatch.context() as impatient:
        impatient.setattr(manual_clock, "PATIENCE_SECONDS", 0.05)
        with pytest.raises(TimeoutError, match=r"0\.05 real seconds: .*stubborn_task.*jump\(\)"):
            clock.advance(1)
    assert clock.monotonic_ns() == SECOND
    gate.open()
    clock.advance(1)
    assert clock.monotonic_ns() == 2 * SECOND


@pytest.mark.parametrize("which", range(5))
def test_advance_names_the_busy_task_of_every_runner(
    pool: ThreadPool, clock: WatchedClock, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    gate = Gate()

    def stubborn_task() -> None:
        gate()

    runners_of(pool)[which].post(stubborn_task)
    gate.wait_until_entered()
    with monkeypatch.context() as impatient:
        impatient.setattr(manual_clock, "PATIENCE_SECONDS", 0.05)
        with pytest.raises(TimeoutError, match="stubborn_task"):
            clock.settle()
    gate.open()
    clock.settle()


# -- jump


def test_jump_waits_for_no_thread(pool: ThreadPool, clock: WatchedClock) -> None:
    gate = Gate()
    pool.post(gate)
    gate.wait_until_entered()
    clock.jump(HOUR)
    assert clock.monotonic_ns() == 3600 * SECOND
    gate.open()


def test_what_a_jump_has_passed_runs_afterwards_in_order(pool: ThreadPool, clock: WatchedClock) -> None:
    seen: list[tuple[int, int]] = []
    sequence = pool.sequenced()
    for due in (3, 1, 2):
        sequence.post(lambda number: seen.append((number, clock.monotonic_ns())), due, delay=due)
    clock.jump(10)
    clock.settle()
    assert seen == [(1, 10 * SECOND), (2, 10 * SECOND), (3, 10 * SECOND)]


def test_a_task_that_is_due_is_not_ignored_by_wait_idle(make_pool: MakePool, clock: WatchedClock) -> None:
    for _ in range(50):
        pool = make_pool(1)
        seen: list[int] = []
        pool.post(seen.append, 1, delay=1)
        clock.jump(1)
        pool.wait_idle()
        assert seen == [1]


# -- waiting


def test_a_wait_ends_at_its_deadline(clock: WatchedClock) -> None:
    condition = Condition()

    def wait() -> bool:
        with condition:
            return clock.wait(condition, 5 * SECOND)

    waiting = Background(wait, clock)
    clock.wait_until_asleep(waiting)
    clock.advance(4.9)
    assert not waiting.is_done
    clock.advance(0.1)
    assert waiting.result() is False


def test_a_wait_ends_when_it_is_notified(clock: WatchedClock) -> None:
    condition = Condition()

    def wait(deadline: int | None) -> bool:
        with condition:
            return clock.wait(condition, deadline)

    for deadline in (None, 5 * SECOND):
        waiting = Background(partial(wait, deadline), clock)
        clock.wait_until_asleep(waiting)
        with condition:
            condition.notify_all()
        assert waiting.result() is True


def test_a_deadline_that_has_passed_is_not_waited_for(clock: WatchedClock) -> None:
    clock.advance(5)
    condition = Condition()
    with condition:
        assert clock.wait(condition, 5 * SECOND) is False
        assert clock.wait(condition, 4 * SECOND) is False


def test_a_time_out_on_the_way_is_an_event_of_its_own(pool: ThreadPool, clock: WatchedClock) -> None:
    gate = Gate()
    other = pool.sequenced()

    def wait_in_vain() -> int:
        with pytest.raises(TimeoutError):
            other.wait_idle(timeout=3)
        return clock.monotonic_ns()

    other.post(gate)
    gate.wait_until_entered()
    waiting = Background(wait_in_vain, clock)
    clock.wait_until_asleep(waiting)
    clock.jump(3)
    assert waiting.result() == 3 * SECOND
    gate.open()


def test_a_pool_that_has_ended_is_forgotten(make_pool: MakePool, clock: WatchedClock) -> None:
    pool = make_pool(1)
    pool.post(int, delay=5)
    pool.shutdown()
    clock.advance(10)
    assert clock.monotonic_ns() == 10 * SECOND
    assert clock._present_members() == []
