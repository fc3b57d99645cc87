"""What a type checker must refuse: each marked line, for that reason, and no other line."""

from mainspring.errors import QueueFull, RunnerClosed

QueueFull(name="orders", capacity="ten")  # error: arg-type
QueueFull(name="orders")  # error: call-arg
RunnerClosed("orders")  # error: call-arg
RunnerClosed(runner="orders").capacity  # error: attr-defined
