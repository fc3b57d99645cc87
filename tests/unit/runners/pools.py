"""Pools that end in bounded time even if a test fails, and tasks that run until a test releases them."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from mainspring.runners import TaskRunner, TaskTraits, ThreadPool
from tests.support import PATIENCE


@contextmanager
def running(pool: ThreadPool) -> Iterator[ThreadPool]:
    """Start a pool and shut it down; a pool that cannot end fails the test and does not hang it."""
    pool.start()
    try:
        yield pool
    except BaseException:
        close(pool, patience=1.0)
        raise
    assert close(pool), f"{pool!r} did not shut down"


def close(pool: ThreadPool, patience: float = PATIENCE) -> bool:
    """Shut a pool down; False if that takes too long."""
    closing = Thread(target=pool.shutdown, daemon=True)
    closing.start()
    closing.join(patience)
    atexit.unregister(pool._shutdown_at_exit)
    return not closing.is_alive()


class Hold:
    """A task that occupies its worker until it is released."""

    def __init__(self) -> None:
        self.entered = Event()
        self._released = Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._released.wait(PATIENCE), "this task was never released"

    def release(self) -> None:
        self._released.set()


@contextmanager
def occupied(runner: TaskRunner, traits: TaskTraits | None = None) -> Iterator[Hold]:
    """Keep one worker busy for the length of the block."""
    hold = Hold()
    runner.post(hold, traits=traits)
    assert hold.entered.wait(PATIENCE)
    try:
        yield hold
    finally:
        hold.release()


@contextmanager
def frequent_thread_switches(seconds: float = 1e-6) -> Iterator[None]:
    """Let the interpreter switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector, to show that reference counts release an object."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
