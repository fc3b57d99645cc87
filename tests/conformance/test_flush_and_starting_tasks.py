"""Flushing while a task has left the queue and not yet begun: a gap of a few instructions, held open here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from mainspring import TaskRunner, ThreadPool
from mainspring.runners.task import Task
from tests.pools import MakePool
from tests.support import Background, Gate, WatchedClock


@pytest.fixture
def gap() -> Iterator[Gate]:
    """Stops the first worker that is about to start a task. Threads started from now on are traced."""
    gate = Gate()
    first = threading.Lock()

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code is Task.run_on.__code__ and first.acquire(blocking=False):
            gate()

    threading.settrace(trace)
    try:
        yield gate
    finally:
        threading.settrace(None)
        gate.open()


@pytest.mark.parametrize("kind", ["pool", "parallel", "sequenced", "single_thread"])
def test_flush_waits_for_a_task_that_is_about_to_start(
    gap: Gate, make_pool: MakePool, clock: WatchedClock, kind: str
) -> None:
    pool: ThreadPool = make_pool(4)
    kinds: dict[str, Callable[[], TaskRunner]] = {
        "pool": lambda: pool,
        "parallel": lambda: pool.parallel(3),
        "sequenced": pool.sequenced,
        "single_thread": pool.single_thread,
    }
    runner = kinds[kind]()
    done = threading.Event()
    runner.post(done.set)
    gap.wait_until_entered()

    def flush() -> bool:
        runner.flush()
        return done.is_set()

    flushing = Background(flush, clock)
    clock.wait_until_asleep(flushing)
    gap.open()
    assert flushing.result(), "it has not waited for the task"
