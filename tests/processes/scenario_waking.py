"""How soon a worker does what another process asks for, and what it costs when there is nothing to do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.processes.apps import jobs
from tests.processes.run_log import now_ns
from tests.processes.sandbox import Sandbox

IDLE_SECONDS = 10


@dataclass(frozen=True)
class Waking:
    """Milliseconds from a call in one process to the first line of a handler in another."""

    starts: list[float]
    cancels: list[float]

    def __str__(self) -> str:
        return ", ".join(
            f"{name} p50 {median(waits):.1f}, max {max(waits):.1f} ms"
            for name, waits in (("submit to start", self.starts), ("cancel to handler", self.cancels))
        )


def time_waking(sandbox: Sandbox, *, rounds: int) -> Waking:
    """Submit and cancel a job at a time, beside a worker."""
    worker = sandbox.start_worker()
    starts, cancels = [], []
    for number in range(rounds):
        before = now_ns()
        handle = jobs.wait.submit(number)
        worker.expect(f"start {number}")
        starts.append((sandbox.run_log()[-1].instant_ns - before) / 1e6)
        before = now_ns()
        handle.cancel()
        worker.expect(f"cancelled {number}")
        cancels.append((sandbox.run_log()[-1].instant_ns - before) / 1e6)
    return Waking(starts, cancels)


def measure_idleness(sandbox: Sandbox) -> float:
    """Return the share of a processor that a worker uses while its only job is an hour away."""
    jobs.work.after(3_600).submit(1)
    worker = sandbox.start_worker()
    for seconds in (1, 1 + IDLE_SECONDS):
        jobs.speak.after(seconds).submit(seconds)
    worker.expect("end 1")
    before = _processor_seconds(worker.pid)
    worker.expect(f"end {1 + IDLE_SECONDS}")
    return (_processor_seconds(worker.pid) - before) / IDLE_SECONDS


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
