"""The job endpoints on SQLite: in memory, in a file, and with the serializer msgpack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Mainspring
from tests.api_site import ApiSite, add_handlers
from tests.blank_stores import make_blank_store
from tests.job_api_tests import JobApiTests

pytestmark = pytest.mark.long


class TestJobsOnSqlite(JobApiTests):
    @pytest.fixture(params=["memory", "file", "msgpack"])
    def site(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiSite]:
        url = "memory://" if request.param == "memory" else f"sqlite:///{make_blank_store(tmp_path / 'jobs.db')}"
        options: dict[str, Any] = {"serializer": "msgpack"} if request.param == "msgpack" else {}
        with Mainspring(url, grace=0, **options) as app:
            add_handlers(app)
            yield ApiSite(app)

    def test_an_atomic_batch_is_stored_or_not(self, site: ApiSite) -> None:
        job = {"type": "shop.anything", "delay": 3600}
        assert site.post("/jobs/batch?atomic=true", [job, job]).json["stored"] == 2
        refused = site.post("/jobs/batch?atomic=true", [job, {**job, "id": "x"}])
        assert (refused.problem, refused.json["line"]) == ("invalid-value", 2)
        raising = {"type": "shop.pay", "arguments": {"order_id": 1}}
        assert site.post("/jobs/batch?atomic=true", [job, raising]).problem == "invalid-value"
        token = site.token("submit", queues=["orders"])
        for unique in ({**job, "unique": "k"}, {**raising, "queue": "orders"}):
            answer = site.post("/jobs/batch?atomic=true", [job, unique], token=token)
            assert (answer.problem, answer.json["line"]) == ("invalid-value", 2)
        assert len(site.ids()) == 2

    def test_a_full_batch_is_stored(self, site: ApiSite) -> None:
        job = b'{"type":"shop.anything","delay":3600}'
        answer = site.post(
            "/jobs/batch", raw=b"\n".join([job] * 10_000), content_type=("content-type", "application/ndjson")
        )
        assert (answer.status, answer.json["stored"]) == (201, 10_000)
        assert site.app.counts()["PENDING"] == len(set(answer.json["ids"])) == 10_000
