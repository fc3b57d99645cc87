"""Queues with due jobs that no worker serves: a worker reports them, and only them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from mainspring.jobs.backlog import WaitingJobs
from mainspring.jobs.records import NewJob, WorkerInfo, WorkerRecord
from mainspring.jobs.worker.unserved_queues import UnservedQueues
from mainspring.testing import ManualClock
from mainspring.worker_health import WorkerHealth
from tests.support import eventually
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager

SECONDS = 1_000_000_000
NOW = 100_000_000
JOBS = WaitingJobs("ping", "orders", "a", 3, "order-42", 25_000_000)


def worker(*queues: str, serves_all: bool = False, is_gone: bool = False) -> WorkerRecord:
    return WorkerRecord(1, WorkerInfo("host", 7, ("ping",), None if serves_all else queues), NOW, is_gone)


class Observation:
    """The observer of a worker that serves the queue `mail`; it is shown once a second which jobs wait."""

    def __init__(self, *, after: int = 60, queues: tuple[str, ...] | None = ("mail",)) -> None:
        self.clock = ManualClock()
        self.observer = UnservedQueues(self.clock, after_ns=after * SECONDS, queues=queues)

    def watch(self, seconds: int, *waiting: WaitingJobs) -> list[str]:
        """Return the queues that the observer suspects afterwards."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.observer.observe(waiting)
        return list(self.observer.suspects)

    def compare(self, *workers: WorkerRecord) -> str | None:
        self.observer.compare(workers, NOW)
        return self.observer.problem


def test_a_queue_that_no_worker_serves_is_reported_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    observation = Observation()
    assert observation.watch(60, JOBS) == []
    assert observation.watch(1, JOBS) == ["orders"]
    problem = observation.compare(worker("mail"), worker("orders", is_gone=True))
    assert problem == (
        "no worker serves queue 'orders': 3 due jobs of ping in queue orders (the oldest, order-42, for 75 s); "
        "the workers serve 'mail'; start a worker that serves it with --queues orders"
    )
    observation.compare(worker("mail"))
    assert [(record.levelname, record.message) for record in caplog.records] == [("ERROR", problem)]


def test_a_mistyped_queue_of_a_worker_is_named() -> None:
    observation = Observation(queues=("ordes",))
    observation.watch(61, JOBS)
    assert (observation.compare(worker("ordes")) or "").endswith(
        "; the workers serve 'ordes'; if 'ordes' is a typing error, correct it; otherwise start a worker that "
        "serves it with --queues orders"
    )


@pytest.mark.parametrize("other", [worker("orders", "mail"), worker(serves_all=True)])
def test_a_queue_that_another_worker_serves_is_not_reported(other: WorkerRecord) -> None:
    observation = Observation()
    assert observation.watch(61, JOBS) == ["orders"]
    assert observation.compare(worker("mail"), other) is None


def test_queues_whose_jobs_are_claimed_are_not_suspected() -> None:
    observation = Observation()
    assert [observation.watch(50, replace(JOBS, mark=mark)) for mark in "abcd"] == [[]] * 4


def test_its_own_queues_are_not_suspected() -> None:
    assert Observation(queues=("orders",)).watch(100, JOBS) == []
    assert Observation(queues=None).watch(100, JOBS) == []


def test_zero_turns_it_off() -> None:
    assert Observation(after=0).watch(600, JOBS) == []


def test_it_tells_when_the_queue_is_served_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observation = Observation()
    observation.watch(61, JOBS)
    observation.compare(worker("mail"))
    observation.watch(1)
    assert observation.observer.problem is None
    assert caplog.messages[1:] == ["queue 'orders' is served again, or none of its jobs can start now"]


def test_a_reported_queue_stays_reported_when_its_first_job_is_canceled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    observation = Observation()
    observation.watch(61, JOBS)
    problem = observation.compare(worker("mail"))
    canceled = replace(JOBS, mark="b", count=2, oldest="order-43")
    assert observation.watch(1, canceled) == ["orders"]
    assert observation.observer.problem == problem
    assert "order-43" in (observation.compare(worker("mail")) or "")
    assert caplog.messages == [problem]
    assert observation.compare(worker("mail"), worker("orders")) is None
    assert caplog.messages[1:] == ["queue 'orders' is served again, or none of its jobs can start now"]
    assert observation.watch(1, canceled) == []


def test_a_report_names_the_jobs_that_were_not_claimed_for_long() -> None:
    observation = Observation()
    observation.watch(61, JOBS)
    observation.compare(worker("mail"))
    observation.watch(1, WaitingJobs("a new type", "orders", "n", 1), JOBS)
    assert "3 due jobs of ping" in (observation.compare(worker("mail")) or "")


# -- in a worker


@pytest.fixture
def shop(clock: ManualClock) -> Iterator[ManagerFixture]:
    with running_manager(clock, has_maintenance=True, queues=("mail",)) as shop:
        yield shop


def test_the_health_of_a_worker_names_the_queue(shop: ManagerFixture) -> None:
    reports: list[WorkerHealth] = []
    shop.manager.on_turn = reports.append
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.engine.submit([NewJob("order-42", "ping", "orders", 1, shop.engine.now(), b"{}", "json")])
    shop.clock.advance(59)
    assert {report.stall for report in reports} == {None}
    shop.clock.advance(10)
    assert "no worker serves queue 'orders': 1 due job of ping" in (reports[-1].stall or "")
    shop.engine.enroll(WorkerInfo("other", 1, ("ping",), ("orders",)))
    shop.clock.advance(20)
    assert eventually(lambda: reports[-1].stall is None)
