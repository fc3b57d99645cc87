"""Reminders that were delivered: each is handled and acknowledged, or kept for the next time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring.engines.nats.deliveries import ACK, Delivery
from mainspring.engines.nats.reminders import ReminderHandler
from mainspring.errors import EngineUnavailable

PREFIX = "shop.reminder."
DELIVERIES = [Delivery(f"{PREFIX}enter.{name}", name, b"", 1, 0, True, 1, 0.0) for name in ("a", "b", "c", "d")]


class Server:
    """Stands for the server and all transactions; `failures` are the errors of the next transactions, or None."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.undelivered = list(DELIVERIES)
        self.acknowledged: list[str] = []
        self.names = SimpleNamespace(reminders=PREFIX)
        self.jetstream: Any = self

    def now(self) -> int:
        return 1

    def consumer_of(self, _subject: str) -> str:
        return "reminders"

    def take_reminders(self) -> list[Delivery]:
        taken, self.undelivered = self.undelivered, []
        return taken

    def fetch(self, _requests: object) -> list[Delivery]:
        return []

    def run_many(self, _items: Sequence[Delivery], _work: object, **_options: object) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def send(self, replies: Sequence[tuple[str, bytes]]) -> None:
        self.acknowledged += [name for name, reply in replies if reply == ACK]

    def call_after(self, _seconds: float, _function: object) -> None:
        pass


def handler_on(server: Any) -> ReminderHandler:
    none: Any = None
    return ReminderHandler(
        server,
        server,
        server,
        admission=none,
        job_queue=none,
        event_log=none,
        dead_letters=none,
        wake=lambda: None,
    )


def unavailable() -> EngineUnavailable:
    return EngineUnavailable(engine="NATS", reason="it is gone", remedy="wait")


def test_all_reminders_are_kept_while_the_server_is_unavailable() -> None:
    server = Server(unavailable())
    handler = handler_on(server)
    with pytest.raises(EngineUnavailable):
        handler.handle_due()
    assert server.acknowledged == []
    handler.handle_due()
    assert server.acknowledged == ["a", "b", "c", "d"]


def test_reminders_are_kept_if_the_server_becomes_unavailable_after_one_of_them_has_failed() -> None:
    server = Server(RuntimeError("a reminder cannot be handled"), None, unavailable())
    handler = handler_on(server)
    with pytest.raises(EngineUnavailable):
        handler.handle_due()
    assert server.acknowledged == ["a"]
    assert sorted(handler.kept_replies()) == ["b", "c", "d"]
    handler.handle_due()
    assert sorted(server.acknowledged) == ["a", "b", "c", "d"]
    assert handler.kept_replies() == []
