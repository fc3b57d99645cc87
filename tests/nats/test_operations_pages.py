"""The pages for operators on NATS: groups of dead letters, replay and purge, schedules, queues and workers."""

from __future__ import annotations

import re

from mainspring import Every, Mainspring, Retry
from mainspring.version import VERSION
from tests.dashboard_client import DashboardBrowser
from tests.nats.servers import Servers
from tests.support import PATIENCE, eventually


def test_operators_see_and_change_the_jobs_on_the_servers(nats_server: Servers, nats_prefix: str) -> None:
    with Mainspring(f"{nats_server.url}?prefix={nats_prefix}", grace=0) as app:

        @app.job(name="send", queue="mail", retry=Retry(max_attempts=1))
        def send(number: int = 0) -> None:
            raise ConnectionError(f"no answer for {number}")

        app.schedules.put("often", send, Every(3600))
        browser = DashboardBrowser(app)
        with app.running():
            for handle in [send.submit(number) for number in range(3)]:
                assert handle.wait(PATIENCE) == "FAILED"
            assert f"version {VERSION}" in browser.text("/workers")
            assert "8 threads 100 coroutines" in browser.text("/workers")
        eventually(lambda: app.dead_letters.count() == 3)
        assert "all 3 dead letters" in browser.text("/dead-letters")
        page = browser.get("/dead-letters").body.decode()
        (key,) = set(re.findall(r"/dead-letters/([0-9a-f]{16})", page))
        path = f"/dead-letters/{key}"
        until = re.findall(r'name="until" value="([0-9]+)"', browser.get(f"{path}/replay").body.decode())[0]
        form = {"until": until, "limit": "1", "do": "replay"}
        assert browser.note(browser.post(f"{path}/replay", form)) == "Replayed 1 dead letter."
        eventually(lambda: app.dead_letters.count() == 2)
        assert browser.note(browser.post(f"{path}/purge", {"until": until})) == "Deleted 2 dead letters."
        assert app.dead_letters.count() == 0
        assert "every 1 h" in browser.text("/schedules")
        assert "1 planned" in browser.text("/schedules/often")
        assert browser.note(browser.post("/queues/mail/pause")) == "Paused queue mail. Running jobs continue."
        assert "paused" in browser.text("/queues")
        assert "dead_letter.purge" in browser.text("/audit")
