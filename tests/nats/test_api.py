"""The job endpoints on NATS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring import Mainspring
from tests.api_site import ApiSite, add_handlers
from tests.job_api_tests import JobApiTests
from tests.nats.servers import Servers


class TestJobsOnNats(JobApiTests):
    @pytest.fixture
    def site(self, nats_server: Servers, nats_prefix: str) -> Iterator[ApiSite]:
        with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", grace=0) as app:
            add_handlers(app)
            yield ApiSite(app)

    def test_an_atomic_batch_is_refused(self, site: ApiSite) -> None:
        answer = site.post("/jobs/batch?atomic=true", [{"type": "shop.anything"}])
        assert (answer.status, answer.problem) == (422, "refused-by-store")
        assert site.ids() == []
