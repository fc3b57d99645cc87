"""The endpoints for operators on NATS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.api_site import ApiSite
from tests.nats.servers import Servers
from tests.operator_api_tests import (
    AuditApiTests,
    DeadLetterApiTests,
    QueueApiTests,
    ScheduleApiTests,
    add_operator_handlers,
    put,
    send,
)


@pytest.fixture
def site(nats_server: Servers, nats_prefix: str) -> Iterator[ApiSite]:
    with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", grace=0) as app:
        add_operator_handlers(app)
        yield ApiSite(app)


def test_without_a_projection_lists_are_unavailable_and_all_else_works(
    nats_server: Servers, nats_prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{nats_server.url}?prefix={nats_prefix}&projection={tmp_path}/"
    with Mainspring(url, grace=0) as app:
        add_operator_handlers(app)
        site = ApiSite(app)
        for path in ("/dead-letters", "/queues", "/statistics"):
            answer = site.get(path)
            assert (answer.status, answer.problem) == (503, "store-unavailable")
            assert answer.headers["retry-after"]
            assert str(tmp_path) not in answer.body.decode()
        answer = send(site, "POST", "/dead-letters/replay", {"all": True})
        assert (answer.status, answer.problem) == (503, "store-unavailable")
        assert "it is a directory" in caplog.text
        assert put(site, "night").status == 201
        assert len(site.get("/schedules").json["schedules"]) == 1
        assert send(site, "POST", "/queues/orders/pause").json["is_changed"]
        assert site.get("/workers").status == 200


class TestSchedules(ScheduleApiTests):
    """Schedules on NATS."""


class TestQueues(QueueApiTests):
    """Queues, workers, statistics and doctor on NATS."""


class TestDeadLetters(DeadLetterApiTests):
    """Dead letters on NATS."""


class TestAudit(AuditApiTests):
    """The audit trail on NATS."""
