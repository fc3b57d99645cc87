"""Serves the pages of the dashboard: routes, login and logout, actions, live streams and errors.

Invariants
- Every answer that is a page has the strict content security policy: only files of this server, no inline script
  and no inline style.
- The order is: path, method, caller, scope, CSRF token, then the coroutine of the page or action. Only the form
  of the login is read before the caller is known.
- A browser that is not logged in sees the login page at every path, so it does not learn which pages exist.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from mainspring.clock import Clock
from mainspring.errors import EngineUnavailable, MainspringError, NotAllowed
from mainspring.jobs.handle import open_manager
from mainspring.jobs.periodic_reads import computing
from mainspring.jobs.timestamps import to_datetime
from mainspring.security.asgi_types import AsgiScope, Receive, Send
from mainspring.security.http_limits import HttpLimits
from mainspring.security.permissions import Identity
from mainspring.security.tokens import hide_tokens
from mainspring.web.api.decoding import decode_beside
from mainspring.web.credentials import Authenticator
from mainspring.web.dashboard import assets, callers
from mainspring.web.dashboard.callers import NOT_LOGGED_IN, Callers, Visitor
from mainspring.web.dashboard.live import Blocks, LiveResponse, LiveStreams, Render
from mainspring.web.dashboard.page import (
    Action,
    ActionCall,
    Again,
    Done,
    NavEntry,
    Operations,
    Page,
    PageCall,
    parse_form,
)
from mainspring.web.dashboard.rendering import Renderer, fill_csrf
from mainspring.web.dashboard.site import all_actions, all_pages, navigation_for
from mainspring.web.dashboard.snapshots import Snapshots
from mainspring.web.guard import CALLER, REQUEST_ID, route_path
from mainspring.web.paths import match_segments, path_segments, split_pattern
from mainspring.web.problems import FAILURE, Problem, Refused, problem_of

if TYPE_CHECKING:
    from mainspring.app import Mainspring

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"content-security-policy": POLICY, "referrer-policy": "same-origin"}
# With the policy `no-referrer`, browsers send `Origin: null` with forms, and the guard could not check them.
THEMES = ("light", "dark")
THEME_COOKIE = "mainspring_theme"
NOTE_COOKIE = "mainspring_note"
NOTE_SECONDS = 30
YEAR_SECONDS = 365 * 86_400
MAX_NOTE = 1_000
MAX_PATH = 8_192
WELCOME = """Mainspring

/    the dashboard, for browsers
/api/v1/    the API; send your token as Authorization: Bearer msp_...
/metrics    metrics for Prometheus, with a token of the scope read
/healthz, /readyz    probes
"""
SEE_OTHER = 303

logger = logging.getLogger("mainspring.http")


class Dashboard:
    """The ASGI application of all pages of the dashboard.

    - `app`: the application
    - `authenticator`: identifies callers: by tokens, or by a function of the application
    - `operations`: the operations of the API, for pages and actions
    - `limits`: the limits of the server
    - `is_read_only`: whether the server refuses all changes, so that pages show no actions
    - `clock`: measures sessions and the age of cached reads
    - `interval`: the least number of seconds between two updates of a page
    """

    def __init__(
        self,
        app: Mainspring,
        authenticator: Authenticator,
        operations: Operations,
        *,
        limits: HttpLimits | None = None,
        is_read_only: bool = False,
        clock: Clock | None = None,
        interval: float = 1.0,
    ) -> None:
        self._app = app
        self._operations = operations
        self._is_read_only = is_read_only
        self.callers = Callers(authenticator, clock)
        self.snapshots = Snapshots(app, clock)
        self.streams = LiveStreams(limits or HttpLimits(), interval=interval)
        self._assets = _shared_assets()
        pages = all_pages(app)
        self._pages = [(split_pattern(page.path), page) for page in pages]
        self._actions = [(split_pattern(action.path), action) for action in all_actions(app)]
        self._renderer = _shared_renderer(tuple(navigation_for(pages)))
        self.own_paths: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
            "login": self._login,
            "logout": self._logout,
            "theme": self._theme,
        }
        """What changes only the session or a cookie of a browser, by its path: `BROWSER_STATE` of the guard."""

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request. For a browser, an error becomes a page; for other clients, it is raised."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except (Refused, MainspringError, HTTPException) as error:
            if not wants_html(request):
                raise
            response = self._error_page(request, error)
        except Exception as error:  # a browser shows a page, not a problem in JSON
            if not wants_html(request):
                raise
            logger.exception("request %s: the page failed", request.scope.get(REQUEST_ID))
            response = self._error_page(request, error)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        segments = path_segments(request.scope)
        first = segments[0]
        if first == assets.PREFIX and len(segments) == 2:
            return self._asset(request, segments[1])
        match segments:
            case [""] if request.method in ("GET", "HEAD") and not wants_html(request):
                return Response(WELCOME, media_type="text/plain")
            case [""] if "token" in request.query_params:
                return await self._log_in_by_link(request)
            case [name] if name in self.own_paths:
                return await self.own_paths[name](request)
            case ["live", *rest]:
                return await self._live(request, rest or [""])
            case _:
                pass
        if request.method == "POST":
            return await self._act(request, segments)
        return await self._show(request, segments)

    def _asset(self, request: Request, name: str) -> Response:
        _require_method(request, "GET", "HEAD")
        response = self._assets.response(name, request.headers.get("accept-encoding", ""))
        if response is None:
            raise HTTPException(404)
        return response

    # -- pages

    def _find(self, segments: list[str]) -> tuple[Page, dict[str, str]] | None:
        for pattern, page in self._pages:
            values = match_segments(pattern, segments)
            if values is not None:
                return page, values
        return None

    async def _identify(self, request: Request) -> Visitor:
        visitor = await self.callers.identify(request)
        request.scope[CALLER] = visitor.identity.name
        return visitor

    async def _show(self, request: Request, segments: list[str]) -> Response:
        found = self._find(segments)
        if found is None and self._find_action(segments) is None and not wants_html(request):
            raise HTTPException(404)
        visitor = await self._identify(request)
        if found is None:
            raise HTTPException(404)
        _require_method(request, "GET", "HEAD")
        page, values = found
        _check_scopes(page, visitor.identity)
        call = await self._page_call(request, visitor.identity, values)
        context = await page.load(call)
        if isinstance(context, Response):
            return context
        return self.render(page, call, context, visitor)

    async def _page_call(self, request: Request, identity: Identity, values: Mapping[str, str]) -> PageCall:
        manager = await open_manager(self._app)
        return PageCall(
            app=self._app,
            identity=identity,
            path=values,
            request=request,
            snapshots=self.snapshots,
            operations=self._operations,
            now=to_datetime(manager.engine.now()),
            is_read_only=self._is_read_only,
        )

    def render(
        self, page: Page, call: PageCall, context: Mapping[str, Any], visitor: Visitor, *, status: int = 200
    ) -> Response:
        """Return the response with the HTML of a page, with the CSRF token and the message of the last action.

        The response sets the cookie of a browser that has none, and deletes the cookie of the message.
        """
        request = call.request
        query = f"?{request.url.query}" if request.url.query else ""
        shown = {
            "me": visitor.identity,
            "has_session": visitor.has_session,
            "theme": theme_of(request),
            "note": _read_note(request),
            "here": route_path(request.scope) + query,
            "live_url": f"{call.root}/live{_raw_route_path(request)}{query}"
            if page.live and request.method == "GET"
            else None,
        }
        text = fill_csrf(self._renderer.page(page, call, context, shown), visitor.csrf_token)
        response = _html(text, status)
        if visitor.is_new:
            callers.set_session_cookie(request, response, visitor.cookie)
        if shown["note"] is not None:
            response.delete_cookie(NOTE_COOKIE, httponly=True, **callers.cookie_options(request))
        return response

    # -- live streams

    async def _live(self, request: Request, segments: list[str]) -> Response:
        visitor = await self._identify(request)
        found = self._find(segments)
        if found is None or not found[0].live:
            raise HTTPException(404)
        _require_method(request, "GET")
        page, values = found
        _check_scopes(page, visitor.identity)
        place = (page.name, *values.values(), request.url.query, request.scope.get("root_path", ""))

        async def check() -> Visitor:
            present = await self.callers.identify(request)
            _check_scopes(page, present.identity)
            return present

        def share(visitor: Visitor) -> tuple[Hashable, Render]:
            return (place, visitor.identity.permissions), partial(load, visitor.identity)

        async def load(identity: Identity) -> Blocks:
            call = await self._page_call(request, identity, values)
            context = await page.load(call)
            if isinstance(context, Response):
                return {}
            with computing():
                return self._renderer.blocks(page, call, context)

        return LiveResponse(self.streams, visitor, check, share)

    # -- actions

    def _find_action(self, segments: list[str]) -> tuple[Action, dict[str, str]] | None:
        for pattern, action in self._actions:
            values = match_segments(pattern, segments)
            if values is not None:
                return action, values
        return None

    async def _act(self, request: Request, segments: list[str]) -> Response:
        found = self._find_action(segments)
        visitor = await self._identify(request)
        if found is None:
            raise HTTPException(404 if self._find(segments) is None else 405)
        action, values = found
        _check_scopes(action, visitor.identity)
        form = await self._read_form(request)
        callers.check_csrf(visitor, form.get("csrf", ("",))[-1])
        visitor = await self._identify(request)  # the token may have been revoked while the form arrived
        page_call = await self._page_call(request, visitor.identity, values)
        call = ActionCall(
            app=page_call.app,
            identity=page_call.identity,
            path=values,
            request=request,
            snapshots=self.snapshots,
            operations=self._operations,
            now=page_call.now,
            form=form,
        )
        wants_json = "application/json" in request.headers.get("accept", "")
        try:
            done = await action.serve(call)
        except (Refused, MainspringError) as error:
            done = Done(message=_sentence(_problem(request, error).detail), kind="error")
        if isinstance(done, Response):
            return done
        if isinstance(done, Again):
            page = next(page for _, page in self._pages if page.name == done.page)
            return self.render(page, call, done.context, visitor, status=done.status)
        self.snapshots.forget()
        location = done.location or f"{call.root}{local_path(call.value('next'))}"
        if wants_json:
            content = {"message": done.message, "kind": done.kind, "location": done.location}
            return Response(msgspec.json.encode(content), media_type="application/json")
        response = RedirectResponse(location, SEE_OTHER)
        _write_note(request, response, done)
        return response

    async def _read_form(self, request: Request) -> dict[str, tuple[str, ...]]:
        return await decode_beside(self._app.off_loop, parse_form, await request.body())

    # -- login and logout

    async def _login(self, request: Request) -> Response:
        _require_method(request, "GET", "HEAD", "POST")
        if not self.callers.has_login:
            await self.callers.identify(request)
            return RedirectResponse(_root(request) + "/", SEE_OTHER)
        if request.method != "POST":
            following = local_path(request.query_params.get("next", ""))
            try:
                await self.callers.identify(request)
            except Refused:
                error = NO_COOKIE if "kept" in request.query_params else None
                return self._login_page(request, following, error)
            return RedirectResponse(_root(request) + following, SEE_OTHER)
        form = await self._read_form(request)
        following = local_path(form.get("next", ("",))[-1])
        try:
            session_id = await self.callers.log_in(request, form.get("token", ("",))[-1])
        except (Refused, MainspringError) as error:
            problem = _problem(request, error)
            return self._login_page(request, following, _sentence(problem.detail), problem.status)
        # the login page finds out whether the browser has kept the cookie
        query = urlencode({"next": following, "kept": "1"})
        response = RedirectResponse(f"{_root(request)}/login?{query}", SEE_OTHER)
        callers.set_session_cookie(request, response, session_id)
        return response

    async def _log_in_by_link(self, request: Request) -> Response:
        """Log a browser in with the token in the link that `mainspring serve` prints.

        The answer is a page that leads to the overview by itself: after a redirect, a browser would not send the
        cookie if the link was on a page of another site. If the login fails, the answer is the login page.
        """
        _require_method(request, "GET", "HEAD")
        if not self.callers.has_login:
            return RedirectResponse(_root(request) + "/", SEE_OTHER)
        try:
            session_id = await self.callers.log_in(request, request.query_params["token"], is_link=True)
        except (Refused, MainspringError) as error:
            problem = _problem(request, error)
            return self._login_page(request, "/", _sentence(problem.detail), problem.status)
        response = self._leading_page(request, "/login?kept=1")
        callers.set_session_cookie(request, response, session_id)
        return response

    def _leading_page(self, request: Request, path: str) -> Response:
        """Return a page that makes the browser load `path` at once, without a script and without a redirect."""
        context = {"root": _root(request), "theme": theme_of(request), "target": _root(request) + path}
        return _html(self._renderer.plain("leading.html", context), 200, {"referrer-policy": "no-referrer"})

    def _login_page(self, request: Request, following: str, error: str | None, status: int = 200) -> Response:
        context = {
            "root": _root(request),
            "theme": theme_of(request),
            "next": following,
            "error": error,
        }
        return _html(self._renderer.plain("login.html", context), status)

    async def _logout(self, request: Request) -> Response:
        _require_method(request, "POST")
        visitor = await self._identify(request)
        callers.check_csrf(visitor, (await self._read_form(request)).get("csrf", ("",))[-1])
        self.callers.log_out(request)
        response = RedirectResponse(f"{_root(request)}/login", SEE_OTHER)
        callers.delete_session_cookie(request, response)
        return response

    async def _theme(self, request: Request) -> Response:
        """Store the theme that the user has chosen in a cookie, for browsers without the script.

        Any value except `light` and `dark` deletes the cookie.
        """
        _require_method(request, "POST")
        await self._identify(request)
        form = await self._read_form(request)
        response = RedirectResponse(_root(request) + local_path(form.get("next", ("",))[-1]), SEE_OTHER)
        theme = form.get("theme", ("",))[-1]
        options = callers.cookie_options(request)
        if theme in THEMES:
            response.set_cookie(THEME_COOKIE, theme, max_age=YEAR_SECONDS, **options)
        else:
            response.delete_cookie(THEME_COOKIE, **options)
        return response

    # -- errors

    def _error_page(self, request: Request, error: Exception) -> Response:
        problem = _problem(request, error)
        if problem.type == NOT_LOGGED_IN and request.method in ("GET", "HEAD"):
            if request.headers.get("sec-fetch-site") == "cross-site":
                # a link on another site: the browser has sent no cookie, and sends it with the next request
                query = f"?{request.url.query}" if request.url.query else ""
                return self._leading_page(request, local_path(_raw_route_path(request)) + query)
            here = route_path(request.scope)
            here += f"?{request.url.query}" if request.url.query else ""
            query = "" if here == "/" else "?" + urlencode({"next": here})
            return RedirectResponse(f"{_root(request)}/login{query}", SEE_OTHER)
        context = {
            "root": _root(request),
            "theme": theme_of(request),
            "status": problem.status,
            "detail": _sentence(problem.detail),
            "request_id": request.scope.get(REQUEST_ID, ""),
            "has_login": self.callers.has_login and problem.status in (401, 403),
        }
        response = _html(self._renderer.plain("error.html", context), problem.status)
        for name, value in problem.headers.items():
            if name.lower() != "www-authenticate":
                response.headers[name] = value
        return response


@cache
def _shared_assets() -> assets.Assets:
    """Return the static files of the dashboard, which all applications of a process share."""
    return assets.Assets()


@cache
def _shared_renderer(navigation: tuple[NavEntry, ...]) -> Renderer:
    """Return a renderer whose templates are compiled once, however many applications a process has."""
    return Renderer(_shared_assets(), navigation)


NO_COOKIE = (
    "The browser has not kept the session. Allow cookies for this address. Except on this machine itself, a "
    "session needs HTTPS: put a server with TLS in front of this one."
)


def wants_html(request: Request) -> bool:
    """Return whether the client of a request accepts HTML, as a browser that shows a page does."""
    return "text/html" in request.headers.get("accept", "")


def theme_of(request: Request) -> str:
    """Return the theme that the user has chosen, `light` or `dark`; an empty string for that of the system."""
    theme = request.cookies.get(THEME_COOKIE, "")
    return theme if theme in THEMES else ""


def local_path(given: str) -> str:
    """Return `given`, the path that a form or a query names, if it is short and on this server; else `/`."""
    is_local = (
        len(given) <= MAX_PATH
        and given.startswith("/")
        and not given.startswith("//")
        and "\\" not in given
        and given.isprintable()
    )
    return given if is_local else "/"


def _require_method(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise HTTPException(405, headers={"Allow": ", ".join(methods)})


def _check_scopes(declared: Page | Action, identity: Identity) -> None:
    if declared.scopes and not any(identity.permissions.has(scope) for scope in declared.scopes):
        raise NotAllowed(name=identity.name, scope=str(declared.scopes[0]))


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _raw_route_path(request: Request) -> str:
    """Return the path of a request, still percent-encoded, without the path where the application is mounted."""
    raw = (request.scope.get("raw_path") or request.scope["path"].encode()).partition(b"?")[0].decode("latin-1")
    root = _root(request)
    return raw.removeprefix(root) or "/"


def _html(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        text, status_code=status, media_type="text/html; charset=utf-8", headers={**HEADERS, **(headers or {})}
    )


def _problem(request: Request, error: Exception) -> Problem:
    """Convert an error to a problem. Log an error of the library if users do not see its text.

    `Refused` and `HTTPException` keep their status. Any other error that is not of the library becomes `FAILURE`;
    the caller logs it.
    """
    if isinstance(error, Refused):
        return error.problem
    if isinstance(error, HTTPException):
        details = {
            404: f"there is no page at {hide_tokens(request.url.path)[:200]!r}",
            405: f"this page does not allow {request.method}",
        }
        detail = details.get(error.status_code, str(error.detail))
        return Problem(
            status=error.status_code, type="http-error", detail=detail, headers=dict(error.headers or {})
        )
    if not isinstance(error, MainspringError):
        return FAILURE
    problem = problem_of(error)
    if problem is FAILURE or isinstance(error, EngineUnavailable):
        logger.error("request %s failed: %s", request.scope.get(REQUEST_ID), error, exc_info=error)
    return problem


def _sentence(text: str) -> str:
    """Return an error as a sentence: with a capital at its begin and a full stop at its end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _write_note(request: Request, response: Response, done: Done) -> None:
    """Store the message of an action in a cookie, so that the next page shows it."""
    text = msgspec.json.encode([done.kind, done.message[:MAX_NOTE]])
    response.set_cookie(
        NOTE_COOKIE,
        urlsafe_b64encode(text).decode(),
        max_age=NOTE_SECONDS,
        httponly=True,
        **callers.cookie_options(request),
    )


def _read_note(request: Request) -> tuple[str, str] | None:
    """Return the kind and the message of the action before this page, from its cookie; None if there is none."""
    value = request.cookies.get(NOTE_COOKIE)
    if value is None:
        return None
    try:
        kind, message = msgspec.json.decode(urlsafe_b64decode(value), type=tuple[str, str])
    except (ValueError, msgspec.MsgspecError):
        return None
    return (kind if kind in ("ok", "warning", "error") else "ok"), message
