"""The turn to call the engine: callers commit on their own threads if nothing is queued, and never otherwise."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Thread, current_thread, main_thread
from typing import Any, cast

import pytest

from mainspring import EngineUnavailable, ThreadPool
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.engine_turn import CALM
from mainspring.jobs.io_layer import SUBMIT, BatchCall, BlockingReply, CallbackReply, IoLayer, Operation
from tests.support import PATIENCE, Background, Gate, eventually, within

NUMBERS: BatchCall[int, int] = cast(Any, SUBMIT)  # the engine takes numbers for jobs


class NumberEngine:
    """An engine that stores numbers, and notes the thread of each call."""

    description = "numbers"
    capabilities = frozenset({Capability.ATOMIC_UNIT, Capability.ANY_THREAD})

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], Thread]] = []
        self.inside: Callable[[], object] | None = None  # called once, in the middle of a call
        self.wake: Callable[[], None] = lambda: None

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        yield

    def submit(self, numbers: Sequence[int]) -> list[int]:
        inside, self.inside = self.inside, None
        if inside is not None:
            inside()
        if min(numbers, default=0) < 0:
            raise ValueError(f"{min(numbers)} is negative")
        self.calls.append((list(numbers), current_thread()))
        self.wake()
        return [number * 10 for number in numbers]

    @property
    def stored(self) -> list[int]:
        return [number for numbers, _ in self.calls for number in numbers]


@pytest.fixture
def engine() -> NumberEngine:
    return NumberEngine()


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with ThreadPool(1, name="io") as pool:
        yield pool


@pytest.fixture
def io(engine: NumberEngine, pool: ThreadPool) -> IoLayer:
    return IoLayer(cast(Engine, engine), pool)


def queue(io: IoLayer, number: int) -> BlockingReply[Any]:
    answer: BlockingReply[Any] = BlockingReply()
    io.dispatch(Operation(NUMBERS, (number,), answer))
    return answer


def refused(io: IoLayer) -> Callable[[], None]:
    """Return a function whose submit must be refused, because it interrupts another call of its thread."""

    def submit() -> None:
        with pytest.raises(EngineUnavailable, match="in the middle of another call"):
            io.call(NUMBERS, (9,))
        with pytest.raises(EngineUnavailable, match="in the middle of another call"):
            io.run(lambda _engine: None)
        with pytest.raises(EngineUnavailable, match="in the middle of another call"):
            io.make_reply()

    return submit


def test_a_call_is_made_on_the_thread_of_its_caller(io: IoLayer, engine: NumberEngine) -> None:
    assert io.call(NUMBERS, (1, 2)) == [10, 20]
    assert engine.calls == [([1, 2], current_thread())]


def test_each_thread_makes_its_own_call(io: IoLayer, engine: NumberEngine) -> None:
    io.call(NUMBERS, (1,))
    Background(partial(io.call, NUMBERS, (2,))).result()
    assert [thread.name for _, thread in engine.calls] == [current_thread().name, "background"]


def test_an_engine_that_does_not_allow_it_is_called_on_the_io_thread(
    engine: NumberEngine, pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NumberEngine, "capabilities", frozenset({Capability.ATOMIC_UNIT}))
    io = IoLayer(cast(Engine, engine), pool)
    assert io.call(NUMBERS, (1,)) == [10]
    assert engine.calls[0][1] is not current_thread()


def test_a_call_with_a_timeout_is_made_on_the_io_thread(io: IoLayer, engine: NumberEngine) -> None:
    assert io.call(NUMBERS, (1,), seconds=PATIENCE) == [10]
    assert engine.calls[0][1] is not current_thread()


def test_the_call_of_a_coroutine_is_made_on_the_io_thread(io: IoLayer, engine: NumberEngine) -> None:
    assert asyncio.run(io.call_async(NUMBERS, (1,))) == [10]
    assert engine.calls[0][1] is not current_thread()


def test_an_error_of_the_engine_reaches_the_caller_and_the_next_call_succeeds(io: IoLayer) -> None:
    with pytest.raises(ValueError, match="-1 is negative"):
        io.call(NUMBERS, (-1,))
    assert io.call(NUMBERS, (1,)) == [10]


# -- others are there


def test_a_caller_queues_while_another_calls_and_does_not_make_the_calls_of_others(
    io: IoLayer, engine: NumberEngine
) -> None:
    gate = engine.inside = Gate()
    first = Background(lambda: io.call(NUMBERS, (1,)))
    gate.wait_until_entered()
    others = [Background(partial(io.call, NUMBERS, (number,))) for number in (2, 3, 4)]
    eventually(lambda: not io._queue.is_idle())
    gate.open()
    assert first.result() == [10]
    assert [other.result() for other in others] == [[20], [30], [40]]
    threads = {number: thread for numbers, thread in engine.calls for number in numbers}
    assert threads[1] not in {threads[2], threads[3], threads[4]}
    assert [numbers for numbers, thread in engine.calls if thread is threads[1]] == [[1]]


def test_an_operation_that_is_queued_goes_before_a_caller_that_comes_later(
    io: IoLayer, engine: NumberEngine
) -> None:
    gate = engine.inside = Gate()
    queued = [queue(io, number) for number in (1, 2)]
    gate.wait_until_entered()  # the io thread calls the engine
    later = Background(lambda: io.call(NUMBERS, (3,)))
    eventually(lambda: len(io._queue) >= 1)
    gate.open()
    for answer in queued:
        within(answer.get)
    assert later.result() == [30]
    assert engine.stored == [1, 2, 3]
    assert len({thread for _, thread in engine.calls}) == 1, "the later caller has queued, too"


def test_callers_without_a_pause_do_not_keep_the_io_thread_from_its_turn(
    io: IoLayer, engine: NumberEngine
) -> None:
    """A lock may be given to the thread that released it last; the queued operation must come next anyway."""
    is_over: list[bool] = []

    def submit() -> None:
        while not is_over:
            io.call(NUMBERS, (1,))

    callers = [Background(submit) for _ in range(3)]
    try:
        for number in range(100, 200):
            assert within(queue(io, number).get) == [number * 10]
    finally:
        is_over.append(True)
    for caller in callers:
        caller.result()
    assert [number for number in engine.stored if number != 1] == list(range(100, 200))


def test_many_threads_store_everything_once(io: IoLayer, engine: NumberEngine) -> None:
    def submit(first: int) -> None:
        for number in range(first, first + 200):
            assert io.call(NUMBERS, (number,)) == [number * 10]

    for thread in [Background(partial(submit, first)) for first in range(0, 1_600, 200)]:
        thread.result()
    assert sorted(engine.stored) == list(range(1_600))


def test_callers_queue_as_long_as_several_of_them_share_batches(io: IoLayer, engine: NumberEngine) -> None:
    gate = engine.inside = Gate()
    first = queue(io, 1)
    gate.wait_until_entered()
    crowd = [queue(io, number) for number in (2, 3)]
    gate.open()
    for answer in (first, *crowd):
        within(answer.get)
    eventually(io._queue.is_idle)
    for _ in range(CALM + 2):
        io.call(NUMBERS, (4,))
        eventually(io._queue.is_idle)
    assert [numbers for numbers, _ in engine.calls] == [[1], [2, 3], *[[4]] * (CALM + 2)]
    here = [current_thread() is thread for _, thread in engine.calls]
    assert here == [False] * (2 + CALM) + [True] * 2


# -- close


def test_close_waits_for_the_caller_that_calls_the_engine(io: IoLayer, engine: NumberEngine) -> None:
    gate = engine.inside = Gate()
    caller = Background(lambda: io.call(NUMBERS, (1,)))
    gate.wait_until_entered()

    def close() -> list[int]:
        io.close(PATIENCE)
        return engine.stored

    closing = Background(close)
    eventually(lambda: io._turn.is_closed)
    gate.open()
    assert closing.result() == [1], "close() returned before the call had ended"
    assert caller.result() == [10]


def test_a_caller_that_comes_after_close_is_refused(io: IoLayer, engine: NumberEngine) -> None:
    io.close(PATIENCE)
    with pytest.raises(EngineUnavailable, match="the job manager is closed"):
        io.call(NUMBERS, (1,))
    assert engine.stored == []


@pytest.mark.long
def test_close_beside_callers_either_stores_or_refuses(engine: NumberEngine, pool: ThreadPool) -> None:
    for _ in range(30):
        engine.calls.clear()
        _close_beside_callers(IoLayer(cast(Engine, engine), pool), engine)


def _close_beside_callers(io: IoLayer, engine: NumberEngine) -> None:
    done: list[int] = []
    reasons: list[str] = []

    def submit(first: int) -> None:
        try:
            for number in range(first, first + 100_000):
                io.call(NUMBERS, (number,))
                done.append(number)
        except EngineUnavailable as error:
            reasons.append(error.reason)

    callers = [Background(partial(submit, first)) for first in (0, 100_000, 200_000)]
    eventually(lambda: len(done) > 20)
    io.close(PATIENCE)
    stored = sorted(engine.stored)
    for caller in callers:
        caller.result()
    assert reasons == ["the job manager is closed"] * 3
    assert sorted(engine.stored) == stored, "a call was made after close()"
    assert set(done) <= set(stored)


# -- a call inside of a call


def test_a_callback_of_the_engine_that_submits_is_refused(io: IoLayer, engine: NumberEngine) -> None:
    engine.inside = refused(io)
    assert io.call(NUMBERS, (1,)) == [10]
    assert engine.stored == [1]


def test_a_finalizer_that_submits_is_refused(io: IoLayer, engine: NumberEngine) -> None:
    outcome: list[str] = []

    class Submitting:
        def __del__(self) -> None:
            refused(io)()
            outcome.append("refused")

    engine.inside = [Submitting()].clear  # the last reference goes inside of the call
    assert io.call(NUMBERS, (1,)) == [10]
    assert outcome == ["refused"]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no user signals")
def test_a_signal_handler_that_submits_is_refused_inside_of_a_call_and_served_outside(
    io: IoLayer, engine: NumberEngine
) -> None:
    answers: list[object] = []

    def handler(*_: object) -> None:
        try:
            answers.append(io.call(NUMBERS, (2,)))
        except EngineUnavailable as error:
            answers.append(error.reason.partition(",")[0])

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        engine.inside = lambda: signal.raise_signal(signal.SIGUSR1)
        assert io.call(NUMBERS, (1,)) == [10]
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == ["this thread is in the middle of another call", [20]]
    assert engine.stored == [1, 2]


def test_a_reply_of_the_io_thread_that_submits_is_refused(io: IoLayer) -> None:
    """Its answer would wait for the batch that the io thread is in."""
    answers: BlockingReply[Any] = BlockingReply()
    check = refused(io)

    def on_answer(_numbers: list[int]) -> None:
        try:
            check()
            answers.resolve("refused")
        except BaseException as error:
            answers.fail(cast(Exception, error))
            raise

    io.dispatch(Operation(NUMBERS, (1,), CallbackReply(on_answer, answers.fail)))
    assert within(answers.get) == "refused"


def test_a_handler_that_interrupts_before_the_call_begins_is_served_first(
    io: IoLayer, engine: NumberEngine
) -> None:
    """The thread has the lock then, but has not called the engine."""
    with io._turn._lock:
        assert io.call(NUMBERS, (1,)) == [10]
    assert within(queue(io, 2).get) == [20]


# -- control


def test_a_wake_of_a_caller_runs_on_the_io_thread(io: IoLayer, engine: NumberEngine) -> None:
    woken: list[Thread] = []
    engine.wake = io.off_callers(lambda: woken.append(current_thread()))
    io.call(NUMBERS, (1,))
    eventually(lambda: len(woken) == 1)
    within(queue(io, 2).get)
    assert len(woken) == 2
    assert main_thread() not in woken
    assert current_thread() not in woken


def test_wakes_before_the_first_has_run_become_one(io: IoLayer, engine: NumberEngine, pool: ThreadPool) -> None:
    woken: list[int] = []
    engine.wake = io.off_callers(lambda: woken.append(len(engine.stored)))
    gate = Gate()
    pool.post(gate)
    gate.wait_until_entered()
    for number in range(5):
        io.call(NUMBERS, (number,))
    gate.open()
    pool.wait_idle()
    assert woken == [5]


def test_a_wake_after_the_end_of_the_runner_is_dropped(
    io: IoLayer, engine: NumberEngine, pool: ThreadPool
) -> None:
    woken: list[int] = []
    engine.wake = io.off_callers(lambda: woken.append(1))
    engine.inside = pool.shutdown
    assert io.call(NUMBERS, (1,)) == [10]
    assert woken == []
