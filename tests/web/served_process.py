"""Runs `mainspring serve` in a process of its own, which a test kills or stops while clients send requests."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fork_server import start_forked
from tests.processes.run_log import now_ns
from tests.support import PATIENCE

LIMITS = {"idle_seconds": 600, "header_seconds": 600, "grace_seconds": 600, "submit_rate": 1_000_000}
"""A slow machine must not look like a server that loses requests."""
ROOT = Path(__file__).parents[2]


class ServedProcess:
    """A running server, and when the test has killed or stopped it.

    - `url`: the URL of the store
    - `log`: a file for its log
    """

    def __init__(self, url: str, log: Path) -> None:
        command = ["serve", "tests.web.served_apps:load", "--url", url]
        command += ["--http", "127.0.0.1:0", "--log-level", "warning"]
        for name, limit in LIMITS.items():
            command += ["--http-limit", f"{name}={limit}"]
        self.killed_ns: int | None = None
        """The instant just before `kill -9`."""
        self.stopped_ns: int | None = None
        """The instant just before SIGTERM."""
        self.answers: list[int] = []
        """The status of each answer that a client has got from it."""
        self.log = log
        with log.open("w") as errors:
            self.process = start_forked(
                "mainspring",
                *command,
                folder=ROOT,
                environment=os.environ | {"MAINSPRING_HEALTH_DIR": str(log.parent)},
                stderr=errors.fileno(),
            )
        self.port = self._read_port()

    def _read_port(self) -> int:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                return int(found[1])
        raise AssertionError(f"the server has not started: {self.log.read_text()}")

    @property
    def is_running(self) -> bool:
        """Whether clients should use it."""
        return self.killed_ns is None and self.process.returncode is None

    def kill(self) -> None:
        """Kill the server, and wait for its end."""
        self.killed_ns = now_ns()
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """Stop the server with SIGTERM, and wait for its end."""
        assert self.process.stdout is not None
        self.stopped_ns = now_ns()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert (code, self.process.stdout.read().splitlines()[-1:]) == (0, ["stopped"]), self.log.read_text()


@contextmanager
def served(url: str, log: Path) -> Iterator[ServedProcess]:
    """Run a server during the block."""
    server = ServedProcess(url, log)
    try:
        yield server
    finally:
        server.process.close()
