"""`app.run_now`: a pending job is due at once."""

from datetime import UTC, datetime, timedelta

import pytest

from mainspring import JobNotFound, JobStatus, Mainspring, Retry
from mainspring.testing import TimeTravel, time_travel

START = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Mainspring:
    return Mainspring("memory://")


def test_a_delayed_job_runs_now(app: Mainspring) -> None:
    with time_travel(app, start=START) as travel:
        job = app.job(name="ping")(lambda: None).after(timedelta(days=1)).submit()
        travel.fast_forward(hours=1)
        assert app.run_now(job.id)
        travel.settle()
        assert (job.status(), app.get(job.id).due) == (JobStatus.COMPLETED, START + timedelta(hours=1))
        assert not app.run_now(job.id)


def test_a_job_that_waits_for_a_retry_runs_now(app: Mainspring) -> None:
    attempts: list[datetime] = []

    def travelling(travel: TimeTravel) -> None:
        @app.job(name="flaky", retry=Retry(max_attempts=2, base=3_600, max_delay=3_600, jitter=0))
        def flaky() -> None:
            attempts.append(travel.now)
            if len(attempts) == 1:
                raise ConnectionError("later")

        job = flaky.submit()
        travel.settle()
        assert job.status() is JobStatus.PENDING
        travel.fast_forward(minutes=1)
        assert app.run_now(job.id)
        travel.settle()
        assert job.status() is JobStatus.COMPLETED

    with time_travel(app, start=START) as travel:
        travelling(travel)
    assert attempts == [START, START + timedelta(minutes=1)]


def test_a_job_that_is_due_keeps_its_due_time(app: Mainspring) -> None:
    ran: list[int] = []

    with time_travel(app, start=START) as travel:

        @app.job(name="ping")
        def ping(number: int) -> None:
            ran.append(number)

        app.queue("default").pause()
        jobs = [ping.submit(number) for number in range(3)]
        travel.fast_forward(minutes=1)
        assert app.run_now(jobs[0].id)
        assert app.get(jobs[0].id).due == START
        app.queue("default").resume()
        travel.settle()
    assert ran[0] == 0


def test_an_unknown_job_is_not_found(app: Mainspring) -> None:
    with pytest.raises(JobNotFound):
        app.run_now("nowhere")
