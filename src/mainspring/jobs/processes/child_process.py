"""The worker's side of one child process: starts it, sends it one request at a time, stops, kills and reaps it.

The thread that runs a request owns the child: only this thread reads, closes the connections and reaps the
process. Other threads may stop or kill the child through its `RunningRequest`, and only while that request is in
progress. A kill that comes too late finds another request, or none, and does nothing. If the child has not sent
`HandlerStarted`, the request has had no effect and may go to another child.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Lock
from typing import TypeAlias

from msgspec.structs import replace

from mainspring.jobs.processes.application import ChildSetup
from mainspring.jobs.processes.child import serve
from mainspring.jobs.processes.child_logs import LogNote, log_in_worker
from mainspring.jobs.processes.handler_location import PROCESS_NAME
from mainspring.jobs.processes.messages import (
    CallRequest,
    ChildReady,
    ChildReply,
    FromChild,
    HandlerStarted,
    ProgressNote,
    StopMessage,
    decode_from_child,
    encode,
)

_SPAWN = get_context("spawn")
_EXIT_SECONDS = 1.0  # seconds that a process may take to exit after it has closed its connection
_processes = Lock()  # guards starts and reaping, because multiprocessing reaps ended processes when it starts one

OnStart: TypeAlias = "Callable[[RunningRequest], object]"
OnNote: TypeAlias = Callable[[ProgressNote], object]


class CannotStart(Exception):
    """Raised if no child process could begin the handler. The handler has not run at all."""

    def __init__(self, problem: str, *, was_killed: bool = False) -> None:
        self.was_killed = was_killed
        """Whether the pool was closed before the handler could begin."""
        super().__init__(f"no child process could start the handler: {problem}")


class ChildDied(Exception):
    """Raised if the child process ended while it ran the handler. Only the jobs of that request are affected."""

    def __init__(self, exit_code: int | None, *, was_killed: bool) -> None:
        self.exit_code = exit_code
        self.was_killed = was_killed
        """Whether `RunningRequest.kill` or the closing of the pool killed the process."""
        super().__init__(f"the handler's process {_describe_end(exit_code, was_killed=was_killed)}")

    @property
    def was_asked_to_end(self) -> bool:
        """Whether SIGTERM ended the process, as when a service manager stops a worker with all its processes."""
        return not self.was_killed and self.exit_code == -signal.SIGTERM


class RunningRequest:
    """A request that a child process is running, with methods to stop it.

    After the child's reply, the methods do nothing.
    """

    __slots__ = ("_child", "pid")

    def __init__(self, child: ChildProcess, pid: int) -> None:
        self._child = child
        self.pid = pid

    def stop(self) -> None:
        """Set `current_job().cancelled` in the child process."""
        self._child.send_stop(self, is_shutdown=False)

    def announce_shutdown(self) -> None:
        """Set `current_job().stopping` in the child process."""
        self._child.send_stop(self, is_shutdown=True)

    def kill(self) -> bool:
        """Kill the child process and those that it has started. Return False if the request has already ended."""
        return self._child.kill(self)


class ChildProcess:
    """One child process of a worker, spawned by `start`."""

    def __init__(self, start_timeout: float, setup: ChildSetup) -> None:
        self._start_timeout = start_timeout
        self._setup = setup
        self._starting = Lock()  # guards the first start, and whether there will be one
        self._work: Connection | None = None
        self._control: Connection | None = None
        self._is_over = False
        self._is_ready = False
        self._imported: set[tuple[str, str]] = set()
        self.jobs = 0
        self._lock = Lock()  # guards the following attributes
        self._process: SpawnProcess | None = None
        self._running: RunningRequest | None = None
        self._number = 0
        self._was_killed = False

    @property
    def is_usable(self) -> bool:
        """Whether the child can run another request. It cannot if it was killed just after its reply."""
        return not self._was_killed

    def start(self) -> None:
        """Spawn the child process, unless it was spawned already.

        Raises `CannotStart` if that fails, or if `ask_to_end` or `reap` was called before.
        """
        with self._starting:
            if self._is_over:
                raise CannotStart("the worker shuts down", was_killed=True)
            if self._work is None:
                self._spawn()

    def _spawn(self) -> None:
        mine, work = _SPAWN.Pipe()
        control, my_control = _SPAWN.Pipe(duplex=False)
        setup = encode(replace(self._setup, log_level=logging.getLogger().level))
        process = _SPAWN.Process(target=serve, args=(work, control, setup), name=PROCESS_NAME)
        self._work, self._control = mine, my_control
        try:
            with _processes, _interrupts_blocked():
                process.start()
        except Exception as error:
            self.close_connections()
            self._work = self._control = None
            raise CannotStart(f"{type(error).__name__}: {error}") from error
        finally:
            work.close()
            control.close()
        with self._lock:
            self._process = process
            if self._was_killed:
                _kill(process)

    # -- by the thread that runs a request

    def run(self, request: CallRequest, on_start: OnStart, on_note: OnNote) -> ChildReply:
        """Send a request to the child and return its reply, while passing on its log records and progress.

        Raises `ChildDied` if the process ends while the handler runs. Raises `CannotStart` if the process ends
        before, or if the handler does not begin in time. After both, this child cannot be used any more.
        """
        place = (request.module, request.qualname)
        patience = None if place in self._imported else self._start_timeout
        if not self._is_ready:  # once it is ready, it reads its connection, so a large request cannot block
            while not isinstance(self._receive(request, patience), ChildReady):
                pass
            self._is_ready = True
        try:
            self._connection.send_bytes(encode(request))
        except OSError:
            raise self._explain_end(request) from None
        self._number += 1
        while True:
            message = self._receive(request, patience)
            if isinstance(message, HandlerStarted):
                self._imported.add(place)
                patience = None
                on_start(self._begin())
            elif isinstance(message, ProgressNote):
                on_note(message)
            elif isinstance(message, ChildReply):
                self._finish(request)
                return message

    @property
    def _connection(self) -> Connection:
        assert self._work is not None, "a child runs requests after its start"
        return self._work

    def _receive(self, request: CallRequest, patience: float | None) -> FromChild:
        try:
            while patience is None or self._connection.poll(patience):
                message = decode_from_child(self._connection.recv_bytes())
                if not isinstance(message, LogNote):
                    return message
                log_in_worker(message)
        except (EOFError, OSError):
            raise self._explain_end(request) from None
        self.reap()
        raise CannotStart(
            f"a process did not call the handler within {patience:g} s; "
            f"importing the application or {request.module} may hang or take too long; let slow code run in a "
            "handler, not at import"
        )

    def _begin(self) -> RunningRequest:
        with self._lock:
            assert self._process is not None
            self._running = RunningRequest(self, self._process.pid or 0)
            return self._running

    def _finish(self, request: CallRequest) -> None:
        with self._lock:
            self._running = None
        self.jobs += len(request.leases)

    def _explain_end(self, request: CallRequest) -> Exception:
        with self._lock:
            running, self._running = self._running, None
        exit_code = self.reap(_EXIT_SECONDS)
        if running is not None:
            return ChildDied(exit_code, was_killed=self._was_killed)
        end = _describe_end(exit_code, was_killed=self._was_killed)
        advice = "stderr may say why; scripts need if __name__ == '__main__': around the code that starts workers"
        return CannotStart(
            f"the last process {end} before the handler began; {advice}", was_killed=self._was_killed
        )

    def ask_to_end(self) -> None:
        """Close the connection for requests, so that the child process exits after its current request.

        A child that was not started yet cannot be started any more.
        """
        with self._starting:
            self._is_over = True
            if self._work is not None:
                self._work.close()

    def reap(self, patience: float = 0) -> int | None:
        """Let the child process exit, kill it if it has not exited after `patience` seconds, and wait for its end.

        Return its exit code; None if it was not started, or if other code has read the exit code.
        """
        self.ask_to_end()
        process = self._process
        if process is None:
            return None
        wait([process.sentinel], patience)
        with self._lock, _processes:
            _kill(process)
            self._process = None
            exit_code = _reap(process)
            if self._control is not None:
                self._control.close()
        return exit_code

    # -- by any thread

    def send_stop(self, running: RunningRequest, *, is_shutdown: bool) -> None:
        """Ask the handler of this request to stop, or tell it that the worker shuts down.

        Do nothing if the request has ended.
        """
        with self._lock:
            if self._running is running and self._control is not None:
                with suppress(OSError):  # the process has just died; the thread that runs the request will notice
                    self._control.send_bytes(encode(StopMessage(self._number, is_shutdown)))

    def kill(self, running: RunningRequest | None = None) -> bool:
        """Kill the child process if it still runs the request `running`; in any case, if `running` is None.

        Return False if the request has ended, and the process was not killed. A process that was not spawned yet
        is killed as soon as it is spawned.
        """
        with self._lock:
            if running is not None and self._running is not running:
                return False
            self._was_killed = True
            if self._process is not None:
                _kill(self._process)
            return True

    def close_connections(self) -> None:
        """Close the connections to the child process.

        If a forked process kept them open, the child would not notice the death of its worker.
        """
        for connection in (self._work, self._control):
            if connection is not None:
                connection.close()


def _kill(process: SpawnProcess) -> None:
    """Kill a process that has not been reaped; if it leads a process group, kill the whole group."""
    pid = process.pid or 0
    with suppress(OSError):
        if hasattr(os, "killpg") and os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    process.kill()


def _reap(process: SpawnProcess) -> int | None:
    for _ in range(100):  # another thread may have reaped the process, and not stored the exit code yet
        process.join()
        if process.exitcode is not None:
            break
    exit_code = process.exitcode
    with suppress(ValueError):  # other code has reaped the process, so its exit code is unknown
        process.close()
    return exit_code


def _describe_end(exit_code: int | None, *, was_killed: bool) -> str:
    if was_killed:
        return "was killed"
    if exit_code is None:
        return "ended, and another part of the program has read its exit code"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL; out of memory?"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT (Ctrl-C) on this thread within the `with` block, in which a process is spawned.

    The new process inherits this, so that Ctrl-C cannot end it before it ignores the signal itself.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
