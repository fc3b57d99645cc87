"""Runs the program in forks of one interpreter that has imported it, which saves most of the time of a start.

Each run is a process of its own, with its own folder, environment and files. Tests of the start itself, of signals
and of what Python reads from its environment start a new interpreter instead: `ShopProgram.start` and
`ShopProgram.command`.

This file is also the program of the server: `python fork_server.py DESCRIPTOR`.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from threading import Lock

LIMIT = 100_000  # bytes of a request: the arguments and the environment


class ForkServer:
    """The side of the tests: asks for runs, one at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = Lock()  # held from a request to its answer
        self._start()

    def _start(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        files: tuple[int, int, int],
        timeout: float,
        constants: Mapping[str, object] | None = None,
    ) -> int:
        """Run the program with these descriptors as stdin, stdout and stderr, and return its exit code.

        `constants` replaces values in modules: the dotted name of each, and its value for this run.
        """
        request = json.dumps([list(arguments), str(folder), dict(environment), dict(constants or {})]).encode()
        assert len(request) < LIMIT, f"a request of {len(request)} bytes is too long"
        with self._lock:
            socket.send_fds(self._channel, [request], files)
            self._channel.settimeout(timeout)
            try:
                return int(self._channel.recv(100))
            except TimeoutError:
                # With the fork that hangs: its answer must not be taken for that to the next request.
                os.killpg(self._process.pid, signal.SIGKILL)
                self.close()
                self._start()
                command = f"mainspring {' '.join(arguments)}"
                raise AssertionError(f"{command} has not ended within {timeout} s") from None

    def close(self) -> None:
        """End the server: it ends when the channel does."""
        self._channel.close()
        self._process.wait(timeout=60)


def serve(channel: socket.socket) -> list[str] | None:
    """Fork for every request. Return in each fork, with the arguments, and in the server at its end, with None."""
    while True:
        request, files, _, _ = socket.recv_fds(channel, LIMIT, 3)
        if not request:
            return None
        pid = os.fork()
        if pid == 0:
            channel.close()
            arguments, folder, environment, constants = json.loads(request)
            become(folder, environment, files)
            for name, value in constants.items():
                module, _, constant = name.rpartition(".")
                vars(import_module(module))[constant] = value
            return list(map(str, arguments))
        for file in files:
            os.close(file)
        _, status = os.waitpid(pid, 0)
        channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(folder: str, environment: dict[str, str], files: list[int]) -> None:
    """Let this process look like one that was started in a folder, with an environment and files."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    encoding = sys.stdout.encoding
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding, write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), encoding, "backslashreplace", write_through=True)


def import_program() -> None:
    """Import what the commands import when they are called."""
    package = import_module("mainspring.cli")
    for module in iter_modules(package.__path__, "mainspring.cli."):
        import_module(module.name)
    for name in ("mainspring", "mainspring.engines.sqlite", "mainspring.engines.nats.engine"):
        import_module(name)


def main() -> None:
    """Serve; in a fork, run the program, and end without the costly destruction of what was imported."""
    import_program()
    gc.freeze()
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is None:
        return
    sys.argv = ["mainspring", *arguments]
    try:
        import_module("mainspring.cli").main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    assert isinstance(code, int), f"the program ends with {code!r}"
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    main()
