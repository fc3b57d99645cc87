"""The process pool of a worker: spawns at most `size` child processes when jobs need them, and replaces them.

A request runs on one child, and a child runs one request at a time. If the chosen child has died while it was
idle, the request goes to a new child. If a child dies during a request, the crash is charged to the jobs of that
request only. Processes use real time: a manual clock does not affect them.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from threading import Condition, Thread
from weakref import WeakSet

from mainspring.clock import NANOSECONDS, Duration, SystemClock, to_nanoseconds
from mainspring.jobs.processes.application import ChildSetup
from mainspring.jobs.processes.child_process import CannotStart, ChildProcess, OnNote, OnStart
from mainspring.jobs.processes.import_guard import import_guard
from mainspring.jobs.processes.messages import CallRequest, ChildReply
from mainspring.runners.validation import require_positive

START_TIMEOUT = 60.0
"""How many seconds a child process may take to start and to import modules, until the handler begins."""
_RETIRE_SECONDS = 10.0  # seconds that a replaced process may take to exit
_IDLE_EXIT_SECONDS = 1.0  # seconds that an idle process may take to exit
_CLOSING_ROUNDS = 100  # how often `close` kills the children that are left, ten times a second


class ProcessPool:
    """Runs requests in child processes, at most `size` at once; a further request raises `RuntimeError`."""

    def __init__(
        self,
        size: int,
        *,
        max_jobs: int | None = None,
        max_memory: int | None = None,
        start_timeout: float = START_TIMEOUT,
        setup: ChildSetup | None = None,
    ) -> None:
        import_guard.require_imported("starts a worker")
        self._setup = setup or ChildSetup()
        self.size = require_positive(size, "size", "processes")
        self._max_jobs = max_jobs if max_jobs is None else require_positive(max_jobs, "max_jobs", "jobs")
        self._max_memory = (
            max_memory if max_memory is None else require_positive(max_memory, "max_memory", "bytes")
        )
        self._start_timeout = start_timeout
        self._owner = os.getpid()
        self._changed = Condition()  # re-entrant; guards the following attributes
        self._idle: list[ChildProcess] = []
        self._children: set[ChildProcess] = set()
        self._busy = 0
        self._leaving = 0
        self._is_closed = False
        _pools.add(self)
        atexit.register(self.close, 0)  # before multiprocessing waits for all children without a timeout

    def run(self, request: CallRequest, *, on_start: OnStart, on_note: OnNote) -> ChildReply:
        """Run a request in a child process and wait for its reply, on this thread.

        The pool calls `on_start` with a `RunningRequest` when the handler begins, and `on_note` when the handler
        reports progress. It raises `ChildDied` if the process ended while the handler ran, `CannotStart` if the
        handler did not begin, and `RuntimeError` if the pool is closed or all its processes are busy.
        """
        with self._changed:
            self._require_room()
            self._busy += 1
            idle = self._idle.pop() if self._idle else None
        try:
            if idle is not None:
                try:
                    return self._run_on(idle, request, on_start, on_note)
                except CannotStart as refusal:  # the child died while it was idle
                    if refusal.was_killed:
                        raise
            return self._run_on(self._add_child(), request, on_start, on_note)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _require_room(self) -> None:
        if self._is_closed:
            raise RuntimeError("this pool of processes is closed and runs nothing more")
        if self._busy >= self.size:
            what = (
                "the process of this pool is" if self.size == 1 else f"all {self.size} processes of this pool are"
            )
            raise RuntimeError(f"{what} busy; wait until one is free")

    def _add_child(self) -> ChildProcess:
        with self._changed:
            child = ChildProcess(self._start_timeout, self._setup)
            self._children.add(child)
            return child

    def _run_on(self, child: ChildProcess, request: CallRequest, on_start: OnStart, on_note: OnNote) -> ChildReply:
        try:
            child.start()
            reply = child.run(request, on_start, on_note)
        except BaseException:
            self._remove(child, patience=0)
            raise
        if child.is_usable:
            self._put_back(child, reply.memory)
        else:
            self._remove(child, patience=0)
        return reply

    def _put_back(self, child: ChildProcess, memory: int) -> None:
        is_worn = self._max_jobs is not None and child.jobs >= self._max_jobs
        is_large = self._max_memory is not None and memory > self._max_memory
        with self._changed:
            if not (is_worn or is_large or self._is_closed):
                self._idle.append(child)
                return
            successor = None
            if not self._is_closed:
                successor = self._add_child()
                self._idle.insert(0, successor)
            self._leaving += 1
        Thread(target=self._retire, args=(child, successor), name="mainspring-recycling", daemon=True).start()

    def _retire(self, child: ChildProcess, successor: ChildProcess | None) -> None:
        child.ask_to_end()
        if successor is not None:
            with suppress(CannotStart):  # the next request tries again and raises the error
                successor.start()
        self._remove(child, patience=_RETIRE_SECONDS)
        with self._changed:
            self._leaving -= 1
            self._changed.notify_all()

    def _remove(self, child: ChildProcess, *, patience: float) -> None:
        child.reap(patience)
        with self._changed:
            self._children.discard(child)

    def close(self, timeout: Duration = 5) -> None:
        """Let the children finish their requests and exit, and kill those that still run after `timeout`.

        Idle children always get a moment to exit by themselves. From now on, `run` raises `RuntimeError`. In a
        forked process, this does nothing, because the children belong to its parent.
        """
        if os.getpid() != self._owner:  # the children belong to the parent of this forked process
            return
        clock = SystemClock()
        deadline = clock.monotonic_ns() + to_nanoseconds(timeout, "timeout")

        def remaining() -> float:
            return max(0, deadline - clock.monotonic_ns()) / NANOSECONDS

        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.ask_to_end()
        for child in idle:
            self._remove(child, patience=max(_IDLE_EXIT_SECONDS, remaining()))
        with self._changed:
            self._changed.wait_for(self._is_quiet, remaining())
            for _ in range(_CLOSING_ROUNDS):
                if self._is_quiet():
                    break
                for child in self._children:
                    child.kill()
                self._changed.wait(0.1)
        atexit.unregister(self.close)

    def _is_quiet(self) -> bool:
        return not self._busy and not self._leaving

    def close_connections(self) -> None:
        """Close the copies of the connections that a forked process has: the children belong to its parent."""
        for child in self._children:
            child.close_connections()


_pools: WeakSet[ProcessPool] = WeakSet()


def _close_connections_after_fork() -> None:
    for pool in _pools:
        pool.close_connections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_connections_after_fork)
