"""The servers, for all tests here."""

from tests.nats.servers import make_nats_cluster, make_nats_server, nats_prefix, nats_server

__all__ = ["make_nats_cluster", "make_nats_server", "nats_prefix", "nats_server"]
