"""Runs the servers of the HTTP benchmarks, and sends prepared requests over keep-alive connections."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter
from typing import Any

from benchmarks.jobs.process import ROOT
from benchmarks.jobs.systems.system import STORE_VARIABLE

LIMITS = ("submit_rate=1000000000", "submit_burst=1000000000", "idle_seconds=600")
OURS = (
    *(
        "-m",
        "mainspring",
        "serve",
        "benchmarks.http.served:app",
        "--http",
        "127.0.0.1:0",
        "--log-level",
        "warning",
    ),
    *(part for limit in LIMITS for part in ("--http-limit", limit)),
)
PEER = ("-m", "benchmarks.http.served")
CREATED = 201
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@contextmanager
def server(arguments: Sequence[str], store: Path) -> Iterator[int]:
    """Run a server on a store during the block, and lend its port."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONPATH": path, STORE_VARIABLE: str(store)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                    break
            else:
                raise RuntimeError("the server has not started")
            yield int(found[1])
        finally:
            process.terminate()
            process.wait()


def encode_request(method: str, path: str, token: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """Return the bytes of a request."""
    head = (
        f"{method} /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class KeepAlive:
    """One connection, for one thread."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of its answer."""
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        assert found is not None
        parts, size = [body], len(body)
        while size < int(found[1]):
            parts.append(self._receive())
            size += len(parts[-1])
        return int(head[9:12]), b"".join(parts)

    def expect(self, request: bytes, status: int) -> Any:
        """Send a request; return the content of its answer, which must have this status."""
        found, body = self.send(request)
        if found != status:
            raise RuntimeError(f"the answer is {found}, not {status}: {body[:500]!r}")
        return json.loads(body)

    def _receive(self) -> bytes:
        data = self._socket.recv(262_144)
        if not data:
            raise RuntimeError("the server has closed the connection")
        return data

    def close(self) -> None:
        self._socket.close()


def rate(port: int, request: bytes, connections: int, each: int) -> float:
    """Send a request `each` times over each of some connections; return how many were answered per second."""
    barrier = Barrier(connections + 1)
    failures: list[BaseException] = []

    def send() -> None:
        connection = KeepAlive(port)
        try:
            connection.expect(request, CREATED)
            barrier.wait()
            for _ in range(each):
                status, body = connection.send(request)
                if status != CREATED:
                    raise RuntimeError(f"the answer is {status}: {body[:500]!r}")
        except BaseException as error:
            barrier.abort()
            failures.append(error)
        finally:
            connection.close()

    threads = [Thread(target=send) for _ in range(connections)]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = perf_counter()
    for thread in threads:
        thread.join()
    took = perf_counter() - began
    if failures:
        raise failures[0]
    return connections * each / took
