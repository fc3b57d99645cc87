"""The pages of queues, workers, callbacks and the audit trail; and what all pages for operators have in common."""

from __future__ import annotations

import re
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from mainspring import CallbackPolicy, Concurrency, JobFunction, Mainspring, Rate, Retry, current_job
from mainspring.jobs.callback_pauses import CallbackPauseRecord
from mainspring.jobs.commands import ChangeCallbackPause
from mainspring.version import VERSION
from mainspring.web.dashboard import callback_pages
from tests.dashboard_client import DashboardBrowser
from tests.support import PATIENCE, eventually

PAGES = ("/queues", "/queues/orders", "/workers", "/callbacks", "/audit", "/dead-letters", "/schedules")


class Shop:
    """An application with a job that runs until `may_end` is set."""

    def __init__(self, app: Mainspring) -> None:
        self.app = app
        self.began, self.may_end = Event(), Event()

        @app.job(name="shop.pack", queue="orders", concurrency=Concurrency(2, by="shelf"), rate=Rate(5, per=60))
        def pack(shelf: str = "a") -> None:
            current_job().progress(3, 10, "boxes")
            self.began.set()
            assert self.may_end.wait(PATIENCE)

        @app.job(name="shop.call", queue="hooks", retry=Retry(max_attempts=1))
        def call(url: str, method: str = "POST") -> dict[str, Any]:
            if "down" in url:
                raise ConnectionError(f"{method} {url} does not answer")
            return {"status": 204}

        self.pack: JobFunction[..., None] = pack
        self.call: JobFunction[..., dict[str, Any]] = call
        app.queue("orders", max_depth=100, submit_rate=Rate(50, per=1))


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Mainspring("memory://", grace=0) as app:
        shop = Shop(app)
        yield shop
        shop.may_end.set()


def test_queues_have_depth_limits_and_a_pause(shop: Shop) -> None:
    shop.pack.submit_many([{}] * 3)
    browser = DashboardBrowser(shop.app)
    text = browser.text("/queues")
    assert "orders 3 0 0 0" in text
    assert "depth 3 of 100" in text
    assert "50 submits in 1 s" in text
    assert browser.note(browser.post("/queues/orders/pause")) == "Paused queue orders. Running jobs continue."
    assert browser.note(browser.post("/queues/orders/pause")).startswith("It was paused already")
    text = browser.text("/queues/orders")
    assert "Nothing runs, and nothing starts: the queue is drained." in text
    assert "shop.pack at most 2 at once for each shelf; 5 starts in 1 min" in text
    assert browser.note(browser.post("/queues/orders/resume")) == "Resumed queue orders."
    assert [entry.action for entry in shop.app.audit()] == ["queue.resume", "queue.pause"]


def test_a_drained_queue_shows_what_still_runs(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app)
    with shop.app.running():
        job = shop.pack.submit()
        assert shop.began.wait(PATIENCE)
        answer = browser.post("/queues/orders/drain")
        assert answer.headers["location"] == "/queues/orders"
        text = browser.text("/queues/orders")
        assert "1 job still runs; no other starts." in text
        assert job.id in text
        shop.may_end.set()
        assert job.wait(PATIENCE) == "COMPLETED"
        eventually(lambda: "the queue is drained" in browser.text("/queues/orders"))


def test_an_unknown_queue_has_a_page_that_says_so(shop: Shop) -> None:
    assert "No such queue" in DashboardBrowser(shop.app).text("/queues/nothing")


def test_workers_have_slots_versions_and_running_jobs(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app)
    assert "mainspring run module:app" in browser.text("/workers")
    with shop.app.running():
        job = shop.pack.submit()
        assert shop.began.wait(PATIENCE)
        eventually(lambda: "3 of 10" in browser.text("/workers"))
        text = browser.text("/workers")
        assert "8 threads 100 coroutines" in text
        assert f"version {VERSION}" in text
        assert "alive" in text
        assert job.id in text
        shop.may_end.set()
        assert job.wait(PATIENCE) == "COMPLETED"


def test_callbacks_show_status_attempts_and_answers(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = DashboardBrowser(shop.app)
    assert "No callbacks yet" in browser.text("/callbacks")
    monkeypatch.setattr(callback_pages, "callback_types", lambda _app: ["shop.call"])
    with shop.app.running():
        handles = [
            shop.call.submit("https://eve:secret@hooks.example.com/paid?key=secret"),
            shop.call.submit("https://down.example.com/paid"),
        ]
        assert [handle.wait(PATIENCE) for handle in handles] == ["COMPLETED", "FAILED"]
    text = browser.text("/callbacks")
    assert "https://hooks.example.com/paid" in text
    assert "secret" not in text
    assert "completed 1 204" in text
    assert "failed 1 ConnectionError: POST https://down.example.com/paid does not answer" in text
    assert "hooks.example.com" not in browser.text("/callbacks?status=failed&type=shop.call")
    other = DashboardBrowser(shop.app, "read", types=["shop.pack"])
    assert "No callbacks yet" in other.text("/callbacks")
    assert browser.get("/callbacks?after=nonsense").status == 422


def test_pauses_of_receivers_are_shown_and_lifted(shop: Shop) -> None:
    manager = shop.app.manager()
    now, host = manager.engine.now(), "hooks.example.com"
    for type_, url in ((None, None), ("shop.call", None), ("mainspring.http", f"https://{host}/a")):
        pause = CallbackPauseRecord(host, type_, url, 503, now, now + 300_000_000)
        assert manager.arrange([ChangeCallbackPause(None, pause)]) == [True]
    browser = DashboardBrowser(shop.app)
    text = browser.text("/callbacks")
    assert f"{host} all job types 503" in text
    assert f"{host} https://{host}/a 503" in text
    job = shop.call.options(delay=60).submit("https://x.example/")
    assert "its receiver is paused" in browser.text(f"/jobs/{job.id}")
    reader = DashboardBrowser(shop.app, "read")
    assert "Paused receivers" in reader.text("/callbacks")
    assert ">Resume<" not in reader.get("/callbacks").body.decode()
    assert "all job types" not in DashboardBrowser(shop.app, "read", types=["shop.call"]).text("/callbacks")
    lifted = browser.post("/callbacks/resume", {"host": host, "type": "shop.call"})
    assert browser.note(lifted) == f"{host} gets requests again."
    assert [pause.type for pause in shop.app.callback_pauses()] == ["mainspring.http"]
    assert browser.note(browser.post("/callbacks/resume", {"host": host})) == f"{host} gets requests again."
    assert browser.note(browser.post("/callbacks/resume", {"host": host})) == f"{host} was not paused."
    assert "Paused receivers" not in browser.text("/callbacks")


def test_a_declared_callback_shows_its_method_and_its_url_without_the_query() -> None:
    with Mainspring("memory://", callbacks=CallbackPolicy(allow=["https://hooks.example.com/*"])) as app:
        app.http_job("paid", url="https://hooks.example.com/paid?key=secret", method="PUT").submit(
            body={"order": 1}
        )
        text = DashboardBrowser(app).text("/callbacks")
    assert "PUT https://hooks.example.com/paid" in text
    assert "secret" not in text


def test_types_with_handlers_that_send_requests_are_callbacks(shop: Shop) -> None:
    assert callback_pages.callback_types(shop.app) == ["mainspring.http"]

    class Registry:
        def all(self) -> list[Any]:
            handler = shop.app.registry.get("shop.call")
            return [type("Sender", (), {"name": handler.name, "is_callback": True})(), handler]

    class App:
        registry = Registry()

    assert callback_pages.callback_types(App()) == ["mainspring.http", "shop.call"]  # type: ignore[arg-type]


def test_the_audit_has_filters_and_pages(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app)
    assert "Nothing was changed yet" in browser.text("/audit")
    for number in range(60):
        browser.post(f"/queues/q{number}/pause")
    page = browser.get("/audit").body.decode()
    assert page.count("queue.pause</a>") == 50
    found = re.search(r'href="([^"]*after=[^"]*)" rel="next"', page)
    assert found is not None
    earlier = browser.get(found[1].replace("&amp;", "&")).body.decode()
    assert earlier.count("queue.pause</a>") == 10
    assert "Latest" in earlier
    assert "No entries match" in browser.text("/audit?action=schedule")
    assert "is no action" in browser.text("/audit?action=nonsense")
    actor = browser.name.replace(" ", "%20")
    assert "q57" in browser.text(f"/audit?actor={actor}&action=queue.pause&since=1h&until=")
    assert "since" in browser.text("/audit?since=yesterday")
    reader = DashboardBrowser(shop.app, "read")
    assert reader.get("/audit").status == 403
    assert "Audit" not in reader.text("/queues")
    assert "queue.pause</a>" not in (
        DashboardBrowser(shop.app, "operate", "read", types=["shop.call"]).get("/audit").body.decode()
    )


def test_rights_are_checked_where_the_action_is_done(shop: Shop) -> None:
    reader = DashboardBrowser(shop.app, "read")
    restricted = DashboardBrowser(shop.app, "read", "operate", types=["shop.pack"])
    assert ">Pause<" not in reader.get("/queues").body.decode()
    assert ">Pause<" not in restricted.get("/queues").body.decode()
    for action in ("pause", "resume", "drain"):
        assert reader.post(f"/queues/orders/{action}").status == 403
        assert "not allow" in restricted.note(restricted.post(f"/queues/orders/{action}"))
    assert "hooks" not in restricted.text("/queues")
    assert "No such queue" in restricted.text("/queues/hooks")
    assert not shop.app.queue("orders").is_paused
    assert DashboardBrowser(shop.app, "submit", is_logged_in=True).get("/queues").status == 403


def test_forms_without_the_csrf_token_change_nothing(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app)
    for action in ("pause", "drain"):
        assert browser.post(f"/queues/orders/{action}", csrf="").status == 403
    assert not shop.app.queue("orders").is_paused


def test_no_page_has_inline_styles_or_scripts(shop: Shop) -> None:
    shop.pack.submit()
    browser = DashboardBrowser(shop.app, root_path="/ops")
    for path in PAGES:
        body = browser.get(path).body.decode()
        assert " style=" not in body
        assert re.search(r"\son[a-z]+=", body) is None
        assert re.findall(r"<script(?![^>]*\bsrc=)", body) == []
        links = re.findall(r'(?:href|action|src)="([^"#]*)"', body)
        assert all(link.startswith(("/ops", "?")) for link in links if link), links


def test_pages_need_a_login(shop: Shop) -> None:
    browser = DashboardBrowser(shop.app, is_logged_in=False)
    for path in PAGES:
        answer = browser.get(path)
        assert answer.status == 303
        assert answer.headers["location"].startswith("/login?next=")
