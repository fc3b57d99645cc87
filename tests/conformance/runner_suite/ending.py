"""Shutdown as every runner does it; the whole matrix is in tests/unit/runners/test_shutdown_matrix.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from threading import Event
from weakref import ref

import pytest

from mainspring import RunnerClosed, ShutdownReport, TaskFailure, TaskRunner, current_runner
from tests.conformance.runner_suite.base import BLOCK, CONTINUE, RunnerBase
from tests.conformance.runner_suite.posting import Payload
from tests.support import PATIENCE, Background, WatchedClock, occupied, within


class Ending(RunnerBase):
    def test_after_shutdown_everything_is_refused(self, runner: TaskRunner) -> None:
        runner.shutdown()
        calls: list[Callable[[], object]] = [
            lambda: runner.post(int),
            lambda: runner.post(int, traits=BLOCK),
            lambda: runner.post(int, delay=5),
            lambda: runner.submit(int),
            lambda: runner.post_and_reply(int, print, reply_to=runner),
            lambda: runner.repeat(int, every=1),
            lambda: asyncio.run(runner.run(int)),
        ]
        for call in calls:
            with pytest.raises(RunnerClosed, match=repr(runner.name)) as raised:
                call()
            assert raised.value.runner == runner.name
        assert runner.statistics().rejected == len(calls)
        assert runner.is_closed

    def test_a_closed_runner_is_idle(self, runner: TaskRunner) -> None:
        runner.post(int)
        runner.wait_idle()
        runner.shutdown()
        within(runner.wait_idle)
        assert runner.statistics().completed == 1

    def test_flushing_a_closed_runner_does_not_hang(self, runner: TaskRunner) -> None:
        runner.shutdown()
        within(runner.flush)

    def test_a_second_shutdown_gives_the_same_report(self, runner: TaskRunner, clock: WatchedClock) -> None:
        with occupied(runner, self.places) as gate:
            runner.post(int)
            ending = Background(runner.shutdown, clock)
            clock.wait_until_asleep(ending)
            gate.open()
            report = ending.result()
        assert report == ShutdownReport(ran=self.places, skipped=1, abandoned=0)
        assert runner.shutdown() == report
        assert runner.shutdown(timeout=0) == report

    def test_two_shutdowns_at_once_give_the_same_report(self, runner: TaskRunner, clock: WatchedClock) -> None:
        with occupied(runner, self.places) as gate:
            runner.post(int)
            runner.post(int, traits=BLOCK)
            first, second = Background(runner.shutdown, clock), Background(runner.shutdown, clock)
            clock.wait_until_asleep(first)
            clock.wait_until_asleep(second)
            gate.open()
        assert first.result() == second.result() == ShutdownReport(ran=self.places + 1, skipped=1, abandoned=0)

    def test_a_second_shutdown_keeps_its_own_timeout(self, runner: TaskRunner, clock: WatchedClock) -> None:
        with occupied(runner, self.places) as gate:
            first = Background(runner.shutdown, clock)
            clock.wait_until_asleep(first)
            second = Background(lambda: runner.shutdown(timeout=5), clock)
            clock.wait_until_asleep(second)
            clock.jump(5)
            assert second.result() == ShutdownReport(ran=0, skipped=0, abandoned=self.places)
            assert not first.is_done
            gate.open()
        assert first.result() == ShutdownReport(ran=self.places, skipped=0, abandoned=0)

    def test_shutdown_inside_a_task_does_not_wait_for_that_task(self, runner: TaskRunner) -> None:
        ended = Event()
        reports: list[ShutdownReport] = []

        def end() -> None:
            reports.append(runner.shutdown())
            ended.set()

        with occupied(runner, self.places) as gate:
            runner.post(end, traits=BLOCK)
            gate.open()
            assert ended.wait(PATIENCE)
        assert reports[0].abandoned == 0
        with pytest.raises(RunnerClosed):
            runner.post(int)

    def test_tasks_behind_a_task_that_shuts_down_still_run(self, runner: TaskRunner) -> None:
        seen: list[int] = []
        done = Event()
        count = 500

        def must_run(number: int) -> None:
            seen.append(number)
            if sum(number >= 0 for number in seen) == count:
                done.set()

        with occupied(runner, self.places) as gate:
            shutting = runner.submit(runner.shutdown, traits=BLOCK)
            for number in range(count):
                runner.post(must_run, number, traits=BLOCK)
            runner.post(seen.append, -1)
            gate.open()
            report = shutting.result(PATIENCE)
        assert done.wait(PATIENCE), f"only {len(seen)} of {count} BLOCK tasks have run"
        seen_must_run = sorted(number for number in seen if number >= 0)
        assert seen_must_run == list(range(count))
        assert seen.count(-1) + report.skipped == 1

    def test_two_tasks_that_shut_down_at_once_do_not_wait_for_each_other(self, runner: TaskRunner) -> None:
        with occupied(runner, self.places) as gate:
            futures = [runner.submit(runner.shutdown, traits=BLOCK) for _ in range(2)]
            gate.open()
            assert wait(futures, PATIENCE).not_done == set()
        assert futures[0].result().skipped == futures[1].result().skipped == 0

    def test_dropped_tasks_release_what_they_hold(self, runner: TaskRunner, clock: WatchedClock) -> None:
        payload = Payload()
        watched = ref(payload)
        with occupied(runner, self.places) as gate:
            handles = [runner.post(repr, payload), runner.post(repr, payload, delay=5)]
            del payload
            ending = Background(runner.shutdown, clock)
            clock.wait_until_asleep(ending)
            assert watched() is None
            gate.open()
        assert ending.result() == ShutdownReport(ran=self.places, skipped=2, abandoned=0)
        assert [handle.cancel() for handle in handles] == [False, False]
        assert runner.statistics().skipped == 2

    @pytest.mark.parametrize("delay", [None, 60])
    def test_the_future_of_a_dropped_task_is_canceled(
        self, runner: TaskRunner, clock: WatchedClock, delay: int | None
    ) -> None:
        with occupied(runner, self.places) as gate:
            future = runner.submit(int, delay=delay)
            ending = Background(runner.shutdown, clock)
            clock.wait_until_asleep(ending)
            gate.open()
        assert ending.result().skipped == 1
        with pytest.raises(CancelledError):
            future.result(PATIENCE)

    def test_a_coroutine_that_awaits_a_dropped_task_is_told(self, runner: TaskRunner, clock: WatchedClock) -> None:
        async def main() -> None:
            waiting = asyncio.create_task(runner.run(int))
            await asyncio.sleep(0)
            ending = Background(runner.shutdown, clock)
            clock.wait_until_asleep(ending)
            done, _ = await asyncio.wait([waiting], timeout=PATIENCE)
            assert done == {waiting}

        with occupied(runner, self.places):
            asyncio.run(main())

    def test_repetition_ends_with_its_runner(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[int] = []
        beat = runner.repeat(seen.append, 1, every=1)
        clock.advance(2)
        assert runner.shutdown() == ShutdownReport(ran=0, skipped=1, abandoned=0)
        clock.advance(5)
        assert seen == [1, 1]
        assert beat.is_stopped

    def test_a_task_may_post_block_tasks_during_shutdown(
        self, runner: TaskRunner, clock: WatchedClock, failures: list[TaskFailure]
    ) -> None:
        seen: list[str] = []
        refused: list[str] = []

        def last() -> None:
            seen.append("last")

        def more() -> None:
            seen.append("more")
            runner.post(last, traits=BLOCK)

        def attempt(what: str, post: Callable[[], object]) -> None:
            try:
                post()
            except RunnerClosed:
                refused.append(what)

        def posting() -> None:
            gate()
            runner.post(more, traits=BLOCK)
            attempt("default", lambda: runner.post(last))
            attempt("submit", lambda: runner.submit(last))
            attempt("continue", lambda: runner.post(last, traits=CONTINUE))
            attempt("delayed", lambda: runner.post(last, delay=1, traits=BLOCK))

        with occupied(runner, self.places - 1) as gate:
            runner.post(posting)
            gate.wait_until_entered()
            ending = Background(runner.shutdown, clock)
            clock.wait_until_asleep(ending)
            with pytest.raises(RunnerClosed):
                runner.post(last, traits=BLOCK)
            gate.open()
        assert ending.result() == ShutdownReport(ran=self.places + 2, skipped=0, abandoned=0)
        assert seen == ["more", "last"]
        assert refused == ["default", "submit", "continue", "delayed"]
        assert failures == []

    def test_the_current_runner_is_known_during_shutdown(self, runner: TaskRunner, clock: WatchedClock) -> None:
        seen: list[TaskRunner | None] = []
        with occupied(runner, self.places) as gate:
            runner.post(lambda: seen.append(current_runner()), traits=BLOCK)
            ending = Background(runner.shutdown, clock)
            clock.wait_until_asleep(ending)
            gate.open()
        ending.result()
        assert seen == [runner]
