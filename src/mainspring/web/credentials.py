"""Identifies the caller of a request: by the token in `Authorization: Bearer`, or by a function of the
application.

Invariants
- This module reads tokens from the header `Authorization` only, never from cookies or the query.
- A token that was revoked is refused at once in the process that revoked it, and on NATS in every process that is
  connected, by a notification. Other processes refuse it within a second: no cached list of tokens is older. If
  the list cannot be read again, every token is refused, except for `/metrics`: monitoring must learn that the
  store does not answer. There the last list counts, and tokens still expire.
- Each process stores the last use of tokens at most once a minute, and no request waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable
from typing import Protocol, TypeAlias

from mainspring.clock import NANOSECONDS, Clock, SystemClock
from mainspring.errors import EngineUnavailable, MainspringError
from mainspring.jobs.commands import NoteTokenUses
from mainspring.jobs.handle import ManagerProvider, open_manager
from mainspring.security.asgi_types import AsgiScope, Auth, AuthFunction
from mainspring.security.permissions import ALL_PERMISSIONS, Identity
from mainspring.security.tokens import MAX_LENGTH, TokenRecord, TokenState, authenticate
from mainspring.web.problems import REALM, Refused, refuse

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

MAX_AGE_NS = NANOSECONDS
USE_INTERVAL_NS = 60 * NANOSECONDS

logger = logging.getLogger("mainspring.http")


class Authenticator(Protocol):
    """The interface of objects that identify the caller of a request."""

    async def identify(self, scope: AsgiScope) -> Identity:
        """Return the caller of a request; raise `Refused` or `TokenInvalid` if it cannot be identified."""

    async def flush(self) -> None:
        """Store the last use of tokens that is not stored yet. The server calls this when it stops."""


def read_bearer(headers: Headers) -> str:
    """Return the bearer token of a request, unchecked; raise `Refused` if there is none or several.

    Also raise `Refused` if the token is too long.
    """
    found = [value for name, value in headers if name.lower() == b"authorization"]
    if not found:
        raise _unauthorized("the request has no token; send the header Authorization: Bearer msp_...")
    if len(found) > 1:
        raise refuse(400, "authorization-repeated", "the request has several Authorization headers; send one")
    scheme, _, token = found[0].strip(b" \t").partition(b" ")
    if scheme.lower() != b"bearer":
        raise _unauthorized("the Authorization header has no bearer token; send Authorization: Bearer msp_...")
    text = token.strip(b" \t")
    if len(text) > MAX_LENGTH:
        raise _unauthorized(f"the token is too long: a token has {MAX_LENGTH} characters; copy it again")
    return text.decode("latin-1")


def _unauthorized(detail: str) -> Refused:
    return refuse(401, "token-missing", detail, www_authenticate=REALM)


def closed() -> Refused:
    """Return the exception that answers every request to an application without `auth`, except probes."""
    return refuse(
        403,
        "closed",
        "this server is closed, because app.asgi() was called without auth; pass auth='tokens' to admit the "
        "tokens of the store (mainspring tokens create), or a function that returns the Identity of a caller",
    )


class ClosedAuthenticator:
    """Refuses every request, because the application was made without `auth`."""

    async def identify(self, scope: AsgiScope) -> Identity:
        raise closed()

    async def flush(self) -> None:
        """Do nothing: there is nothing to store."""


class OpenAuthenticator:
    """Lets every caller do everything: `--no-auth`, on loopback only."""

    async def identify(self, scope: AsgiScope) -> Identity:
        return Identity(name="anonymous", permissions=ALL_PERMISSIONS)

    async def flush(self) -> None:
        """Do nothing: there is nothing to store."""


class FunctionAuthenticator:
    """Identifies callers by a function of the application, which gets the ASGI scope of a request."""

    def __init__(self, function: AuthFunction) -> None:
        self._function = function

    async def identify(self, scope: AsgiScope) -> Identity:
        answer = self._function(scope)
        found = await answer if isawaitable(answer) else answer
        if found is None:
            raise refuse(
                401, "not-authenticated", "the application does not know the caller of the request; log in to it"
            )
        if not isinstance(found, Identity):
            raise TypeError(f"the function given as auth= must return an Identity or None, got {type(found)!r}")
        return found

    async def flush(self) -> None:
        """Do nothing: there is nothing to store."""


class TokenAuthenticator:
    """Compares the token of a request with those in the store.

    - `source`: the application, whose store has the tokens
    - `extra`: tokens that are valid in this process only, such as that of the printed link
    - `clock`: the clock that measures the age of the cached list
    """

    def __init__(
        self, source: ManagerProvider, *, extra: Iterable[TokenRecord] = (), clock: Clock | None = None
    ) -> None:
        self._source = source
        self._extra = {record.id: record for record in extra}
        self._clock = clock or SystemClock()
        self._records: Mapping[str, TokenRecord] = self._extra
        self._identities = _identities_of(self._records)
        self._read_ns: int | None = None  # when the list was read, before the read began
        self._changes = 0  # `Engine.token_changes` before the read
        self._reading: asyncio.Task[None] | None = None
        self._uses: dict[str, int] = {}  # uses that are not stored yet
        self._stored_ns: int | None = None  # when uses were last stored
        self._storing: asyncio.Task[None] | None = None

    async def identify(self, scope: AsgiScope) -> Identity:
        return await self.identify_token(read_bearer(scope["headers"]))

    async def identify_within(self, seconds: float, scope: AsgiScope) -> Identity:
        """Return the caller of a request, by the last list of tokens if the store does not answer in time.

        Raises `EngineUnavailable` if there is no list yet.
        """
        token = read_bearer(scope["headers"])
        manager = await open_manager(self._source)
        if self._is_outdated(manager.engine.token_changes):
            with suppress(TimeoutError, EngineUnavailable):
                await asyncio.wait_for(self._refresh(), seconds)
        if self._read_ns is None and not self._extra:
            raise EngineUnavailable(
                engine=manager.engine.description,
                reason=f"its tokens were not read within {seconds:g} s",
                remedy="try again",
            )
        now = manager.engine.now()
        record = authenticate(token, self._records, now)
        self._note(record.id, now)
        return self._identities[record.id]

    async def identify_token(self, token: str) -> Identity:
        """Return the caller that has a token, and record the use of the token.

        Raises `TokenInvalid` if the token is wrong, expired or revoked.
        """
        now = await self._prepare()
        record = authenticate(token, self._records, now)
        self._note(record.id, now)
        return self._identities[record.id]

    def is_of_process(self, token_id: str | None) -> bool:
        """Return whether the token with this id is valid in this process only, as that of the printed link is."""
        return token_id in self._extra

    async def identify_by_id(self, token_id: str) -> Identity | None:
        """Return the caller whose token has this id; None if that token is unknown, expired or revoked.

        This call records the use of the token. Sessions of the dashboard use this.
        """
        now = await self._prepare()
        record = self._records.get(token_id)
        if record is None or record.state(now) is not TokenState.ACTIVE:
            return None
        self._note(token_id, now)
        return self._identities[token_id]

    async def _prepare(self) -> int:
        """Read the tokens from the store if the cached list is outdated; return the time by the store's clock."""
        manager = await open_manager(self._source)
        if self._is_outdated(manager.engine.token_changes):
            await self._refresh()
        return manager.engine.now()

    def _note(self, token_id: str, now: int) -> None:
        if token_id not in self._extra:
            self._note_use(token_id, now)

    def _is_outdated(self, changes: int) -> bool:
        read_ns = self._read_ns
        if read_ns is None or changes != self._changes:
            return True
        return self._clock.monotonic_ns() - read_ns > MAX_AGE_NS

    async def _refresh(self) -> None:
        """Read the tokens again. Requests that come at the same time share one read.

        A request that finds a read in progress waits for it, and reads again if the list is still outdated then.
        """
        task = self._reading
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            await asyncio.shield(task)  # began before this request, so the list may still be outdated
            if not self._is_outdated(self._source.manager().engine.token_changes):
                return
        task = self._reading
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._reading = asyncio.get_running_loop().create_task(self._read())
        await asyncio.shield(task)

    async def _read(self) -> None:
        engine = self._source.manager().engine
        began, changes = self._clock.monotonic_ns(), engine.token_changes
        stored = await self._source.off_loop.read(engine.tokens)
        self._records = {record.id: record for record in stored} | self._extra
        self._identities = _identities_of(self._records)
        self._read_ns, self._changes = began, changes

    # -- last use

    def _note_use(self, token_id: str, now: int) -> None:
        self._uses[token_id] = now
        is_storing = self._storing is not None and not self._storing.done()
        since = None if self._stored_ns is None else self._clock.monotonic_ns() - self._stored_ns
        if not is_storing and (since is None or since >= USE_INTERVAL_NS):
            self._stored_ns = self._clock.monotonic_ns()
            self._storing = asyncio.get_running_loop().create_task(self.flush())

    async def flush(self) -> None:
        """Store the last uses of tokens that are not stored yet; if that fails, drop them and log a warning."""
        uses, self._uses = self._uses, {}
        if not uses:
            return
        try:
            await self._source.off_loop.write(self._source.manager().arrange, [NoteTokenUses(uses)])
        except MainspringError as error:
            logger.warning("the last use of tokens could not be stored: %s", error)


def _identities_of(records: Mapping[str, TokenRecord]) -> dict[str, Identity]:
    return {token_id: record.identity for token_id, record in records.items()}


def make_authenticator(source: ManagerProvider, auth: Auth | None) -> Authenticator:
    """Return the authenticator for the value of `auth=`; raise `TypeError` for a value that is not allowed."""
    if auth is None:
        return ClosedAuthenticator()
    if auth == "tokens":
        return TokenAuthenticator(source)
    if callable(auth):
        return FunctionAuthenticator(auth)
    raise TypeError(
        f"auth must be 'tokens', or a function that returns the Identity of a caller, got {type(auth)!r}; leave "
        "it out to keep the application closed"
    )
