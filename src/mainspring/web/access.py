"""Decides at the start of a server whom it admits.

- Tokens of the store, if there are any that can be used.
- Without them on loopback: a token that only this process knows, in a link that is printed, as Jupyter does.
- Without them elsewhere: the server refuses to start.
- `--no-auth`: every caller, on loopback only.
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
    """Whom a server admits."""

    authenticator: Authenticator
    link: str | None
    """A URL with a token that allows everything; None if tokens are stored, or with `--no-auth`."""
    is_open: bool = False
    """Whether every caller may do everything."""


def choose_access(app: Mainspring, listener: Listener, *, no_auth: bool, command: Sequence[str]) -> Access:
    """Decide whom a server admits; raise `CannotListen` if it must not listen at its address.

    - `app`: the application, whose store may have tokens
    - `listener`: where the server listens
    - `no_auth`: whether the user has said that every caller is admitted
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
