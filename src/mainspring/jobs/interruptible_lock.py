"""A re-entrant lock for threads that an exception of a signal handler, such as Ctrl+C, may interrupt at any point.

A plain `with lock:` may leave the lock acquired. From Python 3.14 on, `with` calls `__enter__` like any other
function. A signal handler may raise an exception after that call and before the block, and then the lock is never
released.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

Result = TypeVar("Result")


def call_with(lock: RLock, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function while this thread holds the lock, and release the lock also if a signal handler raises."""
    is_owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]  # the method that `Condition` uses
    was_owned = is_owned()
    try:
        with lock:
            return function(*arguments)
    except BaseException:
        if not was_owned and is_owned():
            lock.release()
        raise
