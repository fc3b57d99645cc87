"""Handlers in processes of their own: killed with their worker, killed alone, handed back, and side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from mainspring import JobInfo, JobStatus
from tests.processes.apps.crunching import app, come_together, hold
from tests.processes.pipe_gates import make_gate, opened
from tests.processes.sandbox import READY, Child, Sandbox
from tests.processes.scenario_processes import run_in_processes
from tests.processes.worker_processes import WorkerProcesses
from tests.support import PATIENCE, amount
from tests.unit.jobs.process_requests import watched

JOBS = amount(60, thorough=120)
KILLS = amount(1, thorough=3)


@pytest.fixture
def crew(sandbox: Sandbox) -> Iterator[WorkerProcesses]:
    """Workers with processes; the file is open here, too."""
    make_gate("gate")
    make_gate("meeting")
    with app:
        yield WorkerProcesses(sandbox, "crunching")


def start(crew: WorkerProcesses, *arguments: str, **environment: str) -> Child:
    worker = crew.start_one(*arguments, **environment)
    worker.expect_all(READY)
    return worker


def begin(sandbox: Sandbox, worker: Child, *numbers: int) -> dict[int, tuple[str, int]]:
    """Submit jobs that wait at the gate; return their ids, and the processes in which they run."""
    ids = {number: hold.submit(number).id for number in numbers}
    worker.expect_all(*[f"start hold/{number}" for number in numbers])
    processes = {entry.argument: entry.process for entry in sandbox.run_log() if entry.event == "start"}
    return {number: (ids[number], processes[f"hold/{number}"]) for number in numbers}


def end(job_id: str) -> JobInfo:
    assert app.handle(job_id).wait(PATIENCE) is JobStatus.COMPLETED
    return app.get(job_id)


def children_of(process: int) -> set[int]:
    """Return the processes that have this one as their parent."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(after_name[1]) == process:
            found.add(int(status.parent.name))
    return found


def test_a_worker_that_is_killed_leaves_no_process_behind_and_its_jobs_run_again(
    sandbox: Sandbox, crew: WorkerProcesses
) -> None:
    first = start(crew)
    jobs = begin(sandbox, first, 0, 1)
    children = children_of(first.pid)
    assert children >= {process for _, process in jobs.values()}
    with ExitStack() as stack:
        waits = [stack.enter_context(watched(child)) for child in children]
        first.kill()
        for wait_for_end in waits:
            wait_for_end()
    second = start(crew)
    second.expect_all("start hold/0", "start hold/1")
    with opened("gate"):
        ended = [end(job_id) for job_id, _ in jobs.values()]
    assert [(job.starts, job.crashes, job.failures) for job in ended] == [(2, 1, 0)] * 2
    assert not {job.result for job in ended} & children


def test_a_child_that_is_killed_is_charged_to_its_job_alone(sandbox: Sandbox, crew: WorkerProcesses) -> None:
    worker = start(crew)
    jobs = begin(sandbox, worker, 0, 1)
    (victim, process), (bystander, other_process) = jobs.values()
    worker.skip()
    os.kill(process, SIGKILL)
    worker.expect("start hold/0")
    with opened("gate"):
        again, untouched = end(victim), end(bystander)
    assert (again.starts, again.crashes, again.failures) == (2, 1, 0)
    assert [attempt.cause for attempt in again.history] == ["crash"]
    assert (untouched.starts, untouched.crashes, untouched.result) == (1, 0, other_process)
    assert again.result not in (process, other_process)
    worker.signal(SIGTERM)
    assert worker.wait() == 0


def test_a_long_job_in_a_process_is_handed_back_after_the_grace_of_its_worker(
    sandbox: Sandbox, crew: WorkerProcesses
) -> None:
    worker = start(crew, GRACE="0.3")
    ((job_id, process),) = begin(sandbox, worker, 7).values()
    with watched(process) as wait_for_end:
        worker.signal(SIGTERM)
        assert worker.wait() == 0
        wait_for_end()
    job = app.get(job_id)
    assert (job.status, job.interruptions, job.crashes, job.failures) == (JobStatus.PENDING, 1, 0, 0)
    start(crew).expect_all("start hold/7")
    with opened("gate"):
        assert end(job_id).starts == 2


@pytest.mark.stress
def test_no_kill_of_a_worker_loses_or_doubles_a_job_in_a_process_or_leaves_one_behind(sandbox: Sandbox) -> None:
    processes = run_in_processes(sandbox, count=JOBS, kills=KILLS, seed=9)
    assert (processes.figures.lost, processes.figures.doubled) == (0, 0)
    assert processes.figures.completed == JOBS
    assert processes.figures.kills >= KILLS
    assert processes.left_behind == []


def test_jobs_in_two_processes_run_at_the_same_time(crew: WorkerProcesses) -> None:
    start(crew)
    meeting = [come_together.submit(number) for number in range(2)]
    one, other = [handle.result(PATIENCE) for handle in meeting]
    assert one != other
