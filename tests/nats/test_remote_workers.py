"""The API of remote workers, on NATS."""

from __future__ import annotations

import pytest

from tests.nats.servers import Servers
from tests.remote_worker_tests import RemoteWorkerTests


class TestRemoteWorkersOnNats(RemoteWorkerTests):
    @pytest.fixture
    def url(self, nats_server: Servers, nats_prefix: str) -> str:
        return f"{nats_server.url}?prefix={nats_prefix}"
