"""A worker in a process of its own, as in production, so that it can be killed like one."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType

COMMAND = [
    *(sys.executable, "-m", "mainspring", "run", "mainspring.demo.orders:app"),
    *("--threads", "16", "--health-dir", "."),  # nobody is to be alarmed by the worker that is killed
]
READY = "stop with"  # the last line of what a worker says when it is ready
STOP_SECONDS = 15


class WorkerProcess:
    """A child process that runs jobs. Leaving the `with` block ends it, whatever happened."""

    def __init__(self, log: str) -> None:
        self._log = Path(log)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> int:
        """Start it; return its process id as soon as it is ready."""
        with self._log.open("a") as log:
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl+C is for the demonstration, which then ends its worker
            )
        self._process = process
        assert process.stdout is not None
        if not any(READY in line for line in process.stdout):
            raise RuntimeError(f"the worker ended before it was ready: {self.last_words()}")
        return process.pid

    def kill(self) -> None:
        """Do what `kill -9` does: no goodbye, nothing is tidied up."""
        if self._process is not None:
            self._process.kill()
            self._collect()

    def stop(self) -> int:
        """Ask it to stop; return its exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._collect()

    def last_words(self) -> str:
        """Return the end of its log."""
        return self._log.read_text()[-2_000:]

    def _collect(self) -> int:
        assert self._process is not None
        with self._process as process:  # waits, and closes the pipe
            self._process = None
        return process.returncode

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
