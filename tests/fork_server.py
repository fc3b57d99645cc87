"""Runs Python programs in forks of one interpreter that has imported the package, which saves most of their start.

A program is what `python -m MODULE ARGUMENTS` would run. Each run is a process of its own, with its own folder,
environment and files; it can be signaled, killed and waited for. Tests of the start itself, of the end of the
interpreter and of what Python reads from its environment start a new interpreter instead (`tests/programs.py`).

This file is also the program of the server: `python fork_server.py DESCRIPTOR`. It forks a guard for every run,
and the guard forks the process of the program. The guard reports the end of the program, and keeps its process id
from being used again until the test has called `wait`.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from threading import Lock
from types import ModuleType
from typing import IO

ROOT = Path(__file__).parents[1]
HOUR = "TEST_HOUR_OFFSET_FILE"  # see tests/hours/start/sitecustomize.py
OURS = ("PYTHONPATH", "PYTHONUNBUFFERED")  # the server has them
LIMIT = 100_000  # bytes of a request: the arguments and the environment
PACKAGES = ("mainspring.cli", "mainspring.engines", "mainspring.monitoring", "mainspring.web")


class ForkedProcess:
    """A running program: the methods of `subprocess.Popen` that tests use."""

    def __init__(self, name: str, guard: socket.socket, streams: Sequence[IO[str] | None]) -> None:
        self._name = name
        self._guard = guard
        self._lock = Lock()  # guards `returncode`, and is held while the guard is asked
        self.stdin, self.stdout, self.stderr = streams
        self.returncode: int | None = None
        answer = guard.recv(100)
        assert answer, f"{name} was not started"
        self.pid = int(answer)

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code: that of a signal is negative."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(self._name, timeout or 0)
        try:
            if self.returncode is None:
                self._guard.settimeout(timeout)
                try:
                    self.returncode = int(self._guard.recv(100))
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(self._name, timeout or 0) from None
                self._guard.settimeout(None)
                self._guard.send(b"reap")
                self._guard.recv(100)  # the end of the guard
                self._guard.close()
            return self.returncode
        finally:
            self._lock.release()

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close its input, read the rest of its output and errors, and wait for its end."""
        if self.stdin is not None:
            self.stdin.close()
        readers = [_Reader(stream) for stream in (self.stdout, self.stderr)]
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self._name, timeout or 0)
        self.wait(timeout)
        return readers[0].text, readers[1].text

    def close(self) -> None:
        """Kill it if it runs, and close its streams."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class _Reader(threading.Thread):
    """Reads a stream to its end, and closes it."""

    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.text = ""
        self.start()

    def run(self) -> None:
        if self._stream is not None and not self._stream.closed:
            with self._stream:
                self.text = self._stream.read()


class ForkServer:
    """The side of the tests: asks for runs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = Lock()  # held while a request is sent
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={**environment, "PYTHONPATH": _paths(environment), "PYTHONUNBUFFERED": "1"},
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl+C at the terminal is meant for pytest, which ends the programs
            )

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        files: tuple[int, int, int],
        streams: Sequence[IO[str] | None] = (None, None, None),
        constants: Mapping[str, object] | None = None,
    ) -> ForkedProcess:
        """Start a module as a program, with these descriptors as stdin, stdout and stderr.

        - `environment`: its whole environment
        - `streams`: the ends of its pipes on this side, if there are any
        - `constants`: replaces values in modules: the dotted name of each, and its value for this run
        """
        parts = [module, arguments, str(folder), dict(environment), dict(constants or {})]
        request = json.dumps(parts).encode()
        assert len(request) < LIMIT, f"a request of {len(request)} bytes is too long"
        guard, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            socket.send_fds(self._channel, [request], [*files, theirs.fileno()])
        return ForkedProcess(f"{module} {' '.join(arguments)}", guard, streams)

    def close(self) -> None:
        """End the server: it ends when the channel does."""
        self._channel.close()
        self._process.wait(timeout=60)


@cache
def fork_server() -> ForkServer:
    """Return the server of this process, which ends with it."""
    server = ForkServer(os.environ)
    atexit.register(server.close)
    return server


def start_forked(
    module: str,
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stderr: int | None = None,
) -> ForkedProcess:
    """Start a module as a program with pipes.

    - `environment`: its whole environment; by default it has that of this process
    - `stderr`: `subprocess.STDOUT`, a descriptor, or None for a pipe
    """
    pipes = [os.pipe() for _ in range(3 if stderr is None else 2)]
    (entry, our_entry), (our_output, output) = pipes[:2]
    streams: list[IO[str] | None] = [os.fdopen(our_entry, "w"), os.fdopen(our_output), None]
    errors = output if stderr == subprocess.STDOUT else stderr
    if errors is None:
        streams[2] = os.fdopen(pipes[2][0])
        errors = pipes[2][1]
    try:
        return fork_server().start(
            module,
            arguments,
            folder=folder or Path.cwd(),
            environment=os.environ if environment is None else environment,
            files=(entry, output, errors),
            streams=streams,
        )
    finally:
        for descriptor in {entry, output, *(end for _, end in pipes[2:])}:
            os.close(descriptor)


def _paths(environment: Mapping[str, str]) -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])


# -- the side of the server


def serve(channel: socket.socket) -> tuple[str, list[str]] | None:
    """Fork for every request. Return the program in each fork, and None in the server at its end."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, LIMIT, 4)
        if not request:
            return None
        *files, guard = descriptors
        if os.fork() == 0:
            channel.close()
            with socket.socket(fileno=guard) as connection:
                program = os.fork()
                if program:
                    watch(program, connection, files)  # never returns
            module, arguments, folder, environment, constants = json.loads(request)
            is_new = needs_a_start(environment)
            become(folder, environment, files)
            if is_new and not constants:
                os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
            for name, value in constants.items():
                owner, _, constant = name.rpartition(".")
                vars(import_module(owner))[constant] = value
            return module, arguments
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # guards of earlier runs
                pass


def needs_a_start(environment: Mapping[str, str]) -> bool:
    """Return whether Python or `tests/hours` has to read a variable of this environment at its start."""
    return any(
        name == HOUR or (name.startswith("PYTHON") and name not in OURS and value != os.environ.get(name))
        for name, value in environment.items()
    )


def watch(program: int, connection: socket.socket, files: list[int]) -> None:
    """Report the process id and the exit code of a program, and end when the test has got them."""
    for file in files:
        os.close(file)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the program
    with suppress(OSError):  # the test is over
        connection.send(str(program).encode())
        end = os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT)
        assert end is not None
        code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        connection.send(str(code).encode())
        connection.recv(100)
    os.waitpid(program, 0)
    os._exit(0)


def become(folder: str, environment: dict[str, str], files: list[int]) -> None:
    """Let this process look like one that was started in a folder, with an environment and files."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in set(files):
        os.close(file)
    encoding = sys.stdout.encoding
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0)), encoding)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding, write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), encoding, "backslashreplace", write_through=True)


def import_programs() -> None:
    """Import what the programs import when they are started."""
    for name in PACKAGES:
        for module in walk_packages(import_module(name).__path__, f"{name}."):
            import_module(module.name)
    import_module("mainspring").Mainspring  # noqa: B018 - loads it


def run(module: str, arguments: list[str]) -> int:
    """Run a module as `python -m` does, and return its exit code."""
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = ["-m", *arguments]
    try:
        runpy._run_module_as_main(module)  # type: ignore[attr-defined] # what `python -m` calls
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Serve; in a fork, run the program, and end without the costly destruction of what was imported."""
    import_programs()
    gc.collect()
    gc.freeze()
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is None:
        return
    code = run(*program)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    main()
