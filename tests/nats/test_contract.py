"""The API against its OpenAPI document, on NATS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring import Mainspring
from tests.api_contract import ContractTests, fill
from tests.api_site import ApiSite
from tests.nats.servers import Servers
from tests.support import amount

pytestmark = pytest.mark.long


class TestContractOnNats(ContractTests):
    valid_requests = amount(4, thorough=400)
    has_invalid_requests = amount(False, thorough=True)

    @pytest.fixture
    def site(self, nats_server: Servers, nats_prefix: str) -> Iterator[ApiSite]:
        with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", grace=0) as app:
            yield fill(app)
