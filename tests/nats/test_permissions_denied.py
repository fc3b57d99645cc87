"""Permissions: what a role does not need is forbidden, and a user that lacks one gets an error at once."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import nats
import pytest

from mainspring import (
    EngineUnavailable,
    Mainspring,
    NatsSettings,
)
from mainspring.engines.nats.jetstream import ServerError
from mainspring.engines.nats.settings import Role, inbox_of
from tests.nats.restricted_servers import PASSWORD, RestrictedServers, Shop
from tests.support import PATIENCE

pytestmark = pytest.mark.long

# -- what is forbidden


async def refusal_to(place: RestrictedServers, role: Role, subject: str) -> str:
    """Ask the server as a user of a role, without Mainspring; return in which words it forbids that."""
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def note(error: Exception) -> None:
        if not refused.done():
            refused.set_result(str(error))

    client = await nats.connect(
        place.servers.urls,
        user=f"shop-{role}",
        password=PASSWORD,
        inbox_prefix=inbox_of("shop", role).encode(),
        error_cb=note,
    )
    try:
        await client.publish(subject, b"{}", reply=client.new_inbox())
        return await asyncio.wait_for(refused, PATIENCE)
    finally:
        await client.close()


API = "$JS.API"
LANE = "shop.ready.default.plain.1.*"
CLOSED_TO_ALL = [
    f"{API}.STREAM.DELETE.shop",
    f"{API}.STREAM.SNAPSHOT.shop",
    f"{API}.STREAM.RESTORE.shop",
    f"{API}.STREAM.MSG.DELETE.shop",
    f"{API}.STREAM.LIST",
    f"{API}.STREAM.CREATE.elsewhere",
    f"{API}.CONSUMER.DELETE.shop.some",
    f"{API}.CONSUMER.CREATE.shop.some.shop.job.>",
    f"{API}.CONSUMER.DURABLE.CREATE.shop.some",
    f"{API}.STREAM.INFO.other",
    f"{API}.STREAM.MSG.GET.other",
    f"{API}.STREAM.PURGE.other",
    f"{API}.DIRECT.GET.other",
    f"{API}.CONSUMER.MSG.NEXT.other.some",
    "other.job.x",
    "other.settings",
    "elsewhere",
]
CLOSED_TO_SUBMITTERS = [
    f"{API}.CONSUMER.MSG.NEXT.shop.some",
    f"{API}.CONSUMER.CREATE.shop.some.{LANE}",
    "$JS.ACK.shop.some.1.1.1.1.0",
    "shop.worker.1",
]
CLOSED_TO_ALL_BUT_OPERATORS = [
    f"{API}.STREAM.CREATE.shop",
    f"{API}.STREAM.UPDATE.shop",
    "shop.move.x",
    "shop.tokens",
]
CLOSED: dict[Role, list[str]] = {
    "submitter": [
        *CLOSED_TO_SUBMITTERS,
        "shop.spent.x",
        f"{API}.STREAM.PURGE.shop",
        *CLOSED_TO_ALL_BUT_OPERATORS,
    ],
    "worker": CLOSED_TO_ALL_BUT_OPERATORS,
    "operator": CLOSED_TO_SUBMITTERS,
}


@pytest.mark.parametrize("role", get_args(Role))
def test_what_a_role_does_not_need_is_forbidden(role: Role, restricted_server: RestrictedServers) -> None:
    async def ask_all() -> dict[str, str]:
        return {
            subject: await refusal_to(restricted_server, role, subject)
            for subject in [*CLOSED_TO_ALL, *CLOSED[role]]
        }

    with restricted_server.app("operator") as operator:
        operator.manager()
    for subject, answer in asyncio.run(ask_all()).items():
        assert f'Permissions Violation for Publish to "{subject}"'.lower() in answer.lower()
    with restricted_server.app("operator") as operator:
        assert operator.counts()["PENDING"] == 0  # the stream is there, and well


def test_no_role_hears_the_answers_to_another(restricted_server: RestrictedServers) -> None:
    async def listen() -> str:
        refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def note(error: Exception) -> None:
            refused.set_result(str(error))

        client = await nats.connect(
            restricted_server.servers.urls, user="shop-submitter", password=PASSWORD, error_cb=note
        )
        await client.subscribe(f"{inbox_of('shop', 'worker')}.>")
        try:
            return await asyncio.wait_for(refused, PATIENCE)
        finally:
            await client.close()

    assert "violation for subscription" in asyncio.run(listen()).lower()


# -- who lacks a right is told so at once


def refusal_of(app: Mainspring) -> str:
    with app, pytest.raises(EngineUnavailable) as error:
        app.manager()
    return str(error.value)


def test_a_missing_right_is_named_at_once_with_what_to_do(
    restricted_server: RestrictedServers, caplog: pytest.LogCaptureFixture
) -> None:
    """The timeout is longer than the test may last: the caller does not wait for it."""
    hosts = restricted_server.url("worker").partition("?")[0]
    patient = NatsSettings(prefix="shop", timeout=10 * PATIENCE)

    words = refusal_of(Mainspring(hosts, nats=patient))  # no role: the usual inbox, which it may not listen to
    assert "this user has no permission to subscribe to '_INBOX." in words
    assert "mainspring nats permissions --prefix shop" in words
    assert "?role=worker" in words

    words = refusal_of(Mainspring(restricted_server.url("worker", timeout=10 * PATIENCE)))
    assert "stream 'shop' does not exist" in words
    assert "role=operator" in words

    elsewhere = NatsSettings(prefix="elsewhere", inbox_prefix="_INBOX_shop_worker", timeout=10 * PATIENCE)
    words = refusal_of(Mainspring(hosts, nats=elsewhere))
    assert "JetStream is not enabled for this account" in words
    assert "name prefix and role in the URL" in words
    assert caplog.messages == []  # it is said once, by the error


def test_a_submit_and_a_read_without_the_right_raise_at_once(restricted_server: RestrictedServers) -> None:
    with restricted_server.app("operator") as operator:
        operator.manager()
    app = Shop(restricted_server.url("submitter", timeout=10 * PATIENCE))
    with app:
        engine: Any = app.manager().engine
        names = engine.components.names
        names.jobs = "other.job."  # as if the server gave it less
        with pytest.raises(EngineUnavailable, match=r"no permission to publish to 'other\.job\."):
            app.plain.submit()
        with pytest.raises(EngineUnavailable, match=r"no permission to publish to 'other\.job\."):
            app.plain.submit_many([() for _ in range(20)])
        with pytest.raises(
            EngineUnavailable, match=r"no permission to publish to 'shop\.api\.DIRECT\.GET\.other'"
        ):
            engine.components.jetstream.scan("other.job.>", stream="other")


@pytest.mark.parametrize("role", ["submitter", "operator"])
def test_a_role_that_cannot_take_jobs_is_told_so_when_it_wants_to(
    role: Role, restricted_server: RestrictedServers
) -> None:
    with restricted_server.app("operator") as operator:
        operator.manager()
    app = restricted_server.app(role)
    with (
        app,
        pytest.raises(EngineUnavailable, match=f"the role '{role}' may not claim jobs; run workers as"),
        app.running(),
    ):
        pytest.fail("it runs")
    assert restricted_server.violations() == []


def test_a_worker_can_make_no_consumer_of_anything_but_jobs_and_chores(
    restricted_server: RestrictedServers,
) -> None:
    """The subject says what it is to deliver, and the server holds the request to it."""
    with restricted_server.app("operator") as operator:
        operator.manager()
    with restricted_server.app("worker") as worker:
        jetstream: Any = worker.manager().engine.components.jetstream  # type: ignore[attr-defined]
        config = {"durable_name": "some", "name": "some", "ack_policy": "explicit", "filter_subject": "shop.job.>"}
        with pytest.raises(ServerError, match="filter"):
            jetstream.api(f"CONSUMER.CREATE.shop.some.{LANE}", {"stream_name": "shop", "config": config})
