"""Measures jobs in sequences and under limits on NATS, with one installed version, and prints the figures as JSON.

`python keyed_rows.py NATS_URL [PART OF A ROW'S NAME …]`, with `{user}` in the URL for the user of a role. It
uses public names only: `benchmarks.compare --keyed` runs it with the interpreters of two versions in turn. Each
worker is a process with 8 threads. A rate counts from the moment at which every worker has run a job.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from threading import Thread
from typing import Any, NamedTuple
from uuid import uuid4

from mainspring import Concurrency, Mainspring

PATIENCE = 180.0
THREADS = 8
KIND = struct.Struct("d")


class Row(NamedTuple):
    """One figure: so many jobs over so many keys."""

    name: str
    kind: str
    jobs: int
    keys: int
    workers: int = 1
    wait_ms: float = 0


ROWS = [
    Row("100 sequences", "sequence", 2_000, 100),
    Row("100 sequences, two workers", "sequence", 2_000, 100, workers=2),
    Row("100 sequences, 5 ms", "sequence", 2_000, 100, wait_ms=5),
    Row("100 sequences, 5 ms, two workers", "sequence", 2_000, 100, workers=2, wait_ms=5),
    Row("8 sequences", "sequence", 400, 8),
    Row("limit of 2, 100 tenants", "limit", 2_000, 100),
    Row("limit of 2, 100 tenants, two workers", "limit", 2_000, 100, workers=2),
    Row("limit of 2, 100 tenants, 5 ms", "limit", 2_000, 100, wait_ms=5),
    Row("limit of 2, 100 tenants, 5 ms, two workers", "limit", 2_000, 100, workers=2, wait_ms=5),
]


def options_of(kind: str) -> dict[str, Any]:
    """Return the options of the job: its sequence or its limit is the key that it gets."""
    return {"concurrency": Concurrency(2, by="key")} if kind == "limit" else {"sequence_by": "key"}


def work(url: str, kind: str, wait_ms: float) -> None:
    """Run a worker in this process, which writes the time of each run to its output."""
    with Mainspring(url, threads=THREADS) as app:

        def step(key: str) -> None:  # noqa: ARG001 - the limit and the sequence depend on it
            if wait_ms:
                time.sleep(wait_ms / 1_000)
            os.write(1, KIND.pack(time.monotonic()))

        app.job(name="step", **options_of(kind))(step)
        os.write(1, KIND.pack(0.0))
        sys.stdin.readline()
        with app.running():
            sys.stdin.readline()


def submit(urls: dict[str, str], row: Row) -> None:
    """Submit the jobs of a row, key by key in turn."""

    def refuse(key: str) -> None:
        raise RuntimeError(f"the submitter ran a job of {key}")

    with Mainspring(urls["operator"]) as operator:
        operator.counts()  # creates the streams
    with Mainspring(urls["worker"], threads=1) as worker:
        worker.job(name="step", **options_of(row.kind))(refuse)
        with worker.running():
            pass  # this stores the limits
    with Mainspring(urls["submitter"], threads=1) as app:
        step = app.job(name="step", **options_of(row.kind))(refuse)
        step.submit_many([(f"key{number % row.keys}",) for number in range(row.jobs)])


class WorkerProcess:
    """A worker of this file in a process of its own."""

    def __init__(self, url: str, row: Row) -> None:
        command = [sys.executable, "-P", __file__, "--worker", url, row.kind, str(row.wait_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.times: list[float] = []
        self._reader = Thread(target=self._read)
        self._await_ready()
        self._reader.start()

    def _await_ready(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.read(KIND.size):
            raise RuntimeError("a worker did not start")

    def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while data := self._process.stdout.read(65_536):
            rest += data
            whole = len(rest) - len(rest) % KIND.size
            self.times += [value for (value,) in KIND.iter_unpack(rest[:whole])]
            rest = rest[whole:]

    def tell(self) -> None:
        """Let it begin, and later end."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)


def urls_of(url: str, prefix: str) -> dict[str, str]:
    """Return the URL of each role; without `{user}` in the URL, all have the same, with a prefix of their own."""
    roles = ("operator", "submitter", "worker")
    if "{user}" not in url:
        return dict.fromkeys(roles, f"{url}?prefix=keyed-{uuid4().hex[:8]}")
    return {role: f"{url.format(user=f'{prefix}-{role}')}?prefix={prefix}&role={role}" for role in roles}


def measure(url: str, row: Row) -> float:
    """Return jobs per second."""
    urls = urls_of(url, f"row{ROWS.index(row)}")
    submit(urls, row)
    workers = [WorkerProcess(urls["worker"], row) for _ in range(row.workers)]
    try:
        for worker in workers:
            worker.tell()
        deadline = time.monotonic() + PATIENCE
        while sum(len(worker.times) for worker in workers) < row.jobs:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{row.name}: {sum(len(worker.times) for worker in workers)} of {row.jobs} ran")
            time.sleep(0.01)
    finally:
        for worker in workers:
            worker.tell()
        for worker in workers:
            worker.wait()
    began = max(min(worker.times) for worker in workers)
    times = [value for worker in workers for value in worker.times if value >= began]
    return len(times) / (max(times) - began)


def main(arguments: Sequence[str]) -> None:
    """Measure the chosen rows, or act as a worker."""
    if arguments[0] == "--worker":
        work(arguments[1], arguments[2], float(arguments[3]))
        return
    url, *parts = arguments
    rows = [row for row in ROWS if not parts or any(part in row.name for part in parts)]
    print(json.dumps({row.name: measure(url, row) for row in rows}))


if __name__ == "__main__":
    main(sys.argv[1:])
