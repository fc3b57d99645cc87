"""What a type checker must accept of the errors."""

from typing import assert_type

from mainspring.errors import (
    ArgumentsTooLarge,
    DuplicateJob,
    EngineUnavailable,
    InvalidArguments,
    LimitExceeded,
    MainspringError,
    PartialSubmit,
    QueueFull,
    StoreCorrupt,
    UnknownHandler,
    WouldDeadlock,
)

full = QueueFull(name="orders", capacity=10)
assert_type(full.name, str)
assert_type(full.capacity, int)

deadlock: RuntimeError = WouldDeadlock(runner="orders", task="reload")
every: list[MainspringError] = [full]

duplicate = DuplicateJob(existing_id="order-42")
assert_type(duplicate.existing_id, str)
partial = PartialSubmit(done=["a"], failed=["b"], cause="the disk is full")
assert_type(partial.failed, list[str])
wrong = InvalidArguments(handler="shop.cancel", parameter=None, problem="too many")
assert_type(wrong.parameter, str | None)
assert_type(UnknownHandler(name="shop.gone").known, tuple[str, ...])

large = ArgumentsTooLarge(handler="shop.cancel", size=2, limit=1)
both: tuple[InvalidArguments, LimitExceeded] = (large, large)
unavailable: EngineUnavailable = StoreCorrupt(engine="file", reason="damaged", remedy="restore a backup")
