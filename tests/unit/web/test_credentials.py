"""How a server keeps the list of tokens up to date, and how often it stores their last use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.errors import EngineUnavailable, TokenInvalid
from mainspring.jobs.commands import Arrangement
from mainspring.security.asgi_types import AsgiScope
from mainspring.security.permissions import ALL_PERMISSIONS, Identity
from mainspring.security.tokens import TokenRecord, make_token
from mainspring.testing import ManualClock
from mainspring.web.credentials import TokenAuthenticator
from tests.support import eventually


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Mainspring]:
    with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app:
        yield app


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Mainspring]:
    """The same store in another process, as far as the store can tell."""
    with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app:
        yield app


def scope_of(token: str) -> AsgiScope:
    return {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]}


def identify(authenticator: TokenAuthenticator, token: str) -> Identity:
    async def run() -> Identity:
        return await authenticator.identify(scope_of(token))

    return asyncio.run(run())


def count_reads(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    reads: list[None] = []
    engine = app.manager().engine
    read: Callable[[], list[TokenRecord]] = engine.tokens

    def count() -> list[TokenRecord]:
        reads.append(None)
        return read()

    monkeypatch.setattr(engine, "tokens", count)
    return reads


def test_a_token_that_another_process_revokes_is_refused_after_a_second(
    app: Mainspring, elsewhere: Mainspring
) -> None:
    clock = ManualClock()
    authenticator = TokenAuthenticator(app, clock=clock)
    token = app.tokens.create("shop", scopes=["read"]).secret
    assert identify(authenticator, token).name == "shop"
    elsewhere.tokens.revoke("shop")
    clock.advance(1.001)
    with pytest.raises(TokenInvalid, match="is revoked"):
        identify(authenticator, token)


def test_a_token_that_another_process_makes_is_known_after_a_second(
    app: Mainspring, elsewhere: Mainspring
) -> None:
    clock = ManualClock()
    authenticator = TokenAuthenticator(app, clock=clock)
    known = app.tokens.create("known", scopes=["read"]).secret
    identify(authenticator, known)
    token = elsewhere.tokens.create("shop", scopes=["read"]).secret
    clock.advance(1.001)
    assert identify(authenticator, token).name == "shop"


def test_requests_within_a_second_read_the_store_once(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    token = app.tokens.create("shop", scopes=["read"]).secret
    reads = count_reads(app, monkeypatch)
    authenticator = TokenAuthenticator(app, clock=clock)

    async def use(times: int) -> None:
        await asyncio.gather(*(authenticator.identify(scope_of(token)) for _ in range(times)))

    asyncio.run(use(50))
    asyncio.run(use(50))
    assert len(reads) == 1
    clock.advance(1.001)
    asyncio.run(use(50))
    assert len(reads) == 2


def test_a_process_that_revokes_a_token_itself_refuses_it_at_once(app: Mainspring) -> None:
    authenticator = TokenAuthenticator(app, clock=ManualClock())
    token = app.tokens.create("shop", scopes=["read"]).secret
    identify(authenticator, token)
    app.tokens.revoke("shop")
    with pytest.raises(TokenInvalid, match="is revoked"):
        identify(authenticator, token)


def test_the_last_use_is_stored_once_a_minute_at_most(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    first, second = (app.tokens.create(name, scopes=["read"]).secret for name in ("first", "second"))
    authenticator = TokenAuthenticator(app, clock=clock)
    writes: list[None] = []
    arrange = app.manager().arrange

    def count(given: Sequence[Arrangement]) -> list[bool]:
        writes.append(None)
        return arrange(given)

    monkeypatch.setattr(app.manager(), "arrange", count)

    async def use(*tokens: str) -> None:
        for token in tokens:
            await authenticator.identify(scope_of(token))
        if authenticator._storing is not None:
            await authenticator._storing

    asyncio.run(use(first, first, second))
    assert len(writes) == 1
    assert all(token.last_used is not None for token in app.tokens.list())
    before = {token.name: token.last_used for token in app.tokens.list()}
    clock.advance(59)
    asyncio.run(use(first, second))
    assert len(writes) == 1
    clock.advance(1)
    asyncio.run(use(first))
    assert len(writes) == 2
    after = {token.name: token.last_used for token in app.tokens.list()}
    assert after["first"] > before["first"]  # type: ignore[operator]


def test_the_end_of_a_server_stores_the_last_uses(app: Mainspring) -> None:
    clock = ManualClock()
    first, second = (app.tokens.create(name, scopes=["read"]).secret for name in ("first", "second"))
    authenticator = TokenAuthenticator(app, clock=clock)

    async def use() -> None:
        await authenticator.identify(scope_of(first))
        assert authenticator._storing is not None
        await authenticator._storing
        await authenticator.identify(scope_of(second))
        await authenticator.flush()

    asyncio.run(use())
    assert all(token.last_used is not None for token in app.tokens.list())


def test_a_use_that_cannot_be_stored_is_logged_and_refuses_nothing(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = app.tokens.create("shop", scopes=["read"]).secret
    authenticator = TokenAuthenticator(app)

    def fail(_given: object) -> None:
        raise EngineUnavailable(engine="the store", reason="the disk is full", remedy="make room")

    monkeypatch.setattr(app.manager(), "arrange", fail)

    async def use() -> None:
        await authenticator.identify(scope_of(token))
        assert authenticator._storing is not None
        await authenticator._storing

    asyncio.run(use())
    assert eventually(lambda: "the last use of tokens could not be stored" in caplog.text)
    assert token.rpartition("_")[2] not in caplog.text


def test_a_token_of_this_process_is_in_no_store(app: Mainspring) -> None:
    secret, record = make_token("link", ALL_PERMISSIONS, created=0)
    authenticator = TokenAuthenticator(app, extra=[record])
    assert identify(authenticator, secret).permissions == ALL_PERMISSIONS
    assert app.tokens.list() == []
    with pytest.raises(TokenInvalid, match="unknown here"):
        identify(TokenAuthenticator(app), secret)
