"""Servers for the shop, and the programs of Prometheus."""

import pytest

from scripts.fetch_prometheus import PrometheusTools, ensure
from tests.nats.servers import make_nats_cluster

__all__ = ["make_nats_cluster"]


@pytest.fixture(scope="session")
def prometheus_tools() -> PrometheusTools:
    """Prometheus and promtool. `make test` has brought them; otherwise the first test does."""
    return ensure()
