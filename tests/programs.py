"""Python programs that tests start; each is killed at the end of its block."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Program = subprocess.Popen[str]


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
        env=os.environ if environment is None else environment,
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


def read_line(process: Program) -> str:
    """Read the next line of its output; if there is none, fail with its errors."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return line
