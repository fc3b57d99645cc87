"""One child process as its worker sees it: started, given one request at a time, stopped, killed, buried.

Whoever runs a request owns the child meanwhile: it alone reads, closes the connections and reaps. Others may stop
or kill, through the `Running` of a request and only while that request is under way: a kill that comes too late
finds another request, or none, and does nothing. A request that has not `Started` has done nothing and may go
to another child.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Lock
from typing import TypeAlias

from mainspring.jobs.processes.child import serve
from mainspring.jobs.processes.locating import PROCESS_NAME
from mainspring.jobs.processes.messages import (
    FromChild,
    Note,
    Reply,
    Request,
    Started,
    Stop,
    decode_from_child,
    encode,
)

_SPAWN = get_context("spawn")
_LAST_BREATH = 1.0  # seconds between a closed connection and the end of the process
_processes = Lock()  # guards starting and reaping: multiprocessing reaps the others' children as it starts one

OnStart: TypeAlias = "Callable[[Running], object]"
OnNote: TypeAlias = Callable[[Note], object]


class CannotStart(Exception):
    """No process got as far as to begin the handler; nothing of it has run."""

    def __init__(self, problem: str, *, was_killed: bool = False) -> None:
        self.was_killed = was_killed
        """Whether that is so because the pool ended meanwhile."""
        super().__init__(f"no process could begin it: {problem}")


class ChildDied(Exception):
    """The process ended while it ran the handler. It is charged to the jobs of that request and to no other."""

    def __init__(self, exit_code: int | None, *, was_killed: bool) -> None:
        self.exit_code = exit_code
        self.was_killed = was_killed
        """Whether it was killed by `Running.kill`, or by the end of the pool."""
        super().__init__(f"the process that ran it {_describe_end(exit_code, was_killed=was_killed)}")

    @property
    def was_asked_to_end(self) -> bool:
        """Whether somebody ended it with SIGTERM: a service manager that stops a worker and all its processes."""
        return not self.was_killed and self.exit_code == -signal.SIGTERM


class Running:
    """A request under way: the hold by which it can be stopped, of no effect once it has been answered."""

    __slots__ = ("_child", "pid")

    def __init__(self, child: ChildProcess, pid: int) -> None:
        self._child = child
        self.pid = pid

    def stop(self) -> None:
        """Set `current_job().cancelled` in the process."""
        self._child.tell(self, is_shutdown=False)

    def announce_shutdown(self) -> None:
        """Set `current_job().stopping` in the process."""
        self._child.tell(self, is_shutdown=True)

    def kill(self) -> bool:
        """Kill the process at once, with those that it has started; False if the request was over."""
        return self._child.kill(self)


class ChildProcess:
    """A process, spawned by `start`."""

    def __init__(self, start_timeout: float) -> None:
        self._start_timeout = start_timeout
        self._starting = Lock()  # guards the first start, and whether there will be one
        self._work: Connection | None = None
        self._control: Connection | None = None
        self._is_over = False
        self._is_ready = False
        self._imported: set[tuple[str, str]] = set()
        self.jobs = 0
        self._lock = Lock()  # guards what follows
        self._process: SpawnProcess | None = None
        self._running: Running | None = None
        self._number = 0
        self._was_killed = False

    @property
    def is_usable(self) -> bool:
        """Whether it can run another request: a kill may have come when the answer was on its way."""
        return not self._was_killed

    def start(self) -> None:
        """Spawn it, unless that has been done."""
        with self._starting:
            if self._is_over:
                raise CannotStart("the worker ends", was_killed=True)
            if self._work is None:
                self._spawn()

    def _spawn(self) -> None:
        mine, work = _SPAWN.Pipe()
        control, my_control = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=serve, args=(work, control), name=PROCESS_NAME)
        self._work, self._control = mine, my_control
        try:
            with _processes, _interrupts_held_back():
                process.start()
        except Exception as error:
            self.let_go()
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

    def run(self, request: Request, on_start: OnStart, on_note: OnNote) -> Reply:
        """Have a request answered; `ChildDied` or `CannotStart` if it is not, and then this child is of no use."""
        place = (request.module, request.qualname)
        patience = None if place in self._imported else self._start_timeout
        if not self._is_ready:  # only then does it surely read what it is sent, however much
            self._receive(request, patience)
            self._is_ready = True
        try:
            self._connection.send_bytes(encode(request))
        except OSError:
            raise self._explain_end(request) from None
        self._number += 1
        while True:
            news = self._receive(request, patience)
            if isinstance(news, Started):
                self._imported.add(place)
                patience = None
                on_start(self._begin())
            elif isinstance(news, Note):
                on_note(news)
            elif isinstance(news, Reply):
                self._finish(request)
                return news

    @property
    def _connection(self) -> Connection:
        assert self._work is not None, "a child runs requests after its start"
        return self._work

    def _receive(self, request: Request, patience: float | None) -> FromChild:
        try:
            if patience is None or self._connection.poll(patience):
                return decode_from_child(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._explain_end(request) from None
        self.bury()
        raise CannotStart(
            f"one has been at it for {patience:g} s; does importing {request.module} take so long, or hang?"
        )

    def _begin(self) -> Running:
        with self._lock:
            assert self._process is not None
            self._running = Running(self, self._process.pid or 0)
            return self._running

    def _finish(self, request: Request) -> None:
        with self._lock:
            self._running = None
        self.jobs += len(request.leases)

    def _explain_end(self, request: Request) -> Exception:
        with self._lock:
            running, self._running = self._running, None
        exit_code = self.bury(_LAST_BREATH)
        if running is not None:
            return ChildDied(exit_code, was_killed=self._was_killed)
        end = _describe_end(exit_code, was_killed=self._was_killed)
        advice = "stderr says why; a script needs if __name__ == '__main__': around what starts workers"
        return CannotStart(f"the last one {end} before that; {advice}", was_killed=self._was_killed)

    def ask_to_end(self) -> None:
        """Let it leave in order, after what it does."""
        with self._starting:
            self._is_over = True
            if self._work is not None:
                self._work.close()

    def bury(self, patience: float = 0) -> int | None:
        """Wait for its end, kill it if that takes too long, and give everything back; return the exit code."""
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

    def tell(self, running: Running, *, is_shutdown: bool) -> None:
        """Let the handler of this request know that it should end."""
        with self._lock:
            if self._running is running and self._control is not None:
                with suppress(OSError):  # it has just died, and whoever runs it will see that
                    self._control.send_bytes(encode(Stop(self._number, is_shutdown)))

    def kill(self, running: Running | None = None) -> bool:
        """Kill it if it still runs this request; without one, whatever it does."""
        with self._lock:
            if running is not None and self._running is not running:
                return False
            self._was_killed = True
            if self._process is not None:
                _kill(self._process)
            return True

    def let_go(self) -> None:
        """In a forked process: the child is not ours, and must see it when its own worker dies."""
        for connection in (self._work, self._control):
            if connection is not None:
                connection.close()


def _kill(process: SpawnProcess) -> None:
    """Kill a process that has not been reaped, and those it has started, if it got a group of its own."""
    pid = process.pid or 0
    with suppress(OSError):
        if hasattr(os, "killpg") and os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    process.kill()


def _reap(process: SpawnProcess) -> int | None:
    for _ in range(100):  # another thread of the application may be faster to reap and slower to say so
        process.join()
        if process.exitcode is not None:
            break
    exit_code = process.exitcode
    with suppress(ValueError):  # somebody else has reaped it, and nobody knows how it ended
        process.close()
    return exit_code


def _describe_end(exit_code: int | None, *, was_killed: bool) -> str:
    if was_killed:
        return "was killed"
    if exit_code is None:
        return "ended, and somebody else has seen how"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL; out of memory?"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Keep Ctrl-C from a process that is being spawned, until it ignores it by itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
