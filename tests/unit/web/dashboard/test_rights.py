"""Rights of all pages and actions: each is tried without a session, a scope, and a CSRF token."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from mainspring import Mainspring
from mainspring.security.permissions import Scope
from mainspring.web.dashboard.site import NAVIGATION, all_actions, all_pages
from tests.dashboard_client import DashboardBrowser

with Mainspring("memory://") as _app:
    PAGES = all_pages(_app)
    ACTIONS = all_actions(_app)


@pytest.fixture(scope="module")
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def path_of(pattern: str) -> str:
    return re.sub(r"\{\w+\}", "x", pattern)


def without(scopes: tuple[Scope, ...]) -> list[str]:
    """Return all scopes but these; `admin` includes every scope."""
    return [str(scope) for scope in Scope if scope not in (*scopes, Scope.ADMIN)]


def test_names_and_paths_are_unique() -> None:
    assert len({page.name for page in PAGES}) == len(PAGES)
    assert len({page.path for page in PAGES}) == len(PAGES)
    assert len({action.path for action in ACTIONS}) == len(ACTIONS)
    assert len({entry.key for entry in NAVIGATION}) == len(NAVIGATION)


def test_every_page_and_action_needs_a_session(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    for page in PAGES:
        answer = browser.get(path_of(page.path))
        assert answer.status == 303, page.name
        assert answer.headers["location"].startswith("/login"), page.name
        assert browser.get(f"/live{path_of(page.path)}").status == 303, page.name
    for action in ACTIONS:
        assert browser.send(path_of(action.path), {"csrf": "0" * 64}).status == 401, action.name


def test_every_page_and_action_needs_its_scope(app: Mainspring) -> None:
    for page in PAGES:
        assert page.scopes, f"{page.name} would be open to every token"
        browser = DashboardBrowser(app, *without(page.scopes))
        assert browser.get(path_of(page.path)).status == 403, page.name
    for action in ACTIONS:
        assert action.scopes, f"{action.name} would be open to every token"
        browser = DashboardBrowser(app, *without(action.scopes))
        assert browser.post(path_of(action.path), csrf="0" * 64).status == 403, action.name


def test_every_action_needs_the_csrf_token_and_cannot_be_loaded(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    browser.get("/")
    pages = {page.path for page in PAGES}
    for action in ACTIONS:
        path = path_of(action.path)
        assert browser.post(path, csrf="").status == 403, action.name
        assert browser.post(path, csrf="0" * 64).status == 403, action.name
        if action.path not in pages:
            assert browser.get(path).status in (404, 405), action.name


def test_a_read_only_server_does_no_action(app: Mainspring) -> None:
    browser = DashboardBrowser(app, asgi=app.asgi(auth="tokens", read_only=True))
    assert "read-only" in browser.text("/")
    for action in ACTIONS:
        assert browser.post(path_of(action.path)).status == 403, action.name


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
def test_pages_work_inside_of_another_application(app: Mainspring, framework: type[Starlette]) -> None:
    outer = framework(routes=[Mount("/ops", app.asgi(auth="tokens"))])
    browser = DashboardBrowser(app, asgi=outer, is_logged_in=False)
    answer = browser.get("/ops/?range=6h")
    assert answer.headers["location"] == "/ops/login?next=%2F%3Frange%3D6h"
    answer = browser.send("/ops/login", {"token": browser.token, "next": "/?range=6h"})
    assert "Path=/ops/" in answer.cookies[0]
    assert browser.get(answer.headers["location"]).headers["location"] == "/ops/?range=6h"
    page = browser.get("/ops/?range=6h").body.decode()
    assert 'data-live-url="/ops/live/?range=6h"' in page
    assert not re.search(r'(href|src|action)="/(?!ops/)', page)
