"""`app.tokens`: tokens are made, listed and revoked, and only the caller of `create` gets the secret."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Mainspring
from mainspring.errors import LimitExceeded, TokenNotFound
from mainspring.jobs import tokens
from mainspring.jobs.commands import PutToken
from mainspring.security.permissions import ALL_PERMISSIONS
from mainspring.security.tokens import TokenState, hash_token, make_token


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://") as app:
        yield app


def test_a_token_is_made_listed_and_revoked(app: Mainspring) -> None:
    made = app.tokens.create("shop", scopes=["submit"], types=["ship"], queues=["orders"], expires=3_600)
    (listed,) = app.tokens.list()
    assert listed == made.info
    assert (listed.scopes, listed.types, listed.queues) == (("submit",), ("ship",), ("orders",))
    assert listed.expires is not None
    assert listed.expires - listed.created == timedelta(hours=1)
    assert listed.state is TokenState.ACTIVE
    revoked = app.tokens.revoke("shop")
    assert revoked.state is TokenState.REVOKED
    assert [revoked] == app.tokens.list()


def test_nothing_but_the_answer_has_the_secret(app: Mainspring) -> None:
    made = app.tokens.create("shop", scopes=["submit"])
    assert made.secret not in repr(made)
    assert made.secret not in repr(app.tokens.list())
    (stored,) = app.manager().engine.tokens()
    assert made.secret not in repr(stored)
    assert stored.digest == hash_token(made.secret)


def test_a_token_is_revoked_by_its_id_and_its_name_can_be_used_again(app: Mainspring) -> None:
    first = app.tokens.create("shop", scopes=["submit"])
    with pytest.raises(ValueError, match="an active token is named 'shop' already"):
        app.tokens.create("shop", scopes=["submit"])
    app.tokens.revoke(first.info.id)
    assert app.tokens.create("shop", scopes=["submit"]).info.id != first.info.id
    assert [token.state for token in app.tokens.list()] == [TokenState.REVOKED, TokenState.ACTIVE]


def test_a_token_that_is_not_there_is_an_error(app: Mainspring) -> None:
    app.tokens.create("shop", scopes=["submit"])
    with pytest.raises(TokenNotFound, match="no token 'shpo' that can be used; did you mean 'shop'"):
        app.tokens.revoke("shpo")
    app.tokens.revoke("shop")
    with pytest.raises(TokenNotFound, match="no token 'shop'"):
        app.tokens.revoke("shop")


def test_two_processes_may_use_a_name_at_once_and_then_the_id_decides(app: Mainspring) -> None:
    first = app.tokens.create("shop", scopes=["submit"]).info
    _, second = make_token("shop", ALL_PERMISSIONS, created=0)  # as another process does at the same moment
    app.manager().arrange([PutToken(second)])
    with pytest.raises(TokenNotFound, match="2 tokens have the name 'shop'; name one by its id") as caught:
        app.tokens.revoke("shop")
    assert set(caught.value.ids) == {first.id, second.id}
    assert app.tokens.revoke(second.id).id == second.id
    assert app.tokens.revoke("shop").id == first.id


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": ""}, "is no name for a token"),
        ({"name": "x" * 101}, "is no name for a token"),
        ({"name": "a\nb"}, "is no name for a token"),
        ({"scopes": []}, "needs a scope"),
        ({"scopes": ["fly"]}, "'fly' is no scope"),
        ({"scopes": ["admin"], "types": ["ship"]}, "admin cannot be restricted"),
        ({"scopes": ["admin"], "queues": ["mail"]}, "admin cannot be restricted"),
        ({"expires": 0}, "would expire at once"),
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC)}, "would expire at once"),
        ({"expires": timedelta(days=365 * 20_000)}, "too far away"),
    ],
)
def test_wrong_values_are_refused(app: Mainspring, options: dict[str, Any], problem: str) -> None:
    values = {"name": "shop", "scopes": ["submit"]} | options
    with pytest.raises(ValueError, match=problem):
        app.tokens.create(values.pop("name"), **values)
    assert app.tokens.list() == []


def test_the_number_of_tokens_is_limited(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    for name in ("a", "b"):
        app.tokens.create(name, scopes=["read"])
    with pytest.raises(LimitExceeded, match="the limit is 2; revoke tokens without a recent use"):
        app.tokens.create("c", scopes=["read"])
    app.tokens.revoke("a")
    app.tokens.create("c", scopes=["read"])


def test_coroutines_use_tokens_too(app: Mainspring) -> None:
    async def use() -> None:
        made = await app.tokens.create_async("shop", scopes=["read"])
        assert await app.tokens.list_async() == [made.info]
        assert (await app.tokens.revoke_async("shop")).state is TokenState.REVOKED

    asyncio.run(use())
