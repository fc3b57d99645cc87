"""Delays, repetition, waiting and flushing, all by the manual clock."""

from __future__ import annotations

from datetime import timedelta
from threading import Event

import pytest

from mainspring import TaskFailure, TaskRunner, WouldDeadlock
from tests.conformance.runner_suite.base import RunnerBase
from tests.support import PATIENCE, Background, Gate, WatchedClock, occupied

SECOND = 10**9


class TimeKeeping(RunnerBase):
    # -- delays

    def test_a_delayed_task_runs_when_it_is_due_and_not_before(
        self, runner: TaskRunner, clock: WatchedClock
    ) -> None:
        seen: list[int] = []
        runner.post(lambda: seen.append(clock.monotonic_ns()), delay=timedelta(milliseconds=1500))
        clock.advance(1.4)
        assert seen == []
        clock.advance(0.2)
        assert seen == [1_500_000_000]

    def test_delays_end_in_due_order(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[tuple[float, int]] = []

        def note(delay: float) -> None:
            seen.append((delay, clock.monotonic_ns()))

        for delay in (30, 10, 3600, 20, 0.5, 86_400):
            runner.post(note, delay, delay=delay)
        clock.advance(timedelta(days=1))
        assert seen == [(delay, int(delay * SECOND)) for delay in (0.5, 10, 20, 30, 3600, 86_400)]

    def test_equal_dues_run_in_the_order_of_posting(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[int] = []
        for number in range(50):
            runner.post(seen.append, number, delay=5)
        clock.advance(5)
        if self.places > 1:  # they start in order, but run side by side
            seen.sort()
        assert seen == list(range(50))

    def test_a_task_due_at_one_instant_may_post_for_the_same_instant(
        self, runner: TaskRunner, clock: WatchedClock
    ) -> None:
        seen: list[int] = []
        runner.post(lambda: runner.post(lambda: seen.append(clock.monotonic_ns())), delay=5)
        clock.advance(60)
        assert seen == [5 * SECOND]

    # -- repetition

    def test_a_fixed_rate_keeps_its_phase(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[int] = []
        beat = runner.repeat(lambda: seen.append(clock.monotonic_ns() // SECOND), every=timedelta(seconds=10))
        clock.advance(35)
        assert seen == [10, 20, 30]
        beat.stop()
        clock.advance(60)
        assert seen == [10, 20, 30]

    def test_a_fixed_rate_leaves_out_what_a_long_run_has_missed(
        self, runner: TaskRunner, clock: WatchedClock
    ) -> None:
        seen: list[int] = []

        def run() -> None:
            seen.append(clock.monotonic_ns() // SECOND)
            if len(seen) == 1:
                clock.jump(25)

        beat = runner.repeat(run, every=10)
        clock.advance(10)
        clock.advance(15)
        assert seen == [10, 40, 50]
        beat.stop()

    def test_a_fixed_delay_counts_from_the_end_of_a_run(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[int] = []

        def run() -> None:
            seen.append(clock.monotonic_ns() // SECOND)
            clock.jump(25)

        beat = runner.repeat(run, every=10, fixed_delay=True)
        clock.advance(10)
        assert seen == [10]
        clock.advance(10)
        assert seen == [10, 45]
        beat.stop()

    def test_the_first_run_can_be_put_elsewhere(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[int] = []
        beat = runner.repeat(lambda: seen.append(clock.monotonic_ns() // SECOND), every=10, delay=0)
        later = runner.repeat(lambda: seen.append(-clock.monotonic_ns() // SECOND), every=10, delay=3)
        clock.advance(20)
        assert seen == [0, -3, 10, -13, 20]
        beat.stop()
        later.stop()

    def test_a_repeated_task_may_stop_itself(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[int] = []

        def run() -> None:
            seen.append(clock.monotonic_ns() // SECOND)
            if len(seen) == 2:
                beat.stop()

        beat = runner.repeat(run, every=1)
        clock.advance(10)
        assert seen == [1, 2]
        assert beat.is_stopped
        assert runner.statistics().delayed == 0

    def test_a_repeated_task_goes_on_after_a_failure(
        self, runner: TaskRunner, clock: WatchedClock, failures: list[TaskFailure]
    ) -> None:
        def fail() -> None:
            raise ValueError("no")

        beat = runner.repeat(fail, every=1)
        clock.advance(3)
        beat.stop()
        assert [str(failure.error) for failure in failures] == ["no"] * 3
        for failure in failures:
            assert failure.posted_from is not None
            assert failure.posted_from.function.endswith("test_a_repeated_task_goes_on_after_a_failure")
            assert failure.task.endswith("fail")

    # -- waiting

    def test_wait_idle_ignores_delayed_tasks(self, runner: TaskRunner) -> None:
        runner.post(int, delay=60)
        runner.wait_idle(timeout=0)
        assert runner.statistics().delayed == 1

    def test_wait_idle_waits_for_queued_and_running_tasks(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[int] = []
        with occupied(runner, self.places):
            runner.post(seen.append, 1)
            waiting = Background(runner.wait_idle, clock)
            clock.wait_until_asleep(waiting)
            assert not waiting.is_done
        waiting.result()
        assert seen == [1]

    def test_wait_idle_times_out_by_the_clock_and_names_the_busy_task(
        self, runner: TaskRunner, clock: WatchedClock
    ) -> None:
        def busy() -> None:
            gate()

        gate = Gate()
        runner.post(busy)
        gate.wait_until_entered()
        waiting = Background(lambda: runner.wait_idle(timeout=5), clock)
        clock.wait_until_asleep(waiting)
        clock.jump(4.9)
        assert not waiting.is_done
        clock.jump(0.2)
        with pytest.raises(TimeoutError, match=f"{runner.name}.*timeout=5:.*busy"):
            waiting.result()
        gate.open()
        runner.wait_idle()

    def test_a_task_cannot_wait_for_its_own_runner(self, runner: TaskRunner) -> None:
        for wait in (runner.wait_idle, runner.flush):
            with pytest.raises(WouldDeadlock, match=runner.name):
                runner.submit(wait).result(PATIENCE)

    # -- flushing

    def test_flush_covers_exactly_what_was_posted_before(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[str] = []
        with occupied(runner, self.places) as earlier:
            runner.post(seen.append, "before")
            runner.post(seen.append, "delayed", delay=1)
            flushing = Background(lambda: runner.flush(timeout=60), clock)
            clock.wait_until_asleep(flushing)
            assert not flushing.is_done
            later = Gate()
            for _ in range(self.places):
                runner.post(later)
            earlier.open()
            flushing.result()
            assert seen == ["before"]
            later.open()
        runner.wait_idle()

    def test_flush_of_an_idle_runner_returns(self, runner: TaskRunner) -> None:
        runner.flush(timeout=60)
        runner.post(int)
        runner.flush(timeout=60)
        assert runner.statistics().completed == 1
        assert runner.statistics().queued == 0

    def test_flush_times_out_by_the_clock(self, runner: TaskRunner, clock: WatchedClock) -> None:
        with occupied(runner, self.places):
            flushing = Background(lambda: runner.flush(timeout=5), clock)
            clock.wait_until_asleep(flushing)
            clock.jump(5)
            with pytest.raises(TimeoutError, match=f"{runner.name}.*timeout=5:"):
                flushing.result()
        runner.wait_idle()

    def test_flush_returns_after_each_of_many_tasks(self, runner: TaskRunner) -> None:
        for _ in range(100):
            done = Event()
            runner.post(done.set)
            runner.flush()
            assert done.is_set()

    def test_flush_is_not_counted_as_a_task(self, runner: TaskRunner) -> None:
        for _ in range(5):
            runner.flush()
        runner.wait_idle()
        now = runner.statistics()
        assert (now.completed, now.failed, now.queued, now.active, now.skipped) == (0, 0, 0, 0, 0)
