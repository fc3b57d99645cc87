"""Two releases of an application at work on one file."""

from signal import SIGTERM

from mainspring import JobStatus, Mainspring
from tests.processes.apps.deployed import bill, ship
from tests.processes.sandbox import Sandbox
from tests.support import PATIENCE


def test_a_worker_leaves_the_jobs_of_a_handler_it_does_not_know_and_warns_once(sandbox: Sandbox) -> None:
    client = Mainspring("sqlite:///jobs.db")
    old = sandbox.start_worker("deployed", "old")
    with client:
        new_jobs = client.job(name="shop.ship")(ship).submit_many([(number,) for number in range(3)])
        warning = old.expect("'shop.ship'")
        assert "this worker has no handler of that name" in warning
        old_jobs = client.job(name="shop.bill")(bill)
        last = old_jobs.after(2.5).submit(1)  # it has swept twice more by then
        old.expect("billed 1")
        assert last.wait(PATIENCE) is JobStatus.COMPLETED
        assert [(job.status, job.starts) for job in map(client.get, new_jobs)] == [(JobStatus.PENDING, 0)] * 3

        new = sandbox.start_worker("deployed", "new")
        new.expect_all("shipped 0", "shipped 1", "shipped 2")
        assert {sandbox.wait(job_id).starts for job_id in new_jobs} == {1}
        assert sum("shop.ship" in line for line in old.lines) == 1
        assert not any("shipped" in line for line in old.lines)


def test_jobs_find_a_handler_that_was_renamed_by_its_alias(sandbox: Sandbox) -> None:
    with Mainspring("sqlite:///jobs.db") as client:
        handle = client.job(name="shop.bill")(bill).submit(7)
        worker = sandbox.start_worker("deployed", "new")
        worker.expect("billed 7")
        assert handle.wait(PATIENCE) is JobStatus.COMPLETED


def test_the_old_release_runs_what_was_submitted_under_the_old_name_beside_the_new_one(sandbox: Sandbox) -> None:
    workers = [sandbox.start_worker("deployed", release) for release in ("old", "new")]
    with Mainspring("sqlite:///jobs.db") as client:
        ids = client.job(name="shop.bill")(bill).submit_many([(number,) for number in range(200)])
        assert {sandbox.wait(job_id).starts for job_id in ids} == {1}
    for worker in workers:
        worker.signal(SIGTERM)
    lines = [line for worker in workers for line in worker.expect_end_of_output()]
    billed = [line for line in lines if line.startswith("billed")]
    assert sorted(billed) == sorted(f"billed {number}" for number in range(200))
