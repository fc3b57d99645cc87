"""`Idempotency-Key` on SQLite, with server processes that are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.idempotency_suite import IdempotencySuite

pytestmark = pytest.mark.long


class TestIdempotencyOnSqlite(IdempotencySuite):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'jobs.db'}"
