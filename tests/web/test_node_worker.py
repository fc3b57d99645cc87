"""The worker for Node.js, on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.node_worker_suite import NodeWorkerTests

pytestmark = pytest.mark.long


class TestNodeWorkerOnSqlite(NodeWorkerTests):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/jobs.db"
