"""The io layer: what queued up during a commit is the next commit, and no caller fails for another's mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import current_thread
from typing import Any, cast

import pytest

from mainspring import EngineUnavailable, ThreadPool
from mainspring.jobs import io_layer
from mainspring.jobs.engine import Capability, Engine
from mainspring.jobs.io_layer import (
    CHANGE,
    MAX_BYTES,
    MAX_ITEMS,
    SETTLE,
    SUBMIT,
    BatchCall,
    BlockingReply,
    IoLayer,
    Operation,
    SingleOperation,
)
from tests.support import PATIENCE, Background, Gate, within

AWAY = 10**9  # an item with which the engine is unavailable
NUMBERS: BatchCall[int, int] = cast(Any, SUBMIT)  # the recorder takes numbers for jobs
CALLS: dict[str, BatchCall[int, int]] = {
    "submit": NUMBERS,
    "change": cast(Any, CHANGE),
    "settle": cast(Any, SETTLE),
}


class Recorder:
    """An engine that remembers its units and the calls inside of each; negative items are mistakes."""

    description = "recorder"

    def __init__(self, *capabilities: Capability) -> None:
        self.capabilities = frozenset(capabilities or {Capability.ATOMIC_UNIT})
        self.units: list[list[tuple[Any, ...]]] = []
        self.durable: list[bool] = []
        self.threads: set[str] = set()
        self.gate: Gate | None = None

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[None]:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate()
        self.durable.append(durable)
        self.units.append([])
        self.threads.add(current_thread().name)
        yield

    def submit(self, items: Sequence[int]) -> list[int]:
        return self._note("submit", items)

    def change(self, items: Sequence[int]) -> list[int]:
        return self._note("change", items)

    def settle(self, worker: int, items: Sequence[int]) -> list[int]:
        return self._note("settle", items, worker)

    def take(self, worker: int, items: Sequence[int], **options: Any) -> list[int]:
        return self._note("take", items, worker)

    def leave(self, worker: int) -> str:
        self.units[-1].append(("leave", worker))
        return "gone"

    def _note(self, verb: str, items: Sequence[int], *head: int) -> list[int]:
        if AWAY in items:
            raise EngineUnavailable(engine="recorder", reason="away", remedy="wait")
        if any(item < 0 for item in items):
            raise ValueError(f"{min(items)} is a mistake")
        self.units[-1].append((verb, *head, list(items)))
        return [item * 10 for item in items]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with ThreadPool(1, name="io") as pool:
        yield pool


@pytest.fixture
def io(recorder: Recorder, pool: ThreadPool) -> IoLayer:
    return IoLayer(cast(Engine, recorder), pool)


def ask(io: IoLayer, verb: str, items: Sequence[int], **options: Any) -> BlockingReply[Any]:
    answer: BlockingReply[Any] = BlockingReply()
    io.dispatch(Operation(CALLS[verb], items, answer, **options))
    return answer


def ask_alone(io: IoLayer, call: Callable[[Any], Any]) -> BlockingReply[Any]:
    answer: BlockingReply[Any] = BlockingReply()
    io.dispatch(SingleOperation(call, answer))
    return answer


@contextmanager
def busy(io: IoLayer, recorder: Recorder) -> Iterator[None]:
    """A commit is under way while the block lasts; it is the first unit."""
    gate = recorder.gate = Gate()
    first = ask(io, "submit", (0,))
    gate.wait_until_entered()
    try:
        yield
    finally:
        gate.open()
    within(first.get)


def test_a_call_returns_the_answer_of_the_engine(io: IoLayer) -> None:
    assert io.call(NUMBERS, (1, 2)) == [10, 20]


def test_a_single_call_is_a_unit_too(io: IoLayer, recorder: Recorder) -> None:
    assert io.run(lambda engine: cast(Any, engine).leave(7)) == "gone"
    assert recorder.units == [[("leave", 7)]]


def test_the_engine_is_called_on_the_io_thread(io: IoLayer, recorder: Recorder) -> None:
    io.call(NUMBERS, (1,))
    assert recorder.threads != {current_thread().name}


def test_what_queued_up_during_a_commit_is_one_unit(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [ask(io, "submit", (number,)) for number in range(1, 101)]
    assert [within(answer.get) for answer in answers] == [[number * 10] for number in range(1, 101)]
    assert recorder.units[1:] == [[("submit", list(range(1, 101)))]]


def test_operations_of_one_verb_become_one_call_each_with_its_own_answers(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [ask(io, "submit", items) for items in [(1, 2), (), (3,), (4, 5, 6)]]
    assert [within(answer.get) for answer in answers] == [[10, 20], [], [30], [40, 50, 60]]
    assert recorder.units[1] == [("submit", [1, 2, 3, 4, 5, 6])]


def test_what_frees_comes_before_what_takes(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [
            ask_alone(io, lambda engine: engine.take(7, (1,))),
            ask(io, "settle", (2,), worker=7),
            ask_alone(io, lambda engine: engine.leave(7)),
            ask(io, "change", (3,)),
            ask(io, "submit", (4,)),
        ]
    for answer in answers:
        within(answer.get)
    assert [call[0] for call in recorder.units[1]] == ["submit", "change", "settle", "take", "leave"]


def test_operations_of_two_workers_are_two_calls(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [ask(io, "settle", (number,), worker=number % 2 + 1) for number in range(1, 5)]
    assert [within(answer.get) for answer in answers] == [[10], [20], [30], [40]]
    assert recorder.units[1] == [("settle", 1, [2, 4]), ("settle", 2, [1, 3])]


def test_takes_are_not_merged(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [ask_alone(io, partial(Recorder.take, worker=1, items=(number,))) for number in (1, 2)]
    assert [within(answer.get) for answer in answers] == [[10], [20]]
    assert recorder.units[1] == [("take", 1, [1]), ("take", 1, [2])]


@pytest.mark.parametrize(("flags", "expected"), [((False, False), False), ((False, True), True), ((True,), True)])
def test_a_unit_is_durable_if_one_of_its_operations_must_be(
    io: IoLayer, recorder: Recorder, flags: tuple[bool, ...], *, expected: bool
) -> None:
    with busy(io, recorder):
        answers = [ask(io, "change", (1,), durable=flag) for flag in flags]
    for answer in answers:
        within(answer.get)
    assert recorder.durable[1:] == [expected]


def test_a_mistake_fails_its_own_operation_and_no_neighbour(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [ask(io, "submit", (number,)) for number in (1, -2, 3)]
    assert within(answers[0].get) == [10]
    with pytest.raises(ValueError, match="-2 is a mistake"):
        within(answers[1].get)
    assert within(answers[2].get) == [30]


def test_an_engine_that_is_away_is_so_for_the_whole_unit_and_is_asked_once(
    io: IoLayer, recorder: Recorder
) -> None:
    with busy(io, recorder):
        answers = [ask(io, "submit", (number,)) for number in (1, AWAY, 3)]
    for answer in answers:
        with pytest.raises(EngineUnavailable, match="away"):
            within(answer.get)
    assert len(recorder.units) == 2


def test_an_answer_of_a_merged_call_that_fails_comes_once(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [ask(io, "submit", (-1,)), ask(io, "submit", (-2,))]
    for answer in answers:
        with pytest.raises(ValueError, match="is a mistake"):
            within(answer.get)
    assert io.call(NUMBERS, (1,)) == [10]


def test_after_an_outage_it_goes_on(io: IoLayer) -> None:
    with pytest.raises(EngineUnavailable):
        io.call(NUMBERS, (AWAY,))
    assert io.call(NUMBERS, (1,)) == [10]


def test_a_unit_is_bounded_so_that_no_caller_waits_long(io: IoLayer, recorder: Recorder) -> None:
    chunk = list(range(MAX_ITEMS // 2))
    with busy(io, recorder):
        answers = [ask(io, "submit", chunk) for _ in range(5)]
    for answer in answers:
        assert len(within(answer.get)) == len(chunk)
    assert [sum(len(call[-1]) for call in unit) for unit in recorder.units[1:]] == [5_000, 5_000, 2_500]


def test_an_operation_larger_than_a_unit_is_one_unit_of_its_own(io: IoLayer, recorder: Recorder) -> None:
    assert len(io.call(NUMBERS, list(range(3 * MAX_ITEMS)))) == 3 * MAX_ITEMS
    assert len(recorder.units) == 1


def test_after_the_end_of_its_runner_an_operation_fails_with_a_remedy(io: IoLayer, pool: ThreadPool) -> None:
    pool.shutdown()
    with pytest.raises(EngineUnavailable, match=r"the job manager is closed; make the call before close"):
        io.call(NUMBERS, (1,))


def test_what_was_dispatched_before_the_end_is_still_answered(
    io: IoLayer, recorder: Recorder, pool: ThreadPool
) -> None:
    with busy(io, recorder):
        answer = ask(io, "submit", (1,))
        ending = Background(pool.shutdown)
    ending.result()
    assert within(answer.get) == [10]


def test_a_coroutine_awaits_its_answer(io: IoLayer) -> None:
    assert asyncio.run(io.call_async(NUMBERS, (4,))) == [40]


def test_a_coroutine_gets_its_error(io: IoLayer) -> None:
    with pytest.raises(EngineUnavailable):
        asyncio.run(io.call_async(NUMBERS, (AWAY,)))


def test_the_event_loop_goes_on_while_a_coroutine_awaits_its_answer(io: IoLayer, recorder: Recorder) -> None:
    gate = recorder.gate = Gate()

    async def main() -> list[int]:
        call = asyncio.ensure_future(io.call_async(NUMBERS, (4,)))
        await asyncio.sleep(0)
        gate.wait_until_entered()
        assert not call.done()
        gate.open()
        answer: list[int] = await asyncio.wait_for(call, PATIENCE)
        return answer

    assert asyncio.run(main()) == [40]


def test_an_answer_to_a_loop_that_was_closed_is_ignored(io: IoLayer, recorder: Recorder) -> None:
    gate = recorder.gate = Gate()

    async def give_up() -> None:
        call = asyncio.ensure_future(io.call_async(NUMBERS, (4,)))
        await asyncio.sleep(0)
        gate.wait_until_entered()
        call.cancel()

    asyncio.run(give_up())
    gate.open()
    assert io.call(NUMBERS, (5,)) == [50]


def test_an_engine_without_transactions_gets_each_verb_in_a_unit_of_its_own(pool: ThreadPool) -> None:
    recorder = Recorder(Capability.SHARED)
    io = IoLayer(cast(Engine, recorder), pool)
    with busy(io, recorder):
        asked = (("change", 1), ("submit", AWAY), ("change", 2), ("submit", 3))
        answers = [ask(io, verb, (number,)) for verb, number in asked]
    assert within(answers[0].get) == [10]
    assert within(answers[2].get) == [20]
    for answer in (answers[1], answers[3]):
        with pytest.raises(EngineUnavailable):
            within(answer.get)


def test_a_call_that_waits_in_vain_ends_the_calls_behind_it(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_layer, "WAITED_NS", 0)
    recorder = Recorder(Capability.SHARED)
    io = IoLayer(cast(Engine, recorder), pool)
    with busy(io, recorder):
        answers = [ask(io, verb, (number,)) for verb, number in (("change", 1), ("submit", AWAY), ("settle", 2))]
    for answer in answers:
        with pytest.raises(EngineUnavailable):
            within(answer.get)
    assert not any(unit for unit in recorder.units if unit != [("submit", [0])]), "no other call was made"
    with pytest.raises(EngineUnavailable):
        io.call(NUMBERS, (AWAY,))
    assert io.call(NUMBERS, (1,)) == [10]


def test_a_unit_is_bounded_by_the_bytes_that_its_operations_carry(io: IoLayer, recorder: Recorder) -> None:
    with busy(io, recorder):
        answers = [ask(io, "submit", (number,), size=MAX_BYTES // 2 + 1) for number in (1, 2)]
    for answer in answers:
        within(answer.get)
    assert recorder.units[1:] == [[("submit", [1])], [("submit", [2])]]
