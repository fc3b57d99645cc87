"""The ring: bounded, first in first out, many producers and many consumers."""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from threading import Event, Thread
from typing import TypeVar
from weakref import ref

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mainspring import QueueEmpty, QueueFull
from mainspring.runners import RingBuffer
from tests.support import PATIENCE, frequent_thread_switches, without_collector

T = TypeVar("T")


def test_a_full_ring_refuses_and_says_how_much_it_holds() -> None:
    ring: RingBuffer[int] = RingBuffer(2, name="small")
    ring.push(1)
    ring.push(2)
    with pytest.raises(QueueFull) as refused:
        ring.push(3)
    assert (refused.value.name, refused.value.capacity) == ("small", 2)
    assert (ring.pop(), ring.pop()) == (1, 2)  # what was refused is not there


def test_an_empty_ring_has_nothing_to_pop() -> None:
    ring: RingBuffer[int] = RingBuffer(2, name="small")
    with pytest.raises(QueueEmpty) as refused:
        ring.pop()
    assert refused.value.name == "small"
    ring.push(1)
    ring.pop()
    with pytest.raises(QueueEmpty):
        ring.pop()


def test_none_is_an_item_like_any_other() -> None:
    ring: RingBuffer[None] = RingBuffer(2)
    ring.push(None)
    assert len(ring) == 1
    assert ring.pop() is None
    assert len(ring) == 0


@pytest.mark.parametrize(
    ("capacity", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_capacity_that_makes_no_sense_is_refused(capacity: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="capacity"):
        RingBuffer(capacity)


def test_a_popped_item_is_released() -> None:
    class Thing:
        pass

    ring: RingBuffer[Thing] = RingBuffer(3)
    with without_collector():
        thing = Thing()
        reference = ref(thing)
        ring.push(thing)
        del thing
        assert reference() is not None
        ring.pop()
        assert reference() is None


@given(capacity=st.integers(1, 5), steps=st.lists(st.booleans() | st.none()))
def test_a_ring_behaves_as_a_bounded_deque(capacity: int, steps: list[bool | None]) -> None:
    ring: RingBuffer[int] = RingBuffer(capacity)
    model: deque[int] = deque()
    assert ring.capacity == capacity
    for number, step in enumerate(steps):
        if step is not False:  # two of three steps push, so that it is full now and then
            if len(model) < capacity:
                ring.push(number)
                model.append(number)
            else:
                with pytest.raises(QueueFull):
                    ring.push(number)
        elif model:
            assert ring.pop() == model.popleft()
        else:
            with pytest.raises(QueueEmpty):
                ring.pop()
        assert len(ring) == len(model)


def patiently(attempt: Callable[[], T]) -> T:
    """Try until the ring has room, or something in it."""
    never = Event()
    while True:
        try:
            return attempt()
        except (QueueFull, QueueEmpty):
            never.wait(1e-5)


@pytest.mark.parametrize("capacity", [1, 16])
def test_many_producers_and_many_consumers_lose_nothing_and_double_nothing(capacity: int) -> None:
    ring: RingBuffer[tuple[int, int]] = RingBuffer(capacity)
    count, share = 3, 300
    taken: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    sizes: list[int] = []

    def produce(who: int) -> None:
        for number in range(share):
            patiently(partial(ring.push, (who, number)))

    def consume(who: int) -> None:
        for _ in range(share):
            taken[who].append(patiently(ring.pop))
            sizes.append(len(ring))

    threads = [
        Thread(target=work, args=(who,), daemon=True) for work in (produce, consume) for who in range(count)
    ]
    with frequent_thread_switches():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(chain.from_iterable(taken)) == [(who, number) for who in range(count) for number in range(share)]
    for mine in taken:  # what one consumer has from one producer is in its order
        for who in range(count):
            numbers = [number for producer, number in mine if producer == who]
            assert numbers == sorted(numbers)
    assert max(sizes) <= capacity
