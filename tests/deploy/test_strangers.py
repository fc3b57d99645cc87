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
from mainspring.doctor import examine
from mainspring.doctor.findings import Severity
from mainspring.errors import EngineUnavailable
from mainspring.security.certificates import client_context
from tests.deploy.files import DEPLOY, read_passwords
from tests.deploy.shipped_cluster import HOST, NAMES, ROUTE_PORT, ShippedCluster, make_certificates
from tests.nats.raw_clients import answered, connected
from tests.support import eventually

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
        if self.certificate is None:
            return {"tls": {"insecure": True}}
        base = certificates / self.certificate
        files = {"cert_file": f"{base}.pem", "key_file": f"{base}.key"}
        # A stranger does not care whom it joins. A server that may join is called back by the others, with TLS.
        trust = {"ca_file": str(base.parent / "route-authority.pem")} if self == ALLOWED else {"insecure": True}
        return {"tls": files | trust}


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
            "accounts": {name: {"users": [{"user": name, "password": name}]} for name in accounts},
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
    return dict(json.loads((await client.request(subject, data, timeout=1)).data))


async def ask_a_client_of(node: Node, cluster: ShippedCluster) -> bytes:
    """Ask a client of the stranger that says it is in the same account, as the administrator of the cluster."""

    async def answer(message: Msg) -> None:
        await message.respond(b"answer")

    async with (
        administrator(cluster, *ADMINISTRATOR) as ours,
        connected([node.url], user=ACCOUNT, password=ACCOUNT) as theirs,
    ):
        await theirs.subscribe("question", cb=answer)
        await theirs.flush()
        return (await ours.request("question", timeout=1)).data


async def streams_seen_from(node: Node, server: Node) -> set[str]:
    """Ask a server of the cluster for its streams, as a client of the system account of the stranger."""
    subject = f"$SYS.REQ.SERVER.{(server.ask('/varz') or {})['server_id']}.JSZ"
    async with connected([node.url], user=SYSTEM, password=SYSTEM) as client:
        reply = await ask(client, subject, {"accounts": True, "streams": True})
        accounts = reply["data"]["account_details"]
        return {stream["name"] for account in accounts for stream in account.get("stream_detail") or []}


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
            asyncio.run(ask_a_client_of(node, store))
        assert all("stranger" not in names_of_routes(asked) for asked in store.nodes)


def test_a_server_with_a_certificate_for_routes_and_the_password_joins(
    store: ShippedCluster, tmp_path: Path
) -> None:
    """The questions get answers there: the strangers above fail for the reasons that are named."""
    with running(ALLOWED, store, store.certificates, tmp_path) as node:
        assert eventually(lambda: names_of_routes(node) == set(NAMES))
        assert asyncio.run(answered(lambda: ask_a_client_of(node, store))) == b"answer"
        assert STORE in asyncio.run(answered(lambda: streams_seen_from(node, store.nodes[0])))
    for asked in store.nodes:
        assert eventually(partial(is_gone, asked))


def is_gone(asked: Node) -> bool:
    return "stranger" not in names_of_routes(asked)


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
            snapshot = await ask(client, f"$JS.API.STREAM.SNAPSHOT.{STORE}", {"deliver_subject": "_INBOX.backup"})
        async with administrator(store, *SYSTEM_USER) as client:
            return snapshot, await ask(client, "$SYS.REQ.SERVER.PING.ROUTEZ")

    snapshot, server = asyncio.run(answered(look))
    assert snapshot["config"]["name"] == STORE
    assert {route["remote_name"] for route in server["data"]["routes"]} < set(NAMES)
    assert server["server"]["name"] in NAMES


def test_the_doctor_finds_routes_and_clients_protected(store: ShippedCluster, tmp_path: Path) -> None:
    url = store.environment("prepare")["MAINSPRING_URL"]
    app = Mainspring(f"{url}&projection={tmp_path}/jobs.db")
    report = examine(app, monitor=store.nodes[0].monitor_url)
    found = {f.check: f for f in report.findings if f.check in {"routes", "clients"}}
    assert {finding.severity for finding in found.values()} == {Severity.OK}
    assert "verify each other" in found["routes"].what
    assert "need TLS and a certificate" in found["clients"].what
