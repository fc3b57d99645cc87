"""The servers, for all tests here."""

import pytest

from tests.nats.rig import far_ahead
from tests.nats.roles import guarded_server, guarded_servers
from tests.nats.servers import make_nats_cluster, make_nats_server, nats_prefix, nats_server

__all__ = [
    "far_ahead",
    "guarded_server",
    "guarded_servers",
    "make_nats_cluster",
    "make_nats_server",
    "nats_prefix",
    "nats_server",
]

pytest.register_assert_rewrite("tests.old_stores.contents")
