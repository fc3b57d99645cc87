"""Python programs that tests start: some run to their end, the others are killed at the end of a block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.fork_server import ForkedProcess, start_forked
from tests.support import PATIENCE

Program = subprocess.Popen[str]


def run_python(
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end; return its exit code and what it printed.

    `environment` is its whole environment; by default it has that of this process.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
    )


def run_module(
    name: str, *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m NAME` to its end, in a fork of an interpreter that has imported the package.

    `environment` is its whole environment; by default it has that of this process.
    """
    process = start_forked(name, *arguments, folder=folder, environment=environment)
    try:
        output, errors = process.communicate(PATIENCE)
    finally:
        process.close()
    return subprocess.CompletedProcess([name, *arguments], process.wait(), output, errors)


@contextmanager
def program(
    *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Run Python with these arguments and with pipes during the block, and kill it at the end.

    `environment` is its whole environment; by default it has that of this process.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def module(
    name: str, *arguments: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[ForkedProcess]:
    """Run `python -m NAME` with pipes during the block, and kill it at the end.

    It is a fork of an interpreter that has imported the package. `environment` is its whole environment; by
    default it has that of this process.
    """
    process = start_forked(name, *arguments, folder=folder, environment=environment)
    try:
        yield process
    finally:
        process.close()


def read_line(process: Program | ForkedProcess) -> str:
    """Read the next line of its output; if there is none, fail with its errors."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line
