"""The receiving side of a runner: it accepts, delays, counts, cancels and drops tasks, and closes.

Invariants
- No task is dropped silently. A plain post appends its task first and checks for a shutdown afterwards. If the
  runner has closed, the post claims the task and raises an error. If the claim fails, then the task has run, or
  the shutdown has counted the task.
- Posts with traits, a capacity or observers take `_lock`, which also guards the counters and the state.
- The lock of the delay manager guards `_delayed`. A thread that holds `_lock` may take this lock. A thread that
  holds this lock must not take `_lock`. The thread that removes a task from `_delayed` queues or cancels the task.
- Tasks are claimed outside the lock, because the release of their arguments may run a user's `__del__`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sized
from contextvars import Context, copy_context
from enum import Enum
from threading import RLock
from types import CodeType
from typing import TYPE_CHECKING, Any

from mainspring.errors import QueueFull, RunnerClosed
from mainspring.runners.task import (
    DEFAULT_TRAITS,
    DelayedTask,
    Origin,
    ShutdownBehavior,
    Task,
    TaskTraits,
    TracedTask,
    Wrapper,
    require_traits,
    stamp_for,
    wrapper_of,
)
from mainspring.runners.validation import require_callable, require_positive
from mainspring.runners.worker import WorkerThread, current_worker
from mainspring.timing.wheel import due_of

if TYPE_CHECKING:
    from mainspring.runners.services import Services

MANY_TOMBSTONES = 1_000
"""At each multiple of this number, tombstones are removed if they are at least half of a queue."""
_lines: dict[int, int] = {}  # equal line numbers of delayed posts share one int


class RunnerState(Enum):
    """The life-cycle state of a runner."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class TaskAcceptor(ABC):
    """The receiving side of a runner. Slots, here and in subclasses, make runners small and attributes fast."""

    __slots__ = (
        "__weakref__",
        "_append",
        "_canceled",
        "_canceled_delayed",
        "_capacity",
        "_delayed",
        "_fast",
        "_is_prepared",
        "_lock",
        "_rejected",
        "_skipped",
        "_state",
        "_tombstones",
        "_traits",
        "_wakeable",
        "name",
        "services",
    )

    _append: Callable[[Task], None]  # appends a plain task to the queue, in one atomic call
    _wakeable: Sized  # not empty if a post may have to wake a thread

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        capacity: int | None,
        traits: TaskTraits | None,
    ) -> None:
        if capacity is not None:
            require_positive(capacity, "capacity", "tasks")
        self.services = services
        self.name = name
        self._capacity = capacity
        self._traits = DEFAULT_TRAITS if traits is None else require_traits(traits)
        # Guards all attributes below. Re-entrant, because a signal handler or a finalizer may post at any moment.
        self._lock = RLock()
        self._state = RunnerState.OPEN
        self._delayed: set[DelayedTask] = set()  # guarded by the lock of the delay manager, like the next one
        self._canceled_delayed = 0
        self._tombstones = 0  # claimed tasks that are still in the queue
        self._rejected = 0
        self._canceled = 0
        self._skipped = 0
        self._fast = False  # whether plain posts need no lock; written under _lock, read without it
        self._is_prepared = True

    @abstractmethod
    def _push(self, task: DelayedTask) -> None:
        """Put a task into the queue according to its priority. The caller must hold the lock."""

    @abstractmethod
    def _wake_worker(self) -> None:
        """Wake a thread to run the queued tasks, if necessary."""

    @abstractmethod
    def _waiting(self) -> int:
        """Return the number of tasks in the queue, without tombstones (claimed tasks that are still queued)."""

    @abstractmethod
    def _remove_tombstones(self) -> int:
        """Remove the tombstones (canceled tasks) from the queue; return their number."""

    @abstractmethod
    def queued_tasks(self) -> list[Task]:
        """Return the tasks in this runner's own queue, including tombstones (canceled tasks)."""

    def may_run_inline(self, worker: WorkerThread) -> bool:
        """Return whether `worker` may run an unstarted task of this runner inside another task."""
        return False

    def shares_threads_with(self, worker: WorkerThread) -> bool:
        """Return whether tasks of this runner may need the thread of `worker`."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether the runner accepts tasks from all callers.

        A runner that closes accepts only BLOCK tasks of its own pool.
        """
        return self._state is RunnerState.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether the runner has been shut down and accepts no more tasks."""
        return self._state is RunnerState.CLOSED

    def _open_fast_path(self) -> None:
        with self._lock:
            self._fast = (
                self._state is RunnerState.OPEN
                and self._capacity is None
                and self._traits == DEFAULT_TRAITS
                and not self.services.records_posts
            )

    def post_at(
        self,
        due: int | None,
        origin: Origin,
        function: Callable[..., object],
        arguments: tuple[Any, ...],
        traits: TaskTraits | None,
        *,
        context: Context | None = None,
        has_place: bool = False,
    ) -> TracedTask:
        """Post a task for a time of the monotonic clock, or for now if `due` is None.

        Raises `RunnerClosed` after shutdown and `QueueFull` if the runner has a capacity and is full. Without a
        `context`, the task gets a copy of the caller's context. With `has_place`, the capacity does not apply, for
        example because the task replaces a task that has just run.
        """
        if not callable(function):
            require_callable(function)
        if not self._is_prepared:
            self._prepare_to_post()
        if traits is None:
            traits = self._traits
        elif not isinstance(traits, TaskTraits):
            require_traits(traits)
        task = TracedTask()
        task.append(arguments)
        task.runner = self
        task.origin = origin.code
        task.context = (copy_context() if context is None else context) or None
        task.function = function
        task.traits = traits
        task.priority = int(traits.priority)
        task.line = origin.line
        task.queued_at = None
        task.queued = False
        with self._lock:
            refusal = self._refusal(traits, due, has_place=has_place)
            if refusal is not None:
                self._count_rejected()
            elif due is not None:
                self._arm(task, due)
            else:
                self._enqueue(task)
        if refusal is not None:
            self.services.notify_rejected(task, refusal)
            try:
                raise refusal
            finally:
                del refusal  # the exception references this frame
        if due is None and self._wakeable:
            self._wake_worker()
        return task

    def _post_delayed(
        self, due: int, code: CodeType, line: int, function: Callable[..., object], arguments: tuple[Any, ...]
    ) -> DelayedTask | None:
        """Post a task with default traits for a time of the monotonic clock.

        Post nothing and return None if the runner is not `_fast` any more, as after the begin of a shutdown.
        """
        if not callable(function):
            require_callable(function)
        task = DelayedTask((arguments,))  # small, because `append` would reserve room for four elements
        task.runner = self
        task.origin = code
        task.context = copy_context() or None
        task.function = function
        task.line = _lines.setdefault(line, line)
        task.queued = False
        delays = self.services.delays
        with delays.lock:
            if not self._fast:  # a shutdown clears this flag first, and looks for delayed tasks afterwards
                return None
            task.timer_entry = delays.call_at(due, task)
            self._delayed.add(task)
        return task

    def _arm(self, task: DelayedTask, due: int) -> None:
        delays = self.services.delays
        with delays.lock:
            task.timer_entry = delays.call_at(due, task)
            self._delayed.add(task)

    def _prepare_to_post(self) -> None:  # noqa: B027 - most runners need no preparation
        """Prepare for the first task. Called by each post until `_is_prepared` is set."""

    def _refusal(self, traits: TaskTraits, due: int | None, *, has_place: bool) -> Exception | None:
        """Return an error if a task must be refused now; otherwise None. The caller must hold the lock."""
        if self._state is not RunnerState.OPEN:
            is_blocking = traits.shutdown is ShutdownBehavior.BLOCK and due is None
            if not (is_blocking and self.takes_blocking_tasks()):
                return RunnerClosed(runner=self.name)
        if self._capacity is not None and not has_place and self._is_full(self._capacity - len(self._delayed)):
            return QueueFull(name=self.name, capacity=self._capacity)
        return None

    def _is_full(self, room: int) -> bool:
        return self._waiting() >= room

    def takes_blocking_tasks(self) -> bool:
        """Return whether the caller may post BLOCK tasks.

        In a shutdown, only tasks of the same pool may; after it, no caller may.
        """
        if self._state is not RunnerState.CLOSING:
            return self._state is RunnerState.OPEN
        worker = current_worker()
        return worker is not None and worker.home.services is self.services

    def _enqueue(self, task: DelayedTask) -> None:
        """Put a task that is due into the queue. The caller must hold the lock."""
        services = self.services
        now = services.clock.monotonic_ns
        stamp = now() if services.is_observed else stamp_for(task.priority, now)
        if stamp is not None:  # only a `TracedTask` gets here, because other tasks have the default priority
            task.queued_at = stamp
        task.queued = True
        self._push(task)

    def enqueue_due(self, task: DelayedTask) -> None:
        """Queue a delayed task that is due now, unless it was canceled or queued meanwhile."""
        with self._lock:
            if not self._remove_delayed(task):
                return
            self._enqueue(task)
        if self._wakeable:
            self._wake_worker()

    def _withdraw_if_closed(self, task: Task) -> None:
        """If the runner closes or has closed, claim a task that was just appended, and raise `RunnerClosed`.

        Do nothing if the task was claimed already: it has run, or the shutdown has counted it.
        """
        if self._state is RunnerState.OPEN or not task.claim():
            return
        with self._lock:
            self._tombstones += 1
            self._count_rejected()
        raise RunnerClosed(runner=self.name)

    def forget(self, task: Task) -> None:
        """Count a task as canceled, and cancel its timer if it is not due yet.

        A canceled task that is queued stays in the queue as a tombstone. Compact a queue with many tombstones.
        """
        with self._lock:
            self._canceled += 1
            self.services.counters.add(canceled=1)
            self._release(task)
            tombstones = self._tombstones
            has_many = tombstones > 0 and not tombstones % MANY_TOMBSTONES and tombstones >= self._waiting()
        if has_many:
            self.compact()

    def compact(self) -> int:
        """Remove canceled tasks from the queue, which releases their memory; return their number.

        A runner does so by itself after every 1,000 cancels, if they are at least half of its queue. A build of
        Python without the global lock removes none.
        """
        removed = self._remove_tombstones()
        with self._lock:
            self._tombstones -= removed
        return removed

    def forget_delayed(self, task: DelayedTask) -> None:
        """Count a canceled task, like `forget`, but take only one lock for a task that is not due yet."""
        delays = self.services.delays
        with delays.lock:
            delayed = self._delayed
            if task in delayed:
                delayed.remove(task)
                if not delayed:
                    delayed.clear()  # frees the hash table, which an empty set keeps otherwise
                self._canceled_delayed += 1
                delays.canceled += 1
                delays.discard(task.timer_entry)
                return
        self.forget(task)

    def _release(self, task: Task) -> None:
        """Count a claimed task that is still in the queue (a tombstone), or remove the timer of one not due yet.

        The caller must hold the lock.
        """
        if not isinstance(task, DelayedTask) or task.queued:
            self._tombstones += 1
        elif self._remove_delayed(task):
            self.services.delays.cancel(task.timer_entry)

    def _remove_delayed(self, task: DelayedTask) -> bool:
        """Remove a task from the delayed tasks; return False if another thread has already removed it."""
        with self.services.delays.lock:
            if task not in self._delayed:
                return False
            self._delayed.remove(task)
            if not self._delayed:
                self._delayed.clear()
            return True

    def _count_rejected(self) -> None:
        self._rejected += 1
        self.services.counters.add(rejected=1)

    def tombstone_popped(self) -> None:
        """Reduce the number of tombstones (claimed tasks in the queue) by one, because one has left the queue."""
        with self._lock:
            self._tombstones -= 1

    def begin_closing(self) -> None:
        """Refuse new tasks from now on, except BLOCK tasks that tasks of the same pool post."""
        with self._lock:
            if self._state is RunnerState.OPEN:
                self._state = RunnerState.CLOSING
            self._fast = False

    def drop_unstarted(self, *, keep_blocking: bool) -> int:
        """Drop delayed and queued tasks; return their number. With `keep_blocking`, keep due BLOCK tasks."""
        dropped = self.drop_delayed()
        with self._lock:
            queued = self.queued_tasks()
        if keep_blocking:
            queued = [task for task in queued if task.traits.shutdown is not ShutdownBehavior.BLOCK]
        return dropped + self._drop(queued)

    def wake_for_queued(self) -> None:
        """Wake a worker if tasks are queued. A thread that posted one of them may not have woken a worker yet."""
        if self._waiting():
            self._wake_worker()

    def drop_delayed(self) -> int:
        """Drop all delayed tasks that are not due, and queue those that are due; return the number dropped."""
        now = self.services.clock.monotonic_ns()
        with self.services.delays.lock:
            delayed = list(self._delayed)
        for task in delayed:
            if due_of(task.timer_entry) <= now:
                self.enqueue_due(task)  # the timer has not called this task yet
        return self._drop(task for task in delayed if not task.queued)

    def _drop(self, tasks: Iterable[Task]) -> int:
        claimed: list[Task] = []
        wrappers: list[Wrapper] = []
        for task in tasks:
            wrapper = wrapper_of(task.function)
            if task.claim():
                claimed.append(task)
                if wrapper is not None:
                    wrappers.append(wrapper)
        with self._lock:
            for task in claimed:
                self._release(task)
            self._skipped += len(claimed)
            self.services.counters.add(skipped=len(claimed))
        for wrapper in wrappers:
            wrapper.dropped()
        return len(claimed)

    def finish_closing(self) -> None:
        """Refuse all tasks from now on, also BLOCK tasks, and release the resources of the runner."""
        with self._lock:
            self._state = RunnerState.CLOSED
