"""Listens for the signals that end a program, SIGTERM and SIGINT, without missing one.

A thread that waits for a lock can miss a signal that arrives just before the wait begins: the interpreter records
the signal, and nothing wakes the thread. So the interpreter writes a byte for each signal into a pair of sockets.
The reader finds the byte there, whenever the signal arrived.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from threading import Thread
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = (signal.SIGTERM, signal.SIGINT)
END = b"\0"


class StopSignals:
    """A context manager that listens for SIGTERM and SIGINT. Only the main thread may use it."""

    def __init__(self) -> None:
        # Not a pipe: on Windows, `set_wakeup_fd` accepts only sockets.
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1
        self._follower: Thread | None = None
        self.is_received = False
        """Whether `wait`, or the thread of `call_on_next`, has received a signal."""

    def __enter__(self) -> Self:
        self._fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _ignore_signal) for number in ENDING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._writer.send(END)
        if self._follower is not None:
            self._follower.join()
        self._reader.close()
        self._writer.close()

    def wait(self) -> bool:
        """Wait for SIGTERM or SIGINT and return True; return False at `interrupt` or the end of the block."""
        while True:
            byte = self._reader.recv(1)
            if byte in (END, b""):
                return False
            if byte[0] in ENDING:
                self.is_received = True
                return True

    def interrupt(self) -> None:
        """Make `wait` return False, or do nothing if it has received a signal. Any thread may call this, once."""
        if not self.is_received:
            self._writer.send(END)

    def call_on_next(self, act: Callable[[], None]) -> None:
        """Call `act` on a new thread at the next SIGTERM or SIGINT; never, if the `with` block ends before."""

        def follow() -> None:
            if self.wait():
                act()

        self._follower = Thread(target=follow, name="mainspring-signals", daemon=True)
        self._follower.start()


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing at a signal. The interpreter writes the byte that `wait` reads.

    A handler that does more could wait for a lock that the interrupted code holds.
    """
