"""Many producers, many runners, many tasks: nothing lost, nothing doubled, order kept, counts exact."""

import gc
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Event, Lock, Thread
from typing import Any

import pytest

from mainspring.runners import (
    FuncQueue,
    Priority,
    RingBuffer,
    TaskHandle,
    TaskRunner,
    TaskTraits,
    ThreadPool,
    task_acceptor,
)
from tests.pools import running
from tests.support import PATIENCE, Background, amount, frequent_thread_switches

pytestmark = pytest.mark.stress

PRODUCERS = 32
SEQUENCES = 200

calm = pytest.param(amount(40_000, thorough=200_000), nullcontext, id="calm")
tense = pytest.param(amount(30_000, thorough=100_000), frequent_thread_switches, id="frequent_thread_switches")
small = pytest.param(amount(20_000, thorough=60_000), frequent_thread_switches, id="frequent_thread_switches")

traits_to_choose = [None] * 30 + [TaskTraits(priority=priority) for priority in Priority]


def in_threads(function: Callable[[int], object], count: int = PRODUCERS) -> None:
    """Call `function(n)` in many threads, wait for all, and pass on what they raise."""
    errors: list[BaseException] = []

    def call(number: int) -> None:
        try:
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=call, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


class Lane:
    """A runner and what its tasks wrote down. `log` and `is_busy` are guarded by nothing but its order."""

    def __init__(self, runner: TaskRunner, *, is_exclusive: bool) -> None:
        self.runner = runner
        self.is_exclusive = is_exclusive
        self.log: list[tuple[int, int]] = []
        self.is_busy = False
        self.overlaps = 0
        self.expected: dict[int, list[int]] = defaultdict(list)  # by producer, each written by that one only

    def run(self, who: int, number: int) -> None:
        if self.is_exclusive:
            self.overlaps += self.is_busy
            self.is_busy = True
        self.log.append((who, number))
        self.is_busy = False

    def check(self) -> int:
        """Compare what ran with what was posted and not canceled; return how many ran."""
        found: dict[int, list[int]] = defaultdict(list)
        for who, number in self.log:
            found[who].append(number)
        expected = {who: numbers for who, numbers in self.expected.items() if numbers}
        if not self.is_exclusive:
            for numbers in [*found.values(), *expected.values()]:
                numbers.sort()
        assert self.overlaps == 0
        assert found == expected
        return len(self.log)


class Producer:
    """Posts to random lanes, cancels some at once and some later, and lets some tasks post others."""

    def __init__(self, who: int, lanes: list[Lane], count: int) -> None:
        self._who = who
        self._lanes = lanes
        self._count = count
        self._random = random.Random(who)
        self.reposts: list[tuple[Lane, int]] = []  # what tasks posted from inside, as children of a lane
        self.cancelled = 0
        self._children = Lock()  # guards the order in which children are numbered

    def produce(self) -> None:
        kept: list[tuple[TaskHandle, Lane, int]] = []
        for number in range(self._count):
            lane = self._random.choice(self._lanes)
            traits = self._random.choice(traits_to_choose)
            if number % 16 == 0:
                lane.expected[self._who].append(number)
                lane.runner.post(self.run_and_repost, lane, number, traits=traits)
                continue
            handle = lane.runner.post(lane.run, self._who, number, traits=traits)
            if number % 20 == 1 and handle.cancel():
                self.cancelled += 1
                continue
            lane.expected[self._who].append(number)
            if number % 20 == 2:
                kept.append((handle, lane, number))
        for handle, lane, number in kept:
            if handle.cancel():
                self.cancelled += 1
                lane.expected[self._who].remove(number)

    def run_and_repost(self, lane: Lane, number: int) -> None:
        lane.run(self._who, number)
        other = self._lanes[number % len(self._lanes)]
        child = -1 - self._who
        with self._children:  # tasks of several lanes may do this at once, and children are expected in order
            other.expected[child].append(number)
            other.runner.post(other.run, child, number)


def check_at_rest(pool: ThreadPool) -> None:
    statistics = pool.statistics()
    assert (statistics.queued, statistics.active, statistics.delayed) == (0, 0, 0)
    assert (statistics.failed, statistics.rejected, statistics.skipped) == (0, 0, 0)
    assert pool._tombstones == 0


def hammer(pool: ThreadPool, lanes: list[Lane], total: int) -> None:
    producers = [Producer(who, lanes, total // PRODUCERS) for who in range(PRODUCERS)]
    in_threads(lambda who: producers[who].produce())
    pool.wait_idle(PATIENCE)
    check_at_rest(pool)
    ran = sum(lane.check() for lane in lanes)
    statistics = pool.statistics()
    canceled = sum(producer.cancelled for producer in producers)
    children = PRODUCERS * len(range(0, total // PRODUCERS, 16))
    assert ran + canceled == total // PRODUCERS * PRODUCERS + children
    assert canceled > 0
    assert (statistics.completed, statistics.cancelled) == (ran, canceled)
    for lane in lanes:
        of_lane = lane.runner.statistics()
        assert (of_lane.queued, of_lane.active) == (0, 0)
        if lane.runner is not pool:
            assert of_lane.completed == len(lane.log)


@pytest.mark.parametrize(("total", "mood"), [calm, tense])
def test_sequences(total: int, mood: Callable[[], Any]) -> None:
    with running(ThreadPool(4)) as pool, mood():
        hammer(pool, [Lane(pool.sequenced(), is_exclusive=True) for _ in range(SEQUENCES)], total)


@pytest.mark.parametrize(("total", "mood"), [calm, small])
def test_the_pool_itself(total: int, mood: Callable[[], Any]) -> None:
    with running(ThreadPool(4)) as pool, mood():
        hammer(pool, [Lane(pool, is_exclusive=False)], total)


def test_all_kinds_of_runners_on_one_pool() -> None:
    with running(ThreadPool(3)) as pool, frequent_thread_switches():
        lanes = [Lane(pool.sequenced(), is_exclusive=True) for _ in range(10)]
        lanes += [Lane(pool.single_thread(), is_exclusive=True) for _ in range(3)]
        lanes += [Lane(pool.asyncio(), is_exclusive=True)]
        lanes += [Lane(pool.parallel(limit=limit), is_exclusive=limit == 1) for limit in (1, 2, 5)]
        lanes += [Lane(pool, is_exclusive=False)]
        hammer(pool, lanes, amount(30_000, thorough=100_000))


class Garbage:
    """A cycle with a finalizer, so that a collection runs code, and may switch threads."""

    finalized = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        Garbage.finalized += 1


@contextmanager
def frequent_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def test_canceled_tasks_leave_the_queues_of_all_kinds_of_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_acceptor, "MANY_TOMBSTONES", 1)  # so that cancels remove tombstones most of the time
    with running(ThreadPool(3)) as pool, frequent_thread_switches(), frequent_collections():
        lanes = [Lane(pool.sequenced(), is_exclusive=True) for _ in range(4)]
        lanes += [Lane(pool.single_thread(), is_exclusive=True), Lane(pool.asyncio(), is_exclusive=True)]
        lanes += [Lane(pool.parallel(limit=limit), is_exclusive=limit == 1) for limit in (1, 3)]
        lanes += [Lane(pool, is_exclusive=False)]
        is_over = Event()

        def compact() -> None:
            while not is_over.is_set():
                Garbage()
                pool.compact()

        compacting = Background(compact)
        hammer(pool, lanes, amount(30_000, thorough=100_000))
        is_over.set()
        compacting.result()
        assert [lane.runner._tombstones for lane in lanes] == [0] * len(lanes)


@pytest.mark.parametrize(("total", "mood"), [calm, small])
@pytest.mark.parametrize("limit", [2, 6])
def test_a_parallel_runner_never_exceeds_its_limit(total: int, mood: Callable[[], Any], limit: int) -> None:
    inside: list[None] = []
    exceeded: list[int] = []
    ran: list[int] = []

    def enter(number: int) -> None:
        inside.append(None)
        if len(inside) > limit:
            exceeded.append(len(inside))
        ran.append(number)
        inside.pop()

    with running(ThreadPool(4)) as pool, mood():
        io = pool.parallel(limit=limit)
        share = total // 2 // PRODUCERS

        def produce(who: int) -> None:
            for number in range(who * share, (who + 1) * share):
                io.post(enter, number, traits=traits_to_choose[number % len(traits_to_choose)])

        in_threads(produce)
        io.wait_idle(PATIENCE)
        assert io.statistics().completed == share * PRODUCERS
        check_at_rest(pool)
    assert sorted(ran) == list(range(share * PRODUCERS))
    assert exceeded == []


@pytest.mark.parametrize(("total", "mood"), [calm, small])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_a_func_queue(total: int, mood: Callable[[], Any], concurrency: int, batch: bool) -> None:  # noqa: FBT001
    inside: list[None] = []
    exceeded: list[int] = []
    handled: list[tuple[int, int]] = []

    def handle(what: Any) -> None:
        inside.append(None)
        if len(inside) > concurrency:
            exceeded.append(len(inside))
        handled.extend(what if batch else [what])
        inside.pop()

    with running(ThreadPool(4)) as pool, mood():
        queue: FuncQueue[tuple[int, int]] = (
            FuncQueue(handle, pool, concurrency=concurrency, batch=True)
            if batch
            else FuncQueue(handle, pool, concurrency=concurrency)
        )
        share = total // 3 // PRODUCERS

        def produce(who: int) -> None:
            for number in range(share):
                queue.dispatch((who, number))

        in_threads(produce)
        queue.wait_idle(PATIENCE)
        pool.wait_idle(PATIENCE)
        check_at_rest(pool)
    if concurrency == 1:
        for who in range(PRODUCERS):
            assert [number for producer, number in handled if producer == who] == list(range(share))
    assert sorted(handled) == [(who, number) for who in range(PRODUCERS) for number in range(share)]
    assert exceeded == []


def test_delayed_tasks_and_cancels() -> None:
    share = amount(400, thorough=1_000)
    ran: list[int] = []
    canceled: list[int] = []
    with running(ThreadPool(4)) as pool, frequent_thread_switches():
        runners = [pool, pool.sequenced(), pool.parallel(limit=2), pool.single_thread()]

        def produce(who: int) -> None:
            chosen = random.Random(who)
            waiting: list[tuple[int, TaskHandle]] = []
            for number in range(who * share, (who + 1) * share):
                runner = chosen.choice(runners)
                waiting.append((number, runner.post(ran.append, number, delay=chosen.random() * 0.05)))
                if number % 3 == 0:
                    victim, handle = waiting.pop(chosen.randrange(len(waiting)))
                    if handle.cancel():
                        canceled.append(victim)

        in_threads(produce, 8)
        last = [runner.submit(int, delay=0.1) for runner in runners]
        for future in last:
            future.result(PATIENCE)
        pool.wait_idle(PATIENCE)
        check_at_rest(pool)
        assert pool.statistics().cancelled == len(canceled)
    assert len(canceled) > 0
    assert sorted(ran + canceled) == list(range(8 * share))


def test_a_ring_between_many_producers_and_consumers() -> None:
    """Consumers are woken by a queue, so that none spins."""
    taken: list[int] = []
    share = amount(800, thorough=2_000)
    with running(ThreadPool(4)) as pool, frequent_thread_switches():
        ring: RingBuffer[int] = RingBuffer(100_000)

        def move() -> None:
            taken.append(ring.pop())

        def produce(who: int) -> None:
            for number in range(who * share, (who + 1) * share):
                ring.push(number)
                pool.post(move)

        in_threads(produce)
        pool.wait_idle(PATIENCE)
        assert pool.statistics().failed == 0
        assert len(ring) == 0
    assert sorted(taken) == list(range(PRODUCERS * share))


@contextmanager
def nested(pool: ThreadPool) -> Iterator[Callable[[int], int]]:
    def fib(n: int) -> int:
        if n < 2:
            return n
        left, right = pool.submit(fib, n - 1), pool.submit(fib, n - 2)
        return left.result() + right.result()

    yield fib


def test_tasks_that_wait_for_tasks() -> None:
    with running(ThreadPool(2, max_workers=64)) as pool, frequent_thread_switches(), nested(pool) as fib:
        sequences = [pool.sequenced() for _ in range(4)]
        futures = [runner.submit(partial(fib, 12)) for _ in range(5) for runner in [*sequences, pool]]
        assert [future.result(PATIENCE) for future in futures] == [144] * 25
        pool.wait_idle(PATIENCE)
        check_at_rest(pool)
        assert pool.statistics().completed == 25 * 465
        assert [sequence.statistics().completed for sequence in sequences] == [5] * 4
        assert pool._group._blocked == 0
