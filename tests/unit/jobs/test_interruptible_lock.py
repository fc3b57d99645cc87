"""A lock that is released whatever happens, also if an interrupt comes right after it was acquired."""

from __future__ import annotations

from threading import RLock
from typing import Any, cast

import pytest

from mainspring.jobs.interruptible_lock import call_with
from tests.support import Background


class InterruptedLock:
    """A lock whose `with` is interrupted after it was acquired, and before its block begins."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.release = self.lock.release
        self._is_owned = cast(Any, self.lock)._is_owned

    def __enter__(self) -> None:
        self.lock.acquire()
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def is_free(lock: Any) -> bool:
    """Return whether another thread can acquire the lock."""

    def acquire() -> bool:
        has_it: bool = lock.acquire(blocking=False)
        if has_it:
            lock.release()
        return has_it

    return Background(acquire).result()


def test_it_is_held_during_the_call_and_free_afterwards() -> None:
    lock = RLock()
    assert call_with(lock, lambda value: (value, is_free(lock)), 3) == (3, False)
    assert is_free(lock)


def test_it_is_free_after_an_error() -> None:
    lock = RLock()
    with pytest.raises(ZeroDivisionError):
        call_with(lock, lambda: 1 // 0)
    assert is_free(lock)


def test_it_is_free_after_an_interrupt_between_its_acquisition_and_the_call() -> None:
    lock = InterruptedLock()
    with pytest.raises(KeyboardInterrupt):
        call_with(cast(RLock, lock), lambda: None)
    assert is_free(lock.lock)


def test_an_inner_call_that_fails_leaves_it_to_the_outer_one() -> None:
    lock = RLock()

    def outer() -> bool:
        with pytest.raises(ZeroDivisionError):
            call_with(lock, lambda: 1 // 0)
        return is_free(lock)

    assert not call_with(lock, outer)
    assert is_free(lock)
