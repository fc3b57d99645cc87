"""The suite of behaviour that every engine keeps, on a real NATS server and the real clock."""

from itertools import count
from pathlib import Path

import pytest

from mainspring import NatsSettings
from mainspring.engines.nats.engine import NatsEngine
from mainspring.engines.sqlite import SqliteProjection
from mainspring.jobs.engine import Capability
from mainspring.testing import EngineConformance
from mainspring.testing.conformance.bench import MakeEngine
from tests.nats.servers import Servers

LEASE_SECONDS = 3.0


class TestNatsEngine(EngineConformance):
    lacks = frozenset(Capability) - {
        Capability.SHARED,
        Capability.ANY_THREAD,
        Capability.REMOTE_WORKERS,
        Capability.ADMITS_AT_SUBMIT,
    }

    @pytest.fixture
    def make_engine(self, nats_server: Servers, nats_prefix: str, tmp_path: Path) -> MakeEngine:
        files = (tmp_path / f"projection-{number}.db" for number in count())
        settings = NatsSettings(prefix=nats_prefix, lease=LEASE_SECONDS, projection="projection")
        return lambda _: NatsEngine(
            nats_server.url, settings=settings, make_projection=lambda _: SqliteProjection(next(files))
        )
