"""Decides at the start of an HTTP server which callers it admits.

- If the store has tokens that can be used: callers with one of these tokens.
- Without such tokens, on loopback: callers with a token that only this process knows. It is in a link that is
  printed on a terminal, as Jupyter does, and in no log.
- Without such tokens, elsewhere: the server refuses to start.
- With `--no-auth`: every caller, on loopback only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mainspring.errors import CannotListen
from mainspring.security.permissions import ALL_PERMISSIONS
from mainspring.security.tokens import TokenState, make_token
from mainspring.web.addresses import Listener
from mainspring.web.credentials import Authenticator, OpenAuthenticator, TokenAuthenticator

if TYPE_CHECKING:
    from mainspring.app import Mainspring

LINK_TOKEN = "the printed link"


class Access(NamedTuple):
    """Which callers a server admits, and the link that is printed for its user."""

    authenticator: Authenticator
    link: str | None
    """A URL with a token that allows everything; None if the store has usable tokens, or with `--no-auth`."""
    is_open: bool = False
    """Whether every caller may do everything."""


def choose_access(app: Mainspring, listener: Listener, *, no_auth: bool, command: Sequence[str]) -> Access:
    """Decide which callers a server admits; on loopback without tokens in the store, make a token for a link.

    Raises `CannotListen` if other machines can reach the address and either `no_auth` is set, or the store has no
    token that can be used.

    - `app`: the application, whose store may have tokens
    - `listener`: where the server listens
    - `no_auth`: whether the option `--no-auth` admits every caller
    - `command`: the command that makes a token, for errors
    """
    if no_auth:
        if not listener.is_loopback:
            raise CannotListen(
                address=str(listener.address),
                reason="--no-auth lets every caller do everything, and other machines can reach this address",
                remedy=f"leave --no-auth out, or listen at 127.0.0.1:{listener.address.port}",
            )
        return Access(OpenAuthenticator(), None, is_open=True)
    engine = app.manager().engine
    now = engine.now()
    if any(token.state(now) is TokenState.ACTIVE for token in engine.tokens()):
        return Access(TokenAuthenticator(app), None)
    if not listener.is_loopback:
        raise CannotListen(
            address=str(listener.address),
            reason="other machines can reach this address, and the store has no token that can be used",
            remedy=f"make one first: {' '.join(command)}; or listen at 127.0.0.1:{listener.address.port}",
        )
    secret, record = make_token(LINK_TOKEN, ALL_PERMISSIONS, created=now)
    return Access(TokenAuthenticator(app, extra=[record]), f"{listener.url}?token={secret}")
