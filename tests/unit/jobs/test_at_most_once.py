"""Jobs that run at most once: whatever ends their only attempt makes them dead letters."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from mainspring import (
    Cancel,
    Concurrency,
    JobStatus,
    Mainspring,
    ProcessSettings,
    Retry,
    Snooze,
    current_job,
)
from mainspring.engines.sqlite import SqliteEngine
from mainspring.jobs.engine import Demand
from mainspring.testing import every_crash, time_travel
from mainspring.testing.conformance.bench import SOON_SECONDS, Bench
from mainspring.testing.manual_clock import ManualClock
from tests.blank_stores import make_blank_store
from tests.support import PATIENCE, eventually
from tests.unit.jobs import process_handlers
from tests.unit.jobs.call_log import START

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Mainspring]:
    """An application on a file with full durability: `at_most_once` needs it."""
    url = f"sqlite:///{make_blank_store(tmp_path / 'jobs.db')}"
    with Mainspring(url, grace=0, processes=ProcessSettings(count=1)) as application:
        yield application


# -- which options fit


@pytest.mark.parametrize("retry", [None, Retry(max_attempts=1)], ids=["default", "one attempt"])
def test_a_failure_is_not_retried(app: Mainspring, retry: Retry | None) -> None:
    runs: list[int] = []

    @app.job(at_most_once=True, retry=retry)
    def charge(order: int) -> None:
        runs.append(order)
        raise ConnectionError("no answer")

    with time_travel(app, start=START) as travel:
        job = charge.submit(42)
        travel.fast_forward(days=1)
        info = app.get(job.id)
    assert runs == [42]
    assert (info.status, info.failures) == (JobStatus.FAILED, 1)
    assert "no answer" in (info.error or "")


def test_options_that_would_start_a_job_again_are_refused(app: Mainspring) -> None:
    with pytest.raises(ValueError, match=r"at_most_once=True and Retry\(max_attempts=3.*leave out one of them"):
        app.job(at_most_once=True, retry=Retry(max_attempts=3, jitter=0))(lambda: None)
    with pytest.raises(ValueError, match="at_most_once=True and Retry"):
        app.job(at_most_once=True, retry=Retry())(lambda: None)
    with pytest.raises(TypeError, match="at_most_once must be a bool such as True, got 1"):
        app.job(at_most_once=1)(lambda: None)  # type: ignore[call-overload]


def test_a_store_that_may_forget_a_start_is_refused() -> None:
    with (
        Mainspring("sqlite:///unused.db", durability="normal") as careless,
        pytest.raises(ValueError, match=r"'charge' has at_most_once=True.*use durability='full'"),
    ):
        careless.job(name="charge", at_most_once=True)(lambda: None)


@pytest.mark.parametrize("error", [Snooze(60), Retry.Later(60)], ids=["Snooze", "Retry.Later"])
def test_a_handler_that_asks_to_run_again_becomes_a_dead_letter(app: Mainspring, error: Exception) -> None:
    runs: list[int] = []

    @app.job(name="charge", at_most_once=True)
    def charge() -> None:
        runs.append(1)
        raise error

    with time_travel(app, start=START) as travel:
        job = charge.submit()
        travel.fast_forward(days=1)
        info = app.get(job.id)
    assert runs == [1]
    assert info.status is JobStatus.FAILED
    name = "Snooze" if isinstance(error, Snooze) else "Retry.Later"
    assert (info.error or "").startswith(f"at most once: charge raised {name}, and may not start again; submit")


def test_a_handler_may_cancel_its_job(app: Mainspring) -> None:
    @app.job(at_most_once=True)
    def charge() -> None:
        raise Cancel("no such order")

    with time_travel(app, start=START) as travel:
        job = charge.submit()
        travel.settle()
        assert job.status() is JobStatus.CANCELED


def test_an_operator_may_run_a_dead_letter_again(app: Mainspring) -> None:
    attempts: list[int] = []

    @app.job(at_most_once=True)
    def charge() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise ConnectionError("no answer")

    with time_travel(app, start=START) as travel:
        job = charge.submit()
        travel.settle()
        app.retry(job.id)
        travel.settle()
        assert job.status() is JobStatus.COMPLETED
    assert attempts == [1, 1]


# -- shutdowns, crashes of child processes


def test_a_shutdown_that_interrupts_a_job_makes_it_a_dead_letter(app: Mainspring) -> None:
    began, end = Event(), Event()

    @app.job(at_most_once=True)
    def charge() -> None:
        began.set()
        end.wait(PATIENCE)

    @app.job
    def other() -> None: ...

    try:
        with app.running():
            job = charge.submit()
            assert began.wait(PATIENCE)
        info = app.get(job.id)
    finally:
        end.set()
    assert (info.status, info.interruptions, info.failures) == (JobStatus.FAILED, 1, 0)
    assert info.error == "at most once: a shutdown interrupted it after it had started"
    assert [attempt.cause for attempt in info.history] == ["deploy"]


def test_a_job_whose_handler_has_not_begun_at_a_shutdown_runs_later(app: Mainspring) -> None:
    app.threads = 1
    began, end = Event(), Event()
    runs: list[int] = []

    @app.job(at_most_once=True)
    def charge(order: int) -> None:
        runs.append(order)
        began.set()
        end.wait(PATIENCE)

    ids = charge.submit_many([(1,), (2,), (3,)])
    try:
        with app.running():
            assert began.wait(PATIENCE)
        statuses = [app.get(job_id).status for job_id in ids]
    finally:
        end.set()
    assert sorted(statuses) == [JobStatus.FAILED, JobStatus.PENDING, JobStatus.PENDING]
    app.grace = PATIENCE
    with app.running():
        assert eventually(lambda: app.counts()["COMPLETED"] == 2)
    assert sorted(runs) == [1, 2, 3]


def test_a_job_that_was_asked_to_stop_is_canceled_by_a_shutdown(app: Mainspring) -> None:
    began, end = Event(), Event()

    @app.job(at_most_once=True)
    def charge() -> None:
        began.set()
        end.wait(PATIENCE)

    try:
        with app.running():
            job = charge.submit()
            assert began.wait(PATIENCE)
            assert not job.cancel()
            assert eventually(lambda: any(active.cancelled for active in app.manager().active_jobs()))
        assert job.status() is JobStatus.CANCELED
    finally:
        end.set()


def test_a_child_process_that_dies_makes_its_job_a_dead_letter(app: Mainspring) -> None:
    leave = app.job(name="leave", at_most_once=True, execution="process")(process_handlers.leave)
    with app.running():
        job = leave.submit(3)
        assert job.wait(PATIENCE) is JobStatus.FAILED
    info = app.get(job.id)
    assert (info.crashes, info.starts) == (1, 1)
    assert (info.error or "").startswith("at most once: ")


@pytest.mark.parametrize("how", ["Snooze", "Retry.Later"])
def test_a_child_process_that_asks_to_run_again_makes_a_dead_letter(app: Mainspring, how: str) -> None:
    function = process_handlers.snooze if how == "Snooze" else process_handlers.retry_later
    again = app.job(name="again", at_most_once=True, execution="process")(function)
    with app.running():
        job = again.submit()
        assert job.wait(PATIENCE) is JobStatus.FAILED
    assert f"again raised {how}, and may not start again" in (app.get(job.id).error or "")


# -- crashes of the worker


@pytest.mark.parametrize("delay", [0, 60], ids=["at once", "held before its time"])
def test_no_crash_at_any_step_runs_a_job_twice(app: Mainspring, delay: int) -> None:
    runs: list[str] = []

    @app.job(name="charge", at_most_once=True)
    def charge() -> None:
        runs.append(current_job().id)

    ends: set[tuple[JobStatus, int]] = set()
    for crash in every_crash(app, lambda: charge.after(delay).submit(), prepare=runs.clear, start=NOON):
        with crash.recovered():
            assert len(runs) <= 1, "ran twice"
            for info in app.jobs():
                assert info.status is not JobStatus.COMPLETED or len(runs) == 1
                ends.add((info.status, len(runs)))
    # a crash between the start and the outcome leaves a dead letter, whether the handler ran or not
    assert ends >= {(JobStatus.COMPLETED, 1), (JobStatus.FAILED, 1)}


def test_no_crash_runs_a_job_under_a_limit_twice(app: Mainspring) -> None:
    runs: list[int] = []

    @app.job(name="charge", at_most_once=True, concurrency=Concurrency(1))
    def charge(order: int) -> None:
        runs.append(order)

    for crash in every_crash(app, lambda: charge.submit_many([(1,), (2,)]), prepare=runs.clear, start=NOON):
        with crash.recovered():
            assert len(runs) == len(set(runs)), "ran twice"
            assert all(info.status in (JobStatus.COMPLETED, JobStatus.FAILED) for info in app.jobs())


# -- fsync


SINGLE = Demand(("ping",), 10, 10, at_most_once=("ping",), at_most_once_starts=10)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were written to the disk by this process, beside the fsyncs of SQLite."""
    names: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return names


@pytest.fixture
def bench(tmp_path: Path, clock: ManualClock) -> Iterator[Bench]:
    bench = Bench(SqliteEngine(make_blank_store(tmp_path / "other.db"), clock=clock), clock)
    yield bench
    bench.engine.close()


def test_a_claim_that_starts_such_a_job_is_on_the_disk_when_it_returns(bench: Bench, synced: list[str]) -> None:
    bench.submit("job")
    worker = bench.enroll()
    assert len(bench.look_for(worker, SINGLE).leases) == 1
    assert synced == ["other.db-wal"]
    assert bench.look_for(worker, SINGLE).leases == []
    assert len(synced) == 1


def test_the_start_of_a_held_job_is_on_the_disk_when_it_returns(bench: Bench, synced: list[str]) -> None:
    bench.submit("job", after=SOON_SECONDS)
    worker = bench.enroll()
    (lease,) = bench.look_for(worker, SINGLE).leases
    assert synced == []
    assert bench.engine.start(worker, [lease]) == [True]
    assert synced == ["other.db-wal"]


def test_the_start_of_other_jobs_needs_no_fsync(bench: Bench, synced: list[str]) -> None:
    bench.submit("job")
    bench.submit("held", after=SOON_SECONDS)
    worker = bench.enroll()
    leases = bench.take(worker)
    assert len(leases) == 2
    bench.engine.start(worker, leases)
    assert synced == []


def test_a_claim_in_a_durable_transaction_needs_no_second_fsync(bench: Bench, synced: list[str]) -> None:
    worker = bench.enroll()
    with bench.engine.unit(durable=True):
        bench.submit("job")
        assert len(bench.look_for(worker, SINGLE).leases) == 1
    assert synced == []
