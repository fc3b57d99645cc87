"""Defers signals until the current step of a long command is done.

So the command can report exactly how much was done. A second signal ends the command at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

import click

CTRL_C = (signal.SIGINT,)
ALL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that a command defers if an abrupt end would leave temporary files or streams behind."""


class DeferredSignals:
    """Records the first of `signals` in a `with` block, so that it does not end the command; a second one does.

    The block must check for the signal: `if signals.is_stop_requested: break`. `on_request` is called at the first
    signal. The second one raises `KeyboardInterrupt`. Only the main thread can defer signals.
    """

    def __init__(
        self, on_request: Callable[[], None] | None = None, *, signals: tuple[signal.Signals, ...] = CTRL_C
    ) -> None:
        self._on_ask = on_request
        self._signals = signals
        self._received: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def is_stop_requested(self) -> bool:
        """Whether one of the deferred signals has arrived."""
        return self._received is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread can handle signals
            self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def exit_if_requested(self) -> None:
        """End the command if a deferred signal has arrived, with the exit code 128 plus the signal's number."""
        if self._received is not None:
            raise click.exceptions.Exit(128 + self._received)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.is_stop_requested:
            raise KeyboardInterrupt
        self._received = number
        if self._on_ask is not None:
            self._on_ask()
