"""The server writes nothing for a role that the role may not write: by replies, deliveries, traces, schedules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, get_args

import nats
import pytest

from mainspring import JobStatus
from mainspring.cli.nats_permissions import make_grant
from mainspring.engines.nats.settings import ROLES, Role, inbox_of
from mainspring.engines.nats.subject_names import SubjectNames
from tests.nats.restricted_servers import PASSWORD, RestrictedServers, run_program
from tests.nats.server_side_writes import (
    FOR_ALL,
    LANE,
    OWN,
    Attacker,
    Way,
    make_consumer,
    reply_of_a_publish,
    schedule,
    targets_of,
    wait_until_answered,
    ways_of,
)
from tests.nats.servers import MakeServers, running_servers
from tests.support import PATIENCE

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestrictedServers]:
    """One server with the printed configuration and the streams of an application."""
    folder = tmp_path_factory.mktemp("rights")
    printed = folder / "accounts.conf"
    printed.write_text(run_program("nats", "permissions", "--prefix", "shop", "--administrators"))
    with pytest.MonkeyPatch.context() as patch:
        for role in get_args(Role):
            patch.setenv(make_grant("shop", role).password_variable, PASSWORD)
        for variable in ("SHOP_ADMINISTRATOR_PASSWORD", "NATS_SYSTEM_PASSWORD"):
            patch.setenv(variable, PASSWORD)
        with running_servers(include=printed) as servers:
            place = RestrictedServers(servers, folder)
            with place.app("operator") as operator:
                operator.manager()
                operator.tokens.create("front end", scopes=["submit"])
            asyncio.run(keep_a_consumer(place))
            yield place


async def keep_a_consumer(place: RestrictedServers) -> None:
    async with administrator(place) as admin:
        config = {"durable_name": "kept", "filter_subject": "shop.ready.kept.>", "ack_policy": "explicit"}
        await admin.ask("$JS.API.CONSUMER.DURABLE.CREATE.shop.kept", {"stream_name": "shop", "config": config})


@asynccontextmanager
async def administrator(place: RestrictedServers, account: str = "shop") -> AsyncIterator[Attacker]:
    client = await nats.connect(place.servers.urls, user=f"{account}-administrator", password=PASSWORD)
    try:
        yield Attacker(client, "$JS.API")
    finally:
        await client.close()


@asynccontextmanager
async def attacker(place: RestrictedServers, role: Role) -> AsyncIterator[Attacker]:
    """Yield a user of a role, without Mainspring. Denied requests are no error here."""

    async def ignore(_error: Exception) -> None: ...

    client = await nats.connect(
        place.servers.urls,
        user=f"shop-{role}",
        password=PASSWORD,
        inbox_prefix=inbox_of("shop", role).encode(),
        error_cb=ignore,
    )
    try:
        yield Attacker(client, "shop.api")
    finally:
        await client.close()


async def read_state(place: RestrictedServers) -> dict[str, Any]:
    """Return what an attack could change: streams, their configurations, consumers, and subjects with messages."""
    state: dict[str, Any] = {}
    for account in ("shop", "shop_guarded"):
        async with administrator(place, account) as admin:
            listed = await admin.ask("$JS.API.STREAM.LIST")
            for stream in listed["streams"]:
                name = stream["config"]["name"]
                info = await admin.ask(f"$JS.API.STREAM.INFO.{name}", {"subjects_filter": ">"})
                subjects = info["state"].get("subjects", {})
                others = {subject for subject in subjects if subject != OWN and not subject.startswith(LANE)}
                state[name] = (info["created"], info["config"], others)
    async with administrator(place) as admin:
        kept = await admin.ask("$JS.API.CONSUMER.INFO.shop.kept")
        state["consumer"] = (kept["created"], kept.get("paused"))
    return state


def without_expired_heartbeats(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the state before an attack without heartbeats of earlier tests that have expired meanwhile."""
    guarded = SubjectNames("shop").guarded_stream
    created, config, subjects = before[guarded]
    heartbeats = {subject for subject in subjects if subject.startswith(SubjectNames("shop").workers)}
    return before | {guarded: (created, config, subjects - (heartbeats - after[guarded][2]))}


@pytest.mark.parametrize("role", ROLES)
def test_the_server_publishes_nothing_for_a_role_that_the_role_may_not_publish(
    role: Role, place: RestrictedServers
) -> None:
    async def attack() -> tuple[dict[str, Any], dict[str, Any]]:
        async with attacker(place, role) as user:
            before = await read_state(place)
            for target, body in targets_of(role).items():
                for way in ways_of(role):
                    await way(user, target, body)
                await wait_until_answered(user)
            return before, await read_state(place)

    before, after = asyncio.run(attack())
    assert after == without_expired_heartbeats(before, after)


def test_no_consumer_of_a_worker_delivers_to_a_reserved_subject(place: RestrictedServers) -> None:
    """A consumer delivers to subscriptions of clients only, and in this account there are none but inboxes."""

    async def attack() -> tuple[list[Any], bool]:
        async with administrator(place) as admin, attacker(place, "worker") as user:
            names = [
                await make_consumer(user, target, {"deliver_subject": target}) for target in targets_of("worker")
            ]
            infos = [await admin.ask(f"$JS.API.CONSUMER.INFO.shop.{name}") for name in names]
            control = user.client.new_inbox()
            heard = await admin.client.subscribe(inbox := admin.client.new_inbox())
            await user.store(f"{LANE}.control", b"heard")
            config = {"name": "control", "filter_subject": f"{LANE}.control", "ack_policy": "explicit"}
            body = {"stream_name": "shop", "config": config | {"deliver_subject": inbox}}
            await user.ask(f"shop.api.CONSUMER.CREATE.shop.control.{LANE}.control", body)
            assert control != inbox
            return infos, (await heard.next_msg(PATIENCE)).data == b"heard"

    infos, is_heard = asyncio.run(attack())
    assert is_heard  # to an inbox in the account of the data it does deliver
    assert infos
    for info in infos:
        assert info.get("error") or not (info.get("push_bound") or info["delivered"]["consumer_seq"])


def test_what_a_submitter_can_forge_in_the_main_stream_misleads_no_worker(place: RestrictedServers) -> None:
    """A schedule, and the confirmation of a publish, may write other subjects of the stream of jobs."""

    async def attack() -> None:
        async with attacker(place, "submitter") as user, administrator(place) as admin:
            for target in ("shop.worker.99999", "shop.move.forged"):
                await schedule(user, target, b"evil")
                await reply_of_a_publish(user, target, b"")
            written: set[str] = set()
            while written != {"shop.worker.99999", "shop.move.forged"}:
                for kind in ("worker", "move"):
                    asked = {"subjects_filter": f"shop.{kind}.>"}
                    info = await admin.ask("$JS.API.STREAM.INFO.shop", asked)
                    written |= set(info["state"].get("subjects", {}))

    asyncio.run(attack())
    app = place.app("worker")
    with app, app.running():
        assert app.plain.submit().wait(PATIENCE) is JobStatus.COMPLETED
        assert len(app.manager().engine.workers()) == 1


@pytest.mark.parametrize("way", FOR_ALL, ids=lambda way: way.__name__)
def test_in_an_account_with_the_streams_each_of_these_ways_writes(way: Way, make_nats_server: MakeServers) -> None:
    """The control: the attacks of the test above are real."""
    servers = make_nats_server()

    async def attack() -> None:
        client = await nats.connect(servers.urls)
        try:
            user = Attacker(client, "$JS.API")
            shop = {"name": "shop", "subjects": ["shop.key.>"], "allow_direct": True, "max_msgs_per_subject": 1}
            if way is schedule:
                shop |= {"subjects": ["shop.key.>", "shop.at.>", "shop.tokens"], "allow_msg_schedules": True}
            await user.ask("$JS.API.STREAM.CREATE.shop", shop)
            await user.ask("$JS.API.STREAM.CREATE.tokens", {"name": "tokens", "subjects": ["shop.tokens"]})
            await way(user, "shop.tokens", b"evil")
            stream = "shop" if way is schedule else "tokens"
            asked = {"subjects_filter": "shop.tokens"}
            is_written = False
            while not is_written:
                info = await user.ask(f"$JS.API.STREAM.INFO.{stream}", asked)
                is_written = bool(info["state"].get("subjects"))
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(attack(), PATIENCE))
