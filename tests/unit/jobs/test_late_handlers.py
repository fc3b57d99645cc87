"""Handlers that are registered while a worker runs: it takes their jobs, and the store knows that it does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring, Reason
from mainspring.jobs import JsonSerializer
from mainspring.jobs.handler_options import HandlerOptions
from mainspring.jobs.handlers import Handler, HandlerRegistry
from mainspring.jobs.records import WorkerInfo
from mainspring.jobs.worker.maintenance import HandlerAnnouncer
from mainspring.testing import ManualClock
from tests.support import PATIENCE, Gate
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager
from tests.unit.jobs.scripted_engines import ScriptedEngine


def _types(shop: ManagerFixture) -> tuple[str, ...]:
    shop.clock.settle()
    (state,) = shop.engine.workers()
    return state.info.types


def test_a_worker_announces_a_handler_that_is_registered_after_its_start(shop: ManagerFixture) -> None:
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    before = _types(shop)
    shop.manager.register("pong", lambda: None, aliases=("old.pong",))
    assert (before, _types(shop)) == (("ping",), ("ping", "pong", "old.pong"))


def test_jobs_that_wait_for_a_handler_run_as_soon_as_it_is_registered(shop: ManagerFixture) -> None:
    ran: list[str] = []
    with running_manager(shop.clock, shop.engine) as submitter:
        submitter.manager.register("pong", lambda: None)
        job = submitter.manager.submit("pong")
    shop.manager.start()
    shop.clock.settle()
    shop.manager.register("pong", lambda: ran.append(job))
    shop.clock.settle()
    assert ran == [job]


def test_handlers_that_are_registered_while_an_announcement_is_under_way_are_announced_after_it(
    shop: ManagerFixture,
) -> None:
    shop.manager.start()
    shop.clock.settle()
    gate = shop.engine.gate = Gate()
    shop.manager.register("a", lambda: None)
    gate.wait_until_entered()
    shop.manager.register("b", lambda: None)
    gate.open()
    assert _types(shop) == ("a", "b")


def test_an_announcement_that_failed_is_made_again(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(clock=clock)
    with running_manager(clock, engine, has_maintenance=True) as shop:
        shop.manager.start()
        clock.settle()
        engine.fail("announce")
        shop.manager.register("ping", lambda: None)
        assert _types(shop) == ()
        assert caplog.messages[0].startswith(
            "worker 1 could not store its new job types and tries again within a second: "
        )
        clock.advance(1)
        assert _types(shop) == ("ping",)


def test_an_announcement_that_fails_after_the_worker_has_registered_again_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    operations: list[Any] = []
    layers: Any = SimpleNamespace(
        io=SimpleNamespace(dispatch=operations.append),
        control=SimpleNamespace(post=lambda function, *arguments: function(*arguments)),
    )
    registry = HandlerRegistry()
    numbers = [1]
    announcer = HandlerAnnouncer(
        WorkerInfo("host:1", 1, ()), registry, layers, worker=lambda: numbers[-1], on_dead=numbers.append
    )
    registry.add(Handler("ping", lambda: None, HandlerOptions(), JsonSerializer()))
    announcer.update()
    numbers.append(2)
    operations[0].reply.fail(OSError("the disk is gone"))
    assert (caplog.messages, announcer.is_busy) == ([], False)


def test_a_worker_that_was_declared_dead_begins_again_with_all_its_handlers(shop: ManagerFixture) -> None:
    shop.manager.register("ping", lambda: None)
    shop.manager.start()
    shop.clock.settle()
    (state,) = shop.engine.workers()
    shop.engine.leave(state.number)
    shop.manager.register("pong", lambda: None)
    assert _types(shop) == ("ping", "pong")
    (state,) = shop.engine.workers()
    assert state.info.types == ("ping", "pong")


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_explain_knows_that_a_worker_knows_a_handler_that_was_decorated_after_its_start(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gate = Gate()
    with Mainspring(url, threads=1) as app, app.running():

        @app.job(name="late")
        def late() -> None:
            gate()

        first = late.submit()
        gate.wait_until_entered()
        second = late.submit()  # behind the first one, for which the one thread works
        explanation = second.explain()
        gate.open()
        assert second.wait(PATIENCE) is JobStatus.COMPLETED
        assert first.wait(PATIENCE) is JobStatus.COMPLETED
    assert explanation.reason in {Reason.QUEUED, Reason.TAKEN}, explanation.text
