"""One NATS server as seen from outside: where it is, and how it says that it is."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any

from mainspring.cli.nats_ports import HOST, is_listening
from mainspring.cli.nats_process import ServerProcess

ASK_SECONDS = 1.0  # a suspended server accepts connections and does not answer


class Node:
    """One server: its name, its ports, its process."""

    def __init__(self, name: str, port: int, monitor_port: int, process: ServerProcess) -> None:
        self.name = name
        self.port = port
        self.monitor_port = monitor_port
        self.process = process

    def __repr__(self) -> str:
        return f"<Node {self.name} at port {self.port}>"

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{HOST}:{self.port}"

    @property
    def monitor_url(self) -> str:
        """Where it tells how it is, over HTTP."""
        return f"http://{HOST}:{self.monitor_port}"

    def ask(self, path: str) -> dict[str, Any] | None:
        """Ask its monitor, as in `ask("/jsz?streams=true")`; None if it does not answer, or is not well."""
        with closing(http.client.HTTPConnection(HOST, self.monitor_port, timeout=ASK_SECONDS)) as connection:
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                return None
            return dict(json.loads(body)) if response.status == http.client.OK else None

    def is_ready(self, peers: int) -> bool:
        """Whether it takes clients, JetStream is up and, in a cluster, a leader is known that sees all peers."""
        if self.ask("/healthz") is None or not is_listening(self.port):
            return False
        if peers == 0:
            return True
        meta = (self.ask("/jsz") or {}).get("meta_cluster", {})
        if meta.get("leader") != self.name:
            return bool(meta.get("leader"))
        replicas = meta.get("replicas", [])
        return len(replicas) == peers and all(replica["current"] for replica in replicas)
