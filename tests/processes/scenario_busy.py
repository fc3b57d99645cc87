"""A busy interpreter: handlers compute on every thread of a worker, while another worker looks for dead ones."""

from __future__ import annotations

from pathlib import Path

from mainspring import JobStatus
from tests.processes.apps import busy, jobs
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE

THREADS = 8


def compute_beside_a_worker(sandbox: Sandbox, *, seconds: float) -> None:
    """Compute for so long; no worker may take the computing one for dead."""
    computing = sandbox.start_worker("busy")
    ids = submit()
    for _ in ids:
        computing.expect("start")
    other = sandbox.start_worker()  # sweeps at its start and once a second
    jobs.speak.after(seconds).submit(100)
    other.expect("end 100", timeout=seconds + PATIENCE)
    assert [sandbox.app.get(job_id).status for job_id in ids] == [JobStatus.RUNNING] * THREADS, (
        "no thread computed"
    )
    Path(busy.ENOUGH).touch()
    for job_id in ids:
        sandbox.wait(job_id)
    assert [(job.starts, job.crashes) for job in map(sandbox.app.get, ids)] == [(1, 0)] * THREADS
    assert [line for line in computing.lines + other.lines if line.startswith(("WARNING", "ERROR"))] == []


def submit() -> list[str]:
    """Submit a job for each thread of the computing worker."""
    return [busy.compute.submit(number).id for number in range(THREADS)]


def time_settles(sandbox: Sandbox) -> list[float]:
    """Settle batches of 200 jobs in the computing worker, and return how many milliseconds each took."""
    worker = sandbox.start_worker("busy", "timed")
    ids = submit()
    lines = [worker.expect(f"settled {busy.BATCH} in") for _ in range(busy.ROUNDS)]
    assert [sandbox.app.get(job_id).status for job_id in ids] == [JobStatus.RUNNING] * THREADS, (
        "no thread computed"
    )
    return [float(line.split()[3]) for line in lines]
