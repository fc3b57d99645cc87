"""Calls that begin at the same moment, each in its own thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from tests.support import PATIENCE


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions in as many threads, which begin at the same moment; return their results in order."""
    barrier = Barrier(len(calls))

    def call(number: int) -> Any:
        barrier.wait(PATIENCE)
        return calls[number]()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, range(len(calls))))
