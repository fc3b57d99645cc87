"""Measures the memory that the code under test keeps, in a process where no other test has left threads behind.

The process of a test has other threads: those of pytest, and those of the served application that the tests of
the pages share. They allocate some kilobytes while a test runs, and an import may come at any time. So a test that
counts bytes runs in another process, and there only lines of the product and of the tests count.
"""

import gc
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, wraps
from importlib import import_module
from multiprocessing import get_context, parent_process
from typing import ParamSpec

from tests.support import PATIENCE

P = ParamSpec("P")

PRODUCT_AND_TESTS = [
    tracemalloc.Filter(inclusive=True, filename_pattern="*/mainspring/*"),
    tracemalloc.Filter(inclusive=True, filename_pattern="*/tests/*"),
]


class TracedMemory:
    """Traces memory from its entry on."""

    def __enter__(self) -> "TracedMemory":
        assert parent_process() is not None, "use it in a test with @in_a_quiet_process"
        gc.collect()
        gc.freeze()  # what has survived costs later collections no more time
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        tracemalloc.stop()

    def used(self) -> int:
        """Return how many bytes lines of the product and of the tests have allocated and not released.

        It takes time for each allocation that is left, so use it where little is left.
        """
        traces = tracemalloc.take_snapshot().filter_traces(PRODUCT_AND_TESTS).traces
        return sum(trace.size for trace in traces)

    def used_by_all(self) -> int:
        """Return how many bytes the whole process has allocated since the entry, at once."""
        return tracemalloc.get_traced_memory()[0]

    def check_below(self, limit: float) -> None:
        """Fail if at least `limit` bytes are in use, and say which lines have allocated them."""
        snapshot = tracemalloc.take_snapshot().filter_traces(PRODUCT_AND_TESTS)
        used = sum(trace.size for trace in snapshot.traces)
        if used >= limit:
            lines = "\n".join(str(line) for line in snapshot.statistics("lineno")[:20])
            raise AssertionError(f"{used} bytes are in use, which is not below {limit:.0f}:\n{lines}")


def in_a_quiet_process(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test in a process that runs only such tests, one at a time. Its parameters must be picklable."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        running = _quiet_process().submit(_call, test.__module__, test.__name__, args, kwargs)
        running.result(2 * PATIENCE)

    return run


@cache
def _quiet_process() -> ProcessPoolExecutor:
    """Start the quiet process of this process, which ends with it."""
    return ProcessPoolExecutor(1, get_context("spawn"))


def _call(module: str, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"an earlier test has left the thread {thread.name}"
    vars(import_module(module))[name].__wrapped__(*args, **kwargs)
