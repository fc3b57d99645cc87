"""SequenceBound: an object that only tasks of its sequence ever touch."""

import threading
from collections.abc import Iterator
from threading import Event
from typing import Any
from weakref import ref

import pytest

from mainspring import RunnerClosed
from mainspring.runners import SequenceBound, TaskRunner, ThreadPool, current_runner
from tests.pools import running
from tests.support import PATIENCE, occupied, without_collector


class Counter:
    """Notes on which runner each of its methods ran."""

    def __init__(self, seen: list[TaskRunner | None], start: int = 0) -> None:
        self._seen = seen
        self._released = Event()
        self.value = start
        self._note()

    def _note(self) -> None:
        self._seen.append(current_runner())

    def add(self, amount: int, *, times: int = 1) -> int:
        self._note()
        self.value += amount * times
        return self.value

    def fail(self) -> None:
        self._note()
        raise ValueError("as expected")


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with running(ThreadPool(2)) as pool:
        yield pool


@pytest.fixture
def seen() -> list[TaskRunner | None]:
    return []


def test_the_object_is_made_and_used_on_its_sequence_only(pool: ThreadPool, seen: list[TaskRunner | None]) -> None:
    sequence = pool.sequenced()
    bound = SequenceBound(sequence, Counter, seen, 40)
    assert bound.add(1).result(PATIENCE) == 41
    assert bound.add(amount=1, times=2).result(PATIENCE) == 43
    assert seen == [sequence] * 3


def test_calls_run_one_by_one_in_order(pool: ThreadPool, seen: list[TaskRunner | None]) -> None:
    bound = SequenceBound(pool.sequenced(), Counter, seen)
    futures = [bound.add(1) for _ in range(200)]
    assert [future.result(PATIENCE) for future in futures] == list(range(1, 201))


def test_making_one_does_not_wait(pool: ThreadPool, seen: list[TaskRunner | None]) -> None:
    sequence = pool.sequenced()
    with occupied(sequence):
        bound = SequenceBound(sequence, Counter, seen)
        future = bound.add(1)
        assert not future.done()
        assert seen == []
    assert future.result(PATIENCE) == 1


def test_a_single_thread_will_do(pool: ThreadPool) -> None:
    class Here:
        def __init__(self) -> None:
            self.thread = threading.get_ident()

        def is_here(self) -> bool:
            return threading.get_ident() == self.thread

    bound = SequenceBound(pool.single_thread(), Here)
    assert all(bound.is_here().result(PATIENCE) for _ in range(5))


def test_a_runner_without_order_is_refused(pool: ThreadPool) -> None:
    for runner in (pool, pool.parallel(limit=2)):
        with pytest.raises(ValueError, match=r"pool\.sequenced"):
            SequenceBound(runner, object)


def test_an_exception_reaches_the_caller_and_the_object_lives_on(
    pool: ThreadPool, seen: list[TaskRunner | None]
) -> None:
    bound = SequenceBound(pool.sequenced(), Counter, seen)
    with pytest.raises(ValueError, match="as expected"):
        bound.fail().result(PATIENCE)
    assert bound.add(1).result(PATIENCE) == 1


def test_a_method_that_is_not_there_fails_in_its_future(pool: ThreadPool, seen: list[TaskRunner | None]) -> None:
    bound = SequenceBound(pool.sequenced(), Counter, seen)
    with pytest.raises(AttributeError, match="subtract"):
        bound.subtract(1).result(PATIENCE)


def test_if_the_object_cannot_be_made_every_call_fails_with_the_reason(pool: ThreadPool) -> None:
    bound: SequenceBound[int] = SequenceBound(pool.sequenced(), int, "not a number")
    for _ in range(2):
        with pytest.raises(ValueError, match="not a number"):
            bound.bit_length().result(PATIENCE)


def test_the_object_is_released_on_its_sequence(pool: ThreadPool) -> None:
    released_on: list[TaskRunner | None] = []
    released = Event()

    class Precious:
        def touch(self) -> None:
            pass

        def __del__(self) -> None:
            released_on.append(current_runner())
            released.set()

    sequence = pool.sequenced()
    bound: SequenceBound[Precious] | None = SequenceBound(sequence, Precious)
    assert bound is not None
    bound.touch().result(PATIENCE)
    with without_collector():
        with occupied(sequence):
            bound = None
            assert not released.is_set()
        assert released.wait(PATIENCE)
    assert released_on == [sequence]


def test_the_object_is_released_on_its_sequence_even_if_that_is_full(pool: ThreadPool) -> None:
    released_on: list[TaskRunner | None] = []
    released = Event()

    class Precious:
        def touch(self) -> None:
            pass

        def __del__(self) -> None:
            released_on.append(current_runner())
            released.set()

    sequence = pool.sequenced(capacity=1)
    bound: SequenceBound[Precious] | None = SequenceBound(sequence, Precious)
    sequence.wait_idle(PATIENCE)
    assert bound is not None
    bound.touch().result(PATIENCE)
    sequence.wait_idle(PATIENCE)
    with occupied(sequence):
        sequence.post(int)  # now it is full
        bound = None
    assert released.wait(PATIENCE)
    assert released_on == [sequence]


def test_after_shutdown_calls_are_refused_and_dropping_it_is_quiet(
    pool: ThreadPool, seen: list[TaskRunner | None]
) -> None:
    sequence = pool.sequenced()
    bound: SequenceBound[Counter] | None = SequenceBound(sequence, Counter, seen)
    assert bound is not None
    bound.add(1).result(PATIENCE)
    sequence.shutdown()
    with pytest.raises(RunnerClosed):
        bound.add(1)
    bound = None  # a failing __del__ would fail this test
    assert len(seen) == 2


def test_one_that_could_not_be_made_is_dropped_quietly(pool: ThreadPool) -> None:
    sequence = pool.sequenced()
    sequence.shutdown()
    with pytest.raises(RunnerClosed):
        SequenceBound(sequence, object)


def test_special_names_are_not_methods_of_the_object(pool: ThreadPool, seen: list[TaskRunner | None]) -> None:
    bound: Any = SequenceBound(pool.sequenced(name="here"), Counter, seen)
    with pytest.raises(AttributeError):
        bound.__len__()
    assert "here" in repr(bound)


def test_dropping_the_bound_does_not_cancel_calls_that_wait(
    pool: ThreadPool, seen: list[TaskRunner | None]
) -> None:
    sequence = pool.sequenced()
    bound = SequenceBound(sequence, Counter, seen)
    reference = ref(bound)
    with without_collector(), occupied(sequence):
        future = bound.add(5)
        del bound
        assert reference() is None
    assert future.result(PATIENCE) == 5
