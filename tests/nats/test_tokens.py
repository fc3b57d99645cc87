"""Tokens of HTTP servers on NATS: other processes learn of a revocation at once; old streams get the subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Mainspring
from mainspring.engines.nats.engine import NatsEngine
from mainspring.testing import ManualClock
from mainspring.web.credentials import TokenAuthenticator
from tests.nats.migration_stores import Target, move
from tests.nats.servers import Servers
from tests.support import eventually


@pytest.fixture
def url(nats_server: Servers, nats_prefix: str) -> str:
    return f"{nats_server.url}?prefix={nats_prefix}"


@pytest.fixture
def app(url: str) -> Iterator[Mainspring]:
    with Mainspring(url) as app:
        yield app


@pytest.fixture
def elsewhere(url: str) -> Iterator[Mainspring]:
    """The same store in another process, as far as the server can tell."""
    with Mainspring(url) as app:
        yield app


def status_of(authenticator: TokenAuthenticator, token: str) -> str:
    async def identify() -> str:
        scope = {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]}
        try:
            return (await authenticator.identify(scope)).name
        except Exception as error:
            return str(error)

    return asyncio.run(identify())


def test_another_process_learns_of_a_revocation_before_its_list_is_old(
    app: Mainspring, elsewhere: Mainspring
) -> None:
    clock = ManualClock()  # stands still, so the list never grows old
    authenticator = TokenAuthenticator(app, clock=clock)
    token = elsewhere.tokens.create("shop", scopes=["read"]).secret
    assert status_of(authenticator, token) == "shop"
    elsewhere.tokens.revoke("shop")
    assert eventually(lambda: "is revoked" in status_of(authenticator, token))


def test_a_lost_notification_is_made_up_for_within_a_second(
    app: Mainspring, elsewhere: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    authenticator = TokenAuthenticator(app, clock=clock)
    token = elsewhere.tokens.create("shop", scopes=["read"]).secret
    assert status_of(authenticator, token) == "shop"
    engine = elsewhere.manager().engine
    assert isinstance(engine, NatsEngine)
    monkeypatch.setattr(engine.components.jetstream, "send", lambda messages: None)
    elsewhere.tokens.revoke("shop")
    clock.advance(1.001)
    assert "is revoked" in status_of(authenticator, token)


def test_tokens_move_with_the_jobs_and_those_that_are_there_stay(
    app: Mainspring, nats_server: Servers, nats_prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    with Mainspring(f"sqlite:///{path}") as source:
        token = source.tokens.create("shop", scopes=["submit"], types=["ship"], expires=3_600).secret
        source.tokens.create("old", scopes=["read"])
        source.tokens.revoke("old")
    app.tokens.create("there", scopes=["read"])
    move(path, Target(nats_server.url, nats_prefix, tmp_path))
    states = {each.name: str(each.state) for each in app.tokens.list()}
    assert states == {"old": "revoked", "shop": "active", "there": "active"}
    assert status_of(TokenAuthenticator(app), token) == "shop"
