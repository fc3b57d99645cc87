"""Repetition where the conformance suite does not reach."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from weakref import ref

import pytest

from mainspring import Priority, ShutdownBehavior, TaskFailure, TaskTraits, ThreadPool, current_runner
from tests.pools import MakePool
from tests.support import Background, Gate, WatchedClock

SECOND = 10**9


@pytest.fixture
def seen() -> list[float]:
    """The instants at which a task ran."""
    return []


@pytest.fixture
def note(seen: list[float], clock: WatchedClock) -> Callable[[], None]:
    return lambda: seen.append(clock.monotonic_ns() / SECOND)


def test_arguments_are_given_to_every_run(pool: ThreadPool, clock: WatchedClock) -> None:
    runs: list[tuple[int, str]] = []
    beat = pool.repeat(lambda number, text: runs.append((number, text)), 1, "a", every=1)
    clock.advance(3)
    beat.stop()
    assert runs == [(1, "a")] * 3


def test_a_fixed_rate_does_not_drift(
    pool: ThreadPool, clock: WatchedClock, seen: list[float], note: Callable[[], None]
) -> None:
    def run() -> None:
        note()
        clock.jump(0.4)

    beat = pool.repeat(run, every=1)
    for _ in range(5):
        clock.advance(0.6)
    beat.stop()
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize(("length", "second"), [(9.999, 20), (10, 30), (10.001, 30), (19.999, 30), (20, 40)])
def test_runs_that_were_missed_are_left_out_at_the_edges(
    pool: ThreadPool, clock: WatchedClock, length: float, second: float
) -> None:
    seen: list[float] = []

    def run() -> None:
        seen.append(clock.monotonic_ns() / SECOND)
        if len(seen) == 1:
            clock.jump(length)

    beat = pool.repeat(run, every=10)
    clock.advance(10)
    clock.advance(second - clock.monotonic_ns() / SECOND)
    beat.stop()
    assert seen == [10, second]


def test_a_fixed_rate_keeps_its_phase_although_the_runner_was_busy(
    pool: ThreadPool, clock: WatchedClock, seen: list[float], note: Callable[[], None]
) -> None:
    sequence = pool.sequenced()
    gate = Gate()
    beat = sequence.repeat(note, every=10)
    sequence.post(gate)
    gate.wait_until_entered()
    clock.jump(34)
    gate.open()
    clock.settle()
    clock.advance(16)
    beat.stop()
    assert seen == [34, 40, 50]


def test_a_fixed_delay_counts_from_the_end_of_a_run_even_if_it_fails(
    pool: ThreadPool, clock: WatchedClock, seen: list[float], note: Callable[[], None], failures: list[TaskFailure]
) -> None:
    def run() -> None:
        note()
        clock.jump(3)
        raise ValueError("no")

    beat = pool.repeat(run, every=10, fixed_delay=True, delay=1)
    clock.advance(1)
    clock.advance(10)
    clock.advance(10)
    beat.stop()
    assert seen == [1, 14, 27]
    assert len(failures) == 3


def test_stop_while_a_run_is_under_way_lets_it_end(
    pool: ThreadPool, clock: WatchedClock, seen: list[float], note: Callable[[], None]
) -> None:
    gate = Gate()

    def run() -> None:
        gate()
        note()

    beat = pool.repeat(run, every=1)
    clock.jump(1)
    gate.wait_until_entered()
    beat.stop()
    gate.open()
    clock.advance(10)
    assert len(seen) == 1
    assert beat.is_stopped
    assert pool.statistics().delayed == 0


def test_stop_is_idempotent(pool: ThreadPool, clock: WatchedClock) -> None:
    beat = pool.repeat(int, every=1)
    assert not beat.is_stopped
    beat.stop()
    beat.stop()
    assert beat.is_stopped
    clock.advance(5)
    now = pool.statistics()
    assert (now.completed, now.cancelled, now.delayed) == (0, 1, 0)


def test_stop_that_races_with_a_run_stops_for_good(pool: ThreadPool, clock: WatchedClock) -> None:
    for _ in range(50):
        beat = pool.repeat(int, every=1)
        clock.jump(1)
        stopping = Background(beat.stop)
        stopping.result()
        clock.settle()
        ran = pool.statistics().completed
        clock.advance(3)
        assert pool.statistics().completed == ran
        assert pool.statistics().delayed == 0


def test_a_stopped_repetition_without_references_releases_its_arguments(
    make_pool: MakePool, clock: WatchedClock
) -> None:
    class Payload: ...

    pool = make_pool(1)
    payload = Payload()
    watched = ref(payload)
    beat = pool.repeat(repr, payload, every=1)
    del payload
    clock.advance(2)
    beat.stop()
    del beat
    assert watched() is None


def test_a_repetition_without_references_goes_on(
    pool: ThreadPool, clock: WatchedClock, seen: list[float], note: Callable[[], None]
) -> None:
    pool.repeat(note, every=timedelta(seconds=1))
    clock.advance(3)
    assert seen == [1, 2, 3]


def test_traits_hold_for_every_run(make_pool: MakePool, clock: WatchedClock, failures: list[TaskFailure]) -> None:
    traits = TaskTraits(priority=Priority.USER_BLOCKING, shutdown=ShutdownBehavior.BLOCK, category="beat")
    pool = make_pool(1)
    beat = pool.repeat(int, "x", every=1, traits=traits)
    clock.advance(3)
    beat.stop()
    assert [failure.traits for failure in failures] == [traits] * 3


def test_every_run_is_a_task_of_its_runner(pool: ThreadPool, clock: WatchedClock) -> None:
    runners: list[object] = []
    gui = pool.single_thread("gui")
    beat = gui.repeat(lambda: runners.append(current_runner()), every=1)
    clock.advance(2)
    beat.stop()
    assert runners == [gui, gui]


def test_leaving_the_pool_ends_a_repetition(make_pool: MakePool, clock: WatchedClock) -> None:
    pool = make_pool(1)
    with pool:
        beat = pool.repeat(int, every=1, delay=0)
        clock.settle()
    assert pool.statistics().completed == 1
    clock.advance(5)
    assert pool.statistics().completed == 1
    assert beat.is_stopped
