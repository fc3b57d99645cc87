"""A bounded first-in-first-out buffer, safe for many producers and many consumers.

`push` writes a slot before it increments the count, and both change under one lock. So no consumer reads a slot
that is not filled, and a full buffer cannot be mistaken for an empty one.
"""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

from mainspring.errors import QueueEmpty, QueueFull
from mainspring.runners.validation import require_positive

T = TypeVar("T")


class RingBuffer(Generic[T]):
    """A first-in-first-out buffer with `capacity` slots, for many threads."""

    __slots__ = ("_count", "_head", "_lock", "_name", "_slots")

    def __init__(self, capacity: int, *, name: str = "ring") -> None:
        require_positive(capacity, "capacity", "items")
        self._name = name
        self._lock = Lock()  # guards the following attributes
        self._slots: list[T | None] = [None] * capacity
        self._head = 0
        self._count = 0

    @property
    def capacity(self) -> int:
        """How many items the buffer can hold."""
        return len(self._slots)

    def push(self, item: T) -> None:
        """Append an item; raise `QueueFull` if there is no room."""
        with self._lock:
            capacity = len(self._slots)
            if self._count < capacity:
                self._slots[(self._head + self._count) % capacity] = item
                self._count += 1
                return
        raise QueueFull(name=self._name, capacity=capacity)

    def pop(self) -> T:
        """Remove and return the oldest item; raise `QueueEmpty` if there is none."""
        with self._lock:
            if self._count:
                item = self._slots[self._head]
                self._slots[self._head] = None
                self._head = (self._head + 1) % len(self._slots)
                self._count -= 1
                return item  # type: ignore[return-value]  # a counted slot is filled
        raise QueueEmpty(name=self._name)

    def __len__(self) -> int:
        return self._count
