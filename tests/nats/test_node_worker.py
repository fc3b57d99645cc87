"""The worker for Node.js, on NATS."""

from __future__ import annotations

import pytest

from tests.nats.servers import Servers
from tests.web.node_worker_suite import NodeWorkerTests

pytestmark = pytest.mark.long


class TestNodeWorkerOnNats(NodeWorkerTests):
    @pytest.fixture
    def url(self, nats_server: Servers, nats_prefix: str) -> str:
        return f"{nats_server.url}?prefix={nats_prefix}"
