"""Redacted parameters in the API on NATS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring import Mainspring
from tests.api_site import ApiSite
from tests.nats.servers import Servers
from tests.redacted_api_tests import RedactedApiTests, add_redacting_handlers


@pytest.fixture
def site(nats_server: Servers, nats_prefix: str) -> Iterator[ApiSite]:
    with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", grace=0) as app:
        add_redacting_handlers(app)
        yield ApiSite(app)


class TestRedactionOnNats(RedactedApiTests):
    """Redaction on NATS."""
