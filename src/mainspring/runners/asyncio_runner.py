"""A thread with an event loop: callables run on it in order, coroutines run on it side by side.

Coroutines start in the order in which they were posted. A running one counts as active; when it ends, it is
counted and its exception is reported, exactly as for a callable.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from inspect import iscoroutine
from sys import _getframe
from threading import Thread
from typing import Any, TypeVar, TypeVarTuple, overload

from mainspring.clock import Duration
from mainspring.runners.flush import Barrier, Earlier
from mainspring.runners.future import TaskFuture
from mainspring.runners.rest import Rest
from mainspring.runners.runner import TaskRunner
from mainspring.runners.services import Services
from mainspring.runners.task import Task, TracedTask
from mainspring.runners.traits import TaskTraits
from mainspring.runners.worker import RAISED, Worker, current_worker

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

SLICE = 64  # callables that run before the loop gets to look at its sockets
JOIN_SECONDS = 1.0


class LoopWorker(Worker):
    """The thread of an event loop."""

    __slots__ = ("_adopt", "_coroutines", "_loop")

    awaits = True

    def __init__(
        self,
        home: TaskRunner,
        loop: asyncio.AbstractEventLoop,
        adopt: Callable[[Task, Coroutine[Any, Any, object]], None],
        coroutines: Mapping[asyncio.Task[object], Worker],
    ) -> None:
        super().__init__(None, home)
        self._loop = loop
        self._coroutines = coroutines
        self._adopt = adopt

    def current_runner(self) -> TaskRunner:
        return self.home  # also between two steps of a coroutine

    def describe_task(self) -> str:
        current = asyncio.current_task(self._loop) if self.task is None else None
        return super().describe_task() if current is None else current.get_name()

    def coroutine_waiting(self, is_over: Callable[[], bool]) -> AbstractContextManager[None]:
        acting = self.acting()
        return nullcontext() if acting is self else acting.waiting(is_over)

    def acting(self) -> Worker:
        current = asyncio.current_task(self._loop)
        return self._coroutines.get(current, self) if current is not None else self

    def canceller_of_current_coroutine(self) -> Callable[[], object]:
        current = asyncio.current_task(self._loop)
        if current is None:
            return super().canceller_of_current_coroutine()
        return lambda: self._loop.call_soon_threadsafe(current.cancel)

    def take_result(self, task: Task, result: object) -> None:
        if iscoroutine(result):
            self._adopt(task, result)
        else:
            super().take_result(task, result)


class AsyncioRunner(TaskRunner):
    """An event loop on a thread of its own. Make one with `pool.asyncio()`."""

    def __init__(
        self,
        services: Services,
        *,
        name: str,
        capacity: int | None,
        traits: TaskTraits | None,
        metadata: dict[str, object] | None,
    ) -> None:
        super().__init__(services, name=name, capacity=capacity, traits=traits, metadata=metadata)
        self.loop = asyncio.new_event_loop()
        self._tasks: deque[Task] = deque()
        self._append = self._tasks.append
        self._tokens: list[None] = [None]  # taken while a drain is on its way
        self._sleepers = self._tokens
        self._rest = Rest(services.clock)
        self._context = Context()  # of the drain, so that it does not carry that of whoever woke it
        # Each running coroutine, with a stand-in for the worker that it does not occupy.
        self._coroutines: dict[asyncio.Task[object], Worker] = {}
        self._worker = LoopWorker(self, self.loop, self._adopt, self._coroutines)
        self._has_stopped = False
        self._thread = Thread(target=self._serve, name=f"{name}-loop", daemon=True)
        self._thread.start()
        self._open_fast_path()

    # -- on the thread of the loop

    def _serve(self) -> None:
        self._worker.adopt_current_thread()
        while not self._has_stopped:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # a coroutine raised it: asyncio lets it through, and it has been reported
        self.loop.run_until_complete(self._cancel_coroutines())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _cancel_coroutines(self) -> None:
        left = list(self._coroutines)
        for coroutine in left:
            coroutine.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _drain(self) -> None:
        for _ in range(SLICE):
            try:
                task = self._tasks.popleft()
            except IndexError:
                self._tokens.append(None)
                if self._tasks:
                    self._rouse()
                self._rest.announce()
                return
            if not task.run_on(self._worker):
                self.shell_passed()
        self.loop.call_soon(self._drain, context=self._context)

    def _adopt(self, task: Task, coroutine: Coroutine[Any, Any, object]) -> None:
        """Let the coroutine that a task has returned run as a part of that task."""
        stand_in = Worker(None, self, is_stand_in=True)
        stand_in.task = kept = task.spokesman()
        running = self.loop.create_task(coroutine, name=kept.name, context=kept.context or Context())
        self._coroutines[running] = stand_in
        running.add_done_callback(self._coroutine_ended)

    def _coroutine_ended(self, coroutine: asyncio.Task[object]) -> None:
        stand_in = self._coroutines[coroutine]
        worker = self._worker
        error = CancelledError("cancelled") if coroutine.cancelled() else coroutine.exception()
        if error is None and coroutine.result() is not RAISED:
            worker.completed += 1
        else:
            worker.failed += 1
            if error is not None and stand_in.task is not None and not self._has_stopped:
                worker.report(stand_in.task, error)
        stand_in.task = None
        del self._coroutines[coroutine]
        self._rest.announce()

    # -- what a runner must answer

    def _push(self, task: TracedTask) -> None:
        self._tasks.append(task)

    def _rouse(self) -> None:
        try:
            self._tokens.pop()
        except IndexError:
            return
        try:
            self.loop.call_soon_threadsafe(self._drain, context=self._context)
        except RuntimeError:  # the loop is closed; a post finds that out by itself
            self._tokens.append(None)

    def _waiting(self) -> int:
        return max(0, len(self._tasks) - self._shells)

    def queued_tasks(self) -> list[Task]:
        return list(self._tasks.copy())

    def _workers(self) -> list[Worker]:
        return [self._worker, *self._coroutines.copy().values()]

    def running_tasks(self) -> list[tuple[Worker, Task]]:
        return [(worker, task) for worker in self._workers() if (task := worker.task) is not None]

    def totals(self) -> tuple[int, int]:
        return self._worker.completed, self._worker.failed

    @property
    def rest(self) -> Rest:
        return self._rest

    def is_quiet(self, is_resting: Callable[[Worker], bool]) -> bool:
        if self._worker.is_shutting_down:
            return True
        is_live = any(task.is_live() for task in self._tasks.copy())
        if self._worker.task is not None and is_resting(self._worker) and not is_live:
            return all(is_resting(worker) for worker in self._coroutines.copy().values())
        before = self.totals()
        if self._tasks or not self._tokens:
            return False
        # A coroutine that ends while we look may have posted something: only an unchanged picture counts.
        return all(is_resting(worker) for worker in self._coroutines.copy().values()) and self.totals() == before

    def activity(self) -> object:
        """Return something that changes whenever the loop has run something."""
        return self.totals()

    def runs_tasks_in_current_sequence(self) -> bool:
        return current_worker() is self._worker

    def _worker_count(self) -> int:
        return int(self._thread.is_alive())

    def is_over(self) -> bool:
        """Answer whether the runner has been closed and its thread is gone."""
        return self.is_closed and not self._thread.is_alive()

    def _make_barrier(self, rest: Rest, priority: int) -> Barrier:
        # Coroutines that run when the barrier passes were posted before it; their tasks have long returned.
        return Barrier(self, rest, priority, self.running_tasks)

    def wait_until_ended(self, earlier: Earlier, deadline: int | None) -> bool:
        return self._rest.wait(lambda: earlier.have_coroutines_ended(self), deadline)

    def serving_workers(self) -> list[Worker]:
        return []  # one thread takes and runs: a barrier cannot pass in between

    def finish_closing(self) -> None:
        if self.is_closed:
            return
        super().finish_closing()
        self.loop.call_soon_threadsafe(self._stop)
        if current_worker() is not self._worker and self._worker.task is None:
            self._thread.join(JOIN_SECONDS)

    def _stop(self) -> None:
        if self._tasks:
            self.loop.call_soon(self._stop)  # BLOCK tasks behind one that called shutdown: they must run
            return
        self._has_stopped = True
        self.loop.stop()

    # -- coroutine functions are typed by what they return when awaited

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
        return self._submit(_getframe(1), function, arguments, delay, traits)

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
