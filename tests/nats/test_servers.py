"""The servers that other tests rely on: what is done to them happens, and what was stored stays."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeoutError

from mainspring.cli.nats_process import HOST
from mainspring.cli.nats_servers import NatsServers
from tests.nats import server_access
from tests.nats.raw_clients import add, connected, read
from tests.nats.server_access import ServerAccess
from tests.nats.servers import MakeServers, Servers, delete_streams
from tests.support import PATIENCE

pytestmark = pytest.mark.long


async def why_refused(urls: list[str], **options: Any) -> BaseException:
    """Try to connect, once, and return what that raises."""
    client = Client()
    try:
        with pytest.raises((nats.errors.Error, OSError)) as refusal:
            await client.connect(urls, allow_reconnect=False, **options)
    finally:  # a failed connect leaves its socket open; closing it never ends if the certificate was the reason
        with suppress(TimeoutError):
            await asyncio.wait_for(client.close(), 0.5)
    return refusal.value


NUMBERS = [b"0", b"1", b"2"]


def test_a_client_stores_and_reads_on_the_shared_server(nats_server: Servers, nats_prefix: str) -> None:
    async def use() -> list[bytes]:
        async with connected(nats_server.urls) as client:
            await add(client, f"{nats_prefix}_orders")
            return await read(client, f"{nats_prefix}_orders")

    assert asyncio.run(use()) == NUMBERS


def test_deleting_by_prefix_spares_the_streams_and_buckets_of_others(
    nats_server: Servers, nats_prefix: str
) -> None:
    async def use() -> set[str | None]:
        async with connected(nats_server.urls) as client:
            await add(client, f"{nats_prefix}a_orders")
            await client.jetstream().create_key_value(bucket=f"{nats_prefix}a_state")
            await add(client, f"{nats_prefix}b_orders")
            await delete_streams(nats_server.urls, f"{nats_prefix}a")
            return {info.config.name for info in await client.jetstream().streams_info()}

    names = {name for name in asyncio.run(use()) if name is not None and nats_prefix in name}
    assert names == {f"{nats_prefix}b_orders"}


def test_kill_and_restart_keep_what_was_stored(make_nats_server: MakeServers) -> None:
    server = make_nats_server()

    async def use() -> list[bytes]:
        async with connected(server.urls) as client:
            await add(client, "ORDERS")
            before = (server.nodes[0].process.pid, server.url)
            server.kill()
            assert server.nodes[0].process.pid is None
            server.restart()
            assert server.nodes[0].process.pid not in {None, before[0]}
            assert server.url == before[1]
        async with connected(server.urls) as client:
            return await read(client, "ORDERS")

    assert asyncio.run(use()) == NUMBERS


def test_an_orderly_stop_and_restart_keep_what_was_stored(make_nats_server: MakeServers) -> None:
    server = make_nats_server()

    async def use() -> list[bytes]:
        async with connected(server.urls) as client:
            await add(client, "ORDERS")
        server.stop()
        server.restart()
        async with connected(server.urls) as client:
            return await read(client, "ORDERS")

    assert asyncio.run(use()) == NUMBERS


def test_a_cluster_without_the_leader_of_a_stream_keeps_what_was_stored(make_nats_cluster: MakeServers) -> None:
    cluster = make_nats_cluster()

    async def use() -> tuple[list[bytes], list[bytes]]:
        async with connected(cluster.urls) as client:
            await add(client, "ORDERS", replicas=3)
        leader = cluster.leader_of("ORDERS")
        cluster.kill(leader)
        assert cluster.leader_of("ORDERS", other_than=leader) is not leader
        assert cluster.meta_leader(other_than=leader) is not leader
        async with connected(cluster.urls) as client:
            without = await read(client, "ORDERS")
        cluster.restart(leader)
        async with connected(cluster.urls) as client:
            return without, await read(client, "ORDERS")

    assert asyncio.run(use()) == (NUMBERS, NUMBERS)


def test_a_cluster_that_was_killed_whole_comes_back_node_by_node(make_nats_cluster: MakeServers) -> None:
    cluster = make_nats_cluster()

    async def use() -> list[bytes]:
        async with connected(cluster.urls) as client:
            await add(client, "ORDERS", replicas=3)
        cluster.kill_all()
        cluster.restart(cluster.nodes[2])  # alone it can lead nothing, but it is there
        cluster.restart_all()
        cluster.leader_of("ORDERS")
        async with connected(cluster.urls) as client:
            return await read(client, "ORDERS")

    assert asyncio.run(use()) == NUMBERS


def test_a_suspended_server_answers_only_when_it_goes_on(make_nats_server: MakeServers) -> None:
    server = make_nats_server()

    async def use() -> int:
        async with connected(server.urls) as client:
            await add(client, "ORDERS")
            server.stop_process()
            assert server.nodes[0].process.is_running
            with pytest.raises(NatsTimeoutError):
                await client.jetstream().publish("ORDERS.number", b"3", timeout=0.2)
            server.cont()
            return (await client.jetstream().publish("ORDERS.number", b"4", timeout=PATIENCE)).seq

    assert asyncio.run(use()) == 5  # what was sent meanwhile has arrived, too


def test_a_suspended_server_is_gone_after_the_end() -> None:
    with NatsServers() as servers:
        pid = servers.nodes[0].process.pid
        assert pid is not None
        facade = Servers(servers)
        facade.stop_process()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not servers.store.exists()


def test_a_cut_breaks_connections_and_healing_lets_them_come_back(make_nats_server: MakeServers) -> None:
    server = make_nats_server()
    proxy = server.proxy()

    async def use() -> list[bytes]:
        lost, back = asyncio.Event(), asyncio.Event()

        async def on_lost() -> None:
            lost.set()

        async def on_back() -> None:
            back.set()

        async with connected(proxy.url, disconnected_cb=on_lost, reconnected_cb=on_back) as client:
            await add(client, "ORDERS")
            proxy.cut()
            await asyncio.wait_for(lost.wait(), PATIENCE)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HOST, proxy.port)
            assert not back.is_set()
            proxy.heal()
            await asyncio.wait_for(back.wait(), PATIENCE)
            return await read(client, "ORDERS")

    assert asyncio.run(use()) == NUMBERS
    assert proxy.accepted >= 2


def test_a_frozen_connection_stays_and_carries_on(make_nats_server: MakeServers) -> None:
    server = make_nats_server()
    proxy = server.proxy()

    async def use() -> int:
        async with connected(proxy.url) as client:
            await add(client, "ORDERS")
            proxy.freeze()
            with pytest.raises(NatsTimeoutError):
                await client.jetstream().publish("ORDERS.number", b"3", timeout=0.2)
            proxy.heal()
            return (await client.jetstream().publish("ORDERS.number", b"4", timeout=PATIENCE)).seq

    assert asyncio.run(use()) == 5
    assert proxy.accepted == 1


def test_an_answer_that_is_frozen_and_dropped_is_lost_but_not_the_question(make_nats_server: MakeServers) -> None:
    server = make_nats_server()
    proxy = server.proxy()

    async def use() -> int:
        async with connected(server.urls) as watcher, connected(proxy.url) as client:
            await add(watcher, "ORDERS")
            arrived = await watcher.subscribe("ORDERS.number")
            # An answer shows that the server has the subscription. The PING of `flush` may overtake it.
            await watcher.jetstream().stream_info("ORDERS")
            proxy.freeze(to_server=False)
            with pytest.raises(NatsTimeoutError):
                await client.jetstream().publish("ORDERS.number", b"3", timeout=0.2)
            await arrived.next_msg(timeout=PATIENCE)
            proxy.drop()
            proxy.heal()
            return (await watcher.jetstream().stream_info("ORDERS")).state.messages

    assert asyncio.run(use()) == 4


def test_clients_of_a_cluster_stay_with_their_proxies(make_nats_cluster: MakeServers) -> None:
    cluster = make_nats_cluster()
    proxies = cluster.proxies()

    async def use() -> set[int]:
        async with connected([proxy.url for proxy in proxies]) as client:
            await add(client, "ORDERS", replicas=3)
            return {server.port for server in client.servers if server.port is not None}

    assert asyncio.run(use()) == {proxy.port for proxy in proxies}


ACCESS_KINDS: dict[str, Callable[[Path], ServerAccess]] = {
    "user and password": lambda _: server_access.user_and_password(),
    "token": lambda _: server_access.token(),
    "nkey": server_access.nkey,
    "creds": server_access.creds,
    "tls": server_access.tls,
    "mutual tls": lambda folder: server_access.tls(folder, verify_clients=True),
}


@pytest.mark.parametrize("make_access", ACCESS_KINDS.values(), ids=list(ACCESS_KINDS))
def test_only_clients_with_access_are_let_in(
    make_nats_server: MakeServers, tmp_path: Path, make_access: Callable[[Path], ServerAccess]
) -> None:
    access = make_access(tmp_path)
    server = make_nats_server(access)

    async def use() -> list[bytes]:
        refusal = await why_refused(server.urls)
        if access.scheme == "tls":
            assert isinstance(refusal, ssl.SSLCertVerificationError)
        else:
            assert "Authorization Violation" in str(refusal)
        async with connected(server.urls, **access.connect) as client:
            await add(client, "ORDERS")
            return await read(client, "ORDERS")

    assert asyncio.run(use()) == NUMBERS


def test_a_client_without_a_certificate_is_refused_where_one_is_needed(
    make_nats_server: MakeServers, tmp_path: Path
) -> None:
    access = server_access.tls(tmp_path, verify_clients=True)
    server = make_nats_server(access)

    async def use() -> None:
        context = ssl.create_default_context(cafile=access.ca_file)
        assert isinstance(
            await why_refused(server.urls, tls=context), ssl.SSLError | ConnectionResetError | BrokenPipeError
        )

    asyncio.run(use())


def test_a_user_of_another_operator_is_refused(make_nats_server: MakeServers, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("ours", "theirs")]
    for folder in folders:
        folder.mkdir()
    ours, theirs = map(server_access.creds, folders)
    server = make_nats_server(ours)

    async def use() -> None:
        assert "Authorization Violation" in str(await why_refused(server.urls, **theirs.connect))

    asyncio.run(use())
