"""Noticing that whoever reads the output has gone, while there is nothing to write: `mainspring events | head`."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from threading import Thread
from typing import Self

from mainspring.cli.exits import ReaderGone


class ReaderWatch:
    """Calls `on_gone` from a thread of its own when the reader of the output has closed it."""

    def __init__(self, *, on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self._is_gone = False
        self._told, self._teller = os.pipe()
        self._thread = Thread(target=self._watch, name="mainspring-reader", daemon=True)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # errors and the end of the other side are told in any case
        poll.register(self._told, 0)
        if any(descriptor != self._told for descriptor, _ in poll.poll()):
            self._is_gone = True
            self._on_gone()

    def end_if_gone(self) -> None:
        """End the command if nobody reads what it says."""
        if self._is_gone:
            raise ReaderGone

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._teller)
        self._thread.join()
        os.close(self._told)
