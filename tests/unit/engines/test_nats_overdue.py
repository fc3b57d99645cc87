"""Scheduled messages that the server has not published: which are stored again, and how many are read at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from mainspring.engines.nats.jetstream import JetStream, ScheduledMessage
from mainspring.engines.nats.overdue import HURRY_SECONDS, OVERDUE, PAGE, PASS_SECONDS, OverdueMessages
from mainspring.engines.nats.storage import SILENT_SECONDS, StorageState
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.write_batch import Write
from mainspring.jobs.timestamps import MICROSECONDS

NOW = 1_700_000_000 * MICROSECONDS
FULL = {"err_code": 10023, "description": "insufficient resources"}


class FakeServer:
    """A stream of scheduled messages. Each page takes `page_seconds` to read."""

    address = "memory"

    def __init__(self, *instants: int | None) -> None:
        self.messages = [
            ScheduledMessage(f"p.at.job.{number}", number, b"", "p.ready.job", instant)
            for number, instant in enumerate(instants, 1)
        ]
        self.seconds = 1_000.0
        self.page_seconds = 0.0
        self.answered = 0.0
        self.storage = StorageState("memory", lambda: self.seconds, lambda: self.answered)
        self.stored: list[Write] = []
        self.pages = 0
        self.sent: list[str] = []

    def now(self) -> int:
        return NOW

    def monotonic(self) -> int:
        return round(self.seconds * MICROSECONDS)

    def send(self, messages: Sequence[tuple[str, bytes]]) -> None:
        self.sent += [subject for subject, _ in messages]

    def scan_scheduled(self, _subject: str, *, after: int, most: int) -> list[ScheduledMessage]:
        self.pages += 1
        self.seconds += self.page_seconds
        return [message for message in self.messages if message.revision > after][:most]

    def store_each(self, writes: Sequence[Write]) -> list[int | None]:
        self.stored += writes
        return [write.expected for write in writes]


@pytest.fixture
def make() -> Callable[[FakeServer], OverdueMessages]:
    def make(server: FakeServer) -> OverdueMessages:
        return OverdueMessages(cast("JetStream", server), SubjectNames("p"))

    return make


def test_only_what_is_long_overdue_is_stored_again(make: Callable[[FakeServer], OverdueMessages]) -> None:
    server = FakeServer(NOW - OVERDUE, NOW - OVERDUE + 1, NOW + 1, None)
    assert make(server).repair(is_first=False) == 1
    (write,) = server.stored
    assert (write.subject, write.expected) == ("p.at.job.1", 1), "it replaces only the message that was read"
    assert write.headers == {
        "Nats-Schedule": "@at 2023-11-14T22:13:15Z",
        "Nats-Schedule-Target": "p.ready.job",
    }


def test_a_hurried_pass_reads_for_a_part_of_each_second(make: Callable[[FakeServer], OverdueMessages]) -> None:
    server = FakeServer(*[NOW + 1] * (10 * PAGE))
    server.page_seconds = HURRY_SECONDS / 2.5
    overdue = make(server)
    overdue.repair(is_first=False)
    assert server.pages == 3
    for _ in range(3):
        overdue.repair(is_first=False)
    assert server.pages == 11
    overdue.repair(is_first=False)
    assert server.pages == 11, "the pass is over, and another worker begins the next one"


def test_the_first_worker_reads_a_page_in_each_sweep_of_a_pass(
    make: Callable[[FakeServer], OverdueMessages],
) -> None:
    server = FakeServer(*[NOW + 1] * (2 * PAGE + 1))
    overdue = make(server)
    overdue.repair(is_first=True)
    assert server.pages == 3, "the first pass of a process is in a hurry"
    overdue.repair(is_first=True)
    assert server.pages == 3
    server.seconds += PASS_SECONDS
    overdue.repair(is_first=False)
    assert server.pages == 3
    for pages in (4, 5, 6, 6):
        overdue.repair(is_first=True)
        assert server.pages == pages


def test_nothing_is_read_while_the_server_refuses_messages(make: Callable[[FakeServer], OverdueMessages]) -> None:
    server = FakeServer(NOW - OVERDUE)
    overdue = make(server)
    server.storage.refused(FULL)
    assert server.sent == ["p.note.storage"], "other processes learn of it"
    overdue.repair(is_first=True)
    assert server.pages == 0
    server.storage.stored()
    assert overdue.repair(is_first=False) == 1


def test_a_server_is_silent_if_it_answers_other_requests() -> None:
    server = FakeServer()
    server.storage.unanswered(server.seconds)
    server.seconds += SILENT_SECONDS
    assert server.storage.problem is None, "it may be out of reach"
    server.answered = server.seconds
    problem = server.storage.problem
    assert problem is not None
    assert problem.text.startswith("the server answers reads, but confirms no message")
    server.storage.stored()
    assert server.storage.problem is None


def test_another_refusal_says_nothing_about_the_storage() -> None:
    server = FakeServer()
    server.storage.refused({"err_code": 10071, "description": "wrong last sequence: 5"})
    assert server.storage.problem is None
