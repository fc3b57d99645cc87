"""The tokens of an application's HTTP server, `app.tokens`: makes, lists and revokes them."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from mainspring.clock import Duration
from mainspring.errors import LimitExceeded, TokenNotFound
from mainspring.jobs.audit import AuditNote
from mainspring.jobs.commands import PutToken, RevokeToken
from mainspring.jobs.handle import ManagerProvider
from mainspring.jobs.off_loop import OffLoop, async_twin
from mainspring.jobs.timestamps import LAST_INSTANT, to_datetime, to_instant, to_microseconds
from mainspring.security.permissions import Permissions, Scope, parse_names, parse_scopes
from mainspring.security.tokens import MAX_TOKEN_NAME, MAX_TOKENS, TokenRecord, TokenState, make_token


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A snapshot of a stored token, without its secret."""

    id: str
    """The public part of the token, which logs and lists show."""
    name: str
    scopes: tuple[str, ...]
    types: tuple[str, ...] | None
    """The job types that a client with this token may use; None for all."""
    queues: tuple[str, ...] | None
    """The queues that a client with this token may use; None for all."""
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    last_used: datetime | None
    """When the token was last used, exact to a minute; None if it never was."""
    state: TokenState


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that was just made. No other call returns the secret again."""

    secret: str = field(repr=False)
    """The token itself, for `Authorization: Bearer`. The store has only a hash of it."""
    info: TokenInfo


class Tokens:
    """`app.tokens`: makes, lists and revokes the tokens of the application's HTTP server."""

    def __init__(self, source: ManagerProvider) -> None:
        self._source = source

    @property
    def _off_loop(self) -> OffLoop:
        return self._source.off_loop

    def create(
        self,
        name: str,
        *,
        scopes: Iterable[Scope | str],
        types: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        expires: datetime | Duration | None = None,
    ) -> NewToken:
        """Make a token and store a hash of it. The returned object is the only place with the secret.

        Raises `ValueError` if an active token has this name, and `LimitExceeded` if too many tokens are active.

        - `name`: a name for lists and logs, such as the program that will use the token
        - `scopes`: what the token allows: `submit`, `read`, `work`, `operate`, `callback`; `admin` for everything
        - `types`: the job types that it may touch; None for all
        - `queues`: the queues that it may touch; None for all
        - `expires`: when it expires, or after which time; None for never
        """
        manager = self._source.manager()
        now = manager.engine.now()
        permissions = Permissions(
            scopes=parse_scopes(scopes), types=parse_names(types, "types"), queues=parse_names(queues, "queues")
        )
        if Scope.ADMIN in permissions.scopes and (permissions.types or permissions.queues):
            raise ValueError(
                "the scope admin cannot be restricted to types or queues, because it can make other tokens; name "
                "the scopes that are needed: submit, read, work, operate or callback"
            )
        known = manager.engine.tokens()
        active = [token for token in known if token.state(now) is TokenState.ACTIVE]
        if len(active) >= MAX_TOKENS:
            raise LimitExceeded(
                what="the list of tokens",
                size=len(active) + 1,
                limit=MAX_TOKENS,
                remedy="revoke tokens without a recent use: mainspring tokens list shows it",
            )
        wanted = _require_name(name)
        if any(token.name == wanted for token in active):
            raise ValueError(
                f"an active token is named {wanted!r} already; choose another name, or revoke that token: "
                f"app.tokens.revoke({wanted!r})"
            )
        secret, record = make_token(wanted, permissions, created=now, expires=_end(expires, now))
        manager.arrange([PutToken(record)])
        return NewToken(secret=secret, info=to_token_info(record, now))

    create_async = async_twin(create, writes=True)

    def list(self) -> builtins.list[TokenInfo]:
        """List the tokens by name, with those that expired or were revoked in the last 30 days."""
        engine = self._source.manager().engine
        now = engine.now()
        return [to_token_info(record, now) for record in engine.tokens()]

    list_async = async_twin(list)  # noqa: A003 - the method above

    def revoke(self, name: str) -> TokenInfo:
        """Revoke a token by its name or id. Servers refuse it at once, those of other processes within a second.

        Raises `TokenNotFound` if no active token has this name or id, or if several have the name.
        """
        manager = self._source.manager()
        now = manager.engine.now()
        active = [token for token in manager.engine.tokens() if token.state(now) is TokenState.ACTIVE]
        found = [token for token in active if token.id == name]
        found = found or [token for token in active if token.name == name]
        if len(found) != 1:
            ids = tuple(token.id for token in found)
            raise TokenNotFound(name=name, known=tuple(token.name for token in active), ids=ids)
        manager.arrange([RevokeToken(found[0].id, now)], note=AuditNote(target=found[0].name))
        stored = next((token for token in manager.engine.tokens() if token.id == found[0].id), found[0])
        return to_token_info(stored, now)

    revoke_async = async_twin(revoke, writes=True)

    def __repr__(self) -> str:
        return "<Tokens>"


def _require_name(name: str) -> str:
    if not name.strip() or len(name) > MAX_TOKEN_NAME or not name.isprintable():
        raise ValueError(
            f"{name!r} is no name for a token; use 1 to {MAX_TOKEN_NAME} printable characters, such as the "
            "program that will use it"
        )
    return name.strip()


def _end(expires: datetime | Duration | None, now: int) -> int | None:
    if expires is None:
        return None
    end = (
        to_instant(expires, "expires")
        if isinstance(expires, datetime)
        else now + to_microseconds(expires, "expires")
    )
    if end <= now:
        raise ValueError(f"the token would expire at once: expires={expires!r}; give a later time")
    if end > LAST_INSTANT:
        raise ValueError(f"expires={expires!r} is too far away; leave it out for a token that never expires")
    return end


def to_token_info(record: TokenRecord, now: int) -> TokenInfo:
    """Make a snapshot of a stored token, with its state at `now`."""
    return TokenInfo(
        id=record.id,
        name=record.name,
        scopes=record.scopes,
        types=record.types,
        queues=record.queues,
        created=to_datetime(record.created),
        expires=None if record.expires is None else to_datetime(record.expires),
        revoked=None if record.revoked is None else to_datetime(record.revoked),
        last_used=None if record.last_used is None else to_datetime(record.last_used),
        state=record.state(now),
    )
