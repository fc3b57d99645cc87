"""Measures the memory that the code under test keeps, whatever other threads of the process allocate meanwhile.

pytest-xdist and pytest-timeout have threads of their own, and an import may come at any time. Together they
allocate some kilobytes while a test runs, so a bound for the whole process would have to be loose.
"""

import gc
import tracemalloc

PRODUCT_AND_TESTS = [
    tracemalloc.Filter(inclusive=True, filename_pattern="*/mainspring/*"),
    tracemalloc.Filter(inclusive=True, filename_pattern="*/tests/*"),
]


class TracedMemory:
    """Traces memory from its entry on."""

    def __enter__(self) -> "TracedMemory":
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
