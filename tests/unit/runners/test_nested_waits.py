"""Tasks that wait for other tasks of their pool: inline, by growing, or refused at once; never stuck."""

from collections.abc import Iterator
from threading import Event, get_ident

import pytest

from mainspring import WouldDeadlock
from mainspring.runners import TaskRunner, TaskTraits, ThreadPool, blocking, current_runner
from mainspring.testing import ManualClock
from tests.pools import running
from tests.support import PATIENCE, Gate, occupied


@pytest.fixture
def lonely(clock: ManualClock) -> Iterator[ThreadPool]:
    """A pool that can never grow: waiting in it must not need another thread."""
    with running(ThreadPool(1, max_workers=1, clock=clock)) as pool:
        yield pool


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[ThreadPool]:
    with running(ThreadPool(1, max_workers=8, clock=clock)) as pool:
        yield pool


# -- inline


def test_an_unstarted_task_of_the_pool_runs_inside_the_one_that_waits(lonely: ThreadPool) -> None:
    def outer() -> tuple[int, int]:
        return get_ident(), lonely.submit(get_ident).result()

    here, there = lonely.submit(outer).result(PATIENCE)
    assert here == there
    lonely.wait_idle()
    statistics = lonely.statistics()
    assert (statistics.completed, statistics.queued, statistics.active) == (2, 0, 0)


def test_exception_waits_in_the_same_manner(lonely: ThreadPool) -> None:
    def outer() -> BaseException | None:
        return lonely.submit(int, "not a number").exception()

    assert isinstance(lonely.submit(outer).result(PATIENCE), ValueError)
    lonely.wait_idle()
    statistics = lonely.statistics()
    assert (statistics.completed, statistics.failed) == (1, 1)


def test_recursion_on_a_single_worker(lonely: ThreadPool) -> None:
    def fib(n: int) -> int:
        if n < 2:
            return n
        left, right = lonely.submit(fib, n - 1), lonely.submit(fib, n - 2)
        return left.result() + right.result()

    assert lonely.submit(fib, 12).result(PATIENCE) == 144
    lonely.wait_idle()
    statistics = lonely.statistics()
    assert (statistics.completed, statistics.queued, statistics.active) == (465, 0, 0)


@pytest.mark.parametrize("workers", [2, 4])
def test_recursion_on_several_workers(workers: int) -> None:
    with running(ThreadPool(workers, max_workers=workers)) as pool:

        def fib(n: int) -> int:
            if n < 2:
                return n
            left, right = pool.submit(fib, n - 1), pool.submit(fib, n - 2)
            return left.result() + right.result()

        assert pool.submit(fib, 11).result(PATIENCE) == 89
        pool.wait_idle(PATIENCE)
        assert pool.statistics().completed == 287
        assert pool.statistics().workers == workers


def test_an_inline_task_sees_its_own_runner_and_the_waiting_one_its_own_again(lonely: ThreadPool) -> None:
    sequence = lonely.sequenced()

    def outer() -> list[TaskRunner | None]:
        before = current_runner()
        inside = lonely.submit(current_runner).result()
        return [before, inside, current_runner()]

    assert sequence.submit(outer).result(PATIENCE) == [sequence, lonely, sequence]
    lonely.wait_idle()
    assert sequence.statistics().completed == 1  # what ran inside was not its own
    assert lonely.statistics().completed == 2


def test_a_task_with_traits_runs_inline_too(lonely: ThreadPool) -> None:
    def outer() -> int:
        return lonely.submit(int, traits=TaskTraits(may_block=True, category="nested")).result()

    assert lonely.submit(outer).result(PATIENCE) == 0


def test_an_inline_failure_does_not_hurt_the_one_that_waits(lonely: ThreadPool) -> None:
    def outer() -> str:
        with pytest.raises(ValueError, match="not a number"):
            lonely.submit(int, "not a number").result()
        return "fine"

    assert lonely.submit(outer).result(PATIENCE) == "fine"


def test_parallel_tasks_wait_for_each_other_within_their_limit(lonely: ThreadPool) -> None:
    io = lonely.parallel(limit=1)

    def outer(depth: int) -> int:
        return depth and 1 + io.submit(outer, depth - 1).result()

    assert io.submit(outer, 5).result(PATIENCE) == 5
    lonely.wait_idle()
    assert io.statistics().completed == 6


def test_what_runs_inline_leaves_room_in_a_bounded_queue() -> None:
    with running(ThreadPool(1, max_workers=1, capacity=1)) as pool:

        def outer(depth: int) -> int:
            return depth and 1 + pool.submit(outer, depth - 1).result()

        assert pool.submit(outer, 3).result(PATIENCE) == 3


def test_a_future_of_another_pool_is_not_run_inline(pool: ThreadPool) -> None:
    with running(ThreadPool(1)) as other:

        def outer() -> tuple[int, int]:
            return get_ident(), other.submit(get_ident).result()

        here, there = pool.submit(outer).result(PATIENCE)
        assert here != there


def test_a_task_that_waits_for_another_pool_lets_its_own_go_on(pool: ThreadPool) -> None:
    with running(ThreadPool(1)) as other:
        hold = Gate()
        waiting = pool.submit(lambda: other.submit(hold).result(PATIENCE))
        hold.wait_until_entered()
        assert pool.submit(int).result(PATIENCE) == 0
        hold.open()
        waiting.result(PATIENCE)


@pytest.mark.parametrize("method", ["result", "exception"])
def test_a_wait_with_a_timeout_ends_in_time_and_runs_nothing_on_its_thread(
    lonely: ThreadPool, method: str
) -> None:
    hold = Gate()  # opened only after the wait has ended, so that a wait that runs the task hangs

    def outer() -> tuple[str, bool]:
        future = lonely.submit(hold)
        with pytest.raises(TimeoutError):
            getattr(future, method)(0.01)
        return "went on", hold.is_entered

    try:
        assert lonely.submit(outer).result(PATIENCE) == ("went on", False)
    finally:
        hold.open()
    lonely.wait_idle(PATIENCE)
    assert (hold.is_entered, lonely.statistics().completed) == (True, 2)  # the task ran in its turn


def test_a_map_with_a_timeout_ends_in_time(lonely: ThreadPool) -> None:
    hold = Gate()

    def outer() -> bool:
        with pytest.raises(TimeoutError):
            list(lonely.executor().map(lambda _: hold(), [1, 2], timeout=0.01))
        return hold.is_entered

    try:
        assert lonely.submit(outer).result(PATIENCE) is False
    finally:
        hold.open()


# -- blocking


def test_waiting_for_a_sequence_counts_as_blocking(pool: ThreadPool) -> None:
    sequence = pool.sequenced()

    def outer() -> tuple[int, int]:
        return get_ident(), sequence.submit(get_ident).result(PATIENCE)

    here, there = pool.submit(outer).result(PATIENCE)
    assert here != there
    assert pool.statistics().workers == 2


def test_sequences_wait_for_each_other_in_a_chain(pool: ThreadPool) -> None:
    sequences = [pool.sequenced() for _ in range(6)]

    def down(depth: int) -> int:
        return depth and 1 + sequences[depth - 1].submit(down, depth - 1).result(PATIENCE)

    assert sequences[5].submit(down, 5).result(PATIENCE) == 5


def test_waiting_for_a_task_that_already_runs_counts_as_blocking() -> None:
    hold = Gate()
    with running(ThreadPool(2, max_workers=3)) as pool:
        busy = pool.submit(hold)
        hold.wait_until_entered()
        waits = Event()

        def outer() -> None:
            waits.set()
            busy.result(PATIENCE)

        waiting = pool.submit(outer)
        assert waits.wait(PATIENCE)
        assert pool.submit(int).result(PATIENCE) == 0  # on a third thread
        hold.open()
        waiting.result(PATIENCE)


def test_a_time_out_while_waiting_inside_of_a_task_gives_the_place_back(pool: ThreadPool) -> None:
    sequence = pool.sequenced()
    with occupied(sequence, traits=TaskTraits(may_block=True)):
        unstarted = sequence.submit(int)

        def outer() -> str:
            with pytest.raises(TimeoutError):
                unstarted.result(0.01)
            return "went on"

        assert pool.submit(outer).result(PATIENCE) == "went on"
    assert unstarted.result(PATIENCE) == 0
    pool.wait_idle()
    assert pool._group._blocked == 0


# -- one's own sequence


def sequenced(pool: ThreadPool) -> TaskRunner:
    return pool.sequenced(name="own")


def single_thread(pool: ThreadPool) -> TaskRunner:
    return pool.single_thread(name="own")


@pytest.mark.parametrize("make", [sequenced, single_thread])
@pytest.mark.parametrize("method", ["result", "exception"])
def test_waiting_for_ones_own_sequence_is_refused_at_once(pool: ThreadPool, make: object, method: str) -> None:
    own = sequenced(pool) if make is sequenced else single_thread(pool)

    def outer() -> WouldDeadlock:
        later = own.submit(int)
        with pytest.raises(WouldDeadlock) as refused:
            getattr(later, method)()  # without a time-out: it must not wait at all
        return refused.value

    error = own.submit(outer).result(PATIENCE)
    assert (error.runner, error.task) == ("own", "builtins.int")
    own.wait_idle(PATIENCE)
    assert own.statistics().completed == 2  # the other one ran in its turn


def test_a_result_that_is_there_may_be_taken_inside_of_its_own_sequence(pool: ThreadPool) -> None:
    sequence = pool.sequenced()
    earlier = sequence.submit(int)
    assert sequence.submit(earlier.result).result(PATIENCE) == 0


def test_waiting_for_a_delayed_task_of_ones_own_sequence_is_refused(pool: ThreadPool) -> None:
    sequence = pool.sequenced()

    def outer() -> None:
        with pytest.raises(WouldDeadlock):
            sequence.submit(int, delay=1).result()

    sequence.submit(outer).result(PATIENCE)


def test_ones_own_sequence_is_recognised_through_a_task_that_runs_inline(pool: ThreadPool) -> None:
    sequence = pool.sequenced()

    def inner() -> None:
        with pytest.raises(WouldDeadlock):
            sequence.submit(int).result(PATIENCE)  # the time-out only keeps a failure short

    def outer() -> None:
        pool.submit(inner).result()

    sequence.submit(outer).result(PATIENCE)


# -- delayed targets


def test_a_delayed_target_is_waited_for_and_not_run_early(pool: ThreadPool, clock: ManualClock) -> None:
    waits = Event()

    def outer() -> tuple[int, int]:
        delayed = pool.submit(clock.monotonic_ns, delay=5)
        waits.set()
        return delayed.result(PATIENCE), clock.monotonic_ns()

    future = pool.submit(outer)
    assert waits.wait(PATIENCE)
    clock.advance(4.999)
    assert not future.done()
    clock.advance(0.001)
    ran_at, resumed_at = future.result(PATIENCE)
    assert ran_at >= 5_000_000_000
    assert resumed_at >= ran_at


def test_two_delayed_targets_on_a_pool_of_one(pool: ThreadPool, clock: ManualClock) -> None:
    def outer() -> list[int]:
        delayed = [pool.submit(clock.monotonic_ns, delay=seconds) for seconds in (2, 1)]
        return [future.result(PATIENCE) for future in delayed]

    future = pool.submit(outer)
    clock.advance(3)
    assert future.result(PATIENCE) == [2_000_000_000, 1_000_000_000]


def test_a_circle_of_waits_over_several_sequences_is_refused(pool: ThreadPool) -> None:
    first, second, third = (pool.sequenced() for _ in range(3))

    def wait_for_the_first() -> int:
        return first.submit(int).result(PATIENCE)

    def wait_for_the_third() -> int:
        return third.submit(wait_for_the_first).result(PATIENCE)

    def wait_for_the_second() -> int:
        return second.submit(wait_for_the_third).result(PATIENCE)

    with pytest.raises(WouldDeadlock):
        first.submit(wait_for_the_second).result(PATIENCE)


def test_a_chain_of_waits_without_a_circle_is_fine(pool: ThreadPool) -> None:
    first, second, third = (pool.sequenced() for _ in range(3))
    chain = first.submit(lambda: second.submit(lambda: third.submit(int).result(PATIENCE)).result(PATIENCE))
    assert chain.result(PATIENCE) == 0


def test_a_pool_warns_once_when_all_its_threads_wait(caplog: pytest.LogCaptureFixture) -> None:
    release = Event()

    def wait() -> None:
        with blocking():
            assert release.wait(PATIENCE)

    with ThreadPool(1, max_workers=2) as pool:
        waiting = [pool.submit(wait) for _ in range(2)]
        behind = pool.submit(int)
        while not caplog.records and not behind.done():
            pool.statistics()
        release.set()
        for future in waiting:
            future.result(PATIENCE)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "max_workers" in caplog.text
