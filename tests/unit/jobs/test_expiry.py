"""Expiry: a job that did not start within its time is a dead letter, whatever kept it from starting."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from mainspring import JobFailed, JobFunction, JobStatus, Mainspring, Rate, Retry, Snooze
from mainspring.jobs.records import NewJob
from mainspring.testing import TimeTravel, time_travel
from tests.unit.jobs.call_log import START, CallLog

ERROR = "expired: it did not start within its time"


@pytest.fixture
def call_log(app: Mainspring) -> CallLog:
    return CallLog(app)


@pytest.fixture
def work(app: Mainspring, call_log: CallLog) -> JobFunction[..., None]:
    @app.job(retry=Retry(max_attempts=3, base=20, jitter=0))
    def work(name: str, *, fails: bool = False) -> None:
        call_log.record(name)
        if fails:
            raise ValueError("no")

    return work


@pytest.fixture
def travel(app: Mainspring, work: JobFunction[..., None]) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


def test_a_job_that_starts_in_time_does_not_expire(
    travel: TimeTravel, work: JobFunction[..., None], call_log: CallLog
) -> None:
    handle = work.options(delay=60, expires=5).submit("in time")
    travel.fast_forward(120)
    assert handle.status() is JobStatus.COMPLETED
    assert call_log.entries == [("in time", 60)]


@pytest.mark.parametrize("where", ["handler", "submit"])
def test_a_job_that_is_kept_from_starting_expires_at_its_instant(app: Mainspring, where: str) -> None:
    @app.job(name="shop.work", expires=timedelta(minutes=5) if where == "handler" else None)
    def work() -> None: ...

    with time_travel(app, start=START) as travel:
        app.queue("default").pause()
        job = work if where == "handler" else work.options(expires=300)
        handle = job.after(60).submit()
        travel.fast_forward(359)
        before = handle.status()
        travel.fast_forward(1)
        info = handle.info()
        with pytest.raises(JobFailed, match="expired"):
            handle.result()
    assert before is JobStatus.PENDING
    assert (info.status, info.error, info.starts, info.history) == (JobStatus.FAILED, ERROR, 0, ())
    assert info.finished == START + timedelta(seconds=360)


def test_an_expired_job_is_a_dead_letter_and_can_be_run_all_the_same(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None], call_log: CallLog
) -> None:
    queue = app.queue("default")
    queue.pause()
    retried, replayed = (work.options(expires=5).submit(name) for name in ("retried", "replayed"))
    travel.fast_forward(10)
    assert [letter.id for letter in app.dead_letters.list()] == [retried.id, replayed.id]
    queue.resume()
    app.retry(retried.id)
    (copy,) = app.dead_letters.replay(replayed.id)
    travel.settle()
    assert (retried.status(), app.get(copy).status) == (JobStatus.COMPLETED, JobStatus.COMPLETED)
    assert sorted(call_log.names) == ["replayed", "retried"]


def test_jobs_that_wait_for_a_limit_expire_meanwhile(app: Mainspring, call_log: CallLog) -> None:
    @app.job(rate=Rate(1, per=10), expires=15)
    def mail(number: int) -> None:
        call_log.record(number)

    with time_travel(app, start=START) as travel:
        mail.submit_many([(number,) for number in range(5)])
        travel.fast_forward(60)
        assert app.counts()[JobStatus.FAILED] == 3
    assert call_log.entries == [(0, 0), (1, 10)]


def test_a_retry_after_the_expiry_runs_because_the_job_has_started_in_time(
    travel: TimeTravel, work: JobFunction[..., None], call_log: CallLog
) -> None:
    handle = work.options(expires=10).submit("tried", fails=True)
    travel.fast_forward(90)
    assert call_log.entries == [("tried", 0), ("tried", 20), ("tried", 60)]
    assert (handle.status(), handle.info().failures) == (JobStatus.FAILED, 3)


def test_a_snoozed_job_does_not_expire(app: Mainspring, travel: TimeTravel, call_log: CallLog) -> None:
    @app.job(expires=10)
    def wait_for_payment() -> None:
        call_log.record("asked")
        if len(call_log.entries) == 1:
            raise Snooze(60)

    handle = wait_for_payment.submit()
    travel.settle()
    assert handle.info().expires is None
    travel.fast_forward(60)
    assert call_log.entries == [("asked", 0), ("asked", 60)]
    assert handle.status() is JobStatus.COMPLETED


def test_jobs_without_a_handler_expire_too(app: Mainspring, travel: TimeTravel) -> None:
    engine = app.manager().engine
    due, expires = engine.now() + 1_000_000, engine.now() + 5_000_000
    engine.submit([NewJob("x", "shop.gone", "default", 1, due, b"{}", "json", expires=expires)])
    travel.settle()  # the worker looks when it is told of a new job, as a submit would
    travel.fast_forward(10)
    assert (app.get("x").status, app.get("x").error) == (JobStatus.FAILED, ERROR)


def test_a_job_that_is_put_off_keeps_the_instant_at_which_it_expires(
    app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]
) -> None:
    handle = work.options(delay=60, expires=30).submit("put off")
    assert app.reschedule(handle.id, delay=100)
    travel.fast_forward(95)
    assert (handle.status(), handle.info().error) == (JobStatus.FAILED, ERROR)


def test_many_jobs_expire_at_once(app: Mainspring, travel: TimeTravel, work: JobFunction[..., None]) -> None:
    app.queue("default").pause()
    work.options(expires=5).submit_many([(f"{number}",) for number in range(1_500)])
    travel.fast_forward(5)
    assert app.counts()[JobStatus.FAILED] == 1_500
