"""A worker is woken by what other processes do, and finds what it was not woken for."""

from tests.processes.apps import jobs
from tests.processes.sandbox import Sandbox

ROUNDS = 20
THREADS = 8
FOREVER = 1_000.0  # seconds, for a handler


def test_a_submit_of_another_process_wakes_a_worker(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker("worker", "told")  # it would not look for an hour
    for number in range(ROUNDS):
        jobs.speak.submit(number)
        worker.expect(f"end {number}")


def test_a_job_is_found_without_a_wake_up_by_the_look_once_a_second(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker()
    for number in range(3):
        for pipe in sandbox.folder.glob("jobs.db-workers/*.wake"):
            pipe.unlink()
        jobs.speak.submit(number)
        worker.expect(f"end {number}")


def test_all_workers_are_woken_for_jobs_that_are_due_soon(sandbox: Sandbox) -> None:
    workers = [sandbox.start_worker("worker", "told") for _ in range(2)]
    ids = [jobs.speak.after(0.2).submit(number, FOREVER).id for number in range(2 * THREADS)]
    for worker in workers:  # neither has room for more
        for _ in range(THREADS):
            worker.expect("start")
    assert {entry.process for entry in sandbox.run_log()} == {worker.pid for worker in workers}
    assert {sandbox.app.get(job_id).status.name for job_id in ids} == {"RUNNING"}


def test_cancelling_from_another_process_reaches_a_handler(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker("worker", "told")
    handle = jobs.wait.submit(1)
    worker.expect("start 1")
    assert not handle.cancel()
    worker.expect("cancelled 1")
    assert sandbox.wait(handle.id).status.name == "CANCELED"
