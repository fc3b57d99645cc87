"""Helpers for tests of concurrent code: waits with a deadline, tasks that block, a watched clock, switches."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from socket import socket
from threading import Barrier, Condition, Event, Semaphore, Thread, current_thread
from typing import Any, Generic, TypeVar

from mainspring import TaskRunner, TaskTraits
from mainspring.testing import ManualClock
from mainspring.testing.polling import PATIENCE_SECONDS, eventually

__all__ = [
    "PATIENCE",
    "Background",
    "Gate",
    "WatchedClock",
    "amount",
    "at_once",
    "eventually",
    "frequent_thread_switches",
    "occupied",
    "wait_for_end_of",
    "within",
    "without_collector",
]

T = TypeVar("T")

PATIENCE = PATIENCE_SECONDS
"""The deadline in seconds of all waits in tests; pytest ends a test only after three times as long."""


def amount(usual: T, *, thorough: T) -> T:
    """Return how much a test does: `usual` in `make test`, `thorough` in `make soak`, which sets THOROUGH."""
    return thorough if os.environ.get("THOROUGH") else usual


class Gate:
    """A task that signals its start, and then blocks until the test opens the gate."""

    def __init__(self) -> None:
        self._entered = Semaphore(0)
        self._open = Event()
        self.is_entered = False

    def __call__(self) -> None:
        self.is_entered = True
        self._entered.release()
        assert self._open.wait(PATIENCE), "the gate was not opened"

    def wait_until_entered(self, times: int = 1) -> None:
        for _ in range(times):
            assert self._entered.acquire(timeout=PATIENCE), "the task has not started"

    def open(self) -> None:
        self._open.set()


@contextmanager
def occupied(runner: TaskRunner, places: int = 1, traits: TaskTraits | None = None) -> Iterator[Gate]:
    """Occupy all slots of a runner until the gate is opened, at the latest at the end of the block."""
    gate = Gate()
    try:
        for _ in range(places):
            runner.post(gate, traits=traits)
            gate.wait_until_entered()  # one after another, so that a queue of any capacity has room
        yield gate
    finally:
        gate.open()


class WatchedClock(ManualClock):
    """A manual clock that records which threads wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = Condition()
        self._sleepers: set[Thread] = set()  # guarded by _changed

    def wait(self, condition: Condition, deadline_ns: int | None) -> bool:
        with self._changed:
            self._sleepers.add(current_thread())
            self._changed.notify_all()
        try:
            return super().wait(condition, deadline_ns)
        finally:
            with self._changed:
                self._sleepers.discard(current_thread())

    def wait_until_asleep(self, background: Background[Any]) -> None:
        """Wait until the call in the background waits for this clock, or has ended."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: background.thread in self._sleepers or background.is_done, PATIENCE
            ), "the call neither waits nor ends"

    def look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Background(Generic[T]):
    """A call on a thread of its own, so that a test can continue while it waits, and ends if it hangs."""

    def __init__(self, call: Callable[[], T], clock: WatchedClock | None = None) -> None:
        self._call = call
        self._clock = clock
        self._outcome: list[T] = []
        self._error: BaseException | None = None
        self._done = Event()
        self.thread = Thread(target=self._run, name="background", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except BaseException as error:
            self._error = error
        self._done.set()
        if self._clock is not None:
            self._clock.look_again()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self, patience: float = PATIENCE) -> T:
        assert self._done.wait(patience), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._outcome[0]


def within(call: Callable[[], T], patience: float = PATIENCE) -> T:
    """Return the result of a call; fail if it hangs."""
    return Background(call).result(patience)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions in as many threads, which begin at the same moment; return their results in order."""
    barrier = Barrier(len(calls))

    def call(number: int) -> Any:
        barrier.wait(PATIENCE)
        return calls[number]()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, range(len(calls))))


def wait_for_end_of(connection: socket) -> None:
    """Wait until the process at the other end has ended; discard what it sent.

    The kernel reports the end as an end of file, or as a reset if that process had not read everything.
    """
    connection.settimeout(PATIENCE)
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


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
    gc.freeze()  # what has survived costs later collections no more time
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
