"""Progress and events, seen from another process while a job runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mainspring import EventKind, JobEvent, JobFunction, JobStatus
from tests.processes.apps.gated import app, read_in_a_process, read_in_a_thread
from tests.processes.pipe_gates import make_gate, opened
from tests.processes.sandbox import READY, Sandbox
from tests.processes.worker_processes import WorkerProcesses
from tests.support import PATIENCE

PAGES = 10


@pytest.fixture
def workers(sandbox: Sandbox) -> Iterator[WorkerProcesses]:
    make_gate("gate")
    with app:
        yield WorkerProcesses(sandbox, "gated", workers=1)


def follow_until(events: Iterator[JobEvent], job_id: str, kind: EventKind) -> list[EventKind]:
    """Return what happens to a job, until something has happened."""
    kinds: list[EventKind] = []
    for event in events:
        if event.job_id == job_id:
            kinds.append(event.kind)
        if kinds[-1:] == [kind]:
            return kinds
    raise AssertionError(f"nothing was {kind}; what was seen: {kinds}")


@pytest.mark.parametrize("job", [read_in_a_thread, read_in_a_process], ids=lambda job: job.name)
def test_progress_is_seen_while_the_job_runs_elsewhere(
    workers: WorkerProcesses, job: JobFunction[[int], None]
) -> None:
    workers.start()
    events = app.events(timeout=PATIENCE)
    handle = job.submit(PAGES)
    assert follow_until(events, handle.id, EventKind.PROGRESS) == ["submitted", "started", "progress"]
    seen = handle.info()
    assert seen.status is JobStatus.RUNNING
    assert seen.progress is not None
    assert (seen.progress.done, seen.progress.total, seen.progress.note) == (3, PAGES, "before the gate")
    with opened("gate"):
        assert follow_until(events, handle.id, EventKind.COMPLETED) == ["progress", "completed"]
    last = handle.info().progress
    assert last is not None
    assert (last.done, last.note) == (PAGES, "at the end")


def test_the_end_of_a_worker_is_seen_as_a_rescue_of_its_jobs(workers: WorkerProcesses) -> None:
    workers.start()
    events = app.events(timeout=PATIENCE)
    handle = read_in_a_thread.submit(PAGES)
    follow_until(events, handle.id, EventKind.PROGRESS)
    workers.kill(workers.workers[0])
    workers.workers = [workers.start_one()]
    workers.workers[0].expect_all(READY)
    seen = follow_until(events, handle.id, EventKind.PROGRESS)
    assert seen == ["rescued", "started", "progress"]
    with opened("gate"):
        assert follow_until(events, handle.id, EventKind.COMPLETED)[-1] == "completed"
