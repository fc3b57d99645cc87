"""Executors: code that takes a `concurrent.futures.Executor` runs on any runner."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, as_completed, wait
from threading import get_ident

import pytest

from mainspring import RunnerExecutor, TaskRunner, current_runner
from tests.conformance.runner_suite.base import SKIP, RunnerBase
from tests.support import PATIENCE, Background, Gate, eventually, occupied


def arguments_of(*positional: object, **named: object) -> tuple[object, ...]:
    return (*positional, named)


class Executing(RunnerBase):
    """What holds for the executor of every runner."""

    def test_an_executor_runs_calls_on_its_runner(self, runner: TaskRunner) -> None:
        executor = runner.executor()
        assert isinstance(executor, Executor)
        future = executor.submit(arguments_of, 1, fn=2, self=3)
        assert future.result(PATIENCE) == (1, {"fn": 2, "self": 3})
        assert executor.submit(current_runner).result(PATIENCE) is runner
        assert executor.submit(get_ident).result(PATIENCE) != get_ident()

    def test_an_executor_maps_in_order(self, runner: TaskRunner) -> None:
        assert list(runner.executor().map(pow, range(20), range(20))) == list(map(pow, range(20), range(20)))

    def test_the_standard_library_waits_for_the_futures(self, runner: TaskRunner) -> None:
        executor = runner.executor()
        futures = {executor.submit(int, number) for number in range(20)}
        assert set(as_completed(futures, PATIENCE)) == futures
        assert wait(futures, PATIENCE).done == futures

    def test_an_event_loop_uses_the_executor(self, runner: TaskRunner) -> None:
        async def call() -> int:
            return await asyncio.get_running_loop().run_in_executor(runner.executor(), sum, range(5))

        assert asyncio.run(call()) == 10

    def test_an_error_reaches_the_future(self, runner: TaskRunner) -> None:
        with pytest.raises(ValueError, match="forty-two"):
            runner.executor().submit(int, "forty-two").result(PATIENCE)

    def test_leaving_the_block_waits_for_the_calls_and_leaves_the_runner_open(self, runner: TaskRunner) -> None:
        seen: list[int] = []
        with runner.executor() as executor:
            for number in range(20):
                executor.submit(seen.append, number)
        assert sorted(seen) == list(range(20))
        with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown of this executor"):
            executor.submit(int)
        assert runner.submit(int).result(PATIENCE) == 0

    def test_shutdown_cancels_the_calls_that_have_not_begun(self, runner: TaskRunner) -> None:
        executor, gate = runner.executor(), Gate()
        running = [executor.submit(gate) for _ in range(self.places)]
        gate.wait_until_entered(self.places)
        queued = [executor.submit(int) for _ in range(3)]
        executor.shutdown(wait=False, cancel_futures=True)
        assert [future.cancelled() for future in queued] == [True] * 3
        waiting = Background(executor.shutdown)  # a second call may wait
        assert not any(future.done() for future in running)
        gate.open()
        waiting.result()
        assert [future.done() and not future.cancelled() for future in running] == [True] * self.places

    def test_the_calls_of_other_executors_are_not_canceled(self, runner: TaskRunner) -> None:
        mine, other = runner.executor(), runner.executor()
        with occupied(runner, self.places):
            future = other.submit(int)
            mine.shutdown(cancel_futures=True)
            assert not future.done()
        assert future.result(PATIENCE) == 0

    def test_a_call_that_shuts_its_executor_down_does_not_wait_for_itself(self, runner: TaskRunner) -> None:
        executor = runner.executor()
        assert executor.submit(executor.shutdown).result(PATIENCE) is None

    def test_queued_calls_run_although_the_runner_is_shut_down(self, runner: TaskRunner) -> None:
        executor = runner.executor()
        with occupied(runner, self.places) as gate:
            future = executor.submit(int, "42")
            closing = Background(runner.shutdown)
            assert eventually(lambda: not runner.is_open)
            gate.open()
            closing.result()
        assert future.result(PATIENCE) == 42
        with pytest.raises(RuntimeError, match=r"cannot schedule new futures after shutdown: runner .* is shut"):
            executor.submit(int)

    def test_traits_apply_to_the_calls(self, runner: TaskRunner) -> None:
        executor = runner.executor(traits=SKIP)
        with occupied(runner, self.places) as gate:
            future = executor.submit(int)
            closing = Background(runner.shutdown)
            assert wait([future], PATIENCE).done == {future}
            gate.open()
            closing.result()
        assert future.cancelled()
        with pytest.raises(TypeError, match="traits"):
            runner.executor(traits="urgent")  # type: ignore[arg-type]

    def test_an_executor_forgets_futures_that_are_done(self, runner: TaskRunner) -> None:
        executor = runner.executor()
        assert isinstance(executor, RunnerExecutor)
        wait([executor.submit(int) for _ in range(50)], PATIENCE)
        with executor:
            pass
        runner.wait_idle()
        assert executor._futures == set()

    def test_a_negative_timeout_is_over_at_once(self, runner: TaskRunner) -> None:
        with occupied(runner, self.places):
            future = runner.submit(int)
            with pytest.raises(TimeoutError):
                future.result(-0.5)  # `Executor.map` passes such a number when its time is over
            with pytest.raises(TimeoutError):
                next(runner.executor().map(int, [1], timeout=0))
