"""The threads of a pool, and the scheduler that selects what they run next.

A group has `size` threads. While some of them are blocked, as many substitutes may run, up to `max_size` threads
in total. When fewer are blocked, surplus threads move to a reserve, and end after `idle_timeout`. Idle threads
wait for a lock: they do not poll.

Invariants of the scheduler
- An entry that was scheduled is popped by exactly one worker.
- No wake-up is lost. A producer pushes and then checks for idle workers; a worker enters the idle list and then
  checks for entries. The second of the two sees what the first has done.
- `_waking` is True only while a worker that was taken from the idle list has not yet checked the queue. It saves
  the other producers a system call each; that worker wakes the next one if more entries are ready.

Invariants of the threads
- No lock is held while an entry runs.
- `_active` (threads that may take work) never stays above `min(size + blocked, max_size)`: a surplus worker moves
  to the reserve before it takes the next entry.
- A sleeping worker is in the idle list or in the reserve; the thread that removes it from there opens its gate
  once.
- The group is at rest when nothing is ready and every worker sleeps. A worker that is about to sleep notifies the
  threads that wait for that.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock, Thread
from typing import TYPE_CHECKING

from mainspring.plurals import format_count
from mainspring.runners.idle_condition import IdleCondition
from mainspring.runners.task import Task
from mainspring.runners.task_queue import QueueEntry, TaskQueue
from mainspring.runners.worker import WorkerThread, current_worker

if TYPE_CHECKING:
    from mainspring.runners.delay_manager import DelayManager
    from mainspring.runners.runner import TaskRunner
    from mainspring.runners.worker import WorkerThread


class TaskScheduler:
    """The queue of ready entries, and the idle workers that wait for them."""

    def __init__(self, ready: TaskQueue) -> None:
        self.ready = ready
        self.idle: deque[WorkerThread] = deque()
        self.take: Callable[[], QueueEntry] = ready.pop
        self._waking = False

    def schedule(self, entry: QueueEntry, priority: int) -> None:
        """Push an entry to the ready queue and wake a worker for it, if one is idle."""
        try:
            self.ready.push(entry, priority)
        finally:
            if self.idle:
                self.wake_one()

    def wake_one(self) -> None:
        """Wake the idle worker that went to sleep last, unless a woken worker has not checked the queue yet."""
        if self._waking:
            return
        try:
            worker = self.idle[-1]
        except IndexError:
            return
        # A signal handler may raise after any call. After `remove` the worker must be woken in any case. `wake` of
        # a sleeping thread is one C call, so it has happened when a handler raises after it.
        try:
            self.idle.remove(worker)
        except ValueError:
            return  # another thread has woken this worker, or it has found the entry itself
        except BaseException:
            worker.wake()
            raise
        worker.parked = False
        self._waking = True
        worker.wake()

    def worker_woke(self) -> None:
        """Record that a woken worker checks the queue now; wake another worker if more than one entry is ready."""
        self._waking = False
        if self.idle and len(self.ready) > 1:
            self.wake_one()

    def wake_another(self) -> None:
        """Wake another worker if entries are ready, because a woken one takes no entry."""
        self._waking = False
        if self.idle and self.ready:
            self.wake_one()


JOIN_SECONDS = 1.0  # seconds: a thread without a task ends at once, unless the machine is overloaded

_NOTHING: QueueEntry = Task()

logger = logging.getLogger("mainspring.runners")


class ThreadGroup:
    """A set of interchangeable worker threads, which grows while some of them are blocked."""

    def __init__(
        self,
        scheduler: TaskScheduler,
        owner: TaskRunner,
        *,
        size: int,
        max_size: int,
        idle_timeout_ns: int,
        delays: DelayManager,
    ) -> None:
        self._scheduler = scheduler
        self._owner = owner
        self._size = size
        self._max_size = max_size
        self._idle_timeout_ns = idle_timeout_ns
        self._delays = delays
        self.idle_condition = IdleCondition(owner.services.clock)
        self.has_requests = False  # whether workers must call `_handle_requests` before they take more work
        self._lock = RLock()  # re-entrant for signal handlers and finalizers; guards the following attributes
        self._workers: list[WorkerThread] = []
        self._reserve: deque[WorkerThread] = deque()
        self._active = 0
        self._blocked = 0
        self._stopping = False
        self._can_grow = True  # False after the system has refused a thread
        self._has_warned = False  # whether it was logged that all threads are waiting
        self._watchers = 0
        self._started = 0
        self._retired_completed = 0
        self._retired_failed = 0

    @property
    def size(self) -> int:
        """The number of threads that take work while none of them is blocked."""
        return self._size

    def start(self) -> None:
        """Start the threads of a group that has none yet; raise `RuntimeError` if the system allows none."""
        with self._lock:
            self._active = self._size
        for _ in range(self._size):
            self._launch(WorkerThread(self, self._owner))
        if not self.workers():
            raise RuntimeError(
                f"runner {self._owner.name!r} could not start any of its {format_count(self._size, 'thread')}; "
                "check the limits of this system for threads and memory"
            )

    def workers(self) -> list[WorkerThread]:
        """Return the workers whose threads are alive."""
        with self._lock:
            return list(self._workers)

    def totals(self) -> tuple[int, int]:
        """Return how many tasks of this group have completed, and how many have failed."""
        with self._lock:
            return (
                self._retired_completed + sum(worker.completed for worker in self._workers),
                self._retired_failed + sum(worker.failed for worker in self._workers),
            )

    # -- the life of a worker

    def _launch(self, worker: WorkerThread) -> None:
        with self._lock:
            self._started += 1
            number = self._started
            self._workers.append(worker)
        worker.wake = worker.gate.release
        worker.thread = Thread(target=self._work, args=(worker,), name=f"{self._owner.name}-{number}", daemon=True)
        try:
            worker.thread.start()
        except RuntimeError as error:  # the system allows no more threads, or the interpreter exits
            with self._lock:
                self._workers.remove(worker)
                self._active -= 1
                self._can_grow = False
            self._scheduler.wake_another()
            if self.idle_condition.waiters:
                self.idle_condition.announce()
            logger.warning(
                "runner %r could not start a thread and goes on with %s: %s",
                self._owner.name,
                format_count(len(self.workers()), "thread"),
                error,
            )

    def _work(self, worker: WorkerThread) -> None:
        worker.bind_current_thread()
        scheduler = self._scheduler
        take = scheduler.take
        urgent, visible, background = scheduler.ready.lanes
        scheduler.worker_woke()
        while True:
            if self.has_requests and not self._handle_requests(worker):
                break
            try:
                # The usual case needs no choice between lanes, so it saves the call.
                entry = visible.popleft() if visible and not urgent and not background else take()
            except IndexError:
                entry = _NOTHING  # so that a sleeping worker keeps no entry alive
                self._park(worker)
                continue
            if entry.run_on(worker) is False:
                self._owner.tombstone_popped()
        self._retire(worker)

    def _park(self, worker: WorkerThread) -> None:
        scheduler = self._scheduler
        worker.parked = True
        scheduler.idle.append(worker)
        if scheduler.ready or (self.has_requests and self._is_needed_elsewhere()):
            try:
                scheduler.idle.remove(worker)
            except ValueError:
                pass  # another thread will open the gate at once
            else:
                worker.parked = False
                worker.wakes += 1  # the worker has not slept, but `is_idle` must see that it was busy
                return
        if self.idle_condition.waiters:
            self.idle_condition.announce()
        worker.gate.acquire()
        worker.wakes += 1
        scheduler.worker_woke()

    def _retire(self, worker: WorkerThread) -> None:
        with self._lock:
            self._workers.remove(worker)
            self._retired_completed += worker.completed
            self._retired_failed += worker.failed
        if self.idle_condition.waiters:
            self.idle_condition.announce()

    def _handle_requests(self, worker: WorkerThread) -> bool:
        """Notify waiting threads; a surplus worker sleeps in the reserve until it is needed or must end.

        Return False if the worker must end.
        """
        with self._lock:
            if self._stopping:
                return bool(self._scheduler.ready)  # BLOCK tasks may be left, which must run
            steps_aside = self._active > self._allowed()
            if steps_aside:
                self._active -= 1
                worker.reap_entry = self._delays.call_after(
                    self._idle_timeout_ns, partial(self._reap, worker, worker.wakes)
                )
                worker.parked = True
                self._reserve.append(worker)
            self.has_requests = self._watchers > 0 or self._active > self._allowed()
        if self.idle_condition.waiters:
            self.idle_condition.announce()
        if not steps_aside:
            return True
        self._scheduler.wake_another()
        worker.gate.acquire()
        worker.wakes += 1
        self._scheduler.worker_woke()
        return not worker.leaving

    def _is_needed_elsewhere(self) -> bool:
        with self._lock:
            return self._stopping or self._active > self._allowed()

    def _reap(self, worker: WorkerThread, wakes: int) -> None:
        with self._lock:
            if worker.wakes != wakes or worker not in self._reserve:
                return
            self._reserve.remove(worker)
            worker.leaving = True
            worker.parked = False  # the worker counts as busy until its thread has ended
        worker.wake()

    # -- growing and shrinking

    def _allowed(self) -> int:
        return min(self._size + self._blocked, self._max_size)

    @contextmanager
    def blocking(self, worker: WorkerThread) -> Iterator[None]:
        """Let another worker take work in place of `worker`, which waits inside of the `with` block."""
        self._block(worker)
        try:
            yield
        finally:
            self._unblock(worker)

    def _block(self, worker: WorkerThread) -> None:
        worker.blocked += 1
        if worker.blocked > 1:
            return
        with self._lock:
            self._blocked += 1
            is_at_limit = self._stopping or self._active >= self._allowed()
            is_warning_due = self._blocked == self._max_size > 1 and not self._stopping and not self._has_warned
            self._has_warned |= is_warning_due
            substitute = None if is_at_limit else self._send_substitute()
        if is_warning_due:
            logger.warning(
                "all %d threads that runner %r may have are waiting; if they wait for tasks that have not "
                "started, they wait for ever: create the pool with a larger max_workers",
                self._max_size,
                self._owner.name,
            )
        if substitute is None:
            return
        if substitute.reap_entry is not None:
            self._delays.cancel_call(substitute.reap_entry)
            substitute.reap_entry = None
        if self._scheduler.ready:
            self._scheduler.wake_one()

    def _send_substitute(self) -> WorkerThread:
        self._active += 1
        substitute = self._reserve.pop() if self._reserve else self._make_unstarted_worker()
        # inserted where `wake_one` finds it last, so that idle threads are woken first
        self._scheduler.idle.appendleft(substitute)
        return substitute

    def run_ready_inline(self, worker: WorkerThread, is_over: Callable[[], bool]) -> None:
        """Run ready entries on the thread of a waiting task, until `is_over` returns True or none is ready.

        Do nothing unless the system has refused to start a thread: otherwise other threads run the entries.
        """
        while not self._can_grow and not is_over():
            try:
                entry = self._scheduler.take()
            except IndexError:
                return
            with worker.nested(self._owner):
                if entry.run_on(worker) is False:
                    self._owner.tombstone_popped()

    def _make_unstarted_worker(self) -> WorkerThread:
        worker = WorkerThread(self, self._owner)
        worker.parked = True
        worker.wake = lambda: self._launch(worker)
        return worker

    def _unblock(self, worker: WorkerThread) -> None:
        worker.blocked -= 1
        if worker.blocked:
            return
        with self._lock:
            self._blocked -= 1
            if self._active <= self._allowed():
                return
            if self._withdraw_unstarted():
                self._active -= 1
                return
            self.has_requests = True
        # If a thread is idle, wake it to move to the reserve; otherwise the next thread that finishes an entry
        # does.
        try:
            surplus = self._scheduler.idle.popleft()
        except IndexError:
            return
        surplus.parked = False
        surplus.wake()

    def _withdraw_unstarted(self) -> bool:
        """Remove a substitute thread that was never started from the idle list; return whether there was one."""
        for worker in self._scheduler.idle.copy():
            if worker.thread is None:
                try:
                    self._scheduler.idle.remove(worker)
                except ValueError:
                    continue  # another thread starts it right now
                return True
        return False

    # -- waiting and stopping

    def is_idle(self, is_resting: Callable[[WorkerThread], bool]) -> bool:
        """Return whether no ready entry can run and `is_resting` is true for every worker.

        The workers are read before and after the check of the queue. If one has woken up meanwhile, the result is
        False.
        """
        before = [(worker, worker.wakes) for worker in self.workers()]
        if not all(is_resting(worker) for worker, _ in before) or self._has_live_work():
            return False
        after = [(worker, worker.wakes) for worker in self.workers()]
        return before == after and all(is_resting(worker) for worker, _ in after)

    def _has_live_work(self) -> bool:
        """Return whether an entry that can still run is ready, and a thread can become free to run it."""
        if not any(entry.is_live() for entry in self._scheduler.ready.entries()):
            return False
        with self._lock:
            # If tasks that called shutdown occupy every thread, none becomes free: they wait for each other.
            return len(self._workers) < self._active or not all(
                worker.is_shutting_down for worker in self._workers
            )

    def wait_until(self, is_reached: Callable[[], bool], deadline: int | None) -> bool:
        """Wait for a condition that may become true at the end of any task; return False after the deadline."""
        with self._lock:
            self._watchers += 1
            self.has_requests = True
        try:
            return self.idle_condition.wait(is_reached, deadline)
        finally:
            with self._lock:
                self._watchers -= 1

    def stop(self) -> None:
        """Make every worker thread end as soon as it has nothing to run."""
        with self._lock:
            self._stopping = True
            self.has_requests = True
            sleeping = list(self._reserve)
            self._reserve.clear()
        while True:
            try:
                sleeping.append(self._scheduler.idle.pop())
            except IndexError:
                break
        for worker in sleeping:
            if worker.thread is not None:
                worker.wake()

    def join(self) -> None:
        """Wait for the threads that have no task, for at most a second each: they are about to end."""
        for worker in self.workers():
            thread = worker.thread
            if worker.task is None and thread is not None and thread.is_alive() and worker is not current_worker():
                thread.join(JOIN_SECONDS)
