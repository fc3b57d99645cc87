"""`/healthz` and `/readyz`: the rule of `mainspring healthcheck`, without details."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring import Mainspring
from mainspring.errors import EngineUnavailable
from mainspring.foreground.health_rules import HealthLevel, OwnHealth, ProblemKind, find_problem
from mainspring.security.http_limits import HttpLimits
from mainspring.testing import ManualClock
from mainspring.web import asgi, probes
from mainspring.web.credentials import ClosedAuthenticator
from mainspring.web.probes import Probes
from mainspring.worker_health import WorkerHealth, WorkerState
from tests.asgi_client import request
from tests.support import Gate, eventually

SECOND = 1_000_000_000


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def report(clock: ManualClock, **changes: Any) -> WorkerHealth:
    now = clock.monotonic_ns()
    well = WorkerHealth(WorkerState.READY, now, now, None, None, 0)
    return msgspec.structs.replace(well, **changes)


def test_a_process_is_not_ready_after_its_store_was_removed(tmp_path: Path) -> None:
    with Mainspring(f"sqlite:///{tmp_path / 'shop.db'}") as app:
        app.counts()
        assert asyncio.run(Probes(app).ready()).is_ok
        (tmp_path / "shop.db").unlink()
        assert eventually(lambda: asyncio.run(Probes(app).ready()).reason is ProblemKind.STORE)


@pytest.mark.parametrize(
    ("changes", "live", "ready"),
    [
        ({}, None, None),
        ({"stall": "jobs wait"}, None, None),
        ({"trouble": "the password is wrong"}, None, ProblemKind.STORE),
        ({"answered_ns": None}, None, ProblemKind.STORE),
        ({"state": WorkerState.STARTING}, None, ProblemKind.STARTING),
        ({"state": WorkerState.STOPPING}, None, ProblemKind.STOPPING),
    ],
)
def test_probes_beside_a_worker_tell_its_health(
    app: Mainspring, changes: dict[str, Any], live: ProblemKind | None, ready: ProblemKind | None
) -> None:
    clock = ManualClock()
    clock.advance(100)
    health = OwnHealth(clock)
    health.update(report(clock, **changes))
    server = asgi.build(app, ClosedAuthenticator(), worker=health, limits=HttpLimits())
    for path, level, expected in (("/healthz", HealthLevel.LIVE, live), ("/readyz", HealthLevel.READY, ready)):
        answer = request(server, path)
        if expected is None:
            assert (answer.status, answer.json) == (200, {"status": "ok"})
        else:
            assert (answer.status, answer.json) == (503, {"status": "unavailable", "reason": expected})
        found = find_problem(report(clock, **changes), level, engine="x", now=clock.monotonic_ns())
        assert (found.kind if found else None) == expected  # the rule of `healthcheck`


def test_a_worker_that_hangs_is_not_live(app: Mainspring) -> None:
    clock = ManualClock()
    health = OwnHealth(clock)
    health.update(report(clock))
    server = asgi.build(app, ClosedAuthenticator(), worker=health)
    clock.advance(15)
    assert request(server, "/healthz").status == 200
    clock.advance(0.001)
    assert request(server, "/healthz").json == {"status": "unavailable", "reason": "silent"}


def test_before_its_first_report_a_worker_is_live_and_not_ready(app: Mainspring) -> None:
    server = asgi.build(app, ClosedAuthenticator(), worker=OwnHealth(ManualClock()))
    assert request(server, "/healthz").status == 200
    assert request(server, "/readyz").json["reason"] == "starting"


def test_without_a_worker_readiness_is_an_answer_of_the_store(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    asked: list[None] = []
    is_broken = False

    def ask() -> tuple[str, ...]:
        asked.append(None)
        if is_broken:
            raise EngineUnavailable(engine="/secret/path", reason="gone", remedy="look")
        return ()

    monkeypatch.setattr(app.manager().engine, "paused_queues", ask)
    prober = Probes(app, clock=clock)

    async def both() -> list[Any]:
        return [await prober.live(), *await asyncio.gather(prober.ready(), prober.ready())]

    assert [each.reason for each in asyncio.run(both())] == [None, None, None]
    assert len(asked) == 1
    is_broken = True
    assert [each.reason for each in asyncio.run(both())] == [None, None, None]  # the last answer is repeated
    clock.advance(1.001)
    assert [each.reason for each in asyncio.run(both())] == [None, "store", "store"]
    assert len(asked) == 2


def test_a_store_that_hangs_is_not_waited_for(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr(app.manager().engine, "paused_queues", gate)
    monkeypatch.setattr(probes, "STORE_SECONDS", 0.01)
    try:
        assert asyncio.run(Probes(app).ready()).reason == "store"
    finally:
        gate.open()


def test_a_store_that_cannot_be_opened_is_not_ready() -> None:
    with Mainspring("sqlite:////no/such/folder/shop.db") as app:
        answer = request(app.asgi(), "/readyz")
        assert (answer.status, answer.json["reason"]) == (503, "store")
        assert "folder" not in answer.body.decode()
        assert request(app.asgi(), "/healthz").status == 200
