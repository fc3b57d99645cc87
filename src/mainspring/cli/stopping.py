"""Ctrl+C between two steps of long work, so that what was done can be told exactly; a second ends it at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

import typer

from mainspring.cli.exits import ExitCode


class Stopping:
    """Whether somebody has asked to stop: `with Stopping() as stopping: ... if stopping.is_asked: break`."""

    def __init__(self, on_ask: Callable[[], None] | None = None) -> None:
        self._on_ask = on_ask
        self.is_asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other can be interrupted
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def end_if_asked(self) -> None:
        """End the command, if somebody has asked for it."""
        if self.is_asked:
            raise typer.Exit(ExitCode.INTERRUPTED)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        if self._on_ask is not None:
            self._on_ask()


def end_tidily() -> None:
    """Let SIGTERM and SIGHUP end the program as an exception does, so that what it has made is removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
