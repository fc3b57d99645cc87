"""Applications that tests serve: `mainspring serve tests.web.served_apps:load --url URL`."""

from __future__ import annotations

from mainspring import Mainspring, Retry
from mainspring.web import idempotency
from tests.web.killed_server import BUSY_SECONDS, make_app

idempotency.BUSY_SECONDS = BUSY_SECONDS
load = make_app("memory://")
"""The application of the tests under load."""
pictures = Mainspring()
"""The application of the tests of remote workers."""
resize = pictures.remote_job("resize", queue="pictures", retry=Retry(max_attempts=5, base=0), timeout=600)
