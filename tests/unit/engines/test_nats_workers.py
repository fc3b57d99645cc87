"""The workers of a process on NATS: a heartbeat does not bring back a worker that was given up meanwhile."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.workers import Workers
from mainspring.jobs.records import WorkerInfo


class StubLink:
    """A server that accepts everything, and calls back while it stores a heartbeat."""

    def __init__(self) -> None:
        self.during_commit: Callable[[], None] = lambda: None

    def store(self, _subject: str, _data: bytes) -> int:
        return 7

    def empty(self, _subject: str) -> None: ...

    def commit(self, _draft: Any) -> int:
        self.during_commit()
        return 1

    def monotonic(self) -> int:
        return 0

    own_time = now = monotonic


def give_up_one(workers: Workers, number: int) -> None:
    workers.forget_one(number)


def give_up_all(workers: Workers, _number: int) -> None:
    workers.forget_ours()


@pytest.mark.parametrize("give_up", [give_up_one, give_up_all])
def test_a_worker_that_is_given_up_during_a_heartbeat_stays_given_up(
    give_up: Callable[[Workers, int], None],
) -> None:
    link = StubLink()
    workers = Workers(cast("Link", link), Names("shop"), NatsSettings())
    number = workers.enroll(WorkerInfo("tester", 1, ("ping",)))
    assert workers.renew(number) is True
    link.during_commit = lambda: give_up(workers, number)
    assert workers.renew(number) is False
    assert workers.is_enrolled(number) is False
