"""The application that `mainspring serve` serves under load; `--url` names its store."""

from __future__ import annotations

from mainspring.web import idempotency
from tests.web.killed_server import BUSY_SECONDS, make_app

idempotency.BUSY_SECONDS = BUSY_SECONDS
app = make_app("memory://")
