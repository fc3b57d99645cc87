"""A bounded part of a pool: tasks start in order, run side by side, and never more than `limit` at once."""

from __future__ import annotations

from mainspring.runners.source import TaskSource
from mainspring.runners.worker import Worker


class ParallelRunner(TaskSource):
    """Unordered work with a bound. Make one with `pool.parallel()`."""

    __slots__ = ()

    @property
    def is_exclusive(self) -> bool:
        return self._limit == 1

    def may_run_inline(self, worker: Worker) -> bool:
        # The waiting task lends its place, so the bound holds.
        return worker.runner is self

    def _count(self, worker: Worker) -> None:
        with self._lock:
            super()._count(worker)
