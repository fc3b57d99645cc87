"""Gates at which handlers of any process wait until a test opens them: named pipes in the working directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def make_gate(name: str) -> None:
    """Put up a gate, closed."""
    os.mkfifo(name)


def wait_at(name: str) -> None:
    """Wait until the gate is open."""
    os.close(os.open(name, os.O_RDONLY))  # waits until a process opens it for writing


@contextmanager
def opened(name: str) -> Iterator[None]:
    """Let every process through, while the block lasts."""
    gate = os.open(name, os.O_RDWR)  # reading as well, so that it does not wait for a reader
    try:
        yield
    finally:
        os.close(gate)


def meet(name: str, *, is_first: bool) -> None:
    """Wait for the other one: two at the same place, at the same time."""
    os.close(os.open(name, os.O_RDONLY if is_first else os.O_WRONLY))
