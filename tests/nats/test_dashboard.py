"""The overview of the dashboard on NATS: its numbers and its clock come from the projection."""

from __future__ import annotations

from datetime import timedelta

from mainspring import Mainspring
from tests.dashboard_client import DashboardBrowser
from tests.nats.servers import Servers


def test_the_overview_counts_the_jobs_on_the_servers(nats_server: Servers, nats_prefix: str) -> None:
    with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", grace=0) as app:
        job = app.job(name="send", queue="mail")(lambda: None)
        for minutes in (0.5, 30, 300):
            job.after(timedelta(minutes=minutes)).submit()
        page = DashboardBrowser(app).get("/")
        assert page.status == 200
        assert "Timing wheel: 3 jobs are due within a day" in page.body.decode()
