"""Executors that CPython's tests can make: each has the constructor of `ThreadPoolExecutor`, and owns its pool."""

from __future__ import annotations

from typing import ClassVar

from mainspring import TaskRunner, ThreadPool
from mainspring.runners import RunnerExecutor


class PoolExecutor(RunnerExecutor):
    """The executor of a pool."""

    places: ClassVar[int | None] = None  # how many tasks run at once; None: as many as the pool has threads

    def __init__(self, max_workers: int = 5) -> None:
        size = self.places or max_workers
        self._pool = ThreadPool(size, max_workers=size).start()
        super().__init__(self.make_runner(self._pool, max_workers))

    def make_runner(self, pool: ThreadPool, _workers: int) -> TaskRunner:
        return pool

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Shut down the executor, and with `wait` also its pool, so that no thread is left."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self._pool.shutdown()


class ParallelExecutor(PoolExecutor):
    """The executor of a parallel runner."""

    def make_runner(self, pool: ThreadPool, workers: int) -> TaskRunner:
        return pool.parallel(limit=workers)


class SequencedExecutor(PoolExecutor):
    """The executor of a sequence."""

    places = 1

    def make_runner(self, pool: ThreadPool, _workers: int) -> TaskRunner:
        return pool.sequenced()


class SingleThreadExecutor(PoolExecutor):
    """The executor of a single thread."""

    places = 1

    def make_runner(self, pool: ThreadPool, _workers: int) -> TaskRunner:
        return pool.single_thread()


class LoopExecutor(PoolExecutor):
    """The executor of an event loop."""

    places = 1

    def make_runner(self, pool: ThreadPool, _workers: int) -> TaskRunner:
        return pool.asyncio()


ThreadPoolExecutor = PoolExecutor  # the name that some of CPython's scripts import

KINDS = (PoolExecutor, ParallelExecutor, SequencedExecutor, SingleThreadExecutor, LoopExecutor)
