"""Shutdown where it is delicate: from inside, of several at once, with coroutines, of pools within pools."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from functools import partial
from threading import Event

import pytest

from mainspring import (
    RunnerClosed,
    ShutdownBehavior,
    ShutdownReport,
    TaskFailure,
    TaskRunner,
    TaskTraits,
    ThreadPool,
    blocking,
)
from tests.pools import MakePool, runners_of
from tests.support import PATIENCE, Background, Gate, WatchedClock, occupied

BLOCK = TaskTraits(shutdown=ShutdownBehavior.BLOCK)
CONTINUE = TaskTraits(shutdown=ShutdownBehavior.CONTINUE)


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("max_workers", [1, 2])
def test_a_task_may_shut_down_a_pool_of_one(make_pool: MakePool, which: int, max_workers: int) -> None:
    pool = make_pool(1, max_workers=max_workers)
    runner = runners_of(pool)[which]
    must_run, may_run = Event(), Event()
    with occupied(runner) as gate:
        shutting = runner.submit(pool.shutdown, traits=BLOCK)
        runner.post(must_run.set, traits=BLOCK)
        runner.post(may_run.set)
        gate.open()
    report = shutting.result(PATIENCE)
    # What must run does so while the task waits, if there is a thread for it, or else when it has returned.
    assert must_run.wait(PATIENCE)
    assert may_run.is_set() == (report.skipped == 0)
    assert report.ran + report.skipped + report.abandoned == 2
    with pytest.raises(RunnerClosed):
        runner.post(int)


def test_all_tasks_of_a_full_pool_may_shut_it_down_at_once(make_pool: MakePool) -> None:
    pool = make_pool(2, max_workers=2)
    gate = Gate()

    def end() -> ShutdownReport:
        gate()
        return pool.shutdown()

    futures = [pool.submit(end) for _ in range(2)]
    gate.wait_until_entered(2)
    ran = Event()
    pool.post(ran.set, traits=BLOCK)
    gate.open()
    reports = [future.result(PATIENCE) for future in futures]
    assert ran.wait(PATIENCE)
    assert reports[0] == reports[1]
    assert reports[0].ran + reports[0].abandoned == 1


def test_a_task_that_shuts_down_its_sequence_leaves_the_pool_alone(pool: ThreadPool) -> None:
    sequence, other = pool.sequenced(), pool.sequenced()
    assert sequence.submit(sequence.shutdown).result(PATIENCE) == ShutdownReport(ran=0, skipped=0, abandoned=0)
    assert other.submit(int, "1").result(PATIENCE) == 1
    pool.wait_idle()
    assert pool.shutdown().abandoned == 0


@pytest.mark.parametrize("which", range(1, 5))
def test_a_runner_may_be_shut_down_before_its_pool(pool: ThreadPool, which: int) -> None:
    runner = runners_of(pool)[which]
    runner.post(int)
    runner.wait_idle()
    runner.shutdown()
    assert pool.submit(int, "1").result(PATIENCE) == 1
    pool.wait_idle()
    assert Background(pool.shutdown).result(PATIENCE) == ShutdownReport(ran=0, skipped=0, abandoned=0)
    assert pool.statistics().completed == 2


@pytest.mark.parametrize("which", range(1, 5))
def test_a_runner_and_its_pool_may_be_shut_down_at_once(
    make_pool: MakePool, clock: WatchedClock, which: int
) -> None:
    pool = make_pool(2)
    runner = runners_of(pool)[which]
    ran: list[int] = []
    places = 2 if which == 2 else 1
    with occupied(runner, places) as gate:
        for number in range(3):
            runner.post(ran.append, number, traits=BLOCK)
        endings = [Background(runner.shutdown, clock), Background(pool.shutdown, clock)]
        for ending in endings:
            clock.wait_until_asleep(ending)
        gate.open()
    for ending in endings:
        assert ending.result(PATIENCE) == ShutdownReport(ran=places + 3, skipped=0, abandoned=0)
    assert sorted(ran) == [0, 1, 2]


def test_the_pool_waits_for_a_task_that_shuts_down_another_pool(make_pool: MakePool, clock: WatchedClock) -> None:
    outer, inner = make_pool(1, name="outer"), make_pool(1, name="inner")
    finished: list[str] = []
    begun = Event()

    def use_inner_pool() -> None:
        begun.set()
        inner.shutdown()
        finished.append("outer task")

    with occupied(inner) as gate:
        outer.post(use_inner_pool)
        assert begun.wait(PATIENCE)
        shutting_inner = Background(inner.shutdown, clock)
        clock.wait_until_asleep(shutting_inner)
        ending = Background(outer.shutdown, clock)
        clock.wait_until_asleep(ending)
        gate.open()
    assert ending.result() == ShutdownReport(ran=1, skipped=0, abandoned=0)
    assert finished == ["outer task"]


def test_a_task_may_use_a_pool_of_its_own(make_pool: MakePool, clock: WatchedClock) -> None:
    pool = make_pool(1)
    seen: list[int] = []

    def work() -> None:
        with ThreadPool(2, clock=clock) as own:
            for number in range(20):
                own.post(seen.append, number)

    pool.submit(work).result(PATIENCE)
    assert sorted(seen) == list(range(20))


def test_a_task_blocked_by_another_one_is_waited_for(make_pool: MakePool, clock: WatchedClock) -> None:
    pool = make_pool(1, max_workers=2)
    release = Event()

    def wait_for_other() -> None:
        with blocking():
            assert release.wait(PATIENCE)

    with occupied(pool) as gate:
        pool.post(wait_for_other, traits=BLOCK)
        pool.post(release.set, traits=BLOCK)
        ending = Background(pool.shutdown, clock)
        clock.wait_until_asleep(ending)
        gate.open()
    assert ending.result() == ShutdownReport(ran=3, skipped=0, abandoned=0)


def test_block_tasks_cross_from_runner_to_runner_during_shutdown(pool: ThreadPool, clock: WatchedClock) -> None:
    runners = runners_of(pool)
    seen: list[int] = []

    def hop(left: int) -> None:
        seen.append(left)
        if left:
            runners[left % 5].post(hop, left - 1, traits=BLOCK)

    with occupied(pool, 4) as gate:
        pool.post(hop, 30, traits=BLOCK)
        ending = Background(pool.shutdown, clock)
        clock.wait_until_asleep(ending)
        gate.open()
    assert ending.result() == ShutdownReport(ran=4 + 31, skipped=0, abandoned=0)
    assert seen == list(range(30, -1, -1))


def test_a_post_that_races_with_shutdown_is_run_dropped_or_refused(make_pool: MakePool) -> None:
    for _ in range(20):
        pool = make_pool(2)
        runners = [pool.sequenced(), pool.parallel(2), pool]
        ran: list[int] = []
        go = Event()

        def produce(runner: TaskRunner, go: Event = go, ran: list[int] = ran) -> tuple[int, int]:
            go.wait(PATIENCE)
            accepted = refused = 0
            for number in range(200):
                try:
                    runner.post(ran.append, number)
                    accepted += 1
                except RunnerClosed:
                    refused += 1
            return accepted, refused

        producers = [Background(partial(produce, runner)) for runner in runners]
        go.set()
        pool.shutdown()
        outcomes = [producer.result() for producer in producers]
        now = pool.statistics()
        assert len(ran) == now.completed
        assert now.completed + now.skipped == sum(accepted for accepted, _ in outcomes)
        assert now.rejected == sum(refused for _, refused in outcomes)
        assert now.queued == 0


# -- coroutines


@pytest.mark.parametrize("traits", [None, BLOCK])
def test_a_running_coroutine_is_waited_for(
    pool: ThreadPool, clock: WatchedClock, traits: TaskTraits | None
) -> None:
    loop = pool.asyncio()
    leave = asyncio.Event()
    started = Event()

    async def work() -> str:
        started.set()
        await leave.wait()
        return "done"

    future = loop.submit(work, traits=traits)
    assert started.wait(PATIENCE)
    ending = Background(pool.shutdown, clock)
    clock.wait_until_asleep(ending)
    assert not ending.is_done
    loop.loop.call_soon_threadsafe(leave.set)
    assert ending.result() == ShutdownReport(ran=1, skipped=0, abandoned=0)
    assert future.result() == "done"


def test_a_coroutine_that_is_not_waited_for_is_canceled(pool: ThreadPool, failures: list[TaskFailure]) -> None:
    loop = pool.asyncio()
    started = Event()
    cleaned_up = Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    loop.post(work, traits=CONTINUE)
    assert started.wait(PATIENCE)
    report = Background(pool.shutdown).result(PATIENCE)
    assert cleaned_up.wait(PATIENCE)
    assert report.skipped == 0
    assert report.ran + report.abandoned == 1


def test_a_coroutine_that_runs_out_of_time_is_canceled(pool: ThreadPool, clock: WatchedClock) -> None:
    loop = pool.asyncio()
    started = Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    future = loop.submit(work)
    assert started.wait(PATIENCE)
    ending = Background(lambda: pool.shutdown(timeout=5), clock)
    clock.wait_until_asleep(ending)
    clock.jump(5)
    report = ending.result()
    assert report.skipped == 0
    assert report.ran + report.abandoned == 1
    with pytest.raises((CancelledError, asyncio.CancelledError)):
        future.result(PATIENCE)


def test_a_coroutine_may_shut_down_its_pool(pool: ThreadPool) -> None:
    loop = pool.asyncio()

    async def end() -> ShutdownReport:
        return pool.shutdown()

    assert loop.submit(end).result(PATIENCE) == ShutdownReport(ran=0, skipped=0, abandoned=0)


# -- statistics afterwards


def test_counts_of_a_pool_survive_its_shutdown(pool: ThreadPool) -> None:
    for runner in runners_of(pool):
        runner.post(int)
        runner.post(int, "x")
        runner.post(int, delay=60)
    pool.wait_idle()
    assert pool.shutdown() == ShutdownReport(ran=0, skipped=5, abandoned=0)
    now = pool.statistics()
    assert (now.completed, now.failed, now.skipped) == (5, 5, 5)
    assert (now.queued, now.active, now.delayed, now.workers) == (0, 0, 0, 0)


def test_a_pool_that_never_started_ends_at_once(clock: WatchedClock) -> None:
    pool = ThreadPool(2, clock=clock)
    assert pool.shutdown() == ShutdownReport(ran=0, skipped=0, abandoned=0)
    with pytest.raises(RunnerClosed):
        pool.post(int)
    assert pool.statistics().workers == 0


@pytest.mark.parametrize("kind", ["sequenced", "parallel"])
def test_a_task_that_was_accepted_runs_although_its_poster_has_not_woken_a_worker_yet(
    pool: ThreadPool, kind: str
) -> None:
    runs: list[str] = []
    runner = pool.sequenced(traits=BLOCK) if kind == "sequenced" else pool.parallel(2, traits=BLOCK)
    runner._wakeable = ()  # as if the thread that posts stood still right after the task was queued
    runner.post(runs.append, "accepted")
    assert pool.shutdown() == ShutdownReport(ran=1, skipped=0, abandoned=0)
    assert runs == ["accepted"]
