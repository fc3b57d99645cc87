"""The end of a job manager: a shutdown is bounded and reports, a second one says so, and closed means closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mainspring import EngineUnavailable, JobStatus, Mainspring, ThreadPool
from mainspring.jobs import JobManager, StopReport
from mainspring.jobs.worker import stop_report
from tests.support import PATIENCE, Background, Gate, within
from tests.unit.jobs.scripted_engines import (
    ENGINES,
    GatedEngine,
    blocked_store,
    make_engine,
    manager_on_one_pool,
)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> GatedEngine:
    return make_engine(request.param, tmp_path)


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(4)
    yield pool
    pool.shutdown(timeout=0)


@pytest.fixture
def manager(engine: GatedEngine, pool: ThreadPool) -> Iterator[JobManager]:
    manager = manager_on_one_pool(pool, engine)
    yield manager
    manager.close(0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait for a store that never answers."""
    monkeypatch.setattr(stop_report, "PATIENCE_FOR_ANSWERS", 0.05)


# -- bounded


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ENGINES)
def test_a_shutdown_ends_although_handlers_keep_the_io_layer_from_running(tmp_path: Path, kind: str) -> None:
    """The pool must not grow, so its one worker waits for an io layer that has no thread."""
    pool = ThreadPool(1, max_workers=1)
    manager = manager_on_one_pool(pool, make_engine(kind, tmp_path))
    entered, errors = Event(), list[EngineUnavailable]()

    def handler() -> None:
        entered.set()
        try:
            manager.prune()  # the io thread makes this call
        except EngineUnavailable as error:
            errors.append(error)

    manager.register("busy", handler)
    manager.start()
    job = manager.submit("busy")
    assert entered.wait(PATIENCE)
    report = within(lambda: manager.shutdown(0))
    assert report == StopReport(interrupted=1, left=(job,), has_left=False)
    assert not report.is_clean
    within(lambda: manager.close(0))  # which releases the handler
    pool.shutdown(timeout=PATIENCE)
    assert [error.reason for error in errors] == ["the job manager is closed"]


@pytest.mark.usefixtures("impatient")
def test_a_shutdown_ends_although_the_store_does_not_answer(
    engine: GatedEngine, manager: JobManager, caplog: pytest.LogCaptureFixture
) -> None:
    working = Gate()
    manager.register("gate", working.__call__)
    manager.start()
    job = manager.submit("gate")
    working.wait_until_entered()
    with blocked_store(engine, manager):
        report = within(lambda: manager.shutdown(0))
        working.open()
    assert (report.interrupted, report.left, report.has_left) == (1, (job,), False)
    assert job in str(report)
    assert str(report) in caplog.text


@pytest.mark.usefixtures("impatient")
def test_what_the_store_did_not_confirm_in_time_is_carried_out_when_it_answers(
    engine: GatedEngine, manager: JobManager
) -> None:
    working = Gate()
    manager.register("gate", working.__call__)
    manager.start()
    job = manager.submit("gate")
    working.wait_until_entered()
    with blocked_store(engine, manager):
        within(lambda: manager.shutdown(0))
    manager.submit("gate", delay=3600)  # behind all that was queued
    working.open()
    assert manager.get(job).status is JobStatus.PENDING
    assert engine.workers() == []


@pytest.mark.usefixtures("impatient")
def test_a_schedule_that_is_being_fired_does_not_keep_a_shutdown(tmp_path: Path) -> None:
    app = Mainspring("memory://")
    engine = make_engine("memory", tmp_path)
    firing = Gate()
    fire = engine.fire

    def wait_and_fire(firings: Any, *, audit: Any = None) -> Any:
        firing()
        return fire(firings, audit=audit)

    engine.fire = wait_and_fire  # type: ignore[method-assign]
    app.make_engine = lambda *_arguments, **_options: engine  # type: ignore[method-assign]

    @app.every(0.01)
    def tick() -> None: ...

    app.manager().start()
    firing.wait_until_entered()
    report = within(lambda: app.manager().shutdown(0))
    assert not report.has_left
    firing.open()
    app.close()


# -- reported


def test_a_clean_shutdown_says_so(manager: JobManager) -> None:
    manager.register("ping", lambda: None)
    manager.start()
    manager.wait(manager.submit("ping"), PATIENCE)
    report = manager.shutdown()
    assert report == StopReport()
    assert report.is_clean
    assert str(report) == "the worker is shut down"


def test_a_second_shutdown_says_that_it_is_shut_down_already_and_what_the_first_one_did(
    manager: JobManager,
) -> None:
    working = Gate()
    manager.register("gate", working.__call__)
    manager.start()
    manager.submit("gate")
    working.wait_until_entered()
    first, second = manager.shutdown(0), manager.shutdown(0)
    working.open()
    assert (first.interrupted, first.was_running, first.already_shut_down) == (1, True, False)
    assert (second.interrupted, second.was_running, second.already_shut_down) == (1, False, True)
    assert str(second) == "the worker was shut down already"


def test_a_manager_that_was_never_started_has_no_worker_to_shut_down(manager: JobManager) -> None:
    report = manager.shutdown()
    assert (report.was_running, report.already_shut_down) == (False, False)
    assert str(report) == "there was no worker to shut down"


def test_a_manager_that_is_started_again_is_shut_down_again(manager: JobManager) -> None:
    manager.start()
    manager.shutdown()
    manager.start()
    assert manager.shutdown() == StopReport()


def test_a_shutdown_during_another_one_waits_for_it_and_has_the_same_report(
    engine: GatedEngine, manager: JobManager
) -> None:
    working = Gate()
    manager.register("gate", working.__call__)
    manager.start()
    job = manager.submit("gate")
    working.wait_until_entered()
    with blocked_store(engine, manager) as gate:
        first = Background(lambda: manager.shutdown(0))
        second = Background(lambda: manager.shutdown(0))
        gate.open()
    reports = sorted([first.result(), second.result()], key=lambda report: report.already_shut_down)
    working.open()
    assert [report.interrupted for report in reports] == [1, 1]
    assert [report.already_shut_down for report in reports] == [False, True]
    assert manager.get(job).status is JobStatus.PENDING


# -- closed

CALLS: dict[str, Callable[[JobManager], object]] = {
    "register": lambda manager: manager.register("pong", lambda: None),
    "submit": lambda manager: manager.submit("ping"),
    "submit_delayed": lambda manager: manager.submit_delayed("ping", delay=60),
    "cancel": lambda manager: manager.cancel("job"),
    "cancel with a timeout": lambda manager: manager.cancel("job", timeout=60),
    "cancel_async": lambda manager: asyncio.run(manager.cancel_async("job")),
    "reschedule": lambda manager: manager.reschedule("job", delay=60),
    "reschedule_async": lambda manager: asyncio.run(manager.reschedule_async("job", delay=60)),
    "retry": lambda manager: manager.retry("job"),
    "retry_async": lambda manager: asyncio.run(manager.retry_async("job")),
    "get": lambda manager: manager.get("job"),
    "list": lambda manager: manager.list(),
    "counts": lambda manager: manager.counts(),
    "explain": lambda manager: manager.explain("job"),
    "events": lambda manager: manager.events(),
    "wait": lambda manager: manager.wait("job", PATIENCE),
    "wait_async": lambda manager: asyncio.run(manager.wait_async("job", PATIENCE)),
    "wait_until_async": lambda manager: asyncio.run(manager.wait_until_async(lambda: True, PATIENCE, "never")),
    "wait_until": lambda manager: manager.wait_until(lambda: True, PATIENCE, "never"),
    "active_jobs": lambda manager: manager.active_jobs(),
    "prune": lambda manager: manager.prune(),
    "start": lambda manager: manager.start(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_closed_manager_refuses_every_call(manager: JobManager, call: str) -> None:
    manager.register("ping", lambda: None)
    manager.submit("ping", id="job")
    manager.close()
    with pytest.raises(EngineUnavailable, match="the job manager is closed; make the call before close"):
        within(lambda: CALLS[call](manager))


def test_a_closed_manager_may_be_closed_and_shut_down_again(manager: JobManager) -> None:
    manager.start()
    manager.close()
    manager.close()
    assert manager.shutdown().already_shut_down


def test_calls_that_wait_for_the_store_when_the_manager_is_closed_are_refused(
    engine: GatedEngine, manager: JobManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.register("ping", lambda: None)
    manager.start()
    monkeypatch.setattr(stop_report, "PATIENCE_FOR_ANSWERS", 0.05)
    monkeypatch.setattr(engine, "close", lambda: None)  # which would wait for the unit
    with blocked_store(engine, manager):
        waiting = [Background(lambda: manager.submit("ping")) for _ in range(3)]
        within(lambda: manager.close(0))
        for call in waiting:
            with pytest.raises(EngineUnavailable, match="the job manager is closed"):
                call.result()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_an_application_that_was_closed_opens_again_but_its_old_manager_does_not(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Mainspring(url)

    @app.job
    def ping() -> None: ...

    ping.submit()
    before = app.manager()
    app.close()
    with pytest.raises(EngineUnavailable, match="the job manager is closed"):
        before.submit(ping.name)
    with app.running():
        assert ping.submit().wait(PATIENCE) is JobStatus.COMPLETED
    app.close()
