"""A queue that passes its items to a handler, on the threads of a pool.

The queue has no thread of its own. When an item arrives at an idle queue, the queue posts a drain to the pool: a
task that calls the handler for each item. A drain ends when it finds no more items.

Invariants
- There is one token for each drain that may run. Taking it is one atomic step. A drain returns its token before it
  checks the queue for the last time, so no item is left behind and there are never more drains than tokens.
- Each item is in a cell of its own, a list of one element. Popping it claims the item, for a drain or for a
  dispatch that finds the pool closed. So an item is handled once, or its dispatch raises.
- Drains are BLOCK tasks: items that were dispatched before a shutdown are handled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from threading import RLock
from typing import Any, Generic, Literal, TypeVar, overload

from mainspring.clock import Duration, deadline_after
from mainspring.errors import QueueEmpty, QueueFull, RunnerClosed, WouldDeadlock
from mainspring.plurals import format_count
from mainspring.runners.idle_condition import IdleCondition
from mainspring.runners.ring_buffer import RingBuffer
from mainspring.runners.runner import TaskRunner
from mainspring.runners.task import ShutdownBehavior, TaskFailure, TaskTraits, describe_function
from mainspring.runners.validation import require_callable, require_positive
from mainspring.runners.worker import current_worker

T = TypeVar("T")

SLICE = 64  # how many items a drain handles before it lets other tasks of the pool run


class FuncQueue(Generic[T]):
    """A queue that calls `handler` with every dispatched item, in at most `concurrency` calls at once.

    With `batch=True` the handler gets a list of all waiting items. With a `capacity`, a full queue raises
    `QueueFull`. Exceptions of the handler go to the error hook of the pool, and the queue continues.
    """

    @overload
    def __init__(
        self,
        handler: Callable[[T], object],
        pool: TaskRunner,
        *,
        capacity: int | None = None,
        batch: Literal[False] = False,
        concurrency: int = 1,
        name: str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        handler: Callable[[list[T]], object],
        pool: TaskRunner,
        *,
        capacity: int | None = None,
        batch: Literal[True],
        concurrency: int = 1,
        name: str | None = None,
    ) -> None: ...

    def __init__(
        self,
        handler: Callable[[Any], object],
        pool: TaskRunner,
        *,
        capacity: int | None = None,
        batch: bool = False,
        concurrency: int = 1,
        name: str | None = None,
    ) -> None:
        require_positive(concurrency, "concurrency", "handlers")
        require_callable(handler, "the handler of a FuncQueue")
        if not hasattr(pool, "post"):
            raise TypeError(f"pool must be a runner such as ThreadPool(4), got {pool!r}")
        if iscoroutinefunction(handler):
            raise TypeError(
                f"handler {describe_function(handler)} is a coroutine function, which a FuncQueue cannot await; "
                f"let a function submit it to a runner made by pool.asyncio()"
            )
        self._handler = handler
        self._pool = pool
        self.name = name or describe_function(handler)
        self._cells: deque[list[T]] | RingBuffer[list[T]]
        if capacity is None:
            self._cells = deque()
            self._push: Callable[[list[T]], None] = self._cells.append
            self._pop: Callable[[], list[T]] = self._cells.popleft
        else:
            self._cells = RingBuffer(capacity, name=self.name)
            self._push = self._cells.push
            self._pop = self._cells.pop
        self._handle_some = self._handle_batch if batch else self._handle_items
        self._concurrency = concurrency
        self._tokens = [None] * concurrency
        self._traits = TaskTraits(shutdown=ShutdownBehavior.BLOCK)
        self._waking = RLock()  # held while a drain is posted; re-entrant for finalizers and signal handlers
        self._idle_condition = IdleCondition(pool.services.clock)

    def __len__(self) -> int:
        return len(self._cells)

    def dispatch(self, item: T) -> None:
        """Queue an item and wake the handler; raise `QueueFull` if there is no room, and `RunnerClosed` after
        shutdown.
        """
        cell = [item]
        self._push(cell)
        try:
            self._wake()
            if self._pool.is_closed:  # then no drain runs any more
                raise RunnerClosed(runner=self._pool.name)
        except BaseException:
            if self._withdraw(cell):
                raise

    def dispatch_all(self, items: Iterable[T]) -> None:
        """Queue many items and wake the handler, for up to `concurrency` calls at once.

        Raises `QueueFull` for the first item that has no room; the items before that one stay queued. If the pool
        is closed or full, raises `RunnerClosed` or `QueueFull`, and takes back the items that the handler does not
        have yet.
        """
        cells = [[item] for item in items]
        for place, cell in enumerate(cells):
            try:
                self._push(cell)
            except QueueFull:
                del cells[place:]
                self._wake_for(cells)
                raise
        self._wake_for(cells)

    def _wake_for(self, cells: list[list[T]]) -> None:
        try:
            for _ in range(min(len(cells), self._concurrency)):
                self._wake()
            if self._pool.is_closed:
                raise RunnerClosed(runner=self._pool.name)
        except BaseException:
            withdrawn = [cell for cell in cells if self._withdraw(cell)]
            if withdrawn:
                raise

    def withdraw_all(self) -> list[T]:
        """Remove and return the items that were not passed to the handler yet."""
        items: list[T] = []
        while len(self._cells):
            try:
                items.append(self._pop().pop())
            except (IndexError, QueueEmpty):
                continue  # a drain has taken the item
        if self._idle_condition.waiters:
            self._idle_condition.announce()
        return items

    def wait_idle(self, timeout: Duration | None = None) -> None:
        """Wait until every item has been handled; raise `TimeoutError` after `timeout`.

        Raises `WouldDeadlock` inside of the queue's own handler.
        """
        worker = current_worker()
        if worker is not None and worker.task is not None and worker.task.function == self._drain:
            raise WouldDeadlock(runner=self._pool.name, task=f"wait_idle() of queue {self.name}")
        deadline = deadline_after(self._pool.services.clock, timeout)
        if not self._idle_condition.wait(self.is_idle, deadline):
            waiting = format_count(len(self), "item waits", "items wait")
            raise TimeoutError(
                f"queue {self.name!r} is not idle after timeout={timeout!r}: {waiting}, and the handler may still "
                "process others"
            )

    def is_idle(self) -> bool:
        """Return whether every dispatched item has been handled, and no call of the handler is in progress."""
        return not len(self._cells) and len(self._tokens) == self._concurrency

    def _wake(self) -> None:
        # Under a lock: a thread that finds no token relies on a drain that is in the pool and will check the queue
        # again. Without the lock the post of that drain might still fail, and the item would be left behind.
        with self._waking:
            try:
                self._tokens.pop()
            except IndexError:
                return
            try:
                self._pool.post(self._drain, traits=self._traits)
            except BaseException:
                self._tokens.append(None)
                raise

    def _withdraw(self, cell: list[T]) -> bool:
        """Take an item back; return False if a drain (a task that takes items) has claimed it and handles it."""
        try:
            cell.pop()
        except IndexError:
            return False
        return True

    def _drain(self) -> None:
        self._handle_some()
        while not self._goes_to_sleep():
            self._handle_some()

    def _handle_items(self) -> None:
        for _ in range(SLICE):
            try:
                item = self._pop().pop()
            except IndexError:
                if not len(self._cells):
                    break
            except QueueEmpty:
                break
            else:
                self._handle(item)

    def _handle_batch(self) -> None:
        items: list[T] = []
        for _ in range(len(self._cells)):
            try:
                items.append(self._pop().pop())
            except (IndexError, QueueEmpty):
                continue  # its dispatch has withdrawn the item, or another drain has taken it
        if items:
            self._handle(items)

    def _handle(self, item_or_batch: T | list[T]) -> None:
        try:
            self._handler(item_or_batch)
        except BaseException as error:  # an exception of the handler must not stop the queue
            self._pool.services.report(
                TaskFailure(
                    error=error,
                    task=describe_function(self._handler),
                    runner=self._pool.name,
                    posted_from=None,
                    traits=self._traits,
                )
            )

    def _goes_to_sleep(self) -> bool:
        """Return the token of this drain (a task that takes items), and post another drain if items are left.

        Return whether this drain may end.

        It must go on if the pool has no room for another drain.
        """
        self._tokens.append(None)
        try:
            if len(self._cells):
                self._wake()
        except QueueFull:  # the pool has no room for another drain
            return not self._takes_token_back()
        finally:
            if self._idle_condition.waiters:
                self._idle_condition.announce()
        return True

    def _takes_token_back(self) -> bool:
        with self._waking:
            if not self._tokens:
                return False  # another drain has the token
            self._tokens.pop()
            return True
