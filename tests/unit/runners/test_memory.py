"""Memory is given back: after a burst, after a run, and while everything sleeps."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from threading import Event
from weakref import ref

import pytest

from mainspring import MainspringError
from mainspring.runners import FuncQueue, Priority, TaskRunner, TaskTraits, ThreadPool
from mainspring.testing import ManualClock
from tests.pools import running
from tests.support import PATIENCE, WatchedClock, amount, occupied, without_collector
from tests.traced_memory import TracedMemory, in_a_quiet_process

pytestmark = pytest.mark.long

BURST = amount(40_000, thorough=60_000)
BYTES_KEPT = BURST  # a byte for each task of a burst: nothing that grows with it
URGENT = TaskTraits(priority=Priority.USER_BLOCKING)


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[ThreadPool]:
    with running(ThreadPool(1, max_workers=1, clock=clock)) as pool:
        yield pool


def running_pool() -> AbstractContextManager[ThreadPool]:
    """Start the same pool in a quiet process, where a test has no fixtures."""
    return running(ThreadPool(1, max_workers=1, clock=WatchedClock()))


def the_pool(pool: ThreadPool) -> TaskRunner:
    return pool


def a_sequence(pool: ThreadPool) -> TaskRunner:
    return pool.sequenced()


def a_single_thread(pool: ThreadPool) -> TaskRunner:
    return pool.single_thread()


@pytest.mark.parametrize("make", [the_pool, a_sequence, a_single_thread])
@in_a_quiet_process
def test_a_burst_of_tasks_leaves_nothing_behind(make: Callable[[ThreadPool], TaskRunner]) -> None:
    with running_pool() as pool:
        runner = make(pool)
        nothing = [].clear
        with TracedMemory() as memory:
            with occupied(runner):
                for _ in range(BURST):
                    runner.post(nothing)
                assert memory.used_by_all() > BURST * 50  # it was really there
            runner.wait_idle()
            memory.check_below(BYTES_KEPT)


@pytest.mark.parametrize("make", [the_pool, a_sequence, a_single_thread])
@in_a_quiet_process
def test_canceled_tasks_leave_nothing_behind_while_no_thread_is_free(
    make: Callable[[ThreadPool], TaskRunner],
) -> None:
    with running_pool() as pool:
        runner = make(pool)
        nothing = [].clear
        with occupied(runner), TracedMemory() as memory:
            for _ in range(BURST // 4):
                runner.post(nothing).cancel()
            memory.check_below(5 * BURST)  # the tasks take more than four times as much
            runner.compact()
            memory.check_below(BYTES_KEPT)


@in_a_quiet_process
def test_a_burst_of_delayed_tasks_that_are_canceled_leaves_nothing_behind() -> None:
    with running_pool() as pool:
        pool.post(int, delay=1).cancel()  # the timer's thread and its first slot are there before we measure
        with TracedMemory() as memory:
            handles = [pool.post(int, delay=60 + number % 50) for number in range(BURST // 4)]
            full = memory.used_by_all()
            for handle in handles:
                assert handle.cancel()
            del handles, handle
            assert full > BURST // 4 * 100
            memory.check_below(full / 20)
        assert pool.statistics().delayed == 0


@in_a_quiet_process
def test_a_burst_of_canceled_tasks_leaves_nothing_behind() -> None:
    with running_pool() as pool:
        with TracedMemory() as memory:
            with occupied(pool):
                for _ in range(BURST // 4):
                    assert pool.post(int).cancel()
            pool.wait_idle()
            memory.check_below(BYTES_KEPT)
        assert pool.statistics().queued == 0


@in_a_quiet_process
def test_a_burst_of_items_leaves_nothing_behind() -> None:
    with running_pool() as pool:
        queue: FuncQueue[None] = FuncQueue(id, pool)
        with TracedMemory() as memory:
            with occupied(pool):
                for _ in range(BURST // 2):
                    queue.dispatch(None)
                assert memory.used_by_all() > BURST * 20
            queue.wait_idle()
            pool.wait_idle()
            memory.check_below(BYTES_KEPT)


@in_a_quiet_process
def test_runners_come_and_go_without_a_trace() -> None:
    with running_pool() as pool:

        def use_and_drop() -> None:
            for number in range(200):
                sequence = pool.sequenced()
                sequence.post(int)
                pool.parallel(limit=2).post(int, traits=URGENT if number % 2 else None)
            pool.wait_idle()

        use_and_drop()
        with TracedMemory() as memory:
            for _ in range(10):
                use_and_drop()
            gc.collect()
            memory.check_below(BYTES_KEPT)


class Thing:
    """Something that can be watched while it is released."""

    def method(self) -> None:
        pass


@pytest.mark.parametrize("make", [the_pool, a_sequence, a_single_thread])
@pytest.mark.parametrize("delay", [None, 1], ids=["now", "later"])
def test_a_sleeping_worker_keeps_its_last_task_not_alive(
    pool: ThreadPool, clock: ManualClock, make: Callable[[ThreadPool], TaskRunner], delay: float | None
) -> None:
    runner = make(pool)
    thing = Thing()
    reference = ref(thing)
    with without_collector():
        runner.post(thing.method, delay=delay)
        del thing
        clock.advance(2)
        assert reference() is None


@pytest.mark.parametrize("traits", [None, URGENT], ids=["plain", "urgent"])
def test_a_sequence_without_references_is_gone_after_its_last_task(
    pool: ThreadPool, traits: TaskTraits | None
) -> None:
    sequence = pool.sequenced()
    reference = ref(sequence)
    ran = Event()
    with without_collector():
        with occupied(pool):
            sequence.post(ran.set, traits=traits)
            del sequence
            assert reference() is not None  # what is queued is not lost
        assert ran.wait(PATIENCE)
        pool.wait_idle()
        assert reference() is None


def test_a_sequence_whose_delayed_task_has_run_is_gone(pool: ThreadPool, clock: ManualClock) -> None:
    sequence = pool.sequenced()
    reference = ref(sequence)
    ran = Event()
    with without_collector():
        sequence.post(ran.set, delay=1)
        del sequence
        clock.advance(1)
        assert ran.is_set()
        assert reference() is None


def test_a_sequence_that_was_passed_over_is_gone_after_its_last_task(pool: ThreadPool) -> None:
    sequence = pool.sequenced()
    reference = ref(sequence)
    with without_collector():
        with occupied(pool):
            sequence.post(int)
            pool.post(int, traits=URGENT)
            del sequence
        pool.wait_idle()
        assert reference() is None


def refused(runner: TaskRunner, thing: Thing) -> bool:
    try:
        runner.post(thing.method)
    except MainspringError:
        return True
    return False


@pytest.mark.parametrize("why", ["full", "closed"])
def test_what_was_refused_is_released_at_once(pool: ThreadPool, why: str) -> None:
    runner = pool.sequenced(capacity=1)
    thing = Thing()
    reference = ref(thing)
    with without_collector(), occupied(runner):
        runner.post(int)
        other = pool.sequenced()
        other.shutdown()
        assert refused(runner if why == "full" else other, thing)
        del thing
        assert reference() is None


@in_a_quiet_process
def test_many_sequences_at_once_leave_no_storage_behind() -> None:
    with running_pool() as pool, TracedMemory() as memory:
        with occupied(pool):
            for _ in range(amount(2_000, thorough=5_000)):
                pool.sequenced().post(int)  # kept alive by its task
            full = memory.used_by_all()
        pool.wait_idle()
        gc.collect()
        memory.check_below(full / 8)  # two sets that do not shrink remember how many there were
