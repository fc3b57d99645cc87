"""Canceled tasks leave the queues of runners, and `peek_traits` shows what runs next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from mainspring import QueueFull
from mainspring.runners import Priority, TaskRunner, TaskTraits, ThreadPool, task_acceptor
from tests.pools import MakePool
from tests.support import PATIENCE, Background, eventually, occupied

MakeRunner: TypeAlias = Callable[..., TaskRunner]

URGENT = TaskTraits(priority=Priority.USER_BLOCKING, category="urgent")
LAZY = TaskTraits(priority=Priority.BEST_EFFORT, category="lazy")


@pytest.fixture
def pool(make_pool: MakePool) -> ThreadPool:
    return make_pool(1, max_workers=1)


@pytest.fixture(params=["pool", "sequenced", "parallel", "single_thread", "asyncio"])
def make(request: pytest.FixtureRequest, make_pool: MakePool) -> MakeRunner:
    """Return a function that makes a runner of each kind, with one thread to run its tasks."""

    def make(**options: Any) -> TaskRunner:
        pool = make_pool(1, max_workers=1, **(options if request.param == "pool" else {}))
        match request.param:
            case "pool":
                return pool
            case "parallel":
                return pool.parallel(limit=1, **options)
            case kind:
                runner: TaskRunner = getattr(pool, kind)(**options)
                return runner

    return make


def queue_length(runner: TaskRunner) -> int:
    return len(runner.queued_tasks())


def test_compaction_removes_canceled_tasks_and_the_statistics_stay_exact(make: MakeRunner) -> None:
    runner, log = make(), list[int]()
    with occupied(runner):
        handles = [runner.post(log.append, number) for number in range(10)]
        assert all(handle.cancel() for handle in handles[::2])
        assert (queue_length(runner), runner.statistics().queued) == (10, 5)
        assert runner.compact() == 5
        statistics = runner.statistics()
        assert (queue_length(runner), statistics.queued, statistics.cancelled) == (5, 5, 5)
        assert runner.compact() == 0
        runner.post(log.append, 10)
    runner.wait_idle(PATIENCE)
    assert log == [1, 3, 5, 7, 9, 10]
    statistics = runner.statistics()
    assert (statistics.queued, statistics.completed, statistics.cancelled) == (0, 7, 5)
    assert runner._tombstones == 0


@pytest.mark.long
def test_a_runner_removes_canceled_tasks_itself_when_they_are_the_most(make: MakeRunner) -> None:
    many = task_acceptor.MANY_TOMBSTONES
    runner, log = make(), list[int]()
    with occupied(runner):
        kept = [runner.post(log.append, number) for number in range(20)]
        for number in range(5 * many):
            runner.post(log.append, -1).cancel()
            assert queue_length(runner) <= len(kept) + many
            assert number % 100 or runner.statistics().queued == len(kept)
    runner.wait_idle(PATIENCE)
    assert log == list(range(20))
    assert runner.statistics().cancelled == 5 * many
    assert runner._tombstones == 0


def test_few_canceled_tasks_among_many_others_stay_until_they_are_popped(pool: ThreadPool) -> None:
    many = task_acceptor.MANY_TOMBSTONES
    with occupied(pool):
        handles = [pool.post(int) for _ in range(3 * many)]
        for handle in handles[: many + 1]:
            handle.cancel()
        assert queue_length(pool) == 3 * many
        for handle in handles[many + 1 : 2 * many]:
            handle.cancel()
        assert queue_length(pool) < 2 * many  # half of the tasks were canceled at some point


def test_canceled_tasks_take_no_capacity_after_a_compaction(make: MakeRunner) -> None:
    runner = make(capacity=3)
    with occupied(runner):
        for handle in [runner.post(int) for _ in range(3)]:
            handle.cancel()
        assert runner.compact() == 3
        for _ in range(3):
            runner.post(int)
        with pytest.raises(QueueFull):
            runner.post(int)


def test_a_flush_ends_although_the_tasks_before_it_were_removed(make: MakeRunner) -> None:
    runner = make()
    with occupied(runner) as gate:
        handles = [runner.post(int) for _ in range(3)]
        flush = Background(lambda: runner.flush(PATIENCE))
        assert eventually(lambda: queue_length(runner) == 4)  # the barrier is behind the tasks
        for handle in handles:
            handle.cancel()
        assert runner.compact() == 3
        assert queue_length(runner) == 1
        gate.open()
        flush.result()
    assert runner._tombstones == 0


def test_a_sequence_whose_tasks_were_all_removed_runs_later_ones(pool: ThreadPool) -> None:
    sequence, log = pool.sequenced(), list[int]()
    with occupied(pool):
        sequence.post(log.append, 1).cancel()
        assert pool.compact() == 1  # of the sequence, which stays in the ready queue
        assert pool.compact() == 0
        sequence.post(log.append, 2)
    pool.wait_idle(PATIENCE)
    assert log == [2]


def test_a_pool_compacts_all_its_runners(pool: ThreadPool) -> None:
    runners: list[TaskRunner] = [pool, pool.sequenced(), pool.parallel(2), pool.single_thread()]
    with occupied(pool), occupied(runners[-1]):
        for runner in runners:
            runner.post(int).cancel()
            runner.post(int)
        assert pool.compact() == len(runners)
        assert [queue_length(runner) for runner in runners] == [1] * len(runners)
        assert pool.statistics().queued == len(runners)


def test_a_task_that_ran_inside_the_task_that_waited_for_it_is_removed(pool: ThreadPool) -> None:
    lengths: list[int] = []

    def wait_for_another() -> None:
        pool.submit(int).result()  # no other thread can run it
        lengths.append(queue_length(pool))
        assert pool.compact() == 1
        lengths.append(queue_length(pool))

    pool.submit(wait_for_another).result(PATIENCE)
    assert lengths == [1, 0]
    pool.wait_idle(PATIENCE)
    assert pool._tombstones == 0


# -- the traits of the next task


def test_the_traits_of_the_next_task_are_known_until_it_starts(make: MakeRunner) -> None:
    runner = make()
    with occupied(runner):
        assert runner.peek_traits() is None
        first = runner.post(int, traits=URGENT)
        runner.post(int)
        assert runner.peek_traits() is URGENT
        first.cancel()
        assert runner.peek_traits() == TaskTraits()
    runner.wait_idle(PATIENCE)
    assert runner.peek_traits() is None


def test_a_pool_knows_the_traits_of_the_first_task_of_a_sequence(pool: ThreadPool) -> None:
    sequence = pool.sequenced()
    with occupied(pool):
        pool.post(int, traits=LAZY)
        assert pool.peek_traits() is LAZY
        sequence.post(int, traits=URGENT)
        assert pool.peek_traits() is URGENT
