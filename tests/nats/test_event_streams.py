"""`GET /api/v1/events` on NATS."""

from __future__ import annotations

import pytest

from mainspring import Mainspring
from mainspring.engines.nats.engine import NatsEngine
from tests.event_stream_suite import EventStreamSuite
from tests.nats.servers import Servers


class TestEventStreamsOnNats(EventStreamSuite):
    """The tests for every engine."""

    @pytest.fixture
    def url(self, nats_server: Servers, nats_prefix: str) -> str:
        return f"{nats_server.url}?prefix={nats_prefix}"

    def delete_events(self, app: Mainspring) -> None:
        engine = app.manager().engine
        assert isinstance(engine, NatsEngine)
        engine.components.jetstream.api(f"STREAM.PURGE.{engine.components.names.events_stream}")
