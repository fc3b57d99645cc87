"""The endpoints for operators on SQLite: in memory, in a file, and with the serializer msgpack."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mainspring import JobFunction, JobHandle, Mainspring, Retry
from mainspring.doctor import Report
from mainspring.web.api import store_state
from tests.api_site import ApiSite
from tests.asgi_client import Answer, request_async
from tests.blank_stores import make_blank_store
from tests.operator_api_tests import (
    NIGHTLY,
    AuditApiTests,
    DeadLetterApiTests,
    QueueApiTests,
    ScheduleApiTests,
    add_operator_handlers,
    put,
    send,
)
from tests.support import PATIENCE

pytestmark = pytest.mark.long


@pytest.fixture(params=["memory", "file", "msgpack"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiSite]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{make_blank_store(tmp_path / 'jobs.db')}"
    options: dict[str, Any] = {"serializer": "msgpack"} if request.param == "msgpack" else {}
    with Mainspring(url, grace=0, **options) as app:
        add_operator_handlers(app)
        yield ApiSite(app)


class TestSchedules(ScheduleApiTests):
    """Schedules on SQLite."""


class TestQueues(QueueApiTests):
    """Queues, workers, statistics and doctor on SQLite."""


class TestDeadLetters(DeadLetterApiTests):
    """Dead letters on SQLite."""


class TestAudit(AuditApiTests):
    """The audit trail on SQLite."""


@pytest.fixture
def small_site() -> Iterator[ApiSite]:
    with Mainspring("memory://", grace=0) as app:
        add_operator_handlers(app)
        yield ApiSite(app)


def fail_without_api(app: Mainspring, handle: JobHandle[Any]) -> str:
    with app.running():
        assert handle.wait(PATIENCE) == "FAILED"
    return handle.id


def test_requests_for_doctor_share_one_examination(small_site: ApiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, examinations = Event(), Event(), list[Mainspring]()

    def examine(app: Mainspring, **_options: Any) -> Report:
        examinations.append(app)
        begun.set()
        assert may_end.wait(PATIENCE)
        return Report(store="memory://", findings=())

    monkeypatch.setattr(store_state, "examine", examine)

    async def ask() -> list[Answer]:
        asked = [
            asyncio.create_task(request_async(small_site.asgi, "/api/v1/doctor", token=small_site.admin))
            for _ in range(5)
        ]
        await asyncio.to_thread(begun.wait, PATIENCE)
        asked[0].cancel()  # a caller that gives up ends nothing for the others
        await asyncio.wait(asked[:1])
        may_end.set()
        return await asyncio.gather(*asked[1:])

    answers = asyncio.run(ask())
    assert [answer.json["worst"] for answer in answers] == ["ok"] * 4
    assert len(examinations) == 1
    asyncio.run(request_async(small_site.asgi, "/api/v1/doctor", token=small_site.admin))
    assert len(examinations) == 2


def test_an_unknown_handler_of_a_dead_letter_names_only_types_of_the_token(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Mainspring(url, grace=0) as before:

        @before.job(name="shop.gone", queue="orders", retry=Retry(max_attempts=1))
        def gone(number: int) -> None:
            raise ValueError(number)

        letter = fail_without_api(before, gone.submit(1))
    with Mainspring(url, grace=0) as app:
        add_operator_handlers(app)
        site = ApiSite(app)
        token = app.tokens.create("own", scopes=["operate"], types=["shop.gone", "shop.charge"]).secret
        for answer in (
            send(site, "PATCH", f"/dead-letters/{letter}", {"changes": {"number": 2}}, token=token),
            send(
                site,
                "POST",
                "/dead-letters/replay",
                {"ids": [letter], "changes": {"number": 2}},
                token=token,
            ),
        ):
            assert (answer.status, answer.problem) == (422, "unknown-handler")
            assert "shop.charge" in answer.json["detail"]
            assert "shop.pay" not in answer.json["detail"]
        assert send(site, "POST", "/dead-letters/replay", {"ids": [letter]}, token=token).json["count"] == 1


def test_arguments_that_cannot_be_decoded_cannot_be_edited(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with Mainspring(url, grace=0) as before:
        add_operator_handlers(before)
        charge = JobFunction[..., Any](before.registry.get("shop.charge"), print, before)
        letter = fail_without_api(before, charge.submit(1))
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        assert connection.execute("UPDATE jobs SET codec = 'unheard'").rowcount == 1
    with Mainspring(url, grace=0) as app:
        add_operator_handlers(app)
        site = ApiSite(app)
        answer = send(site, "PATCH", f"/dead-letters/{letter}", {"changes": {"order_id": 2}})
        assert (answer.status, answer.problem) == (422, "invalid-arguments")
        assert "cannot be decoded" in answer.json["detail"]


def test_many_callers_store_one_schedule(small_site: ApiSite) -> None:
    """All are answered, exactly one of them has made it, and the last definition is one of theirs."""

    async def store() -> list[Answer]:
        return await asyncio.gather(*(_put_async(small_site, number) for number in range(12)))

    answers = asyncio.run(store())
    assert {answer.status for answer in answers} <= {200, 201}
    assert [answer.status for answer in answers].count(201) == 1
    assert small_site.get("/schedules/night").json["jitter"] in range(12)


def test_of_many_callers_with_if_match_one_changes_a_schedule(small_site: ApiSite) -> None:
    etag = put(small_site, "night", {"jitter": 100}).headers["etag"]

    async def store() -> list[Answer]:
        return await asyncio.gather(*(_put_async(small_site, number, etag) for number in range(12)))

    answers = asyncio.run(store())
    assert sorted(answer.status for answer in answers) == [200, *([412] * 11)]


async def _put_async(site: ApiSite, number: int, etag: str | None = None) -> Answer:
    body = {"type": "shop.cancel_order", "arguments": {"order_id": 1}, "rule": NIGHTLY, "jitter": number}
    headers = [("content-type", "application/json"), *([("if-match", etag)] if etag else [])]
    return await request_async(
        site.asgi,
        "/api/v1/schedules/night",
        method="PUT",
        token=site.admin,
        headers=headers,
        body=json.dumps(body).encode(),
    )
