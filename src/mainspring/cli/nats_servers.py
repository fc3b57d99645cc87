"""Starts NATS servers with JetStream on this machine, for tests and trials: one node or a cluster of three.

The servers listen on 127.0.0.1 only. Each node has its own folder below the store. A single node and a cluster use
different folders, because a node cannot join or leave a cluster with the data that it has stored. All servers end
with `stop()`, and with this process.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Any

from mainspring.cli.nats_process import (
    HOST,
    STOP_SECONDS,
    HeldPorts,
    ServerProcess,
    check_version,
    find_server,
    is_free,
    is_listening,
    server_error,
)
from mainspring.clock import NANOSECONDS, Clock, SystemClock
from mainspring.errors import EngineUnavailable

ASK_SECONDS = 1.0  # a suspended server accepts connections but does not answer


class Node:
    """One NATS server: its name, its ports and its process."""

    def __init__(self, name: str, port: int, monitor_port: int, process: ServerProcess) -> None:
        self.name = name
        self.port = port
        self.monitor_port = monitor_port
        self.process = process

    def __repr__(self) -> str:
        return f"<Node {self.name} at port {self.port}>"

    @property
    def url(self) -> str:
        """The URL of this server for clients."""
        return f"nats://{HOST}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """The URL of this server's HTTP monitoring."""
        return f"http://{HOST}:{self.monitor_port}"

    def ask(self, path: str) -> dict[str, Any] | None:
        """Return the server's monitoring data, as in `ask("/jsz?streams=true")`; None without an answer of 200."""
        with closing(http.client.HTTPConnection(HOST, self.monitor_port, timeout=ASK_SECONDS)) as connection:
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                return None
            return dict(json.loads(body)) if response.status == http.client.OK else None

    def is_ready(self, peers: int) -> bool:
        """Return whether the server accepts clients, JetStream is up and, in a cluster, there is a leader.

        `peers` is the number of other servers. The leader itself is ready only when all of them are up to date.
        """
        if self.ask("/healthz") is None or not is_listening(self.port):
            return False
        if peers == 0:
            return True
        meta = (self.ask("/jsz") or {}).get("meta_cluster", {})
        if meta.get("leader") != self.name:
            return bool(meta.get("leader"))
        replicas = meta.get("replicas", [])
        return len(replicas) == peers and all(replica["current"] for replica in replicas)


CLUSTER = "mainspring"
POLL_NS = 20_000_000  # nanoseconds between two checks whether a server is ready
READY_SECONDS = 60.0
TRIES = 3  # another process may take a free port before the server listens on it


class NatsServers:
    """One NATS server or a cluster of three, running until the end of the `with` block.

    `port` is that of the first node; the others have the next ones. Without it, free ports are chosen. Without
    `store`, all data is in a temporary folder that is removed at the end. `settings` are merged into the
    configuration of every node: `{"authorization": {"token": "s3cret"}}`. `include` is a file in the server's own
    configuration format.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        port: int | None = None,
        store: Path | None = None,
        sync_always: bool = False,
        settings: Mapping[str, Any] | None = None,
        include: Path | None = None,
        program: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        if nodes not in {1, 3}:
            raise ValueError(f"nodes must be 1 or 3, got {nodes!r}")
        self._program = find_server(program)
        self.version = check_version(self._program)
        self._names = [CLUSTER] if nodes == 1 else [f"{CLUSTER}-{number}" for number in range(1, nodes + 1)]
        self._port = port
        self._given_store = store
        self._sync_always = sync_always
        self._settings = settings or {}
        self._include = include
        self._clock = clock or SystemClock()
        self._held = HeldPorts()
        self.store = Path()
        self.nodes: list[Node] = []

    def __enter__(self) -> NatsServers:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def urls(self) -> list[str]:
        """The URLs for clients, one for each node."""
        return [node.url for node in self.nodes]

    @property
    def url(self) -> str:
        """The URLs of all nodes, separated by commas, as `Mainspring(url)` takes them."""
        return ",".join(self.urls)

    def start(self) -> None:
        """Start all nodes and wait until JetStream is ready.

        If that fails, kill the nodes, remove a temporary store, and raise `EngineUnavailable`.
        """
        given = self._given_store
        self.store = Path(tempfile.mkdtemp(prefix="mainspring-nats-")) if given is None else given.absolute()
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def _start(self) -> None:
        for remaining in reversed(range(TRIES)):
            self.nodes = self._plan()
            for node in self.nodes:
                node.process.start()
            try:
                self.wait_until_ready()
            except EngineUnavailable:
                taken = [port for node in self.nodes if (port := node.process.taken_port())]
                for node in self.nodes:
                    node.process.kill()
                if not taken:
                    raise
                if not remaining or taken[0] in self._given_ports():
                    raise _taken(taken[0]) from None
            else:
                return

    def stop(self) -> None:
        """Terminate all nodes, kill those that do not end in time, and remove a temporary store."""
        try:
            for node in self.nodes:
                node.process.signal(signal.SIGTERM)
                node.process.signal(signal.SIGCONT)  # a suspended process would not receive SIGTERM
            for node in self.nodes:
                node.process.wait(STOP_SECONDS)
        finally:  # also after Ctrl+C during the wait
            self.kill()

    def kill(self) -> None:
        """Kill all nodes with SIGKILL, release their ports, and remove a temporary store."""
        for node in self.nodes:
            node.process.kill()
        self._held.release()
        if self._given_store is None:
            shutil.rmtree(self.store, ignore_errors=True)

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until every node is ready: JetStream is up and, in a cluster, has a leader with current peers.

        Raises `EngineUnavailable` if a node has ended, or is not ready within `seconds`. The time begins again for
        each node.
        """
        peers = len(self.nodes) - 1
        for node in self.nodes:
            if not self.wait_until(partial(self._looks_ready, node, peers), seconds):
                raise self._failed(node, f"was not ready within {seconds:g} s")

    def wait_until(self, condition: Callable[[], bool], seconds: float = READY_SECONDS) -> bool:
        """Check a condition again and again, until it is true or `seconds` are over; return whether it is true."""
        deadline_ns = self._clock.monotonic_ns() + round(seconds * NANOSECONDS)
        never_notified = Condition()
        while not condition():
            now_ns = self._clock.monotonic_ns()
            if now_ns >= deadline_ns:
                return False
            with never_notified:
                self._clock.wait(never_notified, min(now_ns + POLL_NS, deadline_ns))
        return True

    def require_running(self) -> None:
        """Raise `EngineUnavailable` if a node has ended by itself."""
        for node in self.nodes:
            if not node.process.is_running:
                raise self._failed(node, "has ended by itself")

    def _failed(self, node: Node, what: str) -> EngineUnavailable:
        log = (
            "its log, removed unless a store is given,"
            if self._given_store is None
            else f"see {node.process.log}, which"
        )
        return server_error(f"{node.name} {what}", f"{log} ends with\n{node.process.log_tail()}")

    def _looks_ready(self, node: Node, peers: int) -> bool:
        self.require_running()
        return node.is_ready(peers)

    def _plan(self) -> list[Node]:
        """Make the nodes with their ports, not started yet; raise `EngineUnavailable` if a given port is taken.

        Ports that the user has not given are chosen, and held until `kill` or the next call of this method.
        """
        count = len(self._names)
        given = self._given_ports()
        for port in given:
            if not is_free(port):
                raise _taken(port)
        self._held.release()
        chosen = [self._held.choose(besides=given) for _ in range(3 * count)]
        ports = given or chosen[:count]
        monitor_ports, route_ports = chosen[count : 2 * count], chosen[2 * count :]
        nodes = []
        for index, name in enumerate(self._names):
            folder = self.store / name
            configuration = self._configure(name, folder, ports[index], monitor_ports[index])
            if count > 1:
                routes = [f"nats-route://{HOST}:{port}" for port in route_ports]
                cluster = {"name": CLUSTER, "listen": f"{HOST}:{route_ports[index]}", "routes": routes}
                configuration["cluster"] = cluster | self._settings.get("cluster", {})
            process = ServerProcess(self._program, folder, configuration, include=self._include)
            nodes.append(Node(name, ports[index], monitor_ports[index], process))
        return nodes

    def _configure(self, name: str, folder: Path, port: int, monitor_port: int) -> dict[str, Any]:
        jetstream: dict[str, Any] = {"store_dir": str(folder)}
        if self._sync_always:
            jetstream["sync_interval"] = "always"
        return {
            "server_name": name,
            "listen": f"{HOST}:{port}",
            "http": f"{HOST}:{monitor_port}",
            **self._settings,
            "jetstream": jetstream | self._settings.get("jetstream", {}),
        }

    def _given_ports(self) -> list[int]:
        return [] if self._port is None else [self._port + index for index in range(len(self._names))]


def _taken(port: int) -> EngineUnavailable:
    return server_error(
        f"port {port} of {HOST} is taken", "stop the program that listens there, or choose another port"
    )
