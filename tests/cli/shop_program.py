"""A small shop in a folder of its own, and the real program that is pointed at it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from struct import pack
from tempfile import TemporaryFile
from termios import TIOCSWINSZ
from typing import Any

from mainspring import JobStatus, Mainspring, Retry
from tests.fork_server import ForkedProcess, fork_server, start_forked
from tests.support import PATIENCE, Background

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("MAINSPRING_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONDONTWRITE"))
} | {"TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}

MODULE = """
from mainspring import Mainspring, Retry

app = Mainspring("sqlite:///shop.db", durability="normal")


@app.job(queue="orders", retry=Retry(max_attempts=1))
def cancel_order(order_id: int, reason: str = "unpaid") -> None:
    raise RuntimeError(f"order {order_id} is gone")


@app.cron("30 2 * * *", tz="Europe/Berlin")
def nightly_report() -> None: ...


print("a module may print")
"""


@dataclass(frozen=True)
class CommandResult:
    """What a run of the program left behind."""

    code: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        assert self.errors.replace("a module may print\n", "") == "", self.errors
        return json.loads(self.output)

    @property
    def error_line(self) -> str:
        """The one line that says what is wrong."""
        assert self.output == ""
        lines = self.errors.replace("a module may print\n", "").splitlines()
        assert len(lines) == 1, self.errors
        return lines[0]


class ShopProgram:
    """A folder with shop.py, its store, and the program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'shop.db'}"
        (folder / "shop.py").write_text(MODULE)

    def in_folder(self, folder: Path) -> ShopProgram:
        """Return another shop, in an existing folder."""
        return ShopProgram(folder)

    def command(self, *arguments: str) -> list[str]:
        """Return the command that starts the program in a new interpreter."""
        return [sys.executable, "-m", "mainspring", *arguments]

    def run(
        self, *arguments: str, stdin: str | None = None, folder: Path | None = None, **environment: str
    ) -> CommandResult:
        """Run the program to its end, with files as its input and output."""
        with TemporaryFile("w+") as entry, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
            entry.write(stdin or "")
            entry.seek(0)
            files = entry.fileno(), output.fileno(), errors.fileno()
            code = self._run(arguments, folder or self.folder, environment, files)
            output.seek(0)
            errors.seek(0)
            return CommandResult(code, output.read(), errors.read())

    def run_on_store(self, *arguments: str, stdin: str | None = None) -> CommandResult:
        """Run a command on the store of the shop, without its handlers."""
        return self.run(*arguments, "--url", self.url, stdin=stdin)

    def run_with_app(self, *arguments: str, stdin: str | None = None) -> CommandResult:
        """Run a command on the application of the shop."""
        return self.run(*arguments, "--app", "shop:app", stdin=stdin)

    def start(self, *arguments: str, stderr: int | None = None, **environment: str) -> ForkedProcess:
        """Start the program with pipes. `stderr` may be `subprocess.STDOUT`."""
        return start_forked(
            "mainspring", *arguments, folder=self.folder, environment=ENVIRONMENT | environment, stderr=stderr
        )

    def run_on_terminal(
        self,
        *arguments: str,
        columns: int = 80,
        typed: str = "",
        constants: Mapping[str, object] | None = None,
        **environment: str,
    ) -> tuple[int, str]:
        """Run the program on a terminal of some width; return its exit code and what the terminal got."""
        ours, theirs = pty.openpty()
        ioctl(theirs, TIOCSWINSZ, pack("HHHH", 40, columns, 0, 0))
        os.write(ours, typed.encode())
        files = theirs, theirs, theirs
        run = Background(lambda: self._run(arguments, self.folder, environment, files, constants))
        shown = b""
        while not run.is_done or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.05)[0]:
                shown += os.read(ours, 65_536)
        os.close(theirs)
        os.close(ours)
        return run.result(), shown.decode().replace("\r\n", "\n")

    def _run(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        files: tuple[int, int, int],
        constants: Mapping[str, object] | None = None,
    ) -> int:
        process = fork_server().start(
            "mainspring",
            arguments,
            folder=folder,
            environment=ENVIRONMENT | environment,
            files=files,
            constants=constants,
        )
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.close()
            raise AssertionError(f"mainspring {' '.join(arguments)} has not ended within {PATIENCE} s") from None

    def open(self) -> Mainspring:
        """The same store, in this process, with the handler of the shop."""
        app = Mainspring(self.url, durability="normal", grace=0)

        @app.job(name="shop.cancel_order", queue="orders", retry=Retry(max_attempts=1))
        def cancel_order(order_id: int, reason: str = "unpaid") -> None:
            raise RuntimeError(f"order {order_id} is gone")

        return app

    def submit(self, *calls: Mapping[str, Any], **options: Any) -> list[str]:
        """Submit jobs that stay where they are."""
        with self.open() as app:
            return [
                app.manager().submit("shop.cancel_order", call, **({"delay": 3600} | options)) for call in calls
            ]

    def make_dead_letters(self, *ids: str) -> None:
        """Make dead letters with these ids, one after another: order_id is the number of each, from 1 on."""
        with self.open() as app, app.running():
            for number, job_id in enumerate(ids, 1):
                app.manager().submit("shop.cancel_order", {"order_id": number}, id=job_id)
                assert app.handle(job_id).wait(PATIENCE) is JobStatus.FAILED
