"""One suite of behaviour, kept by every kind of runner, and what is special to each kind."""

from __future__ import annotations

import asyncio
from functools import partial
from threading import Barrier, Event, Lock, Thread, current_thread, get_ident
from typing import Any

import pytest

from mainspring import RunnerClosed, TaskFailure, TaskRunner, ThreadPool, current_runner
from mainspring.runners import AsyncioRunner
from tests.conformance.runner_suite.base import MakeRunner
from tests.conformance.runner_suite.ending import Ending
from tests.conformance.runner_suite.errors import Failing
from tests.conformance.runner_suite.executing import Executing
from tests.conformance.runner_suite.posting import Posting
from tests.conformance.runner_suite.timing import TimeKeeping
from tests.pools import MakePool
from tests.support import PATIENCE, WatchedClock, occupied


class RunnerConformance(Posting, TimeKeeping, Failing, Ending, Executing):
    """What holds for every runner."""


class OnThreads:
    """What holds for runners without an event loop."""

    async def coroutine(self) -> None: ...

    def test_a_coroutine_function_is_refused_with_advice(
        self, runner: TaskRunner, failures: list[TaskFailure]
    ) -> None:
        runner.post(self.coroutine)
        runner.wait_idle()
        (failure,) = failures
        assert isinstance(failure.error, TypeError)
        assert "coroutine" in str(failure.error)
        assert "pool.asyncio()" in str(failure.error)

    def test_a_submitted_coroutine_function_fails_with_advice(self, runner: TaskRunner) -> None:
        error = runner.submit(self.coroutine).exception(PATIENCE)
        assert isinstance(error, TypeError)
        assert "pool.asyncio()" in str(error)


class InStrictOrder:
    """What holds for runners of one task at a time."""

    def test_tasks_run_in_the_order_of_posting(self, runner: TaskRunner) -> None:
        seen: list[int] = []
        for number in range(1000):
            runner.post(seen.append, number)
        runner.wait_idle()
        assert seen == list(range(1000))

    def test_the_tasks_of_each_producer_stay_in_order(self, runner: TaskRunner) -> None:
        seen: list[tuple[int, int]] = []

        def produce(producer: int) -> None:
            for number in range(300):
                runner.post(seen.append, (producer, number))

        threads = [Thread(target=produce, args=(producer,)) for producer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        runner.wait_idle()
        for producer in range(4):
            assert [number for who, number in seen if who == producer] == list(range(300))

    def test_tasks_need_no_lock_among_themselves(self, runner: TaskRunner) -> None:
        busy = Lock()
        overlaps: list[bool] = []
        total = 0

        def add() -> None:
            nonlocal total
            overlaps.append(not busy.acquire(blocking=False))
            before = total
            total = before + 1
            busy.release()

        for _ in range(1000):
            runner.post(add)
        runner.wait_idle()
        assert total == 1000
        assert not any(overlaps)

    def test_a_task_posted_by_a_task_goes_behind_those_that_wait(self, runner: TaskRunner) -> None:
        seen: list[str] = []
        with occupied(runner):
            runner.post(lambda: runner.post(seen.append, "posted inside"))
            runner.post(seen.append, "waited")
        runner.wait_idle()
        assert seen == ["waited", "posted inside"]


class OnThePool:
    """What holds for runners that borrow the threads of their pool."""

    def test_wait_idle_does_not_wait_for_canceled_tasks(self, runner: TaskRunner, owner: ThreadPool) -> None:
        with occupied(owner, 4):
            for _ in range(3):
                runner.post(int).cancel()
            assert runner.statistics().queued == 0
            runner.wait_idle(timeout=0)

    def test_shutdown_does_not_wait_for_tasks_of_others(self, runner: TaskRunner, owner: ThreadPool) -> None:
        with occupied(owner, 4):
            runner.post(int)
            assert runner.shutdown(timeout=0).skipped == 1

    def test_the_others_go_on_after_its_shutdown(self, runner: TaskRunner, owner: ThreadPool) -> None:
        runner.shutdown()
        assert owner.submit(int, "1").result(PATIENCE) == 1

    def test_a_default_name_is_that_of_the_pool_and_a_number(self, owner: ThreadPool) -> None:
        makers = (owner.sequenced, partial(owner.parallel, 2), owner.single_thread, owner.asyncio)
        names = [make().name for make in makers for _ in range(2)]
        assert all(name.startswith("main.") for name in names)
        assert len(set(names)) == len(names)


class TestSequencedRunner(OnThePool, InStrictOrder, OnThreads, RunnerConformance):
    places = 1

    @pytest.fixture
    def make(self, pool: ThreadPool) -> MakeRunner:
        def make(name: str = "orders", **options: Any) -> TaskRunner:
            return pool.sequenced(name, **options)

        return make


class TestSingleThreadRunner(InStrictOrder, OnThreads, RunnerConformance):
    places = 1

    @pytest.fixture
    def make(self, pool: ThreadPool) -> MakeRunner:
        def make(name: str = "orders", **options: Any) -> TaskRunner:
            return pool.single_thread(name, **options)

        return make

    def test_all_tasks_run_on_one_thread(self, runner: TaskRunner, owner: ThreadPool, clock: WatchedClock) -> None:
        seen: list[int] = []
        for _ in range(50):
            runner.post(lambda: seen.append(get_ident()))
            runner.wait_idle()
        runner.post(lambda: seen.append(get_ident()), delay=5)
        clock.advance(5)
        assert len(seen) == 51
        assert len(set(seen)) == 1
        assert owner.submit(get_ident).result(PATIENCE) not in seen

    def test_its_thread_bears_its_name(self, runner: TaskRunner) -> None:
        assert runner.submit(lambda: current_thread().name).result(PATIENCE).startswith("orders")

    def test_its_thread_ends_with_it(self, runner: TaskRunner) -> None:
        thread = runner.submit(current_thread).result(PATIENCE)
        runner.shutdown()
        thread.join(PATIENCE)
        assert not thread.is_alive()


class TestParallelRunner(OnThePool, OnThreads, RunnerConformance):
    places = 3

    @pytest.fixture
    def make(self, pool: ThreadPool) -> MakeRunner:
        def make(name: str = "orders", **options: Any) -> TaskRunner:
            return pool.parallel(3, name, **options)

        return make

    def test_the_limit_is_reached_and_never_exceeded(self, runner: TaskRunner, owner: ThreadPool) -> None:
        meeting = Barrier(3)
        lock = Lock()
        running = 0
        most = 0

        def work() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            meeting.wait(PATIENCE)  # three must be there at once
            with lock:
                running -= 1

        for _ in range(300):
            runner.post(work)
        runner.wait_idle()
        assert runner.statistics().completed == 300
        assert most == 3

    def test_a_place_is_left_for_others_of_the_pool(self, runner: TaskRunner, owner: ThreadPool) -> None:
        with occupied(runner, 3):
            runner.post(int)
            assert owner.submit(int, "1").result(PATIENCE) == 1
            assert runner.statistics().queued == 1

    @pytest.mark.parametrize(("limit", "error"), [(0, ValueError), (-1, ValueError), ("3", TypeError)])
    def test_an_impossible_limit_is_refused(self, pool: ThreadPool, limit: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match=f"limit .*{limit!r}"):
            pool.parallel(limit)


class TestAsyncioRunner(InStrictOrder, RunnerConformance):
    places = 1

    @pytest.fixture
    def make(self, pool: ThreadPool) -> MakeRunner:
        def make(name: str = "orders", **options: Any) -> TaskRunner:
            return pool.asyncio(name, **options)

        return make

    @pytest.fixture
    def loop(self, pool: ThreadPool) -> AsyncioRunner:
        return pool.asyncio("loop")

    def test_the_shutdown_of_an_executor_lets_a_running_coroutine_end(self, runner: TaskRunner) -> None:
        begun, may_end = Event(), Event()

        async def work() -> str:
            begun.set()
            await asyncio.to_thread(may_end.wait, PATIENCE)
            return "ended"

        executor = runner.executor()
        running: Any = executor.submit(work)
        assert begun.wait(PATIENCE)
        executor.shutdown(wait=False, cancel_futures=True)
        may_end.set()
        assert running.result(PATIENCE) == "ended"

    def test_a_coroutine_function_is_awaited(self, loop: AsyncioRunner) -> None:
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return 2 * number

        assert loop.submit(double, 21).result(PATIENCE) == 42

    def test_callables_and_coroutines_run_on_one_thread(self, loop: AsyncioRunner) -> None:
        async def ident() -> int:
            return get_ident()

        assert loop.submit(ident).result(PATIENCE) == loop.submit(get_ident).result(PATIENCE)

    def test_coroutines_start_in_the_order_of_posting(self, loop: AsyncioRunner) -> None:
        seen: list[int] = []

        async def start(number: int) -> None:
            seen.append(number)
            await asyncio.sleep(0)

        for number in range(300):
            loop.post(start, number)
        loop.wait_idle()
        assert seen == list(range(300))

    def test_coroutines_run_side_by_side(self, loop: AsyncioRunner) -> None:
        first, second = asyncio.Event(), asyncio.Event()

        async def one() -> str:
            first.set()
            await second.wait()
            return "one"

        async def two() -> str:
            await first.wait()
            second.set()
            return "two"

        futures = [loop.submit(one), loop.submit(two)]
        assert [future.result(PATIENCE) for future in futures] == ["one", "two"]

    def test_a_running_coroutine_counts_as_active(self, loop: AsyncioRunner, pool: ThreadPool) -> None:
        started = Event()
        leave = asyncio.Event()

        async def stay() -> None:
            started.set()
            await leave.wait()

        loop.post(stay)
        assert started.wait(PATIENCE)
        with pytest.raises(TimeoutError, match=r"1.*stay|stay"):
            loop.wait_idle(timeout=0)
        assert loop.statistics().active == 1
        loop.post(leave.set)
        loop.wait_idle()
        now = loop.statistics()
        assert (now.active, now.queued, now.completed) == (0, 0, 2)
        assert pool.statistics().completed == 2

    def test_the_current_runner_is_known_in_every_step_of_a_coroutine(self, loop: AsyncioRunner) -> None:
        async def ask() -> list[object]:
            seen: list[object] = [current_runner(), loop.runs_tasks_in_current_sequence()]
            await asyncio.sleep(0)
            return [*seen, current_runner(), loop.runs_tasks_in_current_sequence()]

        assert loop.submit(ask).result(PATIENCE) == [loop, True, loop, True]

    def test_flush_waits_for_coroutines_posted_before(self, loop: AsyncioRunner) -> None:
        seen: list[int] = []

        async def work() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            seen.append(1)

        loop.post(work)
        loop.flush()
        assert seen == [1]

    def test_its_loop_is_closed_in_the_end(self, loop: AsyncioRunner) -> None:
        thread = loop.submit(current_thread).result(PATIENCE)
        loop.shutdown()
        thread.join(PATIENCE)
        assert loop.loop.is_closed()


class TestThreadPool(OnThreads, RunnerConformance):
    places = 4

    @pytest.fixture
    def make(self, make_pool: MakePool) -> MakeRunner:
        def make(name: str = "orders", **options: Any) -> TaskRunner:
            return make_pool(name=name, **options)

        return make

    @pytest.fixture
    def runner(self, pool: ThreadPool) -> TaskRunner:
        return pool

    def test_tasks_run_side_by_side(self, pool: ThreadPool) -> None:
        meeting = Barrier(4)
        for _ in range(4):
            pool.post(meeting.wait, PATIENCE)
        pool.wait_idle()
        assert not meeting.broken

    def test_its_counts_include_those_of_its_runners(self, pool: ThreadPool) -> None:
        runners = [pool.sequenced(), pool.parallel(2), pool.single_thread(), pool.asyncio(), pool]
        for runner in runners:
            runner.post(int)
            runner.post(int, "x")
            runner.post(int, delay=60)
            runner.post(int, delay=60).cancel()
        pool.wait_idle()
        now = pool.statistics()
        assert (now.completed, now.failed, now.delayed, now.cancelled) == (5, 5, 5, 5)
        assert (now.queued, now.active) == (0, 0)
        assert now.workers == 4 + 2

    def test_its_counts_include_what_waits_in_its_runners(self, pool: ThreadPool) -> None:
        sequence, parallel, single = pool.sequenced(), pool.parallel(2), pool.single_thread()
        with occupied(single), occupied(pool, 4):
            for runner in (sequence, parallel, single, pool):
                for _ in range(3):
                    runner.post(int)
            now = pool.statistics()
            assert (now.queued, now.active) == (12, 5)

    def test_wait_idle_waits_for_its_runners(self, pool: ThreadPool) -> None:
        runners = [pool.sequenced(), pool.parallel(2), pool.single_thread(), pool.asyncio(), pool]
        seen: list[int] = []

        def hop(left: int) -> None:
            if left:
                runners[left % 5].post(hop, left - 1)
            else:
                seen.append(left)

        for _ in range(20):
            pool.post(hop, 23)
            pool.wait_idle()
            assert seen.pop() == 0

    def test_flush_covers_its_runners(self, pool: ThreadPool) -> None:
        runners = [pool.sequenced(), pool.parallel(2), pool.single_thread(), pool.asyncio(), pool]
        for _ in range(20):
            seen: list[int] = []
            for number, runner in enumerate(runners):
                runner.post(seen.append, number)
            pool.flush()
            assert sorted(seen) == [0, 1, 2, 3, 4]

    def test_a_sequence_takes_no_room_in_the_queue_of_the_pool(self, make_pool: MakePool) -> None:
        pool = make_pool(1, capacity=2)
        sequences = [pool.sequenced() for _ in range(3)]
        with occupied(pool):
            for sequence in sequences:
                sequence.post(int)
            pool.post(int)
            pool.post(int)

    def test_a_pool_starts_with_its_first_task(self, clock: WatchedClock) -> None:
        pool = ThreadPool(2, clock=clock)
        # On a thread of its own, and a daemon: a deadlock must not take the test run with it.
        seen: list[int] = []
        thread = Thread(target=lambda: seen.append(pool.submit(int, "1").result(PATIENCE)), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert seen == [1]
        pool.shutdown()

    def test_no_runner_is_made_after_shutdown(self, pool: ThreadPool) -> None:
        pool.shutdown()
        for make in (pool.sequenced, pool.single_thread, pool.asyncio, partial(pool.parallel, 2)):
            with pytest.raises(RunnerClosed, match="main"):
                make()

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"workers": 0}, ValueError, "workers .*0"),
            ({"workers": "4"}, TypeError, "workers .*'4'"),
            ({"workers": 4, "max_workers": 3}, ValueError, "max_workers .*3"),
            ({"queue": "lifo"}, ValueError, "queue .*'lifo'"),
            ({"idle_timeout": -1}, ValueError, "idle_timeout .*-1"),
            ({"long_task": "soon"}, TypeError, "long_task .*'soon'"),
        ],
    )
    def test_impossible_options_are_refused(
        self, options: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            ThreadPool(**options)
