"""The endpoints for operators on NATS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring import Mainspring
from tests.api_site import ApiSite
from tests.nats.servers import Servers
from tests.operator_api_tests import (
    DeadLetterApiTests,
    QueueApiTests,
    ScheduleApiTests,
    add_operator_handlers,
)


@pytest.fixture
def site(nats_server: Servers, nats_prefix: str) -> Iterator[ApiSite]:
    with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", grace=0) as app:
        add_operator_handlers(app)
        yield ApiSite(app)


class TestSchedules(ScheduleApiTests):
    """Schedules on NATS."""


class TestQueues(QueueApiTests):
    """Queues, workers, statistics and doctor on NATS."""


class TestDeadLetters(DeadLetterApiTests):
    """Dead letters on NATS."""
