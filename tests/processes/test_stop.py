"""Stopping a worker by signals: short handlers finish, long ones are handed back, nothing is lost."""

from signal import SIGINT, SIGTERM, Signals

import pytest

from mainspring import JobInfo, JobStatus
from tests.processes.apps import hooked, jobs
from tests.processes.sandbox import READY, Child, Sandbox

FOREVER = 1_000.0  # seconds, for a handler


def begin(worker: Child, *seconds: float) -> list[str]:
    """Submit jobs that take so long, and wait until all of them run."""
    ids = [jobs.speak.submit(number, length).id for number, length in enumerate(seconds)]
    for _ in seconds:
        worker.expect("start")
    return ids


def describe(job: JobInfo) -> tuple[JobStatus, int, int, int]:
    return job.status, job.failures, job.crashes, job.interruptions


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_a_signal_lets_short_handlers_finish_and_hands_long_ones_back(sandbox: Sandbox, number: Signals) -> None:
    worker = sandbox.start_worker(GRACE="1")
    short, long = begin(worker, 0.5, FOREVER)
    worker.signal(number)
    worker.expect("stopping")
    worker.expect("end 0")
    worker.expect("stopped")
    assert worker.wait() == 0
    assert describe(sandbox.app.get(short)) == (JobStatus.COMPLETED, 0, 0, 0)
    assert describe(sandbox.app.get(long)) == (JobStatus.PENDING, 0, 0, 1)
    assert [attempt.cause for attempt in sandbox.app.get(long).history] == ["deploy"]


def test_a_worker_that_was_told_to_stop_takes_no_more(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker(GRACE="10")
    (running,) = begin(worker, 1.0)
    worker.signal(SIGTERM)
    worker.expect("stopping")
    late = jobs.speak.submit(1).id
    assert worker.wait() == 0
    assert sandbox.app.get(running).status is JobStatus.COMPLETED
    assert (sandbox.app.get(late).status, sandbox.app.get(late).starts) == (JobStatus.PENDING, 0)


def test_jobs_that_were_held_for_their_time_go_back_without_a_trace(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker()
    begin(worker, 0.0)
    held = [jobs.speak.after(0.9).submit(number).id for number in range(1, 9)]
    worker.signal(SIGTERM)
    assert worker.wait() == 0
    for job_id in held:
        job = sandbox.app.get(job_id)
        assert (describe(job), job.starts, job.worker) == ((JobStatus.PENDING, 0, 0, 0), 0, None)


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_a_second_signal_stops_at_once_and_loses_nothing(sandbox: Sandbox, number: Signals) -> None:
    worker = sandbox.start_worker(GRACE="1000")
    ids = begin(worker, *[FOREVER] * 8)
    waiting = [jobs.speak.submit(number).id for number in range(8, 12)]
    worker.signal(number)
    worker.expect("stopping")
    worker.signal(number)
    worker.expect("stopped")
    assert worker.wait() == 0
    assert [describe(sandbox.app.get(job_id)) for job_id in ids] == [(JobStatus.PENDING, 0, 0, 1)] * 8
    assert [describe(sandbox.app.get(job_id)) for job_id in waiting] == [(JobStatus.PENDING, 0, 0, 0)] * 4


def test_what_was_handed_back_runs_in_the_next_worker_as_the_same_attempt(sandbox: Sandbox) -> None:
    first = sandbox.start_worker(GRACE="0")
    job_id = jobs.attempt_until.submit(2).id
    first.expect("attempt 1 with token 1")
    first.signal(SIGTERM)
    assert first.wait() == 0
    second = sandbox.start_worker()
    second.expect("attempt 1 with token 2")
    assert describe(sandbox.wait(job_id)) == (JobStatus.COMPLETED, 0, 0, 1)


def test_a_coroutine_is_canceled_when_it_is_handed_back(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker(GRACE="0.2")
    job_id = jobs.wait.submit(7).id
    worker.expect("start 7")
    worker.signal(SIGTERM)
    worker.expect("cancelled 7")
    assert worker.wait() == 0
    assert describe(sandbox.app.get(job_id)) == (JobStatus.PENDING, 0, 0, 1)


def test_run_is_refused_off_the_main_thread(sandbox: Sandbox) -> None:
    application = "from tests.processes.apps.jobs import app"
    child = sandbox.start("-c", f"from threading import Thread; {application}; Thread(target=app.run).start()")
    child.expect("RuntimeError: app.run() listens for signals, which only the main thread can")
    assert child.wait() == 0


def test_start_and_stop_functions_run_in_the_process_of_the_worker_and_not_in_its_children(
    sandbox: Sandbox,
) -> None:
    worker = sandbox.start_app("hooked")
    worker.expect_all(READY)
    sandbox.wait(hooked.work.submit(1).id)
    worker.signal(SIGTERM)
    assert worker.wait() == 0
    said = [line for line in worker.expect_end_of_output() if "connect" in line]
    assert said == [f"connect in {worker.pid}", f"disconnect in {worker.pid}"]
