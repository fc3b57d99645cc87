"""Servers with the permissions that `mainspring nats permissions` prints, and an application that uses them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any, get_args
from uuid import uuid4

import pytest

from mainspring import (
    Cancel,
    Concurrency,
    Mainspring,
    Rate,
    Retry,
    Unique,
    current_job,
)
from mainspring.cli.nats_permissions import make_grant
from mainspring.engines.nats.settings import Role
from tests.nats.servers import MakeServers, Servers
from tests.programs import run_module

PASSWORD = "s3cret"


@dataclass(frozen=True)
class RestrictedServers:
    """Servers with the permissions of two applications in one account, and the URLs of each role."""

    servers: Servers
    folder: Path

    def url(self, role: Role, **settings: object) -> str:
        hosts = ",".join(f"shop-{role}:{PASSWORD}@{url.partition('://')[2]}" for url in self.servers.urls)
        query = {"prefix": "shop", "role": role, "lease": 2, "timeout": 5} | settings
        return f"nats://{hosts}?" + "&".join(f"{name}={value}" for name, value in query.items())

    def app(self, role: Role, **settings: object) -> Shop:
        return Shop(self.url(role, projection=self.folder / f"{uuid4()}.db", **settings))

    def violations(self) -> list[str]:
        said = "\n".join(node.process.log.read_text() for node in self.servers.nodes)
        return [line for line in said.splitlines() if "Violation" in line]


class Shop(Mainspring):
    """An application with handlers of every kind."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, threads=4, grace=5, **options)
        self.is_running, self.release, self.has_ticked = Event(), Event(), Event()
        soon = Retry(max_attempts=2, base=0.05, jitter=0)
        self.plain = self.job(name="plain")(lambda: "done")
        self.flawed = self.job(name="flawed", retry=soon)(_fail)
        self.slow = self.job(name="slow")(self._wait)
        self.called = self.job(name="called", concurrency=Concurrency(1, by="tenant"), rate=Rate(50, per=1))(_call)
        self.single = self.job(name="single", unique=Unique(by="number"))(_double)
        self.first = self.job(name="first", then=self.plain)(lambda: None)
        self.tick = self.job(name="tick")(self.has_ticked.set)
        self.brief = self.job(name="brief", expires=30, keep_result=1)(lambda: 1)

    def _wait(self) -> None:
        self.is_running.set()
        while not (current_job().cancelled or self.release.wait(0.02)):
            pass
        raise Cancel("asked to")


def _fail() -> None:
    raise RuntimeError("on purpose")


def _call(tenant: str) -> str:
    return tenant


def _double(number: int) -> int:
    return 2 * number


def run_program(*arguments: str) -> str:
    """Run `mainspring` with these arguments; return what it prints."""
    done = run_module("mainspring", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def print_permissions() -> str:
    """Return the permissions of two applications; they are the same for all tests."""
    return run_program("nats", "permissions", "--prefix", "shop", "--prefix", "other", "--account", "APPS")


@pytest.fixture(params=[1, 3], ids=["one node", "three nodes"])
def restricted_servers(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RestrictedServers]:
    yield from make_restricted_servers(request, tmp_path, monkeypatch, request.param)


@pytest.fixture
def restricted_server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RestrictedServers]:
    yield from make_restricted_servers(request, tmp_path, monkeypatch, 1)


def make_restricted_servers(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> Iterator[RestrictedServers]:
    printed = folder / "accounts.conf"
    printed.write_text(print_permissions())
    for prefix in ("shop", "other"):
        for role in get_args(Role):
            monkeypatch.setenv(make_grant(prefix, role).password_variable, PASSWORD)
    make: MakeServers = request.getfixturevalue("make_nats_server" if nodes == 1 else "make_nats_cluster")
    yield RestrictedServers(make(include=printed), folder)
