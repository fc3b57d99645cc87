"""Maintenance once a second: clock jumps, rescue, heartbeats, and a warning about unknown job types."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from mainspring import JobStatus, current_job
from mainspring.jobs.engine import Demand
from mainspring.jobs.records import NewJob, Outcome, WorkerInfo
from mainspring.testing import ManualClock
from tests.support import Gate
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager

LEADS = {"lead": 1_000_000, "start_lead": 10_000}


@pytest.fixture
def shop(clock: ManualClock) -> Iterator[ManagerFixture]:
    with running_manager(clock, has_maintenance=True) as shop:
        yield shop


@pytest.fixture
def ran(shop: ManagerFixture) -> list[str]:
    ids: list[str] = []
    shop.manager.register("ping", lambda: ids.append(current_job().id))
    shop.manager.start()
    return ids


def test_a_wall_clock_that_was_set_forward_makes_jobs_due(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    job = shop.manager.submit("ping", delay=3_600)
    shop.clock.advance(5)
    shop.clock.step_wall(3_600)
    shop.clock.advance(1)
    assert ran == [job]
    assert "the wall clock jumped by 3600.000 s; the worker sets its timers again" in caplog.text


def test_a_wall_clock_that_was_set_back_puts_jobs_off(shop: ManagerFixture, ran: list[str]) -> None:
    job = shop.manager.submit("ping", delay=10)
    shop.clock.advance(9.5)
    shop.clock.step_wall(-60)
    shop.clock.advance(60)
    before = list(ran)
    shop.clock.advance(1)
    assert (before, ran) == ([], [job])


def test_a_small_step_of_the_wall_clock_is_not_worth_a_word(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shop.clock.step_wall(0.05)
    shop.clock.advance(2)
    assert caplog.text == ""


def test_a_worker_shows_that_it_lives_every_fifteen_seconds(shop: ManagerFixture, ran: list[str]) -> None:
    shop.clock.advance(45)
    for _ in range(3):
        shop.engine.wait_for("renew")


def test_a_live_worker_keeps_its_jobs(shop: ManagerFixture, ran: list[str]) -> None:
    shop.clock.advance(200)
    other = shop.engine.enroll(WorkerInfo("other", 1, ()))
    assert shop.engine.sweep(other).rescued == []
    assert shop.engine.renew(1)


def test_a_worker_that_was_declared_dead_begins_again(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shop.clock.advance(1)
    shop.engine.leave(1)  # as a sweep of another worker does after a long silence
    shop.clock.advance(20)
    job = shop.manager.submit("ping")
    shop.clock.advance(1)
    assert ran == [job]
    assert "worker 1 counts as dead" in caplog.text


def test_an_outcome_is_stored_under_the_number_under_which_its_job_was_leased(
    shop: ManagerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    shop.manager.register("slow", gate)
    shop.manager.start()
    settled: list[int] = []
    settle: Callable[[int, Sequence[Outcome]], list[bool]] = shop.engine.settle

    def record(worker: int, outcomes: Sequence[Outcome]) -> list[bool]:
        settled.append(worker)
        return settle(worker, outcomes)

    monkeypatch.setattr(shop.engine, "settle", record)
    job = shop.manager.submit("slow")
    gate.wait_until_entered()
    other = shop.engine.enroll(WorkerInfo("other", 1, ()))
    shop.engine.leave(1)
    assert shop.engine.sweep(other).rescued == [job]
    shop.manager.announce_handlers()  # the worker fetches, and learns that it was declared dead
    gate.wait_until_entered()  # it runs the rescued job under its new number
    gate.open()
    shop.clock.settle()
    assert set(settled) == {1, 3}


def test_jobs_of_a_dead_worker_are_rescued(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    dead = shop.engine.enroll(WorkerInfo("dead", 1, ("ping",)))
    shop.manager.shutdown(0)
    job = shop.manager.submit("ping")
    shop.engine.take(dead, [Demand(types=("ping",), starts=1, ahead=0)], **LEADS)
    shop.manager.start()
    shop.clock.advance(40)
    before = shop.manager.get(job).status
    shop.clock.advance(10)
    info = shop.manager.get(job)
    assert (before, info.status, info.crashes, info.attempts) == (JobStatus.RUNNING, JobStatus.COMPLETED, 1, 0)
    assert ran == [job]
    assert f"rescued 1 job from workers that died or were removed, to run again; job ids: {job}" in caplog.text


def test_an_unknown_handler_is_spoken_of_once(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    now = shop.engine.now()
    for number in range(3):
        shop.engine.submit([NewJob(f"job-{number}", "shop.gone", "default", 1, now, b"{}", "json")])
    shop.clock.advance(60)
    assert caplog.text.count("jobs of type 'shop.gone' are due, but this worker has no handler") == 1
    assert shop.manager.counts()[JobStatus.PENDING] == 3


def test_a_sweep_that_fails_is_told_and_the_next_one_works(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shop.engine.fail("sweep", 2)
    shop.clock.advance(5)
    assert (
        caplog.text.count("could not rescue jobs of dead workers and tries again in a second: test: sweep fails")
        == 1  # the lines after the first one follow once a minute
    )
    job = shop.manager.submit("ping")
    shop.clock.advance(1)
    assert ran == [job]


def test_after_a_stop_there_are_no_duties(
    shop: ManagerFixture, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shop.manager.shutdown(0)
    shop.engine.fail("sweep", 100)
    shop.clock.advance(60)
    assert caplog.text == ""
