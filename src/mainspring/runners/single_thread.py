"""One real thread: strict order, and every task on the same thread, for what is bound to one."""

from __future__ import annotations

from mainspring.runners.group_runner import GroupRunner
from mainspring.runners.services import Services
from mainspring.runners.task_queue import FifoTaskQueue
from mainspring.runners.traits import TaskTraits


class SingleThreadRunner(GroupRunner):
    """A thread of its own. Make one with `pool.single_thread()`."""

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        capacity: int | None,
        traits: TaskTraits | None,
        metadata: dict[str, object] | None,
    ) -> None:
        super().__init__(
            services,
            FifoTaskQueue(),
            size=1,
            max_size=1,
            idle_timeout_ns=0,
            name=name,
            capacity=capacity,
            traits=traits,
            metadata=metadata,
        )
        self._group.start()
        self._open_fast_path()
