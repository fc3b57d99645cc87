"""The servers of the compose file, and the programs of Prometheus."""

from collections.abc import Iterator

import pytest

from scripts.fetch_prometheus import PrometheusTools, ensure
from tests.deploy.shipped_cluster import ShippedCluster, shipped_cluster


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShippedCluster]:
    """Yield the three servers as they are shipped. The tests that share them stop none."""
    with shipped_cluster(tmp_path_factory.mktemp("shipped")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def prometheus_tools() -> PrometheusTools:
    """Prometheus and promtool. `make test` has brought them; otherwise the first test does."""
    return ensure()
