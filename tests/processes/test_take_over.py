"""Workers that die or are stopped: others take their jobs over, and a culprit is told from its neighbours."""

from signal import SIGCONT, SIGKILL, SIGTERM

from mainspring import JobStatus
from tests.processes.apps import jobs
from tests.processes.sandbox import Sandbox


def test_a_worker_that_was_stopped_too_long_loses_its_jobs_and_works_on_under_a_new_number(
    sandbox: Sandbox,
) -> None:
    stopped = sandbox.start_worker()
    job_id = jobs.attempt_until.submit(2).id
    stopped.expect("attempt 1 with token 1")
    first_number = sandbox.app.get(job_id).worker
    sandbox.suspend(stopped)

    other = sandbox.start_worker("worker", "impatient")
    other.expect("with token 2")
    job = sandbox.wait(job_id)
    assert (job.status, job.starts, job.crashes) == (JobStatus.COMPLETED, 2, 1)
    other.signal(SIGTERM)
    assert other.wait() == 0

    stopped.signal(SIGCONT)
    stopped.expect("counts as dead, because the store got no heartbeat of it in time, and registers again")
    after = jobs.attempt_until.submit(2).id
    stopped.expect("attempt 1 with token 1")
    number = sandbox.app.get(after).worker
    assert first_number is not None
    assert number is not None
    assert number > first_number


def test_the_late_outcome_of_a_stopped_worker_is_refused(sandbox: Sandbox) -> None:
    stopped = sandbox.start_worker()
    job_id = jobs.return_token.submit(0.3).id
    stopped.expect("begins with token 1")
    sandbox.suspend(stopped)
    other = sandbox.start_worker("worker", "impatient")
    assert sandbox.wait(job_id).result == 2
    other.kill()
    stopped.signal(SIGCONT)
    stopped.expect(f"the outcome of job {job_id} was refused, because this worker no longer has its lease")
    job = sandbox.app.get(job_id)
    assert (job.status, job.result, job.fencing_token) == (JobStatus.COMPLETED, 2, 2)


def test_a_worker_that_is_stopped_only_briefly_keeps_its_jobs(sandbox: Sandbox) -> None:
    stopped = sandbox.start_worker()
    job_id = jobs.return_token.submit(0.5).id
    stopped.expect("begins with token 1")
    sandbox.suspend(stopped)
    other = sandbox.start_worker()
    jobs.speak.after(1.5).submit(1)
    other.expect("end 1")  # it has swept meanwhile, at its start and once a second
    assert sandbox.app.get(job_id).status is JobStatus.RUNNING
    stopped.signal(SIGCONT)
    job = sandbox.wait(job_id)
    assert (job.result, job.crashes, job.starts) == (1, 0, 1)


def test_what_a_worker_takes_after_it_was_declared_dead_is_not_lost(sandbox: Sandbox) -> None:
    stopped = sandbox.start_worker()
    lost = jobs.attempt_until.submit(2).id
    stopped.expect("attempt 1")
    sandbox.suspend(stopped)
    other = sandbox.start_worker("worker", "impatient")
    other.expect("with token 2")  # so it has buried the one who is silent
    sandbox.wait(lost)
    other.kill()
    ids = [jobs.speak.submit(number, 1.0).id for number in range(4)]
    stopped.signal(SIGCONT)
    stopped.expect("start")
    stopped.kill()
    sandbox.start_worker()
    assert [sandbox.wait(job_id).status for job_id in ids] == [JobStatus.COMPLETED] * 4


def test_a_worker_that_is_killed_is_rescued_by_one_that_runs(sandbox: Sandbox) -> None:
    first = sandbox.start_worker()
    job_id = jobs.attempt_until.submit(2).id
    first.expect("attempt 1")
    second = sandbox.start_worker("worker", "told")  # for which only a lock tells of a death
    first.kill()
    second.expect("attempt 2 with token 2")
    assert [attempt.cause for attempt in sandbox.wait(job_id).history] == ["crash"]


def test_a_job_that_kills_its_worker_three_times_is_a_dead_letter_and_its_neighbours_complete(
    sandbox: Sandbox,
) -> None:
    culprit = jobs.die.submit(0).id
    neighbours = [jobs.work.submit(number, 0.2).id for number in range(1, 13)]
    for _ in range(3):
        assert sandbox.start_app("worker").wait() == -SIGKILL
    sandbox.start_worker()
    job = sandbox.app.get(culprit)
    assert (job.status, job.crashes, job.starts) == (JobStatus.FAILED, 3, 3)
    assert job.error == "quarantined: 3 workers died while they ran it"
    assert [attempt.cause for attempt in job.history] == ["crash"] * 3
    for job_id in neighbours:
        neighbour = sandbox.wait(job_id)
        assert neighbour.status is JobStatus.COMPLETED, f"{neighbour} suffers for the culprit"


def test_a_job_that_runs_at_most_once_is_a_dead_letter_after_a_kill(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker()
    job_id = jobs.charge.submit(1, 1_000).id
    worker.expect("start 1")
    worker.kill()
    other = sandbox.start_worker()
    job = sandbox.wait(job_id)
    assert (job.status, job.starts, job.crashes) == (JobStatus.FAILED, 1, 1)
    assert (job.error or "").startswith("at most once: its worker")
    other.expect_all("moved to the dead letters")
    done = jobs.charge.submit(2).id  # the next one runs
    assert sandbox.wait(done).status is JobStatus.COMPLETED
    assert [entry.argument for entry in sandbox.run_log() if entry.event == "start"] == ["1", "2"]


def test_a_kill_makes_dead_letters_of_no_more_jobs_than_the_worker_has_threads(sandbox: Sandbox) -> None:
    worker = sandbox.start_worker()
    ids = jobs.charge.submit_many([(number, 0.01) for number in range(400)])
    for _ in range(100):
        worker.expect("end")
    worker.kill()
    sandbox.start_worker()
    ends = [sandbox.wait(job_id) for job_id in ids]
    given_up = [job for job in ends if job.status is JobStatus.FAILED]
    assert all(job.status in (JobStatus.COMPLETED, JobStatus.FAILED) for job in ends)
    assert len(given_up) <= sandbox.app.threads
    starts = [entry.job for entry in sandbox.run_log() if entry.event == "start"]
    assert len(starts) == len(set(starts)), "a job started twice"
