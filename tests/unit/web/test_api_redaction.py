"""Redacted parameters in the API on SQLite: in memory, and in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.api_site import ApiSite
from tests.blank_stores import make_blank_store
from tests.redacted_api_tests import RedactedApiTests, add_redacting_handlers

pytestmark = pytest.mark.long


class TestRedactionOnSqlite(RedactedApiTests):
    @pytest.fixture(params=["memory", "file"])
    def site(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiSite]:
        url = "memory://" if request.param == "memory" else f"sqlite:///{make_blank_store(tmp_path / 'jobs.db')}"
        with Mainspring(url, grace=0) as app:
            add_redacting_handlers(app)
            yield ApiSite(app)
