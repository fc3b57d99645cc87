"""A browser without a window: logs in to the dashboard of an application, loads pages and sends forms."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

from mainspring import Mainspring
from mainspring.security.asgi_types import AsgiApp
from tests.asgi_client import Answer, request

HTML = ("accept", "text/html,application/xhtml+xml")
FORM = ("content-type", "application/x-www-form-urlencoded")
_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class DashboardBrowser:
    """A browser that is logged in with a token of its own.

    - `app`: the application
    - `scopes`, `types`, `queues`: the rights of the token
    - `asgi`: the ASGI application; by default a new one that admits tokens
    """

    def __init__(
        self,
        app: Mainspring,
        *scopes: str,
        types: list[str] | None = None,
        queues: list[str] | None = None,
        asgi: AsgiApp | None = None,
        root_path: str = "",
        is_logged_in: bool = True,
    ) -> None:
        self.app = app
        self.asgi = asgi or app.asgi(auth="tokens")
        self.root_path = root_path
        self.cookies: dict[str, str] = {}
        self.csrf = ""
        name = f"browser {len(app.tokens.list())}"
        made = app.tokens.create(name, scopes=scopes or ("admin",), types=types, queues=queues)
        self.name, self.token, self.token_id = name, made.secret, made.info.id
        if is_logged_in:
            self.log_in()

    def log_in(self, token: str | None = None) -> Answer:
        """Send the form of the login."""
        return self.send("/login", {"token": self.token if token is None else token})

    def get(self, path: str, *, headers: list[tuple[str, str]] | None = None) -> Answer:
        """Load a page, and remember its CSRF token."""
        answer = self._request(path, headers=[HTML, *(headers or [])])
        found = _CSRF.search(answer.body.decode(errors="replace"))
        if found is not None:
            self.csrf = found[1]
        return answer

    def post(self, path: str, fields: dict[str, Any] | None = None, *, csrf: str | None = None) -> Answer:
        """Send a form with the CSRF token of the last page that was loaded."""
        if not self.csrf and csrf is None:
            self.get("/")
        return self.send(path, {"csrf": self.csrf if csrf is None else csrf, **(fields or {})})

    def send(self, path: str, fields: dict[str, Any], *, headers: list[tuple[str, str]] | None = None) -> Answer:
        """Send a form as it is. A field whose value is a list is sent several times."""
        body = urlencode(fields, doseq=True).encode()
        return self._request(path, method="POST", headers=[HTML, FORM, *(headers or [])], body=body)

    def text(self, path: str) -> str:
        """Load a page, which must work, and return its visible text in one line."""
        answer = self.get(path)
        assert answer.status == 200, (answer.status, answer.body[:500])
        return visible_text(answer)

    def note(self, answer: Answer) -> str:
        """Follow the redirect after an action, and return the message that the next page shows."""
        assert answer.status == 303, (answer.status, answer.body[:500])
        page = self.get(answer.headers["location"].removeprefix(self.root_path))
        found = re.search(r'<div class="note (\w+)" role="status">(.*?)</div>', page.body.decode(), re.DOTALL)
        assert found is not None, "the page shows no message"
        return unescape(found[2]).strip()

    def _request(self, path: str, *, headers: list[tuple[str, str]], **options: Any) -> Answer:
        sent = list(headers)
        if self.cookies:
            sent.append(("cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items())))
        answer = request(self.asgi, path, headers=sent, root_path=self.root_path, **options)
        for cookie in answer.cookies:
            name, _, value = cookie.partition(";")[0].partition("=")
            if "Max-Age=0" in cookie:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value.strip('"')
        return answer


def visible_text(answer: Answer) -> str:
    """Return the text of a page without tags, in one line."""
    text = re.sub(r"<(style|script|title)\b.*?</\1>", " ", answer.body.decode(), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())
