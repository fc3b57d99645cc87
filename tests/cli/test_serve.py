"""`mainspring serve` and `mainspring run --http`: real processes, real requests, tokens that end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from http.client import HTTPConnection
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ
from threading import Thread
from typing import IO, Any

import pytest

from tests.cli.shop_program import ENVIRONMENT, ShopProgram
from tests.fork_server import ForkedProcess, fork_server
from tests.support import PATIENCE, eventually

pytestmark = pytest.mark.long

ANY = "127.0.0.1:0"


class Served:
    """A server in a process of its own, and every line that it has printed."""

    def __init__(self, process: ForkedProcess, output: Iterable[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        lines = iter(output)
        for line in lines:
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])
                break
        else:
            pytest.fail(f"no address: {self.lines}")
        self._reader = Thread(target=self.lines.extend, args=[lines], daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def token(self) -> str:
        """The token of the printed link."""
        found = re.search(r"\?token=(msp_\w+)", self.text)
        assert found, self.text
        return found[1]

    def get(self, path: str, token: str | None = None, **headers: str) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            sent = {} if token is None else {"Authorization": f"Bearer {token}"}
            connection.request("GET", path, headers=sent | headers)
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if "json" in answer.headers["content-type"] else body
        finally:
            connection.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        self.read_rest()
        return code

    def read_rest(self) -> None:
        """Wait until the last line of the process is read. The process has ended."""
        self._reader.join(PATIENCE)


@contextmanager
def started(shop: ShopProgram, *arguments: str, **environment: str) -> Iterator[Served]:
    """Start a server with a pipe, which gets its output and its log."""
    variables = {"MAINSPRING_HEALTH_DIR": str(shop.folder)} | environment
    process = shop.start(*arguments, stderr=subprocess.STDOUT, **variables)
    assert process.stdout is not None
    with watched(process, process.stdout) as served:
        yield served


@contextmanager
def started_on_terminal(shop: ShopProgram, *arguments: str, log: IO[str]) -> Iterator[Served]:
    """Start a server on a terminal, which gets its output; its log is a file."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 40, 200, 0, 0))  # wide enough for the link
    variables = ENVIRONMENT | {"MAINSPRING_HEALTH_DIR": str(shop.folder)}
    files = theirs, theirs, log.fileno()
    process = fork_server().start("mainspring", arguments, folder=shop.folder, environment=variables, files=files)
    os.close(theirs)
    with os.fdopen(ours, errors="replace") as terminal, watched(process, lines_of(terminal)) as served:
        yield served


def lines_of(terminal: IO[str]) -> Iterator[str]:
    """Yield the lines of a terminal until no process has it open."""
    with suppress(OSError):  # the end of a terminal is an error
        yield from terminal


@contextmanager
def watched(process: ForkedProcess, output: Iterable[str]) -> Iterator[Served]:
    try:
        served = Served(process, output)
        try:
            yield served
        finally:
            process.kill()
            served.read_rest()  # before its output is closed
    finally:
        process.close()


@pytest.mark.parametrize("command", ["serve", "run"])
def test_on_a_terminal_a_link_with_a_token_of_the_process_is_printed(
    shop: ShopProgram, tmp_path: Path, command: str
) -> None:
    with (
        (tmp_path / "log").open("w+") as log,
        started_on_terminal(shop, command, "shop:app", "--http", ANY, log=log) as served,
    ):
        token = served.token
        status, body = served.get("/api/v1/", token)
        assert (status, body["caller"]["scopes"]) == (200, ["admin"])
        assert served.get("/api/v1/")[0] == 401
        assert served.get(f"/?token={token}")[0] == 200
        assert served.get("/healthz")[0] == 200
        assert served.stop() == 0
        assert "stopped" in served.lines[-1]
        assert served.text.count(token) == 1
        log.seek(0)
        lines = log.read()
        assert "'/api/v1/' by 'the printed link': 200" in lines
        assert "msp_" not in lines
    assert shop.run_on_store("tokens", "list", "--json").json == {"tokens": []}


@pytest.mark.parametrize(
    "arguments", [("serve",), ("run",), ("serve", "--log-format", "json"), ("run", "--log-format", "json")]
)
def test_a_file_or_a_log_gets_the_address_without_a_token(shop: ShopProgram, arguments: tuple[str, ...]) -> None:
    command, *options = arguments
    with started(shop, command, "shop:app", "--http", ANY, *options) as served:
        assert served.get("/api/v1/")[0] == 401
        assert served.stop() == 0
        assert f"HTTP at http://127.0.0.1:{served.port}/" in served.text
        assert "make a token: mainspring tokens create NAME --scope admin --app shop:app" in served.text
        assert "msp_" not in served.text


def test_a_token_of_the_printed_link_ends_with_its_process(shop: ShopProgram, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        with started_on_terminal(shop, "serve", "shop:app", "--http", ANY, log=log) as served:
            token = served.token
        with started_on_terminal(shop, "serve", "shop:app", "--http", ANY, log=log) as served:
            assert served.token != token
            assert served.get("/api/v1/", token)[0] == 401


def test_a_token_that_another_process_revokes_is_refused(shop: ShopProgram) -> None:
    token = shop.run_with_app("tokens", "create", "shop", "--scope", "read").output.strip()
    with started(shop, "serve", "shop:app", "--http", ANY) as served:
        assert "token=" not in served.text
        assert served.get("/api/v1/", token)[0] == 200
        assert shop.run_with_app("tokens", "revoke", "shop").code == 0
        assert eventually(lambda: served.get("/api/v1/", token)[0] == 401)
        other = shop.run_with_app("tokens", "create", "other", "--scope", "read").output.strip()
        assert eventually(lambda: served.get("/api/v1/", other)[0] == 200)
        (_, listed) = shop.run_with_app("tokens", "list", "--json").json["tokens"]
        assert (listed["name"], listed["state"]) == ("shop", "revoked")
        assert listed["last_used"] is not None
        assert served.stop() == 0
        assert token not in served.text
        assert other not in served.text


def test_a_worker_serves_its_own_health(shop: ShopProgram) -> None:
    token = shop.run_with_app("tokens", "create", "ann", "--scope", "read").output.strip()
    with started(shop, "run", "shop:app", "--http", ANY, "--log-format", "json") as served:
        assert eventually(lambda: served.get("/readyz") == (200, {"status": "ok"}))
        assert shop.run("healthcheck", "--ready", MAINSPRING_HEALTH_DIR=str(shop.folder)).code == 0
        assert served.get("/api/v1/", token, **{"X-Request-ID": "my-request"})[0] == 200
        assert served.stop() == 0
        records = [json.loads(line) for line in served.lines if line.startswith("{")]
        (request,) = [record for record in records if record.get("request_id") == "my-request"]
        assert (request["path"], request["status"], request["caller"]) == ("/api/v1/", 200, "ann")
        events = [record.get("event") for record in records]
        assert events.index("starting") < events.index("http") < events.index("ready")
        assert events[-1] == "stopped"


@pytest.mark.parametrize(
    ("arguments", "of_store"),
    [
        (("serve", "shop:app"), {"mainspring_jobs"}),
        (("run", "shop:app"), set()),
        (("run", "shop:app", "--store-metrics"), {"mainspring_jobs"}),
    ],
)
def test_metrics_of_the_store_are_exported_where_they_are_wanted(
    shop: ShopProgram, arguments: tuple[str, ...], of_store: set[str]
) -> None:
    shop.submit({"order_id": 1}, delay=3_600)
    token = shop.run_with_app("tokens", "create", "prometheus", "--scope", "read").output.strip()
    with started(shop, *arguments, "--http", ANY) as served:
        status, page = served.get("/metrics", token)
        assert status == 200
        names = {line.partition("{")[0] for line in page.decode().splitlines() if not line.startswith("#")}
        assert "mainspring_store_commit_seconds_count" in names
        assert names & {"mainspring_jobs"} == of_store
        assert served.get("/metrics")[0] == 401
        assert served.stop() == 0


def test_a_port_in_use_is_an_error_before_anything_starts(shop: ShopProgram) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for command in ("serve", "run"):
            result = shop.run(command, "shop:app", "--http", address)
            assert result.code == 1
            assert result.error_line.startswith(f"mainspring: the HTTP server cannot listen at {address}: another")
            assert "--http" in result.error_line
    assert not (shop.folder / "shop.db").exists()


def test_other_machines_need_tokens(shop: ShopProgram) -> None:
    for command in ("serve", "run"):
        result = shop.run(command, "shop:app", "--http", "0.0.0.0:0")
        assert result.code == 1
        assert "mainspring tokens create NAME --scope admin --app shop:app" in result.errors
        refused = shop.run(command, "shop:app", "--http", "0.0.0.0:0", "--no-auth")
        assert refused.code == 1
        assert "--no-auth lets every caller do everything" in refused.errors


def test_on_loopback_the_user_may_ask_for_no_tokens(shop: ShopProgram) -> None:
    with started(shop, "serve", "shop:app", "--http", ANY, "--no-auth") as served:
        assert "every user of this machine may do everything" in served.text
        assert served.get("/api/v1/")[1]["caller"]["name"] == "anonymous"
        assert served.get("/api/v1/", Host="evil.example")[0] == 421  # a page that rebinds its name gets nothing
        assert served.stop() == 0


def test_systemd_is_told_when_the_server_is_ready_and_when_it_stops(shop: ShopProgram) -> None:
    path = str(shop.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(PATIENCE)
        with started(shop, "serve", "shop:app", "--http", ANY, NOTIFY_SOCKET=path) as served:
            assert "READY=1" in systemd.recv(4_096).decode().splitlines()
            assert served.get("/readyz")[0] == 200
            assert served.stop() == 0
            assert "STOPPING=1" in systemd.recv(4_096).decode().splitlines()


def test_a_host_name_can_be_added(shop: ShopProgram) -> None:
    arguments = ("serve", "shop:app", "--http", ANY, "--no-auth", "--host-name", "Jobs.example.com")
    with started(shop, *arguments) as served:
        assert served.get("/api/v1/", Host="jobs.example.com:80")[0] == 200
        assert served.stop() == 0


def test_a_limit_can_be_changed_and_a_server_can_be_read_only(shop: ShopProgram) -> None:
    arguments = ("serve", "shop:app", "--http", ANY, "--no-auth", "--http-limit", "max_header=500", "--read-only")
    with started(shop, *arguments) as served:
        status, page = served.get("/", Accept="text/html")
        assert (status, b"read-only" in page) == (200, True)
        assert served.get("/api/v1/")[0] == 200
        assert served.get("/api/v1/", **{"X-Long": "x" * 600})[0] == 431
        assert served.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("serve", "shop:app", "--http", "http://127.0.0.1"), "'http://127.0.0.1' is no address"),
        (("serve", "shop:app", "--host-name", "a:80"), "'a:80' is no host name"),
        (("serve", "shop:app", "--app", "other:app"), "two applications are given"),
        (("run", "shop:app", "--no-auth"), "--no-auth needs the HTTP server"),
        (("run", "shop:app", "--read-only"), "--read-only needs the HTTP server"),
        (("run", "shop:app", "--host-name", "a"), "--host-name needs the HTTP server"),
        (("run", "shop:app", "--store-metrics"), "--store-metrics needs the HTTP server"),
        (("serve", "shop:app", "--http-limit", "max_bath=5"), "did you mean 'max_batch'"),
        (("run", "shop:app", "--http-limit", "max_batch=5"), "--http-limit needs the HTTP server"),
    ],
)
def test_wrong_options_are_refused(shop: ShopProgram, arguments: tuple[str, ...], problem: str) -> None:
    result = shop.run(*arguments)
    assert result.code == 2
    assert problem in result.error_line
