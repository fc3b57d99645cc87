"""What a type checker must accept, and infer, of the runners."""

from datetime import timedelta
from typing import assert_type

from mainspring import (
    FuncQueue,
    Priority,
    SequenceBound,
    ShutdownReport,
    TaskFuture,
    TaskHandle,
    TaskTraits,
    ThreadPool,
    current_runner,
)
from mainspring.runners import RingBuffer, SequencedRunner, TaskRunner
from mainspring.timing import TimingWheel


def double(number: int) -> int:
    return number * 2


async def fetch(url: str, attempts: int) -> bytes:
    return url.encode() * attempts


def write(rows: list[str]) -> None: ...


async def use(pool: ThreadPool) -> None:
    orders = pool.sequenced(name="orders")
    assert_type(orders, SequencedRunner)
    assert_type(orders.post(double, 21), TaskHandle)
    orders.post(double, 21, delay=timedelta(seconds=1), traits=TaskTraits(priority=Priority.USER_BLOCKING))
    assert_type(orders.submit(double, 21), TaskFuture[int])
    with orders.executor() as executor:
        assert_type(executor.submit(double, number=21), TaskFuture[int])
        assert_type(list(executor.map(double, [1, 2], timeout=5)), list[int])
    assert_type(await orders.run(double, 21), int)
    orders.post_and_reply(lambda: 42, double, reply_to=pool.single_thread())
    orders.repeat(double, 21, every=1).stop()

    loop = pool.asyncio()
    assert_type(loop.submit(fetch, "here", 3), TaskFuture[bytes])
    assert_type(await loop.run(fetch, "here", 3), bytes)
    assert_type(loop.submit(double, 21), TaskFuture[int])

    assert_type(current_runner(), TaskRunner | None)
    assert_type(pool.shutdown(timeout=5), ShutdownReport)


def build(pool: ThreadPool) -> None:
    queue: FuncQueue[str] = FuncQueue(write, pool, batch=True)
    queue.dispatch("row")
    one_by_one = FuncQueue(double, pool, capacity=10)
    one_by_one.dispatch(21)
    SequenceBound(pool.sequenced(), dict[str, int])
    ring: RingBuffer[int] = RingBuffer(8)
    assert_type(ring.pop(), int)
    wheel: TimingWheel[str] = TimingWheel(now=0)
    assert_type(wheel.advance(1), list[str])
