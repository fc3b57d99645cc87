"""The servers, for all tests here."""

from tests.nats.fault_bench import far_ahead
from tests.nats.restricted_servers import restricted_server, restricted_servers
from tests.nats.servers import make_nats_cluster, make_nats_server, nats_prefix, nats_server

__all__ = [
    "far_ahead",
    "make_nats_cluster",
    "make_nats_server",
    "nats_prefix",
    "nats_server",
    "restricted_server",
    "restricted_servers",
]
