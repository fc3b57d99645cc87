"""Two servers on one SQLite file under load, while they are killed, stopped and restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.load_suite import LoadSuite

pytestmark = pytest.mark.long


class TestLoadOnSqlite(LoadSuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'jobs.db'}"
