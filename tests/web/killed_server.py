"""An HTTP server in a process of its own that kills itself at a chosen step of a request, as `kill -9` would.

    python -m tests.web.killed_server URL [STEP]

It prints its port. The steps are those of `STEPS`.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mainspring import Mainspring
from mainspring.jobs.manager import JobManager
from mainspring.security.http_limits import HttpLimits
from mainspring.web import idempotency
from mainspring.web.addresses import HttpAddress, open_listener
from mainspring.web.asgi import build
from mainspring.web.credentials import TokenAuthenticator
from mainspring.web.server import HttpServer
from tests.fork_server import ForkedProcess
from tests.programs import module, read_line
from tests.support import PATIENCE

STEPS = ("before the beginning", "after the beginning", "during the submit", "after the submit", "after the end")
BUSY_SECONDS = 1.0
"""After this time a repetition takes a request over, so that tests need not wait long."""


def make_app(url: str) -> Mainspring:
    """Make the application of the server and of the test."""
    app = Mainspring(url)

    @app.job(name="add")
    def add(n: int = 0) -> int:
        return n

    return app


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_at(step: str, app: Mainspring) -> None:
    """Let this process kill itself when a request comes to a step."""
    begin, end = JobManager.begin_request, JobManager.end_request

    async def begin_and_die(manager: JobManager, request: Any) -> Any:
        if step == "after the beginning":
            await begin(manager, request)
        _die()

    async def end_and_die(manager: JobManager, request_end: Any) -> Any:
        if step == "after the end":
            await end(manager, request_end)
        _die()

    if "beginning" in step:
        setattr(JobManager, "begin_request", begin_and_die)  # noqa: B010 - mypy refuses an assignment
    elif step == "during the submit":
        engine: Any = app.manager().engine
        submit: Callable[[Any], Any] = engine.submit

        def submit_half(jobs: Any) -> Any:
            submit(jobs[: len(jobs) // 2])
            _die()

        engine.submit = submit_half
    else:
        setattr(JobManager, "end_request", end_and_die)  # noqa: B010


def main(url: str, step: str | None = None) -> None:
    """Serve until the standard input ends."""
    idempotency.BUSY_SECONDS = BUSY_SECONDS
    listener = open_listener(HttpAddress("127.0.0.1", 0))
    with make_app(url) as app:
        asgi = build(app, TokenAuthenticator(app), limits=HttpLimits())
        if step is not None:
            _kill_at(step, app)
        with HttpServer(asgi, listener):
            sys.stdout.write(f"{listener.address.port}\n")
            sys.stdout.flush()
            sys.stdin.read()


@dataclass(frozen=True)
class KilledServer:
    """A running server, for a test."""

    process: ForkedProcess
    port: int

    def post(self, path: str, token: str, key: str, body: Any) -> tuple[int, Any] | None:
        """Send a request with a key; return the status and the answer, or None if the connection is lost."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Idempotency-Key": f'"{key}"',
        }
        try:
            connection.request("POST", f"/api/v1{path}", body=json.dumps(body), headers=headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def kill(self) -> None:
        """Kill the server, and wait for its end."""
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def started(url: str, *step: str) -> Iterator[KilledServer]:
    """Run a server during the block."""
    with module("tests.web.killed_server", url, *step) as process:
        yield KilledServer(process, int(read_line(process)))


if __name__ == "__main__":
    main(*sys.argv[1:])
