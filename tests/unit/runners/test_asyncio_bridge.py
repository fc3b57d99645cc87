"""Between threads and event loops, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextvars import ContextVar
from functools import partial
from threading import Event, get_ident
from typing import Any

import pytest

from mainspring import TaskFailure, TaskObserver, ThreadPool, current_runner
from mainspring.runners import AsyncioRunner
from tests.pools import MakePool
from tests.support import PATIENCE, Background, Gate, WatchedClock, occupied, within

COLOUR: ContextVar[str] = ContextVar("COLOUR", default="none")


@pytest.fixture
def loop(pool: ThreadPool) -> AsyncioRunner:
    return pool.asyncio("loop")


class Pause:
    """A coroutine function that says when it runs, and waits to be let go."""

    def __init__(self) -> None:
        self.started = Event()
        self.leave = asyncio.Event()
        self.was_canceled = Event()

    async def wait(self) -> str:
        self.started.set()
        try:
            await self.leave.wait()
        except asyncio.CancelledError:
            self.was_canceled.set()
            raise
        return "done"


# -- from a loop into threads


def test_many_awaits_run_side_by_side_on_the_pool(pool: ThreadPool) -> None:
    async def main() -> list[int]:
        return list(await asyncio.gather(*(pool.run(pow, number, 2) for number in range(100))))

    assert asyncio.run(main()) == [number**2 for number in range(100)]


def test_the_awaiting_loop_is_not_blocked(pool: ThreadPool) -> None:
    async def main() -> str:
        gate = Gate()
        waiting = asyncio.create_task(pool.run(gate))
        await asyncio.to_thread(gate.wait_until_entered)
        gate.open()
        await waiting
        return "free"

    assert asyncio.run(main()) == "free"


def test_a_context_variable_of_the_awaiting_coroutine_is_seen_by_the_task(pool: ThreadPool) -> None:
    async def main() -> str:
        COLOUR.set("red")
        return await pool.sequenced().run(COLOUR.get)

    assert asyncio.run(main()) == "red"


def test_a_time_out_of_the_awaiting_coroutine_cancels_the_task(pool: ThreadPool) -> None:
    sequence = pool.sequenced()
    seen: list[int] = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sequence.run(seen.append, 1), timeout=0.001)

    with occupied(sequence):
        asyncio.run(main())
        assert sequence.statistics().queued == 0
    sequence.wait_idle()
    assert seen == []


def test_a_delayed_task_can_be_awaited(pool: ThreadPool, clock: WatchedClock) -> None:
    async def main() -> int:
        waiting = asyncio.create_task(pool.run(clock.monotonic_ns, delay=5))
        await asyncio.sleep(0)
        clock.jump(5)
        return await waiting

    assert asyncio.run(main()) == 5 * 10**9


# -- from threads into a loop


def test_a_task_of_the_pool_may_wait_for_a_coroutine(pool: ThreadPool, loop: AsyncioRunner) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    assert pool.submit(lambda: loop.submit(double, 4).result(PATIENCE)).result(PATIENCE) == 8


def test_a_coroutine_may_wait_for_a_task_of_the_pool(pool: ThreadPool, loop: AsyncioRunner) -> None:
    async def work() -> list[object]:
        return [await pool.run(current_runner), current_runner(), get_ident()]

    inner, after, ident = loop.submit(work).result(PATIENCE)
    assert inner is pool
    assert after is loop
    assert ident == loop.submit(get_ident).result(PATIENCE)


def test_two_loops_may_wait_for_each_other(pool: ThreadPool) -> None:
    first, second = pool.asyncio("first"), pool.asyncio("second")

    async def ping(left: int) -> int:
        if not left:
            return 0
        runner = second if left % 2 else first
        return 1 + await runner.run(ping, left - 1)

    assert first.submit(ping, 20).result(PATIENCE) == 20


@pytest.mark.parametrize("observer", [None, TaskObserver()], ids=["unobserved", "observed"])
def test_cancelling_the_future_cancels_the_coroutine(make_pool: MakePool, observer: TaskObserver | None) -> None:
    loop = make_pool(1, observer=observer).asyncio()
    pause = Pause()
    future = loop.submit(pause.wait)
    assert pause.started.wait(PATIENCE)
    assert future.cancel()
    assert pause.was_canceled.wait(PATIENCE)
    with pytest.raises(CancelledError):
        future.result(0)
    loop.wait_idle()
    assert loop.statistics().active == 0


@pytest.mark.parametrize("observer", [None, TaskObserver()], ids=["unobserved", "observed"])
def test_cancellation_crosses_from_loop_to_loop(make_pool: MakePool, observer: TaskObserver | None) -> None:
    loop = make_pool(1, observer=observer).asyncio()
    pause = Pause()

    async def main() -> None:
        waiting = asyncio.create_task(loop.run(pause.wait))
        assert await asyncio.to_thread(pause.started.wait, PATIENCE)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert pause.was_canceled.wait(PATIENCE)


def test_a_coroutine_behind_a_callable_can_be_canceled_before_its_first_step(loop: AsyncioRunner) -> None:
    pause = Pause()
    second = Gate()
    with occupied(loop) as first:
        future = loop.submit(pause.wait)
        loop.post(second)
        first.open()
        second.wait_until_entered()  # the coroutine has been taken from the queue, but not started
        try:
            assert future.cancel()
        finally:
            second.open()
    assert future.cancelled()
    within(loop.wait_idle)
    assert not pause.started.is_set() or pause.was_canceled.is_set()


def test_a_coroutine_that_swallows_its_cancellation_ends_in_peace(loop: AsyncioRunner) -> None:
    started = Event()

    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "not me"
        return "never"

    future = loop.submit(stubborn)
    assert started.wait(PATIENCE)
    assert future.cancel()
    loop.wait_idle()
    assert future.cancelled()


@pytest.mark.parametrize(
    "kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]
)
def test_an_exception_of_a_coroutine_reaches_the_hook(
    loop: AsyncioRunner, failures: list[TaskFailure], kind: type[BaseException]
) -> None:
    error = kind("no")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    loop.post(fail)
    loop.wait_idle()
    assert loop.statistics().failed == 1
    (failure,) = failures
    assert failure.error is error or (kind is asyncio.CancelledError and isinstance(failure.error, kind))
    assert failure.task.endswith("fail")
    assert failure.runner == "loop"
    assert failure.posted_from is not None
    assert failure.posted_from.function.endswith("test_an_exception_of_a_coroutine_reaches_the_hook")
    assert loop.submit(int, "1").result(PATIENCE) == 1


@pytest.mark.parametrize(
    "kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]
)
def test_an_exception_of_a_submitted_coroutine_stays_in_its_future(
    loop: AsyncioRunner, failures: list[TaskFailure], kind: type[BaseException]
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise kind("no")

    assert isinstance(loop.submit(fail).exception(PATIENCE), kind)
    loop.wait_idle()
    assert failures == []
    assert loop.statistics().failed == 1


def test_the_reply_to_a_coroutine_gets_its_result(pool: ThreadPool, loop: AsyncioRunner) -> None:
    interface = pool.sequenced("interface")
    seen: list[object] = []
    replied = Event()

    async def read() -> str:
        await asyncio.sleep(0)
        return "text"

    def show(text: object) -> None:
        seen.extend([text, current_runner()])
        replied.set()

    loop.post_and_reply(read, show, reply_to=interface)
    assert replied.wait(PATIENCE)
    assert seen == ["text", interface]


def test_a_reply_may_be_a_coroutine_function(pool: ThreadPool, loop: AsyncioRunner) -> None:
    seen: list[object] = []
    replied = Event()

    async def show(number: int) -> None:
        await asyncio.sleep(0)
        seen.extend([number, current_runner()])
        replied.set()

    pool.post_and_reply(int, show, reply_to=loop)
    assert replied.wait(PATIENCE)
    assert seen == [0, loop]


def test_a_coroutine_that_fails_gets_no_reply(
    pool: ThreadPool, loop: AsyncioRunner, failures: list[TaskFailure]
) -> None:
    seen: list[object] = []

    async def read() -> str:
        await asyncio.sleep(0)
        raise OSError("gone")

    loop.post_and_reply(read, seen.append, reply_to=pool)
    pool.wait_idle()
    assert seen == []
    assert [str(failure.error) for failure in failures] == ["gone"]


def test_a_repeated_coroutine_never_overlaps_itself(loop: AsyncioRunner, clock: WatchedClock) -> None:
    running = 0
    seen: list[int] = []

    async def beat() -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        seen.append(clock.monotonic_ns() // 10**9)
        running -= 1

    repetition = loop.repeat(beat, every=2)
    clock.advance(7)
    repetition.stop()
    assert seen == [2, 4, 6]


def test_context_variables_of_a_coroutine_are_those_of_the_moment_of_posting(loop: AsyncioRunner) -> None:
    async def look() -> list[str]:
        before = COLOUR.get()
        await asyncio.sleep(0)
        COLOUR.set("changed inside")
        return [before, COLOUR.get()]

    token = COLOUR.set("red")
    try:
        future = loop.submit(look)
    finally:
        COLOUR.reset(token)
    assert future.result(PATIENCE) == ["red", "changed inside"]
    assert loop.submit(COLOUR.get).result(PATIENCE) == "none"


def wrapped(function: Any) -> partial[Any]:
    return partial(function)


class AsyncCallable:
    async def __call__(self) -> int:
        await asyncio.sleep(0)
        return 7

    async def method(self) -> int:
        return await self()


def returns_coroutine() -> Coroutine[Any, Any, int]:
    return AsyncCallable()()


@pytest.mark.parametrize(
    "function",
    [AsyncCallable(), AsyncCallable().method, returns_coroutine, wrapped(AsyncCallable().method)],
    ids=["object", "method", "returns a coroutine", "partial"],
)
def test_everything_that_returns_a_coroutine_is_awaited(loop: AsyncioRunner, function: Any) -> None:
    assert loop.submit(function).result(PATIENCE) == 7


def test_a_flush_of_the_pool_waits_for_running_coroutines_and_no_longer(
    pool: ThreadPool, loop: AsyncioRunner, clock: WatchedClock
) -> None:
    pause = Pause()
    loop.post(pause.wait)
    assert pause.started.wait(PATIENCE)
    flushing = Background(pool.flush, clock)
    clock.wait_until_asleep(flushing)
    assert not flushing.is_done
    loop.post(pause.leave.set)
    flushing.result(PATIENCE)


@pytest.mark.parametrize("of_pool", [False, True], ids=["of the loop", "of the pool"])
def test_a_flush_waits_for_a_coroutine_that_was_still_queued(
    pool: ThreadPool, loop: AsyncioRunner, clock: WatchedClock, *, of_pool: bool
) -> None:
    pause = Pause()
    ended_when_flushed: list[bool] = []

    async def work() -> None:
        await pause.wait()
        ended.set()

    def flush() -> None:
        (pool if of_pool else loop).flush()
        ended_when_flushed.append(ended.is_set())

    ended, passed = Event(), Event()
    with occupied(loop) as gate:
        loop.post(work)
        flushing = Background(flush, clock)
        clock.wait_until_asleep(flushing)
        loop.post(passed.set)  # behind whatever the flush has put into the queue
        gate.open()
    assert pause.started.wait(PATIENCE)
    assert passed.wait(PATIENCE)
    loop.post(pause.leave.set)
    flushing.result()
    assert ended_when_flushed == [True]


def test_a_task_group_of_the_loop_can_be_used(loop: AsyncioRunner) -> None:
    seen: list[object] = []

    async def child() -> None:
        seen.append(current_runner())

    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    loop.submit(parent).result(PATIENCE)
    assert seen == [loop, loop]
