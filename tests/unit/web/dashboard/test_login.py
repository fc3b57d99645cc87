"""The login of the dashboard: tokens, sessions, cookies, forms of other pages, read-only servers."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

import pytest

from mainspring import Mainspring
from mainspring.security import Identity, Permissions, Scope
from mainspring.security.permissions import ALL_PERMISSIONS
from mainspring.security.tokens import make_token
from mainspring.web.asgi import build
from mainspring.web.credentials import TokenAuthenticator
from mainspring.web.dashboard.dashboard import POLICY, Dashboard
from mainspring.web.dashboard.sessions import DELAY_SECONDS, LoginThrottle
from mainspring.web.guard import EARLY_BODY
from tests.asgi_client import Answer, request
from tests.dashboard_client import FORM, HTML, DashboardBrowser


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def test_a_page_needs_a_login_and_leads_there_and_back(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    answer = browser.get("/?range=day")
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2F%3Frange%3Dday")
    answer = browser.send("/login", {"token": browser.token, "next": "/?range=day"})
    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2F%3Frange%3Dday&kept=1")
    answer = browser.get("/login?next=%2F%3Frange%3Dday&kept=1")
    assert (answer.status, answer.headers["location"]) == (303, "/?range=day")
    page = browser.get("/?range=day")
    assert page.status == 200
    assert page.headers["content-security-policy"] == POLICY
    assert browser.token not in page.body.decode()


def test_the_cookie_is_no_token_and_is_kept_from_scripts_and_other_sites(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    (cookie,) = browser.log_in().cookies
    assert browser.token not in cookie
    assert {"HttpOnly", "SameSite=strict", "Secure", "Path=/"} <= set(cookie.split("; "))


def test_after_a_logout_the_cookie_opens_nothing(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    browser.get("/")
    kept = dict(browser.cookies)
    assert browser.post("/logout").status == 303
    assert browser.get("/").status == 303
    browser.cookies = kept
    assert browser.get("/").status == 303


def test_a_revoked_token_ends_its_sessions(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    assert browser.get("/").status == 200
    app.tokens.revoke(browser.token_id)
    assert browser.get("/").headers["location"] == "/login"


def test_the_printed_link_logs_in_and_the_next_page_has_no_token(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    answer = browser.get(f"/?token={browser.token}")
    assert answer.status == 200
    assert browser.token not in answer.body.decode()
    assert browser.get("/").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_on_another_site_does_not_log_in_with_a_stored_token(app: Mainspring, site: str) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    answer = browser.get(f"/?token={browser.token}", headers=[("sec-fetch-site", site)])
    assert (answer.status, browser.cookies) == (403, {})
    assert "page of another site" in answer.body.decode()


def test_the_printed_link_logs_in_wherever_it_is(app: Mainspring) -> None:
    secret, record = make_token("the printed link", ALL_PERMISSIONS, created=app.manager().engine.now())
    asgi = build(app, TokenAuthenticator(app, extra=[record]))
    browser = DashboardBrowser(app, asgi=asgi, is_logged_in=False)
    assert browser.get(f"/?token={secret}", headers=[("sec-fetch-site", "cross-site")]).status == 200
    assert browser.get("/").status == 200


@pytest.mark.parametrize("token", ["", "msp_wrong", "x" * 10_000, "msp_0123456789_" + "0" * 49, "\0"])
def test_a_wrong_token_does_not_log_in(app: Mainspring, token: str) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    answer = browser.log_in(token)
    assert answer.status == 401
    assert not answer.cookies
    assert 'role="alert"' in answer.body.decode()


def delays_of(browser: DashboardBrowser) -> list[float]:
    """Let the server record the delays of failed logins instead of waiting, and return this list."""
    delays: list[float] = []

    async def record(seconds: float) -> None:
        delays.append(seconds)

    dashboard: Dashboard = browser.asgi._app.state.dashboard  # type: ignore[attr-defined]
    dashboard.callers.throttle = LoginThrottle(sleep=record)
    return delays


def test_failed_logins_are_delayed_and_the_right_token_is_not(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    delays = delays_of(browser)
    assert [browser.log_in("msp_wrong").status for _ in range(30)] == [401] * 30
    assert delays == [DELAY_SECONDS] * 20
    assert browser.log_in().status == 303
    assert browser.get(f"/?token={browser.token}").status == 200
    assert len(delays) == 20, "the right token does not wait"


def test_a_foreign_page_with_images_delays_no_login(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    delays = delays_of(browser)
    for site in ("cross-site", "same-site"):
        for _ in range(20):
            image = [("sec-fetch-site", site), ("sec-fetch-dest", "image")]
            assert browser.get("/?token=msp_wrong", headers=image).status == 401
    assert browser.log_in("msp_mistyped").status == 401
    assert browser.log_in().status == 303
    assert delays == []


def test_the_form_of_a_login_is_small_and_not_compressed(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens")
    token = app.tokens.create("ann", scopes=["read"]).secret

    def log_in(body: bytes, *headers: tuple[str, str]) -> Answer:
        return request(asgi, "/login", method="POST", headers=[FORM, *headers], body=body)

    form = f"token={token}&next=".encode()
    assert log_in(form.ljust(EARLY_BODY, b"/")).status == 303
    assert log_in(form.ljust(EARLY_BODY + 1, b"/")).problem == "body-too-large"
    assert log_in(form, ("content-length", str(EARLY_BODY + 1))).problem == "body-too-large"
    assert log_in(gzip.compress(form), ("content-encoding", "gzip")).problem == "content-encoding"


def test_a_theme_is_chosen_by_a_browser_that_is_logged_in(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    assert browser.send("/theme", {"theme": "dark"}).status == 401
    browser.log_in()
    assert browser.send("/theme", {"theme": "dark", "next": "/jobs"}).headers["location"] == "/jobs"
    assert browser.cookies["mainspring_theme"] == "dark"


def test_a_form_of_another_page_is_refused(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    browser.get("/")
    assert browser.post("/logout", csrf="0" * 64).status == 403
    assert browser.send("/logout", {}).status == 403
    fields = {"csrf": browser.csrf}
    assert browser.send("/logout", fields, headers=[("origin", "https://evil.example")]).status == 403
    assert browser.send("/logout", fields, headers=[("sec-fetch-site", "cross-site")]).status == 403
    assert browser.get("/").status == 200, "still logged in"


def test_the_api_ignores_the_session_and_accepts_no_forms(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    assert browser.get("/api/v1/jobs").status == 401
    assert browser.send("/api/v1/jobs", {"type": "x"}).status == 415
    bearer = ("authorization", f"Bearer {browser.token}")
    assert request(browser.asgi, "/", headers=[HTML, bearer]).headers["location"] == "/login"


def test_without_auth_the_dashboard_is_closed(app: Mainspring) -> None:
    answer = request(app.asgi(), "/", headers=[HTML])
    assert answer.status == 403
    assert "auth=" in answer.body.decode()


def test_a_function_of_the_application_identifies_browsers(app: Mainspring) -> None:
    caller = Identity(name="ann", permissions=Permissions(scopes=frozenset({Scope.READ})))
    callers = {b"ann=1": caller}
    asgi = app.asgi(auth=lambda scope: callers.get(dict(scope["headers"]).get(b"cookie", b"").partition(b";")[0]))
    assert request(asgi, "/", headers=[HTML]).status == 401
    answer = request(asgi, "/", headers=[HTML, ("cookie", "ann=1")])
    assert answer.status == 200
    assert "ann" in answer.body.decode()
    assert "Log out" not in answer.body.decode()


def test_links_lead_to_the_place_where_the_application_is_mounted(app: Mainspring) -> None:
    browser = DashboardBrowser(app, root_path="/ops/jobs")
    page = browser.get("/").body.decode()
    assert 'href="/ops/jobs/"' in page
    assert 'action="/ops/jobs/logout"' in page
    assert 'data-live-url="/ops/jobs/live/"' in page
    assert 'href="/"' not in page
    assert 'src="/static' not in page


@pytest.mark.parametrize(
    "where", ["//evil.example", "https://evil.example", "/\\evil.example", "\t//evil.example"]
)
def test_a_login_leads_to_no_other_server(app: Mainspring, where: str) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    browser.send("/login", {"token": browser.token, "next": where})
    assert browser.get("/login?next=" + where).headers["location"] == "/"


def test_a_read_only_server_refuses_every_change_but_a_login(app: Mainspring) -> None:
    asgi = app.asgi(auth="tokens", read_only=True)
    browser = DashboardBrowser(app, asgi=asgi)
    assert browser.get("/").status == 200
    json = ("content-type", "application/json")
    answer = request(asgi, "/api/v1/jobs", method="POST", token=browser.token, headers=[json], body=b"{}")
    assert (answer.status, answer.problem) == (403, "read-only")
    assert request(asgi, "/jobs/1/cancel", method="POST", headers=[FORM]).problem == "read-only"
    assert browser.post("/logout").status == 303


def test_a_browser_may_not_see_a_page_that_its_token_does_not_allow(app: Mainspring) -> None:
    browser = DashboardBrowser(app, "submit")
    answer = browser.get("/")
    assert answer.status == 403
    assert "read" in answer.body.decode()


def test_files_have_their_hash_in_the_address_and_are_kept_for_a_year(app: Mainspring) -> None:
    browser = DashboardBrowser(app)
    page = browser.get("/").body.decode()
    address = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
    answer = request(browser.asgi, address)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in answer.headers["cache-control"]
    assert request(browser.asgi, "/static/../page.py").status == 404
    assert request(browser.asgi, "/static/dashboard.css").status == 404


def test_a_link_on_another_site_leads_to_the_page_with_the_cookie(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    foreign = [("sec-fetch-site", "cross-site")]
    page = browser.get("/?range=6h", headers=foreign).body.decode()
    assert '<meta http-equiv="refresh" content="0; url=/?range=6h">' in page
    for path in ("//evil.example/", "/%5Cevil.example", "/\\evil.example"):
        page = browser.get(path, headers=foreign).body.decode()
        assert re.search(r'content="0; url=/[^/\\]?', page) or "refresh" not in page
        assert "url=//" not in page
        assert "url=/\\" not in page


def test_a_server_behind_tls_keeps_its_cookie_for_its_own_port(app: Mainspring) -> None:
    browser = DashboardBrowser(app, is_logged_in=False)
    body = f"token={browser.token}".encode()
    for host, name, is_secure in (
        ("127.0.0.1:8400", "mainspring_session_8400", False),
        ("localhost", "mainspring_session", False),
        ("jobs.example.com", "__Host-mainspring_session", True),
        ("192.168.0.7:8400", "__Host-mainspring_session_8400", True),
    ):
        answer = request(browser.asgi, "/login", method="POST", headers=[HTML, FORM], body=body, host=host)
        (cookie,) = answer.cookies
        assert cookie.startswith(f"{name}="), host
        assert ("; Secure" in cookie) == is_secure, host
        assert "; Path=/;" in cookie
        assert "domain" not in cookie.lower()


def test_a_session_that_a_subdomain_has_set_is_none(app: Mainspring) -> None:
    """A server of a subdomain can set `mainspring_session` for the whole domain, but no name with `__Host-`."""
    attacker = DashboardBrowser(app)
    (name, session_id), *_ = attacker.cookies.items()
    assert name == "__Host-mainspring_session"
    user = DashboardBrowser(app, asgi=attacker.asgi, is_logged_in=False)
    user.cookies["mainspring_session"] = session_id
    assert user.get("/").headers["location"] == "/login"


def test_the_cookie_of_a_mounted_application_keeps_its_path(app: Mainspring) -> None:
    browser = DashboardBrowser(app, root_path="/ops", is_logged_in=False)
    (cookie,) = browser.log_in().cookies
    assert cookie.startswith("__Secure-mainspring_session=")
    assert {"Secure", "Path=/ops/", "HttpOnly"} <= set(cookie.split("; "))
    assert browser.get("/").status == 200


def test_the_log_names_the_caller_of_a_login_and_no_token(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="mainspring.http"):
        browser = DashboardBrowser(app)
        browser.get(f"/?token={browser.token}")
        browser.get("/")
    assert f"by {browser.name!r}: 303" in caplog.text
    assert browser.token not in caplog.text
    assert not any(value in caplog.text for value in browser.cookies.values())


def test_a_page_that_fails_is_an_error_page_without_details(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("a secret detail")

    browser = DashboardBrowser(app)
    monkeypatch.setattr(app, "statistics_async", fail)
    answer = browser.get("/")
    assert (answer.status, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "secret" not in answer.body.decode()
    assert answer.headers["x-request-id"] in answer.body.decode()
    assert "a secret detail" in caplog.text
