"""Fixtures of the tests on NATS: servers, benches on them, and a folder for processes that use them."""

import pytest

from mainspring.engines.nats import deliveries
from tests.nats.fault_bench import bench, far_ahead, make_bench, other
from tests.nats.restricted_servers import restricted_server, restricted_servers
from tests.nats.servers import make_nats_cluster, make_nats_server, nats_prefix, nats_server
from tests.processes.sandbox import sandbox

__all__ = [
    "bench",
    "far_ahead",
    "make_bench",
    "make_nats_cluster",
    "make_nats_server",
    "nats_prefix",
    "nats_server",
    "other",
    "restricted_server",
    "restricted_servers",
    "sandbox",
]


@pytest.fixture(autouse=True)
def _every_take_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask also consumers that had no messages a moment ago: a test that expects none must not pass unasked.

    The processes that tests start do not have this setting, and the tests of the setting change it.
    """
    monkeypatch.setattr(deliveries, "FRESH_SECONDS", -1.0)
