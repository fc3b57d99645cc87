"""The workers of a process on NATS: a heartbeat does not bring back a worker that was given up meanwhile."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from mainspring.engines.nats.jetstream import JetStream
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.subject_names import SubjectNames
from mainspring.engines.nats.workers import WorkerRegistry
from mainspring.engines.nats.write_batch import StoredMessage
from mainspring.jobs.records import WorkerInfo


class StubJetStream:
    """A server that accepts everything, and calls back while it stores a heartbeat."""

    def __init__(self) -> None:
        self.during_commit: Callable[[], None] = lambda: None

    def store(self, _subject: str, _data: bytes) -> int:
        return 7

    def purge(self, _subject: str) -> None: ...

    def commit(self, _draft: Any) -> int:
        self.during_commit()
        return 1

    def scan_all(self, _subject: str, *, most: int) -> Iterator[tuple[str, StoredMessage]]:
        return iter(())

    def monotonic(self) -> int:
        return 0

    local_time = now = monotonic


def give_up_one(workers: WorkerRegistry, number: int) -> None:
    workers.drop(number)


def give_up_all(workers: WorkerRegistry, _number: int) -> None:
    workers.drop_all()


@pytest.mark.parametrize("give_up", [give_up_one, give_up_all])
def test_a_worker_that_is_given_up_during_a_heartbeat_stays_given_up(
    give_up: Callable[[WorkerRegistry, int], None],
) -> None:
    jetstream = StubJetStream()
    workers = WorkerRegistry(
        cast("JetStream", jetstream), SubjectNames("shop"), NatsSettings(), declare_presence=lambda: None
    )
    number = workers.enroll(WorkerInfo("tester", 1, ("ping",)))
    assert workers.renew(number) is True
    jetstream.during_commit = lambda: give_up(workers, number)
    assert workers.renew(number) is False
    assert workers.is_enrolled(number) is False
