"""Servers for the shop."""

from tests.nats.servers import make_nats_cluster

__all__ = ["make_nats_cluster"]
