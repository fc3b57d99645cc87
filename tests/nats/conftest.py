"""Fixtures of the tests on NATS: servers, benches on them, and a folder for processes that use them."""

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
