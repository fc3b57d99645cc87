"""`started` events of a worker: one when a handler begins, none for a job that it hands back."""

from __future__ import annotations

from collections import Counter

import pytest

from mainspring import JobStatus
from mainspring.jobs.events import EventKind
from mainspring.jobs.timestamps import MICROSECONDS
from tests.support import Gate
from tests.unit.jobs.manager_fixture import ManagerFixture


@pytest.fixture
def threads() -> int:
    return 1


def listen(shop: ManagerFixture) -> str:
    return shop.engine.listen(shop.engine.now() + 3600 * MICROSECONDS)


def started(shop: ManagerFixture, place: str) -> Counter[str]:
    events = shop.engine.events(place, 1_000).events
    return Counter(event.id for event in events if event.kind is EventKind.STARTED)


def test_a_job_that_finds_no_slot_in_time_has_not_started(shop: ManagerFixture) -> None:
    place = listen(shop)
    gate, ran = Gate(), Gate()
    ran.open()
    shop.manager.register("gate", gate.__call__)
    shop.manager.register("ping", ran.__call__)
    shop.manager.start()
    held = shop.manager.submit("ping", delay=0.5)
    shop.clock.settle()
    busy = shop.manager.submit("gate")
    gate.wait_until_entered()
    shop.clock.jump(0.5)
    shop.engine.wait_for("start")
    shop.wait_for_hand_back()
    assert shop.manager.get(held).status is JobStatus.PENDING
    assert started(shop, place) == {busy: 1}
    gate.open()
    ran.wait_until_entered()
    shop.clock.settle()
    assert started(shop, place) == {busy: 1, held: 1}
    assert [shop.manager.get(job).starts for job in (busy, held)] == [1, 1]


def test_a_handler_that_begins_is_told_while_it_runs(shop: ManagerFixture) -> None:
    place = listen(shop)
    gate = Gate()
    shop.manager.register("gate", gate.__call__)
    shop.manager.start()
    job = shop.manager.submit("gate")
    (report,) = shop.engine.wait_for("report")
    assert (report.lease.id, report.progress) == (job, None)
    assert started(shop, place) == {job: 1}
    assert shop.manager.get(job).status is JobStatus.RUNNING
    gate.open()


def test_a_worker_reports_no_begin_while_no_process_follows(shop: ManagerFixture) -> None:
    ran = Gate()
    ran.open()
    shop.manager.register("ping", ran.__call__)
    shop.manager.start()
    shop.manager.submit("ping")
    outcome = shop.wait_for_outcome()
    assert outcome.began is not None
    assert shop.engine.is_idle("report")
