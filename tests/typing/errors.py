"""What a type checker must accept of the errors."""

from typing import assert_type

from mainspring.errors import MainspringError, QueueFull, WouldDeadlock

full = QueueFull(name="orders", capacity=10)
assert_type(full.name, str)
assert_type(full.capacity, int)

deadlock: RuntimeError = WouldDeadlock(runner="orders", task="reload")
every: list[MainspringError] = [full]
