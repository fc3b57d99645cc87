"""Failures where the conformance suite does not reach: what the hook may do, and what it is told."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from functools import partial
from threading import Event
from typing import NoReturn

import pytest

from mainspring import Priority, RunnerClosed, TaskFailure, TaskTraits, ThreadPool, current_runner
from tests.pools import MakePool
from tests.support import PATIENCE, WatchedClock, occupied


def raising(*_: object) -> NoReturn:
    raise ValueError("no")


class Charger:
    def charge(self) -> NoReturn:
        raise ValueError("no")


def test_a_failure_tells_everything(make_pool: MakePool, failures: list[TaskFailure]) -> None:
    traits = TaskTraits(priority=Priority.BEST_EFFORT, category="billing")
    pool = make_pool(1)
    pool.sequenced("orders").post(raising, 1, traits=traits)
    pool.wait_idle()
    (failure,) = failures
    assert failure.task == f"{__name__}.raising"
    assert failure.runner == "orders"
    assert failure.traits == traits
    assert str(failure).startswith(
        f"task {__name__}.raising on runner 'orders' failed: ValueError: no (posted from "
    )
    assert failure.error.__traceback__ is not None
    with pytest.raises(FrozenInstanceError):
        setattr(failure, "task", "x")  # noqa: B010 - mypy refuses the plain assignment


def test_every_callable_has_a_name(pool: ThreadPool, failures: list[TaskFailure]) -> None:
    sequence = pool.sequenced()
    for function in (Charger().charge, partial(raising, 1), lambda: raising(1)):
        sequence.post(function)
    sequence.wait_idle()
    method, partially, anonymous = (failure.task for failure in failures)
    assert method.endswith("Charger.charge")
    assert "raising" in partially
    assert "lambda" in anonymous


def test_the_hook_runs_inside_the_failing_task(make_pool: MakePool) -> None:
    seen: list[object] = []
    pool = make_pool(1, on_error=lambda failure: seen.append(current_runner()))
    sequence = pool.sequenced()
    sequence.post(raising)
    sequence.wait_idle()
    assert seen == [sequence]


def test_the_hook_may_post(make_pool: MakePool) -> None:
    seen: list[str] = []
    pools: list[ThreadPool] = []

    def hook(failure: TaskFailure) -> None:
        pools[0].post(seen.append, failure.task)

    pools.append(make_pool(1, on_error=hook))
    pools[0].post(raising)
    pools[0].wait_idle()
    assert seen == [f"{__name__}.raising"]


def test_the_hook_may_shut_the_pool_down(make_pool: MakePool) -> None:
    pools: list[ThreadPool] = []
    ended = Event()

    def hook(failure: TaskFailure) -> None:
        pools[0].shutdown()
        ended.set()

    pools.append(make_pool(1, max_workers=1, on_error=hook))
    pools[0].post(raising)
    assert ended.wait(PATIENCE)
    with pytest.raises(RunnerClosed):
        pools[0].post(int)


def test_a_failing_task_keeps_its_place_in_the_order(pool: ThreadPool, failures: list[TaskFailure]) -> None:
    sequence = pool.sequenced()
    seen: list[int] = []
    for number in range(20):
        sequence.post(raising if number % 2 else seen.append, number)
    sequence.wait_idle()
    assert seen == list(range(0, 20, 2))
    assert len(failures) == 10


def test_arguments_are_released_when_their_task_has_run(pool: ThreadPool) -> None:
    released = Event()

    class Payload:
        def __del__(self) -> None:
            released.set()

    pool.post(repr, Payload())
    assert released.wait(PATIENCE)
    pool.wait_idle()
    assert pool.statistics().completed == 1


def test_releasing_arguments_may_post_to_the_same_runner(make_pool: MakePool, clock: WatchedClock) -> None:
    pool = make_pool(1)
    seen: list[str] = []

    class Payload:
        def __del__(self) -> None:
            pool.post(seen.append, "posted by __del__")

    with occupied(pool):
        pool.post(repr, Payload()).cancel()
        pool.post(repr, Payload(), delay=60).cancel()
    pool.wait_idle()
    assert seen == ["posted by __del__"] * 2


def test_a_full_queue_does_not_end_a_repetition(
    make_pool: MakePool, clock: WatchedClock, failures: list[TaskFailure]
) -> None:
    pool = make_pool(1, capacity=1)
    runs: list[int] = []

    def beat() -> None:
        runs.append(len(runs))
        if len(runs) == 1:
            pool.post(int)  # takes the only place, just when the next run wants it

    repetition = pool.repeat(beat, every=1)
    clock.advance(6)
    repetition.stop()
    assert runs == list(range(6))
    assert failures == []
