"""Child processes for tests: starts them, waits for lines of their output, signals them, and always ends them.

A module (`-m`) runs in a fork of an interpreter that has imported the package, unless the test asks for a new one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from threading import Condition, Thread
from typing import TypeVar

import pytest

from mainspring import JobInfo
from tests.fork_server import ForkedProcess, start_forked
from tests.processes.apps.jobs import app
from tests.processes.run_log import RUN_LOG, Entry, read_run_log
from tests.support import PATIENCE, eventually

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
READY = "stop with Ctrl+C or SIGTERM"  # a worker prints it when it claims jobs; handlers may print before
APPS = "tests.processes.apps"


class Child:
    """A Python process, and every line that it has printed on stdout and stderr."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        environment: dict[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
        is_new: bool = False,
    ) -> None:
        self.name = " ".join(arguments)
        self._on_line = on_line  # called with every line, on a thread of this process
        self._changed = Condition()  # guards what follows
        self._lines: list[str] = []
        self._is_at_end = False
        self._next_line = 0  # lines before it were matched already
        self._process = _start(arguments, folder, environment or {}, is_new=is_new)
        self._reader = Thread(target=self._read, name=f"reads {self.name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
            if self._on_line is not None:
                self._on_line(line)
        with self._changed:
            self._is_at_end = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lines(self) -> list[str]:
        """The lines that it has printed so far."""
        with self._changed:
            return list(self._lines)

    @property
    def is_at_end(self) -> bool:
        """Whether it and all processes that it forked have ended."""
        with self._changed:
            return self._is_at_end

    def expect(self, text: str, *, timeout: float = PATIENCE) -> str:
        """Wait for the next line that contains `text`, after the lines that were matched before."""
        return self.expect_any(text, timeout=timeout)

    def expect_any(self, *texts: str, timeout: float = PATIENCE) -> str:
        """Wait for the next line that contains one of these."""
        return self._wait(lambda: self._find(texts), " or ".join(map(repr, texts)), timeout)

    def expect_all(self, *texts: str, timeout: float = PATIENCE) -> None:
        """Wait until each of these texts was printed since the start, in any order."""

        def look() -> bool | None:
            return all(any(text in line for line in self._lines) for text in texts) or None

        self._wait(look, f"{texts}", timeout)

    def expect_lines(self, count: int, *, timeout: float = PATIENCE) -> None:
        """Wait until it has printed this many more lines."""
        goal = self._next_line + count
        self._wait(lambda: True if len(self._lines) >= goal else None, f"{count} more lines", timeout)
        self._next_line = goal

    def skip(self) -> None:
        """Skip the lines that it has printed so far."""
        with self._changed:
            self._next_line = len(self._lines)

    def expect_end_of_output(self, *, timeout: float = PATIENCE) -> list[str]:
        """Wait until the output is closed, and return all lines."""
        self._wait(lambda: True if self._is_at_end else None, "the end of its output", timeout)
        return self.lines

    def _find(self, texts: tuple[str, ...]) -> str | None:
        while self._next_line < len(self._lines):
            line = self._lines[self._next_line]
            self._next_line += 1
            if any(text in line for text in texts):
                return line
        return None

    def _wait(self, look: Callable[[], T | None], what: str, timeout: float) -> T:
        found: list[T] = []

        def is_over() -> bool:
            value = look()
            if value is not None:
                found.append(value)
            return bool(found) or self._is_at_end

        with self._changed:
            self._changed.wait_for(is_over, timeout)
            said = "\n  ".join(self._lines[-40:])
        assert found, f"{self.name} (pid {self.pid}) did not print {what} within {timeout} s, but:\n  {said}"
        return found[0]

    def send_line(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def close_stdin(self) -> None:
        """Close its stdin, also for processes that it forked: those that wait for it continue."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def suspend(self) -> None:
        """Send SIGSTOP, and wait until it is stopped."""
        self.signal(signal.SIGSTOP)
        assert eventually(lambda: _is_stopped(self.pid)), f"{self.name} does not stop"

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it has ended."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its end and return its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            said = "\n  ".join(self.lines[-40:])
            raise AssertionError(f"{self.name} has not ended within {timeout} s; it printed:\n  {said}") from None

    def close(self) -> None:
        """Kill it if it runs, and release all resources."""
        self.kill()
        self.close_stdin()  # so that processes that it forked end, too
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _start(
    arguments: tuple[str, ...], folder: Path, environment: dict[str, str], *, is_new: bool
) -> subprocess.Popen[str] | ForkedProcess:
    whole = os.environ | {"PYTHONPATH": PATHS, "PYTHONUNBUFFERED": "1"} | environment
    if arguments[0] == "-m" and not is_new:
        module, *rest = arguments[1:]
        return start_forked(module, *rest, folder=folder, environment=whole, stderr=subprocess.STDOUT)
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=whole,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped, or it has ended."""
    try:
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has ended in the meantime
        return False
    return all(text.rpartition(")")[2].split()[0] in "TZX" for text in threads)


class Sandbox:
    """A folder with a store, the processes that use it, and their run log.

    The folder is the working directory during the block, here and in the processes. So `app`, whose jobs tests
    submit, uses the same file in all of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = app
        self._children: list[Child] = []
        self._here = chdir(folder)

    def __enter__(self) -> Sandbox:
        self._here.__enter__()
        self.app.manager()  # creates the store: a worker that creates it logs a warning
        self.app.close()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.close()
        self.app.close()
        self._here.__exit__(None, None, None)

    def start(self, *arguments: str, on_line: Callable[[str], None] | None = None, **environment: str) -> Child:
        """Start Python with these arguments."""
        child = Child(*arguments, folder=self.folder, environment=environment, on_line=on_line)
        self._children.append(child)
        return child

    def start_app(self, name: str, *arguments: str, **environment: str) -> Child:
        """Start a module of the folder `apps`."""
        return self.start("-m", f"{APPS}.{name}", *arguments, on_line=None, **environment)

    def start_worker(self, name: str = "worker", *arguments: str, **environment: str) -> Child:
        """Start a module that ends in `app.run()`, and wait until it claims jobs."""
        worker = self.start_app(name, *arguments, **environment)
        worker.expect("Mainspring runs jobs from")
        worker.expect_all(READY)
        return worker

    def suspend(self, worker: Child) -> None:
        """Send SIGSTOP to a worker while it does not write: otherwise no process could write to the file."""

        def is_suspended() -> bool:
            worker.suspend()
            if self._is_write_lock_free():
                return True
            worker.signal(signal.SIGCONT)
            return False

        assert eventually(is_suspended), f"{worker.name} writes without a pause"

    def _is_write_lock_free(self) -> bool:
        (path,) = self.folder.glob("*.db-turn")  # the lock file of the writers
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def wait(self, job_id: str) -> JobInfo:
        """Wait until a job has ended, and return it."""
        self.app.manager().wait(job_id, PATIENCE)
        return self.app.get(job_id)

    def run_log(self) -> list[Entry]:
        """Return the entries that handlers have written so far."""
        return read_run_log(self.folder / RUN_LOG)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as sandbox:
        yield sandbox
