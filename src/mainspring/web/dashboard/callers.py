"""Identifies the browser that requests a page: by its session, or, without a login, by the authenticator.

Invariants
- A page reads a cookie, never the header `Authorization`; the API reads that header, and never a cookie.
- A form changes something only if it has the CSRF token of the browser's cookie.
- The cookie is HttpOnly and SameSite=Strict, and Secure unless the browser uses http at a loopback address.
- The name of the cookie has the port, because browsers share cookies between all ports of a host.
- With Secure, the name of the cookie begins with `__Host-`, so that no server of a subdomain can set it. Below a
  mount path it begins with `__Secure-`, because `__Host-` needs the path `/`: only servers with TLS can set it.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mainspring.clock import Clock
from mainspring.errors import TokenInvalid
from mainspring.security.permissions import Identity
from mainspring.security.tokens import MAX_LENGTH
from mainspring.web.credentials import Authenticator, TokenAuthenticator
from mainspring.web.dashboard.sessions import LoginThrottle, Sessions, csrf_token_of, make_id
from mainspring.web.guard import CALLER
from mainspring.web.host_names import LOOPBACK_NAMES, split_host
from mainspring.web.problems import Refused, refuse

NOT_LOGGED_IN = "not-logged-in"
_COOKIE = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A browser whose caller was identified."""

    identity: Identity
    cookie: str
    """The value of the browser's cookie: the id of its session, or, without a login, a random value for the CSRF
    token."""
    is_new: bool
    """Whether the browser does not have the cookie yet, so that the answer must set it."""
    has_session: bool

    @property
    def csrf_token(self) -> str:
        """The CSRF token that each form of this browser must contain."""
        return csrf_token_of(self.cookie)


class Callers:
    """Logs browsers in and out, and identifies them.

    - `authenticator`: identifies callers: by tokens, which means that browsers log in, or without a login
    - `clock`: measures sessions and failed logins
    """

    def __init__(self, authenticator: Authenticator, clock: Clock | None = None) -> None:
        self._authenticator = authenticator
        self._tokens = authenticator if isinstance(authenticator, TokenAuthenticator) else None
        self.sessions = Sessions(clock)
        self.throttle = LoginThrottle(clock=clock)

    @property
    def has_login(self) -> bool:
        """Whether browsers must log in with a token; False with `--no-auth` and a function as `auth`."""
        return self._tokens is not None

    async def identify(self, request: Request) -> Visitor:
        """Return the browser with its caller; raise `Refused` if it has no session, or is not admitted.

        A session whose token is not valid any more ends.
        """
        cookie = _cookie_of(request)
        if self._tokens is None:
            identity = await self._authenticator.identify(request.scope)
            return Visitor(identity, cookie or make_id(), cookie is None, has_session=False)
        token_id = None if cookie is None else self.sessions.token_of(cookie)
        if cookie is not None and token_id is not None:
            found = await self._tokens.identify_by_id(token_id)
            if found is not None:
                return Visitor(found, cookie, is_new=False, has_session=True)
            self.sessions.end(cookie)
        raise refuse(401, NOT_LOGGED_IN, "this browser is not logged in; log in with a token first")

    async def log_in(self, request: Request, token: str, *, is_link: bool = False) -> str:
        """Begin a session for a token, end the earlier session of the browser, and return the id for the cookie.

        Raises `TokenInvalid` for a token that cannot be used, and `Refused` for a text that is empty or too long,
        or if the server has no login. After many failed logins from an address, the error comes with a delay.
        Requests of foreign pages do not count: their authors would slow the logins of others down.

        `is_link` says that the token was in a link. Raises `Refused` for a link on a page of another site, because
        the author of that link could see what the user submits. The link that the server prints when it starts may
        be on any page.
        """
        if self._tokens is None:
            raise refuse(404, "not-found", "this server has no login with tokens; open its first page")
        is_foreign = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        token = token.strip()
        try:
            if not token or len(token) > MAX_LENGTH:
                raise refuse(401, "token-missing", "the text is no token; a token looks like msp_..._...")
            identity = await self._tokens.identify_token(token)
        except (Refused, TokenInvalid):
            if not is_foreign:
                await self.throttle.failed(str((request.scope.get("client") or ("unknown",))[0]))
            raise
        if is_link and is_foreign and not self._tokens.is_of_process(identity.token):
            raise refuse(
                403, "origin-foreign", "the link is on a page of another site; log in with the token instead"
            )
        request.scope[CALLER] = identity.name  # for the log
        self.log_out(request)
        return self.sessions.begin(identity.token or "")

    def log_out(self, request: Request) -> None:
        """End the session of a browser, if it has one."""
        cookie = _cookie_of(request)
        if cookie is not None:
            self.sessions.end(cookie)


def check_csrf(visitor: Visitor, given: str) -> None:
    """Raise `Refused` unless `given`, the CSRF token of a form, is that of the browser's cookie.

    A browser that has no cookie yet is always refused.
    """
    if visitor.is_new or not hmac.compare_digest(visitor.csrf_token.encode(), given.encode()):
        raise refuse(
            403, "form-outdated", "this form is outdated, or comes from another page; load the page again"
        )


def _cookie_of(request: Request) -> str | None:
    value = request.cookies.get(cookie_name(request))
    return value if value is not None and _COOKIE.fullmatch(value) else None


def cookie_name(request: Request) -> str:
    """Return the name of the cookie with the session id: with a prefix if it is Secure, and the port."""
    parts = split_host(request.headers.get("host", ""))
    port = None if parts is None else parts[1]
    options = cookie_options(request)
    prefix = "" if not options["secure"] else "__Host-" if options["path"] == "/" else "__Secure-"
    return f"{prefix}mainspring_session" + ("" if port is None else f"_{port}")


def is_loopback(request: Request) -> bool:
    """Return whether the `Host` of a request is a loopback name or address, which needs no TLS."""
    parts = split_host(request.headers.get("host", ""))
    return parts is not None and (parts[0] in LOOPBACK_NAMES or parts[0].endswith(".localhost"))


def cookie_options(request: Request) -> dict[str, Any]:
    """Return the attributes that all cookies of the dashboard have: path, Secure and SameSite."""
    return {
        "path": str(request.scope.get("root_path", "")).rstrip("/") + "/",
        "secure": request.url.scheme == "https" or not is_loopback(request),
        "samesite": "strict",
    }


def set_session_cookie(request: Request, response: Response, value: str) -> None:
    """Add the cookie with the session id to a response."""
    response.set_cookie(cookie_name(request), value, httponly=True, **cookie_options(request))


def delete_session_cookie(request: Request, response: Response) -> None:
    """Let a response delete the cookie with the session id."""
    response.delete_cookie(cookie_name(request), httponly=True, **cookie_options(request))
