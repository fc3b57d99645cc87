"""What tokens with few rights see: nothing of other job types and queues, and nothing without the scope read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest

from mainspring import CallbackPolicy, Every, Mainspring, Retry
from mainspring.web.dashboard.site import all_pages
from tests.api_site import ApiSite
from tests.dashboard_client import DashboardBrowser
from tests.support import eventually

pytestmark = pytest.mark.long

HIDDEN = ("vault", "hush")
"""Parts of all names, arguments and errors of the other job type and its queue."""
_LINK = re.compile(r'href="(/[^"#]*)"')


@pytest.fixture(scope="module")
def app() -> Iterator[Mainspring]:
    """Return an application with jobs of two types in all states; one of them is none of the token's business."""
    policy = CallbackPolicy(allow=["https://hush.example.com/*"])
    with Mainspring("memory://", callbacks=policy) as app:

        @app.job(name="vault.note", queue="vault")
        def note(result: Any = None) -> None: ...

        @app.job(name="shop.fail", queue="shop", retry=Retry(max_attempts=1))
        def fail(word: str) -> None:
            raise ValueError(f"cannot {word}")

        @app.job(name="vault.fail", queue="vault", retry=Retry(max_attempts=1))
        def fail_hidden(word: str) -> None:
            raise LookupError(f"cannot {word}")

        @app.job(name="shop.pass", queue="shop", then=note, keep_result=True)
        def succeed(word: str) -> str:
            return "done"

        with app.running():
            letters = [fail.submit("sell"), fail_hidden.submit("hush")]
            passed = succeed.submit("buy")
            assert eventually(lambda: all(app.get(each.id).status == "FAILED" for each in letters))
            assert eventually(lambda: app.get(passed.id).status == "COMPLETED")
        succeed.options(delay=3_600).submit("later")
        doomed = note.options(delay=3_600, id="hush-1").submit()
        note.options(delay=7_200, id="hush-2").submit()
        app.cancel(doomed.id)
        app.queue("vault").pause()
        app.http_job("vault.call", url="https://hush.example.com/x", queue="vault")
        app.remote_job("vault.remote", queue="vault")
        app.remote_job("shop.remote", queue="shop")
        site = ApiSite(app)
        worker = {"name": "runner", "types": ["shop.remote", "vault.remote"]}
        site.post("/workers", {**worker, "queues": ["shop", "vault"]})
        number = site.post("/workers", worker).json["number"]
        site.submit("vault.remote", delay=0, id="hush-3", arguments={})
        assert site.post(f"/workers/{number}/claim", {"wait": 0}).status == 200
        app.schedules.put("daily sale", succeed, Every(3_600), arguments={"word": "sale"})
        app.schedules.put("vault check", note, Every(3_600))
        yield app


def crawl(browser: DashboardBrowser) -> dict[str, str]:
    """Load all pages that links lead to; return their markup by path."""
    left = [page.path for page in all_pages(browser.app) if "{" not in page.path]
    seen: dict[str, str] = {}
    while left:
        path = left.pop()
        if path in seen or path.startswith(("/static", "/assets", "/logout")) or len(seen) > 150:
            continue
        answer = browser.get(path)
        seen[path] = answer.body.decode()
        if answer.status == 200:
            left += [unescape(each) for each in _LINK.findall(seen[path])]
        elif answer.status == 303:
            left.append(answer.headers["location"])
    return seen


@pytest.mark.parametrize("rights", [{"types": ["shop.fail", "shop.pass", "shop.remote"]}, {"queues": ["shop"]}])
def test_a_restricted_token_sees_nothing_of_other_types_and_queues(
    app: Mainspring, rights: dict[str, Any]
) -> None:
    browser = DashboardBrowser(app, "read", "operate", "submit", "work", "callback", **rights)
    pages = crawl(browser)
    assert any(path.startswith("/jobs/") for path in pages), "the crawl has found jobs"
    assert any(path.startswith("/dead-letters/") for path in pages)
    assert "shop.remote" in pages["/workers"]
    for path, text in pages.items():
        for word in HIDDEN:
            assert word not in text.lower(), (path, word, text[max(0, text.lower().index(word) - 300) :][:400])
    for path in (
        "/jobs/hush-2",
        "/schedules/vault%20check",
        "/schedules/vault%20check/edit",
        "/submit?copy=hush-2",
    ):
        answer = browser.get(path)
        assert answer.status == (200 if path.startswith("/submit") else 404), path
        assert "vault.note" not in answer.body.decode(), path


def test_a_token_that_may_only_operate_does_not_read_dead_letters(app: Mainspring) -> None:
    reader, operator = DashboardBrowser(app, "read"), DashboardBrowser(app, "operate")
    groups = set(re.findall(r'href="/dead-letters/([0-9a-f]+)', reader.get("/dead-letters").body.decode()))
    assert len(groups) == 2
    assert operator.get("/audit").status == 200
    for group in groups:
        for verb in ("replay", "purge"):
            answer = operator.get(f"/dead-letters/{group}/{verb}")
            assert (answer.status, "cannot" in answer.body.decode()) == (403, False), verb
        answer = operator.post(f"/dead-letters/{group}/replay", {"until": str(1 << 60)})
        assert "cannot" not in answer.body.decode()
