"""FuncQueue: a handler that sleeps while its queue is empty."""

from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread, active_count
from typing import Any
from weakref import ref

import pytest

from mainspring import QueueFull, RunnerClosed
from mainspring.runners import (
    FuncQueue,
    ShutdownBehavior,
    TaskFailure,
    TaskHandle,
    TaskRunner,
    TaskTraits,
    ThreadPool,
)
from mainspring.testing import ManualClock
from tests.pools import running
from tests.support import PATIENCE, Gate, eventually, frequent_thread_switches, occupied, without_collector

BLOCK = TaskTraits(shutdown=ShutdownBehavior.BLOCK)


@pytest.fixture
def pool(failures: list[TaskFailure]) -> Iterator[ThreadPool]:
    with running(ThreadPool(4, clock=ManualClock(), on_error=failures.append)) as pool:
        yield pool


# -- order and bounds


def test_one_handler_handles_in_order(pool: ThreadPool) -> None:
    handled: list[int] = []
    queue = FuncQueue(handled.append, pool)
    for number in range(1_000):
        queue.dispatch(number)
    queue.wait_idle()
    assert handled == list(range(1_000))
    assert len(queue) == 0


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("batch", [False, True])
def test_there_are_never_more_handlers_at_once_than_allowed(concurrency: int, batch: bool) -> None:  # noqa: FBT001
    lock = Lock()
    inside = most = count = 0

    def handle(item: Any) -> None:
        nonlocal inside, most, count
        with lock:
            inside += 1
            most = max(most, inside)
            count += len(item) if batch else 1
        with lock:
            inside -= 1

    def dispatch() -> None:
        for number in range(500):
            queue.dispatch(number)

    with running(ThreadPool(8)) as pool, frequent_thread_switches():
        queue: FuncQueue[int] = (
            FuncQueue(handle, pool, concurrency=concurrency, batch=True)
            if batch
            else FuncQueue(handle, pool, concurrency=concurrency)
        )
        producers = [Thread(target=dispatch, daemon=True) for _ in range(4)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join(PATIENCE)
        queue.wait_idle(PATIENCE)
    assert count == 2_000
    assert 1 <= most <= concurrency


def test_as_many_handlers_work_at_once_as_allowed(pool: ThreadPool) -> None:
    holds = [Gate() for _ in range(4)]
    queue: FuncQueue[Gate] = FuncQueue(Gate.__call__, pool, concurrency=3)
    for hold in holds:
        queue.dispatch(hold)
    for hold in holds[:3]:
        hold.wait_until_entered()
    assert not eventually(lambda: holds[3].is_entered, 0.02)
    holds[1].open()
    holds[3].wait_until_entered()
    for hold in holds:
        hold.open()
    queue.wait_idle()


def test_a_long_queue_lets_other_work_of_the_pool_in() -> None:
    handled: list[int] = []
    with running(ThreadPool(1, max_workers=1)) as pool:
        queue = FuncQueue(handled.append, pool)
        with occupied(pool):
            for number in range(1_000):
                queue.dispatch(number)
            between = pool.submit(lambda: len(handled))
        assert between.result(PATIENCE) < 1_000
        queue.wait_idle(PATIENCE)
    assert handled == list(range(1_000))


# -- batches


def test_a_batch_is_all_that_waits(pool: ThreadPool) -> None:
    batches: list[list[int]] = []
    hold = Gate()

    def handle(batch: list[int]) -> None:
        batches.append(batch)
        if len(batches) == 1:
            hold()

    queue = FuncQueue(handle, pool, batch=True)
    queue.dispatch(0)
    hold.wait_until_entered()
    for number in range(1, 500):
        queue.dispatch(number)
    assert len(queue) == 499
    hold.open()
    queue.wait_idle()
    assert batches == [[0], list(range(1, 500))]


def test_a_batch_belongs_to_its_handler(pool: ThreadPool) -> None:
    batches: list[list[int]] = []

    def handle(batch: list[int]) -> None:
        batches.append(list(batch))
        if batch == [1]:
            queue.dispatch(2)
            batch.append(99)

    queue = FuncQueue(handle, pool, batch=True)
    queue.dispatch(1)
    queue.wait_idle()
    assert batches == [[1], [2]]


# -- capacity


@pytest.mark.parametrize("batch", [False, True])
def test_a_full_queue_refuses(pool: ThreadPool, batch: bool) -> None:  # noqa: FBT001
    handled: list[object] = []
    hold = Gate()

    def handle(item: object) -> None:
        handled.append(item)
        hold()

    queue: FuncQueue[int] = (
        FuncQueue(handle, pool, capacity=2, batch=True, name="small")
        if batch
        else FuncQueue(handle, pool, capacity=2, name="small")
    )
    queue.dispatch(0)
    hold.wait_until_entered()
    queue.dispatch(1)
    queue.dispatch(2)
    with pytest.raises(QueueFull) as refused:
        queue.dispatch(3)
    assert (refused.value.name, refused.value.capacity) == ("small", 2)
    hold.open()
    queue.wait_idle()
    assert handled == ([[0], [1, 2]] if batch else [0, 1, 2])
    queue.dispatch(4)
    queue.wait_idle()
    assert handled[-1] == ([4] if batch else 4)


def test_a_full_pool_refuses_the_item_and_the_queue_lives_on() -> None:
    handled: list[int] = []
    with running(ThreadPool(1, max_workers=1, capacity=1)) as pool:
        queue = FuncQueue(handled.append, pool)
        with occupied(pool):
            pool.post(int)  # now the pool is full
            with pytest.raises(QueueFull):
                queue.dispatch(1)
        pool.wait_idle(PATIENCE)
        queue.dispatch(2)
        queue.wait_idle(PATIENCE)
    assert handled == [2]


def test_a_full_pool_does_not_stop_a_queue_that_has_more_to_do() -> None:
    handled: list[int] = []
    with running(ThreadPool(1, max_workers=1, capacity=1)) as pool:
        hold = Gate()

        def handle(number: int) -> None:
            handled.append(number)
            if number == 0:
                hold()

        queue = FuncQueue(handle, pool)
        queue.dispatch(0)
        hold.wait_until_entered()
        for number in range(1, 100):  # more than one drain handles
            queue.dispatch(number)
        pool.post(int)  # now the pool is full, and the drain cannot post the next one
        hold.open()
        queue.wait_idle(PATIENCE)
    assert handled == list(range(100))


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_concurrency_that_makes_no_sense_is_refused(pool: ThreadPool, concurrency: int) -> None:
    with pytest.raises(ValueError, match="concurrency"):
        FuncQueue(print, pool, concurrency=concurrency)


# -- failures


def test_what_a_handler_raises_is_reported_and_the_queue_goes_on(
    pool: ThreadPool, failures: list[TaskFailure]
) -> None:
    handled: list[int] = []

    def handle(number: int) -> None:
        if number == 1:
            raise ValueError("as expected")
        if number == 2:
            raise SystemExit
        handled.append(number)

    queue = FuncQueue(handle, pool)
    for number in range(4):
        queue.dispatch(number)
    queue.wait_idle()
    assert handled == [0, 3]
    assert [type(failure.error) for failure in failures] == [ValueError, SystemExit]
    assert "handle" in failures[0].task
    assert str(failures[0])


def test_a_batch_that_fails_is_reported_once_and_the_queue_goes_on(
    pool: ThreadPool, failures: list[TaskFailure]
) -> None:
    handled: list[int] = []

    def handle(batch: list[int]) -> None:
        if batch == [1]:
            raise ValueError("as expected")
        handled.extend(batch)

    queue = FuncQueue(handle, pool, batch=True)
    for number in (1, 2):
        queue.dispatch(number)
        queue.wait_idle()
    assert handled == [2]
    assert len(failures) == 1


# -- sleeping


def test_an_empty_queue_sleeps(pool: ThreadPool) -> None:
    before = active_count()
    queue: FuncQueue[int] = FuncQueue(id, pool)
    assert pool.statistics().queued == 0
    for _ in range(3):
        queue.dispatch(1)
        queue.wait_idle()
        pool.wait_idle()
        statistics = pool.statistics()
        assert (statistics.queued, statistics.active, statistics.delayed) == (0, 0, 0)
        assert active_count() == before


def test_an_item_wakes_a_sleeping_queue(pool: ThreadPool) -> None:
    handled = [Event() for _ in range(50)]
    queue: FuncQueue[Event] = FuncQueue(Event.set, pool)
    for event in handled:
        queue.dispatch(event)
        assert event.wait(PATIENCE)


def test_wait_idle_gives_up_in_time() -> None:
    with running(ThreadPool(1)) as pool:
        hold = Gate()
        queue: FuncQueue[int] = FuncQueue(lambda _: hold(), pool, name="slow")
        queue.dispatch(1)
        hold.wait_until_entered()
        queue.dispatch(2)
        with pytest.raises(TimeoutError, match=r"slow.*1 item waits"):
            queue.wait_idle(0.01)
        hold.open()
        queue.wait_idle(PATIENCE)


def test_a_handled_item_is_released(pool: ThreadPool) -> None:
    class Thing:
        pass

    queue: FuncQueue[Thing] = FuncQueue(lambda _: None, pool)
    with without_collector():
        thing = Thing()
        reference = ref(thing)
        queue.dispatch(thing)
        del thing
        pool.wait_idle()
        assert reference() is None


def test_a_queue_on_a_sequence_keeps_its_order(pool: ThreadPool) -> None:
    handled: list[str] = []
    sequence = pool.sequenced()
    queue = FuncQueue(handled.append, sequence)
    with occupied(sequence):
        sequence.post(handled.append, "before")
        queue.dispatch("item")
        sequence.post(handled.append, "after")
    pool.wait_idle()
    assert handled == ["before", "item", "after"]


# -- shutdown


def test_what_was_dispatched_before_a_shutdown_is_handled() -> None:
    handled: list[int] = []
    with running(ThreadPool(1, max_workers=1)) as pool:
        queue = FuncQueue(handled.append, pool)
        with occupied(pool):
            for number in range(200):  # more than one drain handles
                queue.dispatch(number)
            closing = Thread(target=pool.shutdown, daemon=True)
            closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()
    assert handled == list(range(200))


def test_after_a_shutdown_nothing_is_taken_and_nothing_handled() -> None:
    handled: list[int] = []
    with running(ThreadPool(1)) as pool:
        queue = FuncQueue(handled.append, pool)
        queue.dispatch(1)
        pool.shutdown()
        for _ in range(2):
            with pytest.raises(RunnerClosed):
                queue.dispatch(2)
    assert handled == [1]


def test_a_handler_may_dispatch_while_the_pool_shuts_down() -> None:
    handled: list[int] = []
    with running(ThreadPool(1, max_workers=1)) as pool:

        def handle(number: int) -> None:
            handled.append(number)
            if number < 5:
                queue.dispatch(number + 1)

        queue = FuncQueue(handle, pool)
        with occupied(pool):
            queue.dispatch(0)
            closing = Thread(target=pool.shutdown, daemon=True)
            closing.start()
        closing.join(PATIENCE)
    assert handled == [0, 1, 2, 3, 4, 5]


class Hesitant:
    """A runner whose `post` waits at the door until it is told to go in."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self.door = Gate()

    def post(self, function: Callable[[], object], *, traits: TaskTraits) -> TaskHandle:
        self.door()
        return self._runner.post(function, traits=traits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def test_two_that_dispatch_while_a_pool_closes_are_both_told() -> None:
    """One holds the token and is refused by the pool; the other found no token and must not be forgotten."""
    handled: list[int] = []
    refused: list[int] = []
    with running(ThreadPool(2)) as pool, occupied(pool, traits=BLOCK) as hold:
        hesitant: Any = Hesitant(pool)
        queue: FuncQueue[int] = FuncQueue(handled.append, hesitant)

        def dispatch(number: int) -> None:
            try:
                queue.dispatch(number)
            except RunnerClosed:
                refused.append(number)

        first = Thread(target=dispatch, args=(1,), daemon=True)
        first.start()
        hesitant.door.wait_until_entered()  # it has the token
        closing = Thread(target=pool.shutdown, daemon=True)
        closing.start()
        assert eventually(lambda: not pool.is_open)  # closing, and kept from completing it by the task
        second = Thread(target=dispatch, args=(2,), daemon=True)
        second.start()
        second.join(0.1)  # it may wait for the first to find out
        hesitant.door.open()
        first.join(PATIENCE)
        second.join(PATIENCE)
        hold.open()
        closing.join(PATIENCE)
    assert sorted(handled + refused) == [1, 2]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_item_that_races_with_a_shutdown_is_handled_once_or_refused(
    batch: bool,  # noqa: FBT001
    concurrency: int,
) -> None:
    for _ in range(15):
        handled: list[int] = []
        refused: list[int] = []
        with running(ThreadPool(2)) as pool, frequent_thread_switches():
            queue: FuncQueue[int] = (
                FuncQueue(handled.extend, pool, batch=True, concurrency=concurrency)
                if batch
                else FuncQueue(handled.append, pool, concurrency=concurrency)
            )
            started = Event()

            def dispatch(
                first: int, queue: FuncQueue[int] = queue, refused: list[int] = refused, started: Event = started
            ) -> None:
                for number in range(first, first + 100):
                    try:
                        queue.dispatch(number)
                    except RunnerClosed:
                        refused.append(number)
                    started.set()

            producers = [Thread(target=dispatch, args=(first,), daemon=True) for first in (0, 100, 200)]
            for producer in producers:
                producer.start()
            assert started.wait(PATIENCE)
            pool.shutdown()
            for producer in producers:
                producer.join(PATIENCE)
        assert sorted(handled + refused) == list(range(300))


def test_a_log_that_fails_does_not_stop_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk of the log is full")

    handled: list[int] = []

    def handle(item: int) -> None:
        if item == 0:
            raise ValueError("bad item")
        handled.append(item)

    with running(ThreadPool(1)) as pool:
        monkeypatch.setattr("mainspring.runners.services.logger.error", fail)
        queue = FuncQueue(handle, pool)
        for item in range(3):
            queue.dispatch(item)
        queue.wait_idle(PATIENCE)
    assert handled == [1, 2]


def test_a_long_queue_is_drained_in_a_pool_that_stays_full() -> None:
    handled: list[int] = []
    filler: list[TaskHandle] = []

    with running(ThreadPool(1, capacity=1)) as pool:

        def handle(item: int) -> None:
            if not filler:
                filler.append(pool.post(int))  # takes the only place, and waits behind this drain
            handled.append(item)

        with occupied(pool):
            queue = FuncQueue(handle, pool)
            for item in range(50_000):
                queue.dispatch(item)
        queue.wait_idle(PATIENCE)
    assert handled == list(range(50_000))
