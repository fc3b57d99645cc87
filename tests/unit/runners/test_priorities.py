"""Who goes first on a busy pool: priorities, heads of sequences, slices, and no task starves."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from threading import Thread

import pytest

from mainspring.clock import NANOSECONDS
from mainspring.runners import Priority, SequencedRunner, TaskRunner, TaskTraits, ThreadPool
from mainspring.testing import ManualClock
from tests.pools import running
from tests.support import PATIENCE, eventually, occupied

LOW = TaskTraits(priority=Priority.BEST_EFFORT)
NORMAL = TaskTraits(priority=Priority.USER_VISIBLE)
HIGH = TaskTraits(priority=Priority.USER_BLOCKING)
SLICE = 4


@pytest.fixture
def pool(clock: ManualClock) -> Iterator[ThreadPool]:
    """One worker, so that order is visible."""
    with running(ThreadPool(1, max_workers=1, clock=clock)) as pool:
        yield pool


@pytest.fixture
def order() -> list[str]:
    return []


# -- order


def test_the_urgent_go_first_and_equals_by_arrival(pool: ThreadPool, order: list[str]) -> None:
    with occupied(pool):
        for name, traits in [("a", LOW), ("b", None), ("c", HIGH), ("d", NORMAL), ("e", HIGH), ("f", LOW)]:
            pool.post(order.append, name, traits=traits)
    pool.wait_idle()
    assert order == ["c", "e", "b", "d", "a", "f"]


def test_a_fifo_pool_ignores_priorities(order: list[str]) -> None:
    with running(ThreadPool(1, queue="fifo")) as pool:
        sequence = pool.sequenced()
        with occupied(pool):
            for name, traits in [("a", LOW), ("b", None), ("c", HIGH)]:
                pool.post(order.append, name, traits=traits)
            sequence.post(order.append, "d", traits=HIGH)
            pool.post(order.append, "e", traits=NORMAL)
        pool.wait_idle(PATIENCE)
    assert order == ["a", "b", "c", "d", "e"]


def test_traits_of_a_runner_hold_for_its_tasks_unless_they_bring_their_own(
    pool: ThreadPool, order: list[str]
) -> None:
    urgent = pool.sequenced(traits=HIGH)
    with occupied(pool):
        pool.post(order.append, "plain")
        urgent.post(order.append, "urgent")
        urgent.post(order.append, "by the way", traits=LOW)
    pool.wait_idle()
    assert order == ["urgent", "plain", "by the way"]


def test_a_sequence_waits_with_the_priority_of_its_head(pool: ThreadPool, order: list[str]) -> None:
    sequence = pool.sequenced()
    with occupied(pool):
        pool.post(order.append, "plain")
        sequence.post(order.append, "high", traits=HIGH)
        sequence.post(order.append, "low", traits=LOW)
    pool.wait_idle()
    assert order == ["high", "plain", "low"]


def test_an_urgent_task_does_not_pull_the_ones_before_it(pool: ThreadPool, order: list[str]) -> None:
    sequence = pool.sequenced()
    with occupied(pool):
        sequence.post(order.append, "low", traits=LOW)
        sequence.post(order.append, "high", traits=HIGH)
        pool.post(order.append, "plain")
    pool.wait_idle()
    assert order == ["plain", "low", "high"]


def test_a_sequence_comes_back_with_the_priority_of_its_next_task(pool: ThreadPool, order: list[str]) -> None:
    sequence = pool.sequenced()
    with occupied(pool):
        for number in range(SLICE):
            sequence.post(order.append, f"low {number}", traits=LOW)
        sequence.post(order.append, "high", traits=HIGH)
        sequence.post(order.append, "plain")
        for _ in range(2):
            pool.post(pool.post, order.append, "late plain")
        pool.post(partial(pool.post, order.append, "late low", traits=LOW), traits=LOW)
    pool.wait_idle()
    # After the slice the sequence is urgent; its plain task then waits its turn among the plain ones.
    assert order == [
        *("late plain" for _ in range(2)),
        *(f"low {number}" for number in range(SLICE)),
        "high",
        "plain",
        "late low",
    ]


def test_a_sequence_stays_in_order_whatever_its_priorities(pool: ThreadPool, order: list[str]) -> None:
    sequence = pool.sequenced()
    names = [str(number) for number in range(60)]
    with occupied(pool):
        for number, name in enumerate(names):
            sequence.post(order.append, name, traits=[LOW, None, HIGH, NORMAL][number * 7 % 4])
    pool.wait_idle()
    assert order == names


# -- slices


@pytest.mark.parametrize("traits", [None, LOW, HIGH])
def test_two_sequences_on_one_worker_take_turns(
    pool: ThreadPool, order: list[str], traits: TaskTraits | None
) -> None:
    left, right = pool.sequenced(), pool.sequenced()
    with occupied(pool):
        for _ in range(20):
            left.post(order.append, "left", traits=traits)
        for _ in range(20):
            right.post(order.append, "right", traits=traits)
    pool.wait_idle()
    assert [len(list(turn)) for _, turn in groupby(order)] == [SLICE] * 10


def test_a_long_sequence_lets_a_single_task_of_the_pool_in(pool: ThreadPool, order: list[str]) -> None:
    sequence = pool.sequenced()
    with occupied(pool):
        for _ in range(100):
            sequence.post(order.append, "sequence")
        pool.post(order.append, "pool")
    pool.wait_idle()
    assert order.index("pool") == SLICE
    assert len(order) == 101


def test_a_sequence_alone_is_interrupted_by_an_urgent_task_that_comes_later(
    pool: ThreadPool, order: list[str]
) -> None:
    sequence = pool.sequenced()

    def interrupt() -> None:
        pool.post(order.append, "urgent", traits=HIGH)

    with occupied(pool):
        for _ in range(10):
            sequence.post(order.append, "sequence")
        sequence.post(interrupt)
        for _ in range(10):
            sequence.post(order.append, "sequence")
    pool.wait_idle()
    assert order.index("urgent") < 10 + SLICE


# -- no task starves


class Load:
    """Keeps a pool of one worker busy with tasks of 10 ms each, until something has started or time is up."""

    def __init__(self, clock: ManualClock, limit_s: float = 5.0) -> None:
        self._clock = clock
        self._limit_ns = int(limit_s * NANOSECONDS)
        self.started_at: dict[str, int] = {}
        self.wanted: set[str] = set()

    def note(self, name: str) -> None:
        self.started_at.setdefault(name, self._clock.monotonic_ns())

    def post(self, name: str, runner: TaskRunner, traits: TaskTraits | None) -> None:
        self.wanted.add(name)
        runner.post(self.note, name, traits=traits)

    def feed(self, runner: TaskRunner, traits: TaskTraits | None) -> None:
        self._clock.jump(0.01)
        if not self.wanted <= self.started_at.keys() and self._clock.monotonic_ns() < self._limit_ns:
            runner.post(self.feed, runner, traits, traits=traits)

    def waited(self, name: str) -> float:
        """Return for how many seconds a task that was posted at 0 has waited."""
        assert name in self.started_at, f"{name} has starved"
        return self.started_at[name] / NANOSECONDS


def the_pool(pool: ThreadPool) -> ThreadPool:
    return pool


def a_sequence(pool: ThreadPool) -> SequencedRunner:
    return pool.sequenced()


def some_in_parallel(pool: ThreadPool) -> TaskRunner:
    return pool.parallel(limit=3)


runners = [the_pool, a_sequence, some_in_parallel]


@pytest.mark.parametrize("load_on", runners)
@pytest.mark.parametrize("task_on", runners)
@pytest.mark.parametrize("load_traits", [HIGH, NORMAL, None], ids=["urgent", "visible", "plain"])
def test_a_background_task_starts_within_a_second(
    pool: ThreadPool,
    clock: ManualClock,
    load_on: Callable[[ThreadPool], TaskRunner],
    task_on: Callable[[ThreadPool], TaskRunner],
    load_traits: TaskTraits | None,
) -> None:
    load = Load(clock)
    with occupied(pool):
        for _ in range(8):
            busy = load_on(pool)
            busy.post(load.feed, busy, load_traits, traits=load_traits)
        load.post("background", task_on(pool), LOW)
    pool.wait_idle()
    assert 0.2 < load.waited("background") <= 1.0


@pytest.mark.parametrize("load_on", runners)
@pytest.mark.parametrize("task_on", runners)
def test_a_visible_task_is_not_starved_by_urgent_ones(
    pool: ThreadPool,
    clock: ManualClock,
    load_on: Callable[[ThreadPool], TaskRunner],
    task_on: Callable[[ThreadPool], TaskRunner],
) -> None:
    load = Load(clock)
    with occupied(pool):
        for _ in range(8):
            busy = load_on(pool)
            busy.post(load.feed, busy, HIGH, traits=HIGH)
        load.post("visible", task_on(pool), None)
    pool.wait_idle()
    assert 0.2 < load.waited("visible") <= 1.0


def test_background_and_visible_tasks_both_get_through_urgent_ones(pool: ThreadPool, clock: ManualClock) -> None:
    load = Load(clock)
    with occupied(pool):
        for _ in range(8):
            pool.post(load.feed, pool, HIGH, traits=HIGH)
        for number in range(20):
            load.post(f"background {number}", pool, LOW)
            load.post(f"visible {number}", pool, None)
    pool.wait_idle()
    assert max(map(load.waited, load.wanted)) <= 1.0


def test_a_parallel_runner_that_turns_to_other_priorities_holds_up_no_other(
    pool: ThreadPool, clock: ManualClock
) -> None:
    load = Load(clock)
    mixed = pool.parallel(limit=2)
    with occupied(pool):
        for _ in range(2):  # the runner takes two places in the background lane
            mixed.post(clock.jump, 0, traits=LOW)
        for _ in range(SLICE):  # and comes back from the first one with tasks of another priority
            mixed.post(clock.jump, 0)
        load.post("background", pool, LOW)
        for _ in range(8):
            pool.post(load.feed, pool, None)
    pool.wait_idle()
    assert load.waited("background") <= 1.0


def test_later_background_tasks_of_a_runner_do_not_make_its_first_one_wait_longer(
    pool: ThreadPool, clock: ManualClock
) -> None:
    load = Load(clock)
    several = pool.parallel(limit=8)
    every_400_ms = 40

    def post_another(countdown: int) -> None:
        clock.jump(0.01)
        if countdown == 0:
            several.post(int, traits=LOW)
        if "background" not in load.started_at and clock.monotonic_ns() < 3 * NANOSECONDS:
            pool.post(post_another, (countdown or every_400_ms) - 1)

    with occupied(pool):
        load.post("background", several, LOW)
        pool.post(post_another, every_400_ms - 1)
    pool.wait_idle()
    assert load.waited("background") <= 1.0


@pytest.mark.parametrize("task_on", runners)
def test_a_whole_backlog_of_background_tasks_starts_within_a_second(
    pool: ThreadPool, clock: ManualClock, task_on: Callable[[ThreadPool], TaskRunner]
) -> None:
    load = Load(clock)
    behind = task_on(pool)
    with occupied(pool):
        for number in range(20):
            load.post(f"background {number}", behind, LOW)
        for _ in range(8):
            pool.post(load.feed, pool, None)
    pool.wait_idle()
    assert max(map(load.waited, load.wanted)) <= 1.0


def test_a_flush_under_load_holds_no_background_task_up(pool: ThreadPool, clock: ManualClock) -> None:
    load = Load(clock)
    flushing = Thread(target=pool.flush, daemon=True)
    with occupied(pool):
        load.post("before", pool, LOW)
        flushing.start()
        assert eventually(lambda: len(pool._scheduler.ready) > 1)  # its barrier is in the queue
        load.post("after", pool, LOW)
        for _ in range(8):
            pool.post(load.feed, pool, None)
    pool.wait_idle()
    flushing.join(PATIENCE)
    assert not flushing.is_alive()
    assert max(load.waited("before"), load.waited("after")) <= 1.0


def test_a_fresh_plain_task_does_not_overtake_because_an_older_one_was_passed_over(
    pool: ThreadPool, clock: ManualClock, order: list[str]
) -> None:
    sequence = pool.sequenced()
    with occupied(pool):
        sequence.post(order.append, "old")
        pool.post(order.append, "urgent", traits=HIGH)
    pool.wait_idle()
    clock.advance(60)
    with occupied(pool):
        sequence.post(order.append, "fresh")
        pool.post(order.append, "urgent", traits=HIGH)
    pool.wait_idle()
    assert order == ["urgent", "old", "urgent", "fresh"]
