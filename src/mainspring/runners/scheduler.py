"""The brain of a pool: it decides what runs next and which sleeping worker to wake for it.

Invariants
- An entry that was scheduled is popped by exactly one worker.
- No wake-up is lost. A producer pushes and then looks for idle workers; a worker enters the idle list and then
  looks for entries. Whichever comes second sees the other.
- `_waking` is True only while a worker that was taken from the idle list has not yet looked at the queue. It
  spares the other producers a system call each; that worker wakes the next one if there is more to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mainspring.runners.task_queue import Entry, TaskQueue

if TYPE_CHECKING:
    from mainspring.runners.worker import Worker


class TaskScheduler:
    """The ready queue and the workers that wait for it."""

    def __init__(self, ready: TaskQueue) -> None:
        self.ready = ready
        self.idle: deque[Worker] = deque()
        self.take: Callable[[], Entry] = ready.pop
        self._waking = False

    def schedule(self, entry: Entry, priority: int) -> None:
        """Make an entry ready and see to it that somebody runs it."""
        try:
            self.ready.push(entry, priority)
        finally:
            if self.idle:
                self.wake_one()

    def wake_one(self) -> None:
        """Wake the worker that went to sleep last, unless one is on its way already."""
        if self._waking:
            return
        try:
            worker = self.idle[-1]
        except IndexError:
            return
        # A signal handler may raise after any call. After `remove` the worker must not be forgotten; `wake` is one
        # C call, so it has happened then.
        try:
            self.idle.remove(worker)
        except ValueError:
            return  # somebody else has woken it, or it has found the entry by itself
        except BaseException:
            worker.wake()
            raise
        worker.parked = False
        self._waking = True
        worker.wake()

    def woke_up(self) -> None:
        """Note that a woken worker is about to look; pass the call on if one worker will not be enough."""
        self._waking = False
        if self.idle and len(self.ready) > 1:
            self.wake_one()

    def pass_on(self) -> None:
        """Wake somebody else, because the worker that was to come does not."""
        self._waking = False
        if self.idle and self.ready:
            self.wake_one()
