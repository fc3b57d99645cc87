"""Gates: named pipes in the working directory at which handlers of any process wait until a test opens them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def make_gate(name: str) -> None:
    """Create a closed gate."""
    os.mkfifo(name)


def wait_at(name: str) -> None:
    """Wait until the gate is open."""
    os.close(os.open(name, os.O_RDONLY))  # waits until a process opens it for writing


@contextmanager
def opened(name: str) -> Iterator[None]:
    """Open the gate during the block."""
    gate = os.open(name, os.O_RDWR)  # for reading, too: otherwise this would wait for a reader
    try:
        yield
    finally:
        os.close(gate)


def meet(name: str, *, is_first: bool) -> None:
    """Wait until another process calls `meet` with the opposite `is_first`."""
    os.close(os.open(name, os.O_RDONLY if is_first else os.O_WRONLY))
