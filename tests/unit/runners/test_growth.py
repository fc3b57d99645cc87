"""A pool grows while its workers are blocked, up to its cap, and shrinks again."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, get_ident

import pytest

from mainspring.runners import TaskTraits, ThreadPool, blocking
from mainspring.testing import ManualClock
from tests.pools import close, running
from tests.support import PATIENCE, Gate, eventually, occupied

IDLE_TIMEOUT = 30
MAY_BLOCK = TaskTraits(may_block=True)


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[ThreadPool]:
    with running(ThreadPool(1, max_workers=3, idle_timeout=IDLE_TIMEOUT, clock=clock)) as pool:
        yield pool


def hold_blocked(hold: Gate) -> None:
    with blocking():
        hold()


@contextmanager
def blocked(pool: ThreadPool, count: int = 1) -> Iterator[list[Gate]]:
    """Keep `count` workers of the pool inside of `blocking()`."""
    holds = [Gate() for _ in range(count)]
    for hold in holds:
        pool.post(hold_blocked, hold)
    try:
        for hold in holds:
            hold.wait_until_entered()
        yield holds
    finally:
        for hold in holds:
            hold.open()


@contextmanager
def no_new_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operating system refuses every thread; the names of those refused are collected."""
    refused: list[str] = []

    def refuse(thread: Thread) -> None:
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield refused


# -- growing


def test_a_pool_does_not_grow_for_work_alone(pool: ThreadPool) -> None:
    with occupied(pool):
        for _ in range(100):
            pool.post(get_ident)
        assert pool.statistics().workers == 1
    pool.wait_idle()
    assert pool.statistics().workers == 1


def test_while_a_task_blocks_another_takes_its_place(pool: ThreadPool) -> None:
    with blocked(pool):
        assert pool.submit(int).result(PATIENCE) == 0
        assert pool.statistics().workers == 2
        assert pool.statistics().active == 1


def test_no_thread_is_made_as_long_as_nothing_waits_for_one(pool: ThreadPool) -> None:
    with blocked(pool):
        assert pool.statistics().workers == 1
    pool.wait_idle()
    assert pool.statistics().workers == 1
    assert pool.submit(int).result(PATIENCE) == 0
    assert pool.statistics().workers == 1


def test_work_that_waits_already_runs_when_a_task_begins_to_block(pool: ThreadPool) -> None:
    reached = Event()

    def wait_for_the_next() -> bool:
        with blocking():
            return reached.wait(PATIENCE)

    with occupied(pool):
        first = pool.submit(wait_for_the_next)
        pool.post(reached.set)
    assert first.result(PATIENCE)


@pytest.mark.parametrize("traits", [None, MAY_BLOCK], ids=["with a block", "by a trait"])
def test_growth_ends_at_the_cap(pool: ThreadPool, traits: TaskTraits | None) -> None:
    holds = [Gate() for _ in range(5)]
    for hold in holds:
        if traits is None:
            pool.post(hold_blocked, hold)
        else:
            pool.post(hold, traits=traits)
    try:
        for hold in holds[:3]:
            hold.wait_until_entered()
        statistics = pool.statistics()
        assert (statistics.workers, statistics.active, statistics.queued) == (3, 3, 2)
    finally:
        for hold in holds:
            hold.open()
    pool.wait_idle()
    assert all(hold.is_entered for hold in holds)
    assert pool.statistics().completed == 5


def test_a_task_that_may_block_makes_room_from_the_start(pool: ThreadPool) -> None:
    with occupied(pool, traits=MAY_BLOCK):
        assert pool.submit(int).result(PATIENCE) == 0


def test_sequences_on_blocked_workers_do_not_stop_others(pool: ThreadPool) -> None:
    slow, quick = pool.sequenced(), pool.sequenced()
    hold = Gate()
    slow.post(hold_blocked, hold)
    hold.wait_until_entered()
    assert quick.submit(int).result(PATIENCE) == 0
    waiting = slow.submit(int)
    assert not waiting.done()  # a sequence waits for its own task, even if workers are free
    hold.open()
    assert waiting.result(PATIENCE) == 0


def test_nested_blocking_counts_once(pool: ThreadPool) -> None:
    outer, inner, after = Gate(), Gate(), Gate()

    def nest() -> None:
        with blocking():
            outer()
            with blocking():
                inner()
            after()

    pool.post(nest)
    outer.wait_until_entered()
    with occupied(pool):  # on the substitute
        outer.open()
        inner.wait_until_entered()
        waiting = pool.submit(int)
        assert pool.statistics().workers == 2
        inner.open()
        after.wait_until_entered()
        assert not waiting.done()
        assert pool.statistics().workers == 2
    assert waiting.result(PATIENCE) == 0  # still blocked: the substitute goes on
    after.open()


def test_blocking_outside_of_a_pool_does_nothing() -> None:
    with blocking():
        assert threading.active_count() >= 1


def test_an_exception_leaves_the_block_in_order(pool: ThreadPool) -> None:
    def fail() -> None:
        with blocking():
            raise ValueError("as expected")

    assert isinstance(pool.submit(fail).exception(PATIENCE), ValueError)
    pool.wait_idle()
    with occupied(pool):
        waiting = pool.submit(int)
        assert not waiting.done()
        assert pool.statistics().workers == 1  # no worker counts as blocked any more
    assert waiting.result(PATIENCE) == 0


# -- shrinking


def grow_to_three(pool: ThreadPool) -> None:
    with blocked(pool, 3):
        assert pool.statistics().workers == 3


def test_the_surplus_stays_for_the_idle_time_and_then_leaves(pool: ThreadPool, clock: ManualClock) -> None:
    for _ in range(20):
        grow_to_three(pool)
        pool.wait_idle()
        clock.settle()
        assert pool.statistics().workers == 3
        clock.advance(IDLE_TIMEOUT - 0.001)
        assert pool.statistics().workers == 3
        clock.advance(0.001)
        assert pool.statistics().workers == 1


def test_the_surplus_is_used_again_before_it_leaves(pool: ThreadPool, clock: ManualClock) -> None:
    threads: set[int] = set()
    for _ in range(5):
        with blocked(pool, 2):
            threads.add(pool.submit(get_ident).result(PATIENCE))
        pool.wait_idle()
        clock.advance(IDLE_TIMEOUT / 2)
    assert pool.statistics().workers == 3
    assert pool._group._started == 3


def test_after_shrinking_a_pool_grows_again(pool: ThreadPool, clock: ManualClock) -> None:
    grow_to_three(pool)
    pool.wait_idle()
    clock.advance(2 * IDLE_TIMEOUT)
    assert eventually(lambda: pool.statistics().workers == 1)
    grow_to_three(pool)
    pool.wait_idle()
    assert pool.statistics().completed == 6


def test_counts_survive_the_threads_that_made_them(pool: ThreadPool, clock: ManualClock) -> None:
    with blocked(pool, 2):
        for _ in range(10):
            pool.post(int)
        pool.post(int, "not a number")
        assert eventually(lambda: pool.statistics().failed == 1)
    pool.wait_idle()
    clock.advance(2 * IDLE_TIMEOUT)
    assert eventually(lambda: pool.statistics().workers == 1)
    statistics = pool.statistics()
    assert (statistics.completed, statistics.failed) == (12, 1)


def test_one_that_is_too_many_steps_aside_before_it_takes_more(pool: ThreadPool) -> None:
    first, second, third = Gate(), Gate(), Gate()
    unblocked = Gate()

    def block_then_work() -> None:
        hold_blocked(first)
        unblocked()

    pool.post(block_then_work)
    first.wait_until_entered()
    pool.post(second)  # on the substitute
    second.wait_until_entered()
    first.open()
    unblocked.wait_until_entered()  # now two run on a pool of one
    pool.post(third)
    second.open()
    assert not eventually(lambda: third.is_entered, 0.05)  # the substitute has gone to the reserve instead
    assert pool.statistics().queued == 1
    unblocked.open()
    third.wait_until_entered()
    third.open()


def test_the_end_of_a_pool_ends_the_surplus_too(clock: ManualClock) -> None:
    with running(ThreadPool(1, max_workers=5, name="short-lived", clock=clock)) as pool:
        with blocked(pool, 4):
            pass
        pool.wait_idle()
    assert eventually(lambda: not any(t.name.startswith("short-lived") for t in threading.enumerate()))


# -- the operating system refuses threads


def test_without_a_new_thread_the_work_waits_for_the_old_one(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with no_new_threads(monkeypatch) as refused:
        with blocked(pool):
            futures = [pool.submit(int) for _ in range(5)]
            assert refused
            assert pool.statistics().workers == 1
            assert pool.statistics().queued == 5
        assert [future.result(PATIENCE) for future in futures] == [0] * 5
    assert "could not start a thread" in caplog.text
    with blocked(pool):  # and the pool can still grow
        assert pool.submit(int).result(PATIENCE) == 0


def test_without_a_new_thread_only_a_wait_without_a_timeout_runs_tasks(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = pool.sequenced()
    timed_out: list[bool] = []

    def outer() -> list[int]:
        ran: list[int] = []
        future = sequence.submit(ran.append, 1)
        try:
            future.result(0.01)
        except TimeoutError:
            timed_out.append(ran == [])
        future.result()
        return ran

    with no_new_threads(monkeypatch) as refused:
        assert pool.submit(outer).result(PATIENCE) == [1]
        assert refused
    assert timed_out == [True]


def test_a_refused_thread_does_not_keep_a_sleeping_one_from_the_work(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(ThreadPool(2, clock=clock)) as pool:
        before, inside = Gate(), Gate()

        def block_later() -> None:
            before()
            hold_blocked(inside)

        pool.post(block_later)
        before.wait_until_entered()
        assert eventually(lambda: len(pool._scheduler.idle) == 1)  # the other worker sleeps
        before.open()
        inside.wait_until_entered()  # and beside it waits a thread that is not born yet
        reached = Event()
        with no_new_threads(monkeypatch):
            pool.post(reached.set)
            ran = reached.wait(PATIENCE)
        inside.open()
        assert ran, "the task lay in the queue although a worker was free"


def test_a_pool_with_some_of_its_threads_does_all_of_its_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start: Callable[[Thread], None] = threading.Thread.start

    def refuse_the_second(thread: Thread) -> None:
        if thread.name == "halved-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    with running(ThreadPool(2, "halved")) as pool:
        futures = [pool.submit(int) for _ in range(50)]
        assert [future.result(PATIENCE) for future in futures] == [0] * 50
        assert pool.statistics().workers == 1
    assert "could not start a thread" in caplog.text


def test_a_pool_without_any_thread_says_so_or_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ThreadPool(1)
    refusal: RuntimeError | None = None
    try:
        with no_new_threads(monkeypatch):
            try:
                pool.start()
            except RuntimeError as error:
                refusal = error
        if refusal is None:
            assert pool.submit(int).result(PATIENCE) == 0
    finally:
        assert close(pool)


def test_a_refused_timer_thread_loses_no_delayed_task(
    pool: ThreadPool, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Event(), Event()
    is_accepted = True
    with no_new_threads(monkeypatch) as refused:
        try:
            pool.post(first.set, delay=1)
        except RuntimeError:
            is_accepted = False
    assert refused
    assert pool.statistics().delayed == int(is_accepted)
    pool.post(second.set, delay=1)
    clock.advance(2)
    assert second.wait(PATIENCE), "the timer never recovered"
    assert first.is_set() == is_accepted
    assert pool.statistics().delayed == 0
