"""Strangers at the servers of `deploy/`: servers that want to join them, and clients without what they need.

A server that joins is believed whatever it says about its clients, so it could read and change the whole store.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from mainspring import Mainspring
from mainspring.cli.nats_process import HeldPorts, ServerProcess, find_server
from mainspring.cli.nats_servers import Node
from mainspring.errors import EngineUnavailable
from mainspring.security.certificates import client_context
from tests.deploy.files import DEPLOY, read_passwords
from tests.deploy.shipped_cluster import HOST, NAMES, ROUTE_PORT, ShippedCluster, make_certificates
from tests.nats.raw_clients import answered, connected
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

STORE, ACCOUNT = "shop", "SHOP"
SYSTEM = "SYS"
ADMINISTRATOR = ("shop-administrator", "SHOP_ADMINISTRATOR_PASSWORD")
SYSTEM_USER = ("system", "NATS_SYSTEM_PASSWORD")
PASSWORD = read_passwords()["NATS_ROUTE_PASSWORD"]
REFUSED = re.compile(r"Router connection closed: (TLS Handshake Failure|Authentication Failure|Parse Error)")


@dataclass(frozen=True)
class Stranger:
    """A server that wants to join: what it knows and has."""

    password: str = PASSWORD
    certificate: str | None = "servers/nats-2/route"
    """The certificate that it shows, and its key; None if it has none, or speaks no TLS."""
    speaks_tls: bool = True
    has_another_authority: bool = False

    def tls(self, certificates: Path) -> dict[str, Any]:
        if not self.speaks_tls:
            return {}
        files = {"insecure": True}  # it does not care whom it joins
        if self.certificate is None:
            return {"tls": files}
        base = certificates / self.certificate
        return {"tls": {**files, "cert_file": f"{base}.pem", "key_file": f"{base}.key"}}


ALLOWED = Stranger()
STRANGERS = {
    "without TLS": Stranger(speaks_tls=False),
    "without TLS and password": Stranger(speaks_tls=False, password=""),
    "without a certificate": Stranger(certificate=None),
    "with a certificate of another authority": Stranger(has_another_authority=True),
    "with the certificate of a client": Stranger(certificate="clients/worker/client"),
    "with the certificate of a server for clients": Stranger(certificate="servers/nats-2/server"),
    "with a wrong password": Stranger(password="wrong"),
    "without a password": Stranger(password=""),
}


@pytest.fixture(scope="module")
def store(shipped: ShippedCluster, tmp_path_factory: pytest.TempPathFactory) -> ShippedCluster:
    """Return the servers with the streams of the shop, as `prepare` of the compose file makes them."""
    url = shipped.environment("prepare")["MAINSPRING_URL"]
    folder = tmp_path_factory.mktemp("projection")
    with Mainspring(f"{url}&projection={folder}/jobs.db") as app:
        app.counts()
    return shipped


@pytest.fixture(scope="module")
def other_certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return certificates for the same names, of other authorities."""
    folder = tmp_path_factory.mktemp("other") / "certificates"
    make_certificates(folder)
    return folder


@contextmanager
def running(stranger: Stranger, cluster: ShippedCluster, certificates: Path, folder: Path) -> Iterator[Node]:
    """Run a server with all accounts of the cluster, which joins each of its servers if they let it."""
    accounts = re.findall(r"^  (\w+) \{", (DEPLOY / "nats" / "accounts.conf").read_text(), re.MULTILINE)
    user = f"route:{stranger.password}@" if stranger.password else ""
    with HeldPorts() as held:
        port, monitor_port = held.choose(), held.choose()
        configuration = {
            "server_name": "stranger",
            "listen": f"{HOST}:{port}",
            "http": f"{HOST}:{monitor_port}",
            "jetstream": {"store_dir": str(folder)},
            "accounts": {
                name: {"users": [{"user": name, "password": name}], "jetstream": name != SYSTEM}
                for name in accounts
            },
            "system_account": SYSTEM,
            "cluster": {
                "name": "mainspring",
                "listen": f"{HOST}:{held.choose()}",
                "routes": [f"nats-route://{user}{cluster.address(f'{n}-routes', ROUTE_PORT)}" for n in NAMES],
                **stranger.tls(certificates),
            },
        }
        node = Node("stranger", port, monitor_port, ServerProcess(find_server(), folder, configuration))
        node.process.start()
        try:
            assert eventually(lambda: node.ask("/varz") is not None), node.process.log.read_text()
            yield node
        finally:
            node.process.kill()


@asynccontextmanager
async def administrator(cluster: ShippedCluster, user: str, variable: str) -> AsyncIterator[Client]:
    """Connect to the cluster as one of its administrators, with the certificate of an administrator."""
    context = client_context(cluster.certificates / "clients" / "administrator")
    password = read_passwords()[variable]
    async with connected([cluster.nodes[0].url], user=user, password=password, tls=context) as client:
        yield client


async def ask(client: Client, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    return dict(json.loads((await client.request(subject, data, timeout=PATIENCE)).data))


async def ask_a_client_of(cluster: ShippedCluster, node: Node) -> bytes:
    """Ask a client of the cluster, as a client of the stranger that says it is in the same account."""

    async def answer(message: Msg) -> None:
        await message.respond(b"answer")

    async with (
        administrator(cluster, *ADMINISTRATOR) as theirs,
        connected([node.url], user=ACCOUNT, password=ACCOUNT) as ours,
    ):
        await theirs.subscribe("question", cb=answer)
        await theirs.flush()
        return (await ours.request("question", timeout=PATIENCE)).data


async def find_store(node: Node) -> bool:
    """Ask a server for the stream of the jobs, as a client of an account that this server believes in."""
    async with connected([node.url], user=ACCOUNT, password=ACCOUNT) as client:
        reply = await client.request(f"$JS.API.STREAM.INFO.{STORE}", timeout=1)
        return bool(json.loads(reply.data).get("config", {}).get("name") == STORE)


async def remove_peer(cluster: ShippedCluster, name: str) -> None:
    """Remove a server that is gone from the group that places streams, as the system account may."""
    async with administrator(cluster, *SYSTEM_USER) as client:
        await ask(client, "$JS.API.SERVER.REMOVE", {"peer": name})


def peers_of(node: Node) -> int:
    return int((node.ask("/jsz") or {})["meta_cluster"]["cluster_size"])


def names_of_routes(node: Node) -> set[str | None]:
    return {route.get("remote_name") for route in (node.ask("/routez") or {})["routes"]}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_does_not_join_and_does_not_get_the_store(
    kind: str, store: ShippedCluster, other_certificates: Path, tmp_path: Path
) -> None:
    stranger = STRANGERS[kind]
    certificates = other_certificates if stranger.has_another_authority else store.certificates
    sizes = {node.name: len(node.process.log.read_text()) for node in store.nodes}
    with running(stranger, store, certificates, tmp_path) as node:

        def was_refused_by(asked: Node) -> bool:
            return REFUSED.search(asked.process.log.read_text(), sizes[asked.name]) is not None

        for asked in store.nodes:
            assert eventually(partial(was_refused_by, asked)), asked.process.log_tail()
        with pytest.raises(NoRespondersError):
            asyncio.run(ask_a_client_of(store, node))
        assert all("stranger" not in names_of_routes(asked) for asked in store.nodes)


def test_a_server_with_a_certificate_for_routes_and_the_password_joins(
    store: ShippedCluster, tmp_path: Path
) -> None:
    """The same question gets an answer there: the strangers above fail for the reason that is named."""
    with running(ALLOWED, store, store.certificates, tmp_path) as node:
        assert eventually(lambda: names_of_routes(node) == set(NAMES))
        assert asyncio.run(answered(lambda: ask_a_client_of(store, node))) == b"answer"
        assert eventually(lambda: asyncio.run(answered(lambda: find_store(node))))

    def is_gone(asked: Node) -> bool:
        asyncio.run(remove_peer(store, "stranger"))
        return "stranger" not in names_of_routes(asked) and peers_of(asked) == len(NAMES)

    for asked in store.nodes:
        assert eventually(partial(is_gone, asked))


def refusal_of(url: str) -> str:
    with Mainspring(url) as app, pytest.raises(EngineUnavailable) as refused:
        app.manager()
    return str(refused.value)


def test_a_client_needs_a_certificate_of_this_installation_beside_its_password(
    store: ShippedCluster, other_certificates: Path, tmp_path: Path
) -> None:
    url = store.environment("worker")["MAINSPRING_URL"].replace("?", "?timeout=2&")
    ours = store.certificates / "clients" / "worker"
    theirs = other_certificates / "clients" / "worker"
    mixed = tmp_path / "mixed"  # this client trusts the servers, but its certificate is of another authority
    shutil.copytree(theirs, mixed)
    shutil.copy(ours / "authority.pem", mixed)
    for given, said in (
        (url.replace(f"&certificates={ours}", ""), "give the authority that has signed the certificate"),
        (url.replace(str(ours), str(theirs)), "give the authority that has signed the certificate"),
        (url.replace(str(ours), str(mixed)), "the certificate of this client if the server asks for one"),
        (url.replace("workerIsNoSecret", "wrong"), "check user and password"),
        (url.replace(str(ours), "/nowhere"), "certificates '/nowhere': the files cannot be used"),
    ):
        assert given != url
        assert said in refusal_of(given)


def test_the_administrator_can_back_up_the_store_and_the_system_user_sees_all_servers(
    store: ShippedCluster,
) -> None:
    async def look() -> tuple[dict[str, Any], dict[str, Any]]:
        async with administrator(store, *ADMINISTRATOR) as client:
            snapshot = await ask(client, f"$JS.API.STREAM.SNAPSHOT.{STORE}", {"deliver_subject": "backup"})
        async with administrator(store, *SYSTEM_USER) as client:
            return snapshot, await ask(client, "$SYS.REQ.SERVER.PING.ROUTEZ")

    snapshot, server = asyncio.run(look())
    assert snapshot["config"]["name"] == STORE
    assert {route["remote_name"] for route in server["data"]["routes"]} < set(NAMES)
    assert server["server"]["name"] in NAMES
