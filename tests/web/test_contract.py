"""The API against its OpenAPI document, on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.api_contract import ContractTests, fill
from tests.api_site import ApiSite

pytestmark = pytest.mark.long


class TestContractOnSqlite(ContractTests):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[ApiSite]:
        with Mainspring(f"sqlite:///{tmp_path}/jobs.db", grace=0) as app:
            yield fill(app)
