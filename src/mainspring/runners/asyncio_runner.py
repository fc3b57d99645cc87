"""A runner with an event loop on its own thread: callables run in order, coroutines run concurrently.

Coroutines start in the order in which they were posted. A running coroutine counts as active. When it ends, the
runner counts it and reports its exception, as for a callable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from inspect import iscoroutine
from sys import _getframe
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

from mainspring.clock import Duration
from mainspring.runners.flush import EarlierTasks, FlushBarrier
from mainspring.runners.future import TaskFuture
from mainspring.runners.idle_condition import IdleCondition
from mainspring.runners.runner import TaskRunner
from mainspring.runners.services import Services
from mainspring.runners.task import DelayedTask, Task, TaskTraits
from mainspring.runners.task_queue import compact_lane, first_traits
from mainspring.runners.worker import RAISED, WorkerThread, current_worker

if TYPE_CHECKING:
    import asyncio

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

SLICE = 64  # how many callables run before the loop polls its sockets again
JOIN_SECONDS = 1.0


class LoopWorker(WorkerThread):
    """The state of the thread on which an event loop runs."""

    __slots__ = ("_coroutines", "_current_task", "_loop", "_start_coroutine")

    awaits = True

    def __init__(
        self,
        home: TaskRunner,
        loop: asyncio.AbstractEventLoop,
        adopt: Callable[[Task, Coroutine[Any, Any, object]], None],
        coroutines: Mapping[asyncio.Task[object], WorkerThread],
    ) -> None:
        from asyncio import current_task  # noqa: PLC0415 - the runner has imported asyncio

        super().__init__(None, home)
        self._current_task = current_task
        self._loop = loop
        self._coroutines = coroutines
        self._start_coroutine = adopt

    def current_runner(self) -> TaskRunner:
        return self.home  # also read between two steps of a coroutine

    def describe_task(self) -> str:
        current = self._current_task(self._loop) if self.task is None else None
        return super().describe_task() if current is None else current.get_name()

    def coroutine_waiting(self, is_over: Callable[[], bool]) -> AbstractContextManager[None]:
        calling_worker = self.calling_worker()
        return nullcontext() if calling_worker is self else calling_worker.waiting(is_over)

    def calling_worker(self) -> WorkerThread:
        current = self._current_task(self._loop)
        return self._coroutines.get(current, self) if current is not None else self

    def canceller_of_current_coroutine(self) -> Callable[[], object]:
        current = self._current_task(self._loop)
        if current is None:
            return super().canceller_of_current_coroutine()
        return lambda: self._loop.call_soon_threadsafe(current.cancel)

    def take_result(self, task: Task, result: object) -> None:
        if iscoroutine(result):
            self._start_coroutine(task, result)
        else:
            super().take_result(task, result)


class AsyncioRunner(TaskRunner):
    """A runner with an event loop on a thread of its own. `pool.asyncio()` makes one."""

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        capacity: int | None,
        traits: TaskTraits | None,
        metadata: dict[str, object] | None,
    ) -> None:
        import asyncio  # noqa: PLC0415 - slow to import, and many programs make no such runner

        super().__init__(services, name=name, capacity=capacity, traits=traits, metadata=metadata)
        self._asyncio = asyncio
        self.loop = asyncio.new_event_loop()
        self._tasks: deque[Task] = deque()
        self._append = self._tasks.append
        self._tokens: list[None] = [None]  # taken while a drain, which runs queued callables, is scheduled or runs
        self._wakeable = self._tokens
        self._idle_condition = IdleCondition(services.clock)
        # the context of a drain, so that it does not run in the context of the posting thread
        self._context = Context()
        # Each running coroutine with a worker object of its own, because it occupies no thread.
        self._coroutines: dict[asyncio.Task[object], WorkerThread] = {}
        self._worker = LoopWorker(self, self.loop, self._start_coroutine, self._coroutines)
        self._has_stopped = False
        self._thread = Thread(target=self._serve, name=f"{name}-loop", daemon=True)
        self._thread.start()
        self._open_fast_path()

    # -- on the thread of the loop

    def _serve(self) -> None:
        self._worker.bind_current_thread()
        while not self._has_stopped:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # a coroutine raised it: it has been reported, and asyncio raises it here again
        self.loop.run_until_complete(self._cancel_coroutines())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _cancel_coroutines(self) -> None:
        left = list(self._coroutines)
        for coroutine in left:
            coroutine.cancel()
        await self._asyncio.gather(*left, return_exceptions=True)

    def _drain(self) -> None:
        for _ in range(SLICE):
            try:
                task = self._tasks.popleft()
            except IndexError:
                self._tokens.append(None)
                if self._tasks:
                    self._wake_worker()
                self._idle_condition.announce()
                return
            if not task.run_on(self._worker):
                self.tombstone_popped()
        self.loop.call_soon(self._drain, context=self._context)

    def _start_coroutine(self, task: Task, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine that a task has returned, as a part of that task."""
        stand_in = WorkerThread(None, self, is_stand_in=True)
        stand_in.task = kept = task.copy_for_coroutine()
        running = self.loop.create_task(coroutine, name=kept.name, context=kept.context or Context())
        self._coroutines[running] = stand_in
        running.add_done_callback(self._coroutine_ended)

    def _coroutine_ended(self, coroutine: asyncio.Task[object]) -> None:
        stand_in = self._coroutines[coroutine]
        worker = self._worker
        error = self._asyncio.CancelledError("cancelled") if coroutine.cancelled() else coroutine.exception()
        if error is None and coroutine.result() is not RAISED:
            worker.completed += 1
        else:
            worker.failed += 1
            if error is not None and stand_in.task is not None and not self._has_stopped:
                worker.report(stand_in.task, error)
        stand_in.task = None
        del self._coroutines[coroutine]
        self._idle_condition.announce()

    # -- the interface of a runner

    def _push(self, task: DelayedTask) -> None:
        self._tasks.append(task)

    def _wake_worker(self) -> None:
        try:
            self._tokens.pop()
        except IndexError:
            return
        try:
            self.loop.call_soon_threadsafe(self._drain, context=self._context)
        except RuntimeError:  # the loop is closed; the post itself raises the error
            self._tokens.append(None)

    def _waiting(self) -> int:
        return max(0, len(self._tasks) - self._tombstones)

    def peek_traits(self) -> TaskTraits | None:
        return first_traits(self._tasks)

    def _remove_tombstones(self) -> int:
        return compact_lane(self._tasks)

    def queued_tasks(self) -> list[Task]:
        return list(self._tasks.copy())

    def _workers(self) -> list[WorkerThread]:
        return [self._worker, *self._coroutines.copy().values()]

    def running_tasks(self) -> list[tuple[WorkerThread, Task]]:
        return [(worker, task) for worker in self._workers() if (task := worker.task) is not None]

    def totals(self) -> tuple[int, int]:
        return self._worker.completed, self._worker.failed

    @property
    def idle_condition(self) -> IdleCondition:
        return self._idle_condition

    def is_quiet(self, is_resting: Callable[[WorkerThread], bool]) -> bool:
        if self._worker.is_shutting_down:
            return True
        is_live = any(task.is_live() for task in self._tasks.copy())
        if self._worker.task is not None and is_resting(self._worker) and not is_live:
            return all(is_resting(worker) for worker in self._coroutines.copy().values())
        before = self.totals()
        if self._tasks or not self._tokens:
            return False
        # A coroutine that ends during the check may have posted a task: the totals must not have changed.
        return all(is_resting(worker) for worker in self._coroutines.copy().values()) and self.totals() == before

    def activity(self) -> object:
        """Return a value that changes whenever a task of this runner has ended."""
        return self.totals()

    def runs_tasks_in_current_sequence(self) -> bool:
        return current_worker() is self._worker

    def _worker_count(self) -> int:
        return int(self._thread.is_alive())

    def is_over(self) -> bool:
        """Return whether the runner is closed and its thread has ended."""
        return self.is_closed and not self._thread.is_alive()

    def _make_barrier(self, idle_condition: IdleCondition, priority: int) -> FlushBarrier:
        # Coroutines that run when the barrier is popped were posted before it; their tasks have returned already.
        return FlushBarrier(self, idle_condition, priority, self.running_tasks)

    def wait_until_ended(self, earlier: EarlierTasks, deadline: int | None) -> bool:
        return self._idle_condition.wait(lambda: earlier.have_coroutines_ended(self), deadline)

    def serving_workers(self) -> list[WorkerThread]:
        return []  # one thread takes and runs tasks: a barrier cannot be popped in between

    def finish_closing(self) -> None:
        if self.is_closed:
            return
        super().finish_closing()
        self.loop.call_soon_threadsafe(self._stop)
        if current_worker() is not self._worker and self._worker.task is None:
            self._thread.join(JOIN_SECONDS)

    def _stop(self) -> None:
        if self._tasks:
            self.loop.call_soon(self._stop)  # BLOCK tasks behind a task that called shutdown must still run
            return
        self._has_stopped = True
        self.loop.stop()

    # -- typed overloads: a coroutine function has the type of its coroutine's result

    @overload
    def submit(
        self,
        function: Callable[[*Ts], Coroutine[Any, Any, R]],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> TaskFuture[R]: ...

    @overload
    def submit(
        self,
        function: Callable[[*Ts], R],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> TaskFuture[R]: ...

    def submit(
        self,
        function: Callable[[*Ts], Any],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> TaskFuture[Any]:
        return self.submit_from(_getframe(1), function, arguments, delay, traits)

    @overload
    async def run(
        self,
        function: Callable[[*Ts], Coroutine[Any, Any, R]],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> R: ...

    @overload
    async def run(
        self,
        function: Callable[[*Ts], R],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> R: ...

    async def run(
        self,
        function: Callable[[*Ts], Any],
        *arguments: *Ts,
        delay: Duration | None = None,
        traits: TaskTraits | None = None,
    ) -> Any:
        return await self._await(_getframe(1), function, arguments, delay, traits)
