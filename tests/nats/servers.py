"""Real NATS servers for tests, which can be killed, restarted, suspended and reached through proxies.

Tests that need only a server share one (`nats_server`) and use different prefixes (`nats_prefix`). Tests that stop
or change a server have their own (`make_nats_server`, `make_nats_cluster`). All of them are killed when the test
ends, and by their guards if this process dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mainspring.cli.nats_process import is_listening
from mainspring.cli.nats_servers import NatsServers, Node
from tests.nats.proxy import Proxy
from tests.nats.raw_clients import connected
from tests.nats.server_access import OPEN, ServerAccess
from tests.support import PATIENCE


class Servers:
    """One node or three, for a single test. Methods without a `node` use the only one."""

    def __init__(self, servers: NatsServers, *, scheme: str = "nats") -> None:
        self._servers = servers
        self._scheme = scheme
        self._proxies = ExitStack()

    @property
    def nodes(self) -> list[Node]:
        return self._servers.nodes

    @property
    def urls(self) -> list[str]:
        return [node.url.replace("nats", self._scheme, 1) for node in self.nodes]

    @property
    def url(self) -> str:
        return ",".join(self.urls)

    @property
    def store(self) -> Path:
        return self._servers.store

    def kill(self, node: Node | None = None) -> None:
        """Kill a node with `kill -9`, and wait for its end."""
        self._pick(node).process.kill()

    def kill_all(self) -> None:
        """Kill all nodes with `kill -9`; their files stay."""
        for node in self.nodes:
            node.process.kill()

    def stop(self, node: Node | None = None) -> None:
        """Stop a node with SIGTERM, as for maintenance."""
        process = self._pick(node).process
        process.signal(signal.SIGTERM)
        assert process.wait(PATIENCE), f"it has not ended within {PATIENCE} s"

    def restart(self, node: Node | None = None) -> None:
        """Start a killed or stopped node, on the same ports and the same store, and wait until it is ready.

        While another node is down, a cluster may have no leader; then it is ready when it takes clients.
        """
        picked = self._pick(node)
        picked.process.start()
        if all(other.process.is_running for other in self.nodes):
            self.wait_until_ready()
        else:
            assert self._servers.wait_until(lambda: is_listening(picked.port), PATIENCE), picked.process.log_tail()

    def restart_all(self) -> None:
        """Start all nodes that do not run, and wait until all are ready."""
        for node in self.nodes:
            if not node.process.is_running:
                node.process.start()
        self.wait_until_ready()

    def stop_process(self, node: Node | None = None) -> None:
        """Suspend a node with SIGSTOP, and wait until it is suspended: its connections stay open."""
        process = self._pick(node).process
        assert process.pid is not None, "it does not run"
        process.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def cont(self, node: Node | None = None) -> None:
        """Resume a suspended node with SIGCONT."""
        self._pick(node).process.signal(signal.SIGCONT)

    def wait_until_ready(self) -> None:
        """Wait until all nodes run, have JetStream and, in a cluster, see each other."""
        self._servers.wait_until_ready(PATIENCE)

    def leader_of(self, stream: str, *, other_than: Node | None = None) -> Node:
        """Return the node that leads a stream, waiting for an election; after a kill, another one than before."""
        return self._wait_for_node(
            lambda node: node is not other_than and _leads(node, stream), f"leads {stream!r}"
        )

    def meta_leader(self, *, other_than: Node | None = None) -> Node:
        """Return the node that leads the cluster, waiting for an election; without one, nothing can be created."""
        return self._wait_for_node(lambda node: node is not other_than and _leads_all(node), "leads the cluster")

    def _wait_for_node(self, is_meant: Callable[[Node], bool], what: str) -> Node:
        found: list[Node] = []

        def look() -> bool:
            found.extend(filter(is_meant, self.nodes))
            return bool(found)

        assert self._servers.wait_until(look, PATIENCE), f"no node {what} after {PATIENCE} s"
        return found[0]

    def proxy(self, node: Node | None = None) -> Proxy:
        """Return a new proxy before a node; clients of its `url` can be cut off. It ends with the servers.

        In a cluster the servers do not advertise each other, so clients keep to the proxies.
        """
        return self._proxies.enter_context(Proxy(self._pick(node).port, scheme=self._scheme))

    def proxies(self) -> list[Proxy]:
        """Return a new proxy before each node."""
        return [self.proxy(node) for node in self.nodes]

    def close(self) -> None:
        """Kill all nodes, and close the proxies."""
        self._proxies.close()
        self._servers.kill()

    def _pick(self, node: Node | None) -> Node:
        if node is not None:
            return node
        assert len(self.nodes) == 1, f"say which of {self.nodes}"
        return self.nodes[0]


def _leads_all(node: Node) -> bool:
    answer = node.ask("/jsz")
    return answer is not None and answer.get("meta_cluster", {}).get("leader", node.name) == node.name


def _leads(node: Node, stream: str) -> bool:
    """Return whether a node reports that it leads a stream; a single node leads all its streams."""
    answer = node.ask("/jsz?accounts=true&streams=true") or {}
    for account in answer.get("account_details", []):
        for detail in account.get("stream_detail") or []:
            if detail["name"] == stream:
                return bool(detail.get("cluster", {}).get("leader", node.name) == node.name)
    return False


MakeServers: TypeAlias = Callable[..., Servers]
"""Takes `access`, `settings`, `sync_always`, `store` and `include`, all optional: see `running_servers`."""


@contextmanager
def running_servers(
    access: ServerAccess = OPEN,
    *,
    nodes: int = 1,
    settings: Mapping[str, Any] | None = None,
    sync_always: bool = False,
    store: Path | None = None,
    include: Path | None = None,
) -> Iterator[Servers]:
    """Run servers during the block: for soaks, benchmarks and fixtures."""
    merged = {**access.settings, **(settings or {})}
    if nodes > 1:
        merged["cluster"] = {"no_advertise": True} | merged.get("cluster", {})
    servers = NatsServers(nodes=nodes, settings=merged, sync_always=sync_always, store=store, include=include)
    servers.start()
    facade = Servers(servers, scheme=access.scheme)
    try:
        yield facade
    finally:
        facade.close()


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Servers]:
    """Return a node that all tests share. Tests must not stop it, and use only names with `nats_prefix`."""
    with running_servers() as servers:
        yield servers


@pytest.fixture
def nats_prefix(nats_server: Servers) -> Iterator[str]:
    """Yield a prefix for this test; delete the streams whose names contain it afterwards."""
    prefix = f"t{uuid.uuid4().hex[:12]}"
    yield prefix
    asyncio.run(delete_streams(nats_server.urls, prefix))


@pytest.fixture
def make_nats_server() -> Iterator[MakeServers]:
    """Yield a function that starts a single node for this test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(running_servers(*args, nodes=1, **options))


@pytest.fixture
def make_nats_cluster() -> Iterator[MakeServers]:
    """Yield a function that starts a cluster of three nodes for this test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(running_servers(*args, nodes=3, **options))


async def delete_streams(urls: list[str], prefix: str) -> None:
    """Delete all streams whose names contain a prefix."""
    async with connected(urls) as client:
        stream = client.jetstream(timeout=PATIENCE)
        for info in await stream.streams_info():
            if info.config.name is not None and prefix in info.config.name:
                await stream.delete_stream(info.config.name)
