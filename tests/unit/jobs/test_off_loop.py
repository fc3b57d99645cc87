"""Asynchronous calls wait on threads of their own. They work on any event loop, and can be canceled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from threading import active_count, current_thread

import pytest

from mainspring import (
    EngineUnavailable,
    JobFailed,
    JobNotFound,
    JobStatus,
    Mainspring,
    Retry,
    ThreadPool,
    current_job,
)
from mainspring.engines.sqlite.memory import MemoryEngine
from mainspring.jobs import JobManager, job_waiter
from mainspring.jobs.off_loop import THREADS, WRITERS, OffLoop
from mainspring.testing import inline, time_travel
from tests.support import PATIENCE, Gate, at_once, eventually
from tests.unit.jobs.call_log import START
from tests.unit.jobs.scripted_engines import manager_on_one_pool


@pytest.fixture
def off_loop() -> Iterator[OffLoop]:
    off_loop = OffLoop()
    yield off_loop
    off_loop.close()


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let callers that wait for a job read the store again only when the job is announced."""
    for name in ("FIRST_POLL_NS", "LONGEST_PAUSE_NS"):
        monkeypatch.setattr(job_waiter, name, 3_600_000_000_000)


# -- the threads


def test_calls_run_on_other_threads_with_the_context_of_the_caller(off_loop: OffLoop) -> None:
    user: ContextVar[str] = ContextVar("user")

    async def call() -> tuple[str, str, str]:
        user.set("anna")
        return current_thread().name, await off_loop.read(thread_name), await off_loop.write(user.get)

    def thread_name() -> str:
        return current_thread().name

    own, other, value = asyncio.run(call())
    assert own != other
    assert other.startswith("mainspring-async")
    assert value == "anna"


def test_no_thread_starts_before_the_first_call() -> None:
    before = set(threading.enumerate())
    OffLoop().close()
    assert set(threading.enumerate()) <= before  # threads of earlier tests may end meanwhile


def test_reads_go_on_while_all_writers_wait(off_loop: OffLoop) -> None:
    async def call() -> int:
        writes = [asyncio.create_task(off_loop.write(gate)) for _ in range(3 * WRITERS)]
        await asyncio.to_thread(gate.wait_until_entered, WRITERS)
        number = await off_loop.read(int, "42")
        gate.open()
        await asyncio.gather(*writes)
        return number

    gate = Gate()
    assert asyncio.run(call()) == 42


def test_computations_run_one_at_a_time_and_reads_go_on(off_loop: OffLoop) -> None:
    async def call() -> None:
        first = asyncio.create_task(off_loop.compute(gate))
        await asyncio.to_thread(gate.wait_until_entered)
        others = [asyncio.create_task(off_loop.compute(computed.append, number)) for number in range(THREADS)]
        assert await off_loop.read(list, computed) == []
        assert await off_loop.write(list, computed) == []
        gate.open()
        await asyncio.gather(first, *others)

    gate, computed = Gate(), list[int]()
    asyncio.run(call())
    assert computed == list(range(THREADS))


def test_a_canceled_call_that_has_not_begun_never_runs(off_loop: OffLoop) -> None:
    async def call() -> None:
        blockers = [asyncio.create_task(off_loop.read(gate)) for _ in range(THREADS)]
        await asyncio.to_thread(gate.wait_until_entered, THREADS)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await off_loop.read(calls.append, "canceled")
        gate.open()
        await asyncio.gather(*blockers)
        await off_loop.read(calls.append, "later")

    gate, calls = Gate(), list[str]()
    asyncio.run(call())
    assert calls == ["later"]


def test_a_call_that_close_drops_is_told_so(off_loop: OffLoop) -> None:
    async def call() -> None:
        blockers = [asyncio.create_task(off_loop.read(gate)) for _ in range(THREADS)]
        await asyncio.to_thread(gate.wait_until_entered, THREADS)
        dropped = asyncio.create_task(off_loop.read(int))
        await asyncio.sleep(0)
        off_loop.close()
        with pytest.raises(EngineUnavailable, match="closed before this call began; await the call before close"):
            await dropped
        gate.open()
        await asyncio.gather(*blockers)  # those that had begun have their answers
        assert await off_loop.read(int, "7") == 7  # a later call starts new threads

    gate = Gate()
    asyncio.run(call())


def test_several_event_loops_use_the_threads_at_once(off_loop: OffLoop) -> None:
    async def call(number: int) -> list[int]:
        return await asyncio.gather(*(off_loop.read(int, str(number)) for _ in range(20)))

    answers = at_once(*(partial(asyncio.run, call(number)) for number in range(4)))
    assert answers == [[number] * 20 for number in range(4)]


def test_calls_do_not_need_the_default_executor_of_the_loop(tmp_path: Path) -> None:
    async def call() -> object:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1)
        loop.set_default_executor(executor)
        waiting = loop.run_in_executor(None, gate)
        queued = executor.submit(int)  # behind the gate, as any call of to_thread would be
        handle = await ping.submit_async()
        counts = await app.counts_async()
        with pytest.raises(TimeoutError):
            await handle.result_async(timeout=0)
        events = await app.events_async(timeout=0)
        assert [event async for event in events] == []
        assert not queued.done()
        gate.open()
        await waiting
        return counts["PENDING"]

    gate = Gate()
    with Mainspring(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.job
        def ping() -> None: ...

        assert asyncio.run(call()) == 1


# -- waiting for jobs


def test_a_handle_is_awaited_for_its_result(app: Mainspring) -> None:
    @app.job
    def double(number: int) -> int:
        return 2 * number

    @app.job(retry=Retry(max_attempts=1))
    async def fail() -> int:
        raise ValueError("no money")

    async def call() -> None:
        async with app.running_async():
            assert await (await double.submit_async(21)) == 42
            handles = [await double.submit_async(number) for number in range(50)]
            assert await asyncio.gather(*handles) == [2 * number for number in range(50)]
            failing = await fail.submit_async()
            with pytest.raises(JobFailed, match="ValueError: no money"):
                await failing
            assert await failing.wait_async() is JobStatus.FAILED
            with pytest.raises(JobNotFound):
                await app.get_async("order-42")

    asyncio.run(call())


def test_a_coroutine_handler_awaits_other_jobs(app: Mainspring) -> None:
    @app.job
    def double(number: int) -> int:
        return 2 * number

    @app.job
    async def add(first: int, second: int) -> int:
        ids = await double.options(headers={"sum": current_job().id}).submit_many_async([(first,), (second,)])
        return sum(await asyncio.gather(*[await app.handle_async(job_id) for job_id in ids]))

    with app.running():
        assert add.submit(1, 2).result(PATIENCE) == 6


@pytest.mark.usefixtures("no_polling")
def test_the_end_of_a_job_in_this_process_wakes_the_awaiting_coroutines(app: Mainspring) -> None:
    gate = Gate()

    @app.job
    def work() -> None:
        gate()

    async def call() -> list[JobStatus]:
        async with app.running_async():
            handle = await work.submit_async()
            waiting = [asyncio.create_task(handle.wait_async()) for _ in range(3)]
            await asyncio.to_thread(gate.wait_until_entered)
            listeners = app.manager().waiter._listeners
            await asyncio.to_thread(eventually, lambda: len(listeners.get(handle.id, ())) == 3)
            gate.open()
            return await asyncio.gather(*waiting)

    assert asyncio.run(asyncio.wait_for(call(), PATIENCE)) == [JobStatus.COMPLETED] * 3


@pytest.mark.long
def test_a_thousand_coroutines_wait_without_a_thread_each(app: Mainspring) -> None:
    @app.job
    def work() -> None: ...

    async def call() -> int:
        handle = await work.after(3600).submit_async()
        waiting = [asyncio.create_task(handle.wait_async()) for _ in range(1_000)]
        await asyncio.sleep(0)
        before = active_count()
        assert await app.counts_async() == {**await app.counts_async(), "PENDING": 1}
        assert await handle.cancel_async() is True
        assert set(await asyncio.gather(*waiting)) == {JobStatus.CANCELED}
        return active_count() - before

    assert asyncio.run(call()) <= THREADS


def test_a_wait_that_is_given_up_leaves_nothing_behind(app: Mainspring) -> None:
    @app.job
    def work() -> None: ...

    async def call() -> None:
        handle = await work.after(3600).submit_async()
        for patience in (0, 0.01):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(patience):
                    await handle
        with pytest.raises(TimeoutError, match=f"job '{handle.id}' is still PENDING; is there a worker?"):
            await handle.wait_async(timeout=0.01)

    asyncio.run(call())
    waiter = app.manager().waiter
    assert (waiter._waiting, waiter._announced, waiter._listeners) == ({}, {}, {})


def test_a_loop_that_was_closed_meanwhile_does_not_disturb_the_worker(app: Mainspring) -> None:
    @app.job
    def work() -> int:
        return 1

    handle = work.submit()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(handle.wait_async())
    while not app.manager().waiter._listeners:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()  # with the task in it
    with app.running():
        assert handle.result(PATIENCE) == 1
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


def test_time_travel_does_not_wait_for_a_clock_that_stands_still(app: Mainspring) -> None:
    @app.job
    def work() -> int:
        return 1

    with time_travel(app, start=START) as travel:
        handle = asyncio.run(work.after(60).submit_async())
        with pytest.raises(TimeoutError, match="the manual clock stands still"):
            asyncio.run(handle.wait_async())
        travel.fast_forward(minutes=1)
        assert asyncio.run(handle.result_async()) == 1


def test_inline_mode_runs_the_jobs_of_asynchronous_submits(app: Mainspring) -> None:
    @app.job
    async def work(number: int) -> int:
        if number:
            await work.submit_many_async([(number - 1,)])
        return number

    async def call() -> list[int]:
        ids = await work.submit_many_async([(2,), (1,)])
        return [await (await app.handle_async(job_id)) for job_id in ids]

    with inline(app):
        assert asyncio.run(call()) == [2, 1]
        assert app.counts()["COMPLETED"] == 5


# -- several steps


def test_a_replay_that_is_canceled_stops_between_two_steps(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.jobs.dead_letters.CHUNK", 2)

    @app.job(retry=Retry(max_attempts=1))
    def fail() -> None:
        raise ValueError("no money")

    with app.running():
        for job_id in fail.submit_many([()] * 6):
            app.handle(job_id).wait(PATIENCE)

    async def call() -> None:
        async for pairs in app.dead_letters.replaying_async(all=True):
            assert len(pairs) == 2
            break
        assert await app.dead_letters.count_async() == 4
        assert len(await app.dead_letters.replay_async(all=True)) == 4

    asyncio.run(call())
    assert app.dead_letters.count() == 0


def test_a_worker_whose_start_was_canceled_stops_again(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Gate()
    manager = app.manager()
    start, stops = manager.start, Gate()
    shutdown = manager.shutdown
    stops.open()

    def wait_and_start() -> None:
        starting()
        start()

    def note_and_shut_down(*arguments: object) -> object:
        report = shutdown(*arguments)  # type: ignore[arg-type]
        stops()
        return report

    monkeypatch.setattr(manager, "start", wait_and_start)
    monkeypatch.setattr(manager, "shutdown", note_and_shut_down)

    async def call() -> None:
        task = asyncio.create_task(run())
        await asyncio.to_thread(starting.wait_until_entered)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        starting.open()

    async def run() -> None:
        async with app.running_async():
            raise AssertionError("the start was canceled")

    asyncio.run(call())
    stops.wait_until_entered()
    monkeypatch.undo()
    with app.running():
        pass  # a worker can start, so none is running


def test_an_awaited_cancel_has_a_timeout_as_the_other_has(app: Mainspring) -> None:
    @app.job
    def work() -> None: ...

    async def call() -> list[bool]:
        handle = await work.after(3600).submit_async()
        with pytest.raises(ValueError, match="timeout"):
            await handle.cancel_async(timeout=-1)
        return [await handle.cancel_async(timeout=PATIENCE), await app.cancel_async(handle.id, timeout=PATIENCE)]

    assert asyncio.run(call()) == [True, False]


def test_a_job_manager_has_threads_of_its_own_for_coroutines() -> None:
    with ThreadPool(2) as pool:
        manager: JobManager = manager_on_one_pool(pool, MemoryEngine())
        manager.register("ping", lambda: None)
        manager.start()
        job = manager.submit("ping")
        assert asyncio.run(manager.wait_async(job, PATIENCE)) is JobStatus.COMPLETED
        manager.close()
