"""Two servers on one NATS server under load, while they are killed, stopped and restarted."""

from __future__ import annotations

import pytest

from tests.nats.servers import Servers
from tests.web.load_suite import LoadSuite

pytestmark = pytest.mark.long


class TestLoadOnNats(LoadSuite):
    has_atomic = False

    @pytest.fixture
    def url(self, nats_server: Servers, nats_prefix: str) -> str:
        return f"{nats_server.url}?prefix={nats_prefix}"
