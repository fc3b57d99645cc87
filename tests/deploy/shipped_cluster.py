"""The three NATS servers of `deploy/compose.yaml`, started without containers from the files as they are.

Only addresses and folders are replaced: a host by 127.0.0.1 and a free port, a volume by a folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mainspring.cli.nats_process import HeldPorts, ServerProcess, find_server
from mainspring.cli.nats_servers import Node
from tests.deploy.files import DEPLOY, read_compose
from tests.programs import run_module
from tests.support import eventually

HOST = "127.0.0.1"
NAMES = ("nats-1", "nats-2", "nats-3")
CLIENT_PORT, MONITOR_PORT, ROUTE_PORT = 4222, 8222, 6222
CERTIFICATES = re.compile(r"mainspring (nats certificates deploy/certificates.*?[^\\])\n", re.DOTALL)


def make_certificates(folder: Path) -> None:
    """Run the command of the README, into another folder; all servers have the address of this machine."""
    (command,) = CERTIFICATES.findall((DEPLOY / "README.md").read_text())
    words = shlex.split(command.replace("\\\n", " ").replace("deploy/certificates", str(folder)))
    done = run_module("mainspring", *(f"{word},{HOST}" if word.startswith("nats-") else word for word in words))
    assert done.returncode == 0, done.stderr


class ShippedCluster:
    """Three running servers, their ports, and the folder with their certificates and those of clients."""

    def __init__(self, folder: Path, held: HeldPorts) -> None:
        self.certificates = folder / "certificates"
        make_certificates(self.certificates)
        self._folder = folder
        self._services: dict[str, Any] = read_compose()["services"]
        self._addresses = {
            f"{host}:{port}": f"{HOST}:{held.choose()}"
            for name in NAMES
            for host, port in ((name, CLIENT_PORT), (name, MONITOR_PORT), (f"{name}-routes", ROUTE_PORT))
        }
        self.nodes = [self._plan(name) for name in NAMES]

    def address(self, host: str, port: int) -> str:
        """Return the address that stands for one of the compose file."""
        return self._addresses[f"{host}:{port}"]

    def adapt(self, text: str, tls: Path) -> str:
        """Return a text of a service with our addresses, and its folder of certificates in place of the volume."""
        for theirs, ours in self._addresses.items():
            text = text.replace(theirs, ours)
        assert not re.search(r"nats-\d:", text)
        return text.replace("/run/tls", str(tls))

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment that the compose file gives to a service."""
        given = self._services[service]["environment"]
        return {name: self.adapt(value, self._tls_of(service)) for name, value in given.items()}

    def start(self) -> None:
        for node in self.nodes:
            with patch.dict(os.environ, self.environment(node.name)):
                node.process.start()
        for node in self.nodes:
            assert eventually(partial(node.is_ready, 2)), node.process.log.read_text()

    def kill(self) -> None:
        for node in self.nodes:
            node.process.kill()

    def logs(self) -> str:
        return "".join(node.process.log.read_text() for node in self.nodes)

    def _tls_of(self, service: str) -> Path:
        """Return the folder that a service has as its volume `/run/tls`."""
        volumes = self._services[service]["volumes"]
        (source,) = [volume.split(":")[0] for volume in volumes if volume.split(":")[1] == "/run/tls"]
        found = self._folder / str(source)
        assert found.is_dir(), f"the README does not make {source}"
        return found

    def _plan(self, name: str) -> Node:
        folder = self._folder / name
        folder.mkdir()
        shutil.copy(DEPLOY / "nats" / "accounts.conf", folder)
        text = (DEPLOY / "nats" / "nats.conf").read_text()
        for theirs, ours in (
            (f"0.0.0.0:{CLIENT_PORT}", self.address(name, CLIENT_PORT)),
            (f"0.0.0.0:{MONITOR_PORT}", self.address(name, MONITOR_PORT)),
            ("/run/tls", str(self._tls_of(name))),
            ("/data", str(folder / "data")),
        ):
            assert theirs in text
            text = text.replace(theirs, ours)
        assert "0.0.0.0" not in text
        (folder / "nats.conf").write_text(text)
        process = ServerProcess(find_server(), folder, {}, include=folder / "nats.conf")
        port, monitor_port = (int(self.address(name, port).split(":")[1]) for port in (CLIENT_PORT, MONITOR_PORT))
        return Node(name, port, monitor_port, process)


@contextmanager
def shipped_cluster(folder: Path) -> Iterator[ShippedCluster]:
    """Run the servers during the block."""
    with HeldPorts() as held:
        cluster = ShippedCluster(folder, held)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.kill()
