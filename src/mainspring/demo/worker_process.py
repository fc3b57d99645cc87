"""Runs the worker of the demo as a child process, as in production, so that the demo can kill it."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType

COMMAND = [
    *(sys.executable, "-m", "mainspring", "run", "mainspring.demo.orders:app"),
    *("--threads", "16", "--health-dir", "."),  # hides the worker, which the demo kills, from health checks
]
READY = "stop with"  # part of the last line that a worker prints when it is ready
STOP_SECONDS = 15


class WorkerProcess:
    """A child process that runs the worker of the demo. Leaving the `with` block always ends it."""

    def __init__(self, log: str) -> None:
        self._log = Path(log)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> int:
        """Start the worker, wait until it is ready, and return its process id.

        Raises `RuntimeError` with the end of its log if it ends before.
        """
        with self._log.open("a") as log:
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl+C must only reach the demo, which then ends its worker
            )
        self._process = process
        assert process.stdout is not None
        if not any(READY in line for line in process.stdout):
            raise RuntimeError(f"the worker ended before it was ready: {self.end_of_log()}")
        return process.pid

    def kill(self) -> None:
        """Kill the worker with SIGKILL, so that it cannot clean up; do nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._collect()

    def stop(self) -> int:
        """End the worker with SIGTERM, or SIGKILL after 15 s; return its exit code, 0 if it did not run."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._collect()

    def end_of_log(self) -> str:
        """Return the last 2,000 characters of the worker's log."""
        return self._log.read_text()[-2_000:]

    def _collect(self) -> int:
        assert self._process is not None
        with self._process as process:  # waits for the process, and closes the pipe
            self._process = None
        return process.returncode

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
