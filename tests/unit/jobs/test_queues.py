"""Queues for operators: pause, resume, drain and count; and the order of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mainspring import JobFunction, JobStatus, Mainspring, Priority, QueueStatistics, Retry
from mainspring.jobs.backlog import HEAD_START
from mainspring.testing import TimeTravel, time_travel
from tests.support import Background, Gate
from tests.unit.jobs.call_log import START, CallLog

HEAD_START_SECONDS = HEAD_START / 1_000_000


@pytest.fixture
def call_log(app: Mainspring) -> CallLog:
    return CallLog(app)


@pytest.fixture
def mail(app: Mainspring, call_log: CallLog) -> JobFunction[..., None]:
    @app.job(queue="mail", retry=Retry(max_attempts=2, base=60, jitter=0))
    def mail(name: str, *, fails: bool = False) -> None:
        call_log.record(name)
        if fails:
            raise ValueError("no")

    return mail


@pytest.fixture
def travel(app: Mainspring, mail: JobFunction[..., None]) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


# -- pause and resume


def test_jobs_of_a_paused_queue_wait_until_it_is_resumed(
    app: Mainspring, travel: TimeTravel, mail: JobFunction[..., None], call_log: CallLog
) -> None:
    queue = app.queue("mail")
    assert queue.pause()
    assert queue.is_paused
    handle = mail.submit("waits")
    mail.options(queue="other").submit("goes")
    travel.fast_forward(60)
    assert (call_log.names, handle.status()) == (["goes"], JobStatus.PENDING)
    assert queue.resume()
    assert not queue.is_paused
    travel.settle()
    assert call_log.entries == [("goes", 0), ("waits", 60)]


def test_a_pause_or_resume_that_changes_nothing_says_so(app: Mainspring, travel: TimeTravel) -> None:
    queue = app.queue("mail")
    assert [queue.resume(), queue.pause(), queue.pause(), queue.resume(), queue.resume()] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_a_job_that_a_worker_holds_ahead_of_its_time_is_paused_too(
    app: Mainspring, travel: TimeTravel, mail: JobFunction[..., None], call_log: CallLog
) -> None:
    mail.after(0.5).submit("held")
    travel.settle()
    app.queue("mail").pause()
    travel.fast_forward(10)
    assert call_log.names == []
    app.queue("mail").resume()
    travel.settle()
    assert call_log.entries == [("held", 10)]


def test_a_job_that_runs_goes_on_in_a_paused_queue_and_its_retry_waits(
    app: Mainspring, travel: TimeTravel, mail: JobFunction[..., None], call_log: CallLog
) -> None:
    mail.submit("fails", fails=True)
    travel.settle()
    app.queue("mail").pause()
    travel.fast_forward(120)
    before = list(call_log.times)
    app.queue("mail").resume()
    travel.settle()
    assert (before, call_log.times) == ([0], [0, 120])


def test_a_pause_is_stored_and_outlives_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Mainspring(url, durability="normal") as app:
        app.queue("mail").pause()
    with Mainspring(url, durability="normal") as again:
        assert again.queue("mail").is_paused
        assert not again.queue("other").is_paused


# -- counts


def test_a_queue_counts_its_own_jobs(app: Mainspring, travel: TimeTravel, mail: JobFunction[..., None]) -> None:
    mail.submit("completes")
    mail.submit("fails", fails=True)
    mail.after(500).submit("waits")
    mail.after(500).submit("canceled").cancel()
    mail.options(queue="other").submit("elsewhere")
    travel.fast_forward(60)
    app.queue("mail").pause()
    assert app.queue("mail").statistics() == QueueStatistics(
        name="mail", is_paused=True, pending=1, running=0, completed=1, failed=1, canceled=1
    )
    assert app.queue("other").statistics().completed == 1
    assert app.queue("empty").statistics() == QueueStatistics(
        name="empty", is_paused=False, pending=0, running=0, completed=0, failed=0, canceled=0
    )
    assert repr(app.queue("mail")) == "<Queue mail>"


# -- drain


def test_a_queue_is_drained_when_nothing_of_it_is_due_or_runs(
    app: Mainspring, travel: TimeTravel, mail: JobFunction[..., None]
) -> None:
    app.queue("mail").drain()
    mail.submit("now")
    mail.after(60).submit("later")
    mail.options(queue="other").after(0).submit("elsewhere")
    travel.settle()
    app.queue("mail").drain(timeout=0)


def test_a_queue_that_is_paused_with_jobs_in_it_is_not_drained(
    app: Mainspring, travel: TimeTravel, mail: JobFunction[..., None]
) -> None:
    app.queue("mail").pause()
    mail.submit("waits")
    with pytest.raises(
        TimeoutError, match=r"'mail' is not drained \(it is paused: app\.queue\('mail'\)\.resume\(\)\)"
    ):
        app.queue("mail").drain(timeout=5)


def test_a_drain_waits_for_jobs_that_run_and_for_those_they_submit(app: Mainspring) -> None:
    gate = Gate()

    @app.job(queue="mail")
    def last() -> None: ...

    @app.job(queue="mail")
    def first() -> None:
        gate()
        last.submit()

    with app.running():
        first.submit()
        gate.wait_until_entered()
        with pytest.raises(TimeoutError, match="queue 'mail' is not drained in time"):
            app.queue("mail").drain(timeout=0.05)
        draining = Background(app.queue("mail").drain)
        assert not draining.is_done
        gate.open()
        draining.result()
        assert app.counts()[JobStatus.COMPLETED] == 2


def test_a_drain_with_a_timeout_of_another_type_is_refused(app: Mainspring) -> None:
    wrong: object = "soon"
    with pytest.raises(TypeError, match="timeout must be a timedelta or a number of seconds, got 'soon'"):
        app.queue("mail").drain(timeout=wrong)  # type: ignore[arg-type]


def test_a_queue_without_a_name_is_refused(app: Mainspring) -> None:
    with pytest.raises(ValueError, match="queue must be a non-empty printable string, got ''"):
        app.queue("")


# -- which go first


@pytest.fixture
def narrow(url: str) -> Iterator[Mainspring]:
    """An application with one thread: its jobs run one after another, in the order in which they are taken."""
    with Mainspring(url, durability="normal", threads=1) as app:
        yield app


def run_backlog(app: Mainspring, *jobs: tuple[str, Priority, float]) -> list[str]:
    """Store jobs, each due so many seconds ago, and return in which order one thread runs them."""
    call_log = CallLog(app)

    @app.job(name="shop.note")
    def note(name: str) -> None:
        call_log.record(name)

    with time_travel(app, start=START) as travel:
        app.queue("default").pause()
        travel.fast_forward(hours=1)
        for name, priority, age in jobs:
            app.manager().submit("shop.note", (name,), at=travel.now - timedelta(seconds=age), priority=priority)
        app.queue("default").resume()
        travel.settle()
    return list(call_log.names)


def test_jobs_that_are_due_together_go_by_priority_and_then_by_submission(narrow: Mainspring) -> None:
    order = run_backlog(
        narrow,
        ("low", Priority.BEST_EFFORT, 0),
        ("middle 1", Priority.USER_VISIBLE, 0),
        ("high", Priority.USER_BLOCKING, 0),
        ("middle 2", Priority.USER_VISIBLE, 0),
    )
    assert order == ["high", "middle 1", "middle 2", "low"]


def test_a_job_that_has_waited_longer_than_the_head_start_is_overtaken_no_more(narrow: Mainspring) -> None:
    order = run_backlog(
        narrow,
        ("high", Priority.USER_BLOCKING, 0),
        ("low, just young enough", Priority.BEST_EFFORT, 2 * HEAD_START_SECONDS - 1),
        ("low, old enough", Priority.BEST_EFFORT, 2 * HEAD_START_SECONDS + 1),
        ("middle, old enough", Priority.USER_VISIBLE, HEAD_START_SECONDS + 2),
    )
    assert order.index("low, old enough") < order.index("high") < order.index("low, just young enough")
    assert order.index("middle, old enough") < order.index("high")


# -- which queues there are


def test_all_queues_are_those_of_jobs_handlers_schedules_and_pauses(
    app: Mainspring, mail: JobFunction[..., None]
) -> None:
    mail.options(queue="slow").submit("a")
    app.schedules.put("nightly", mail.options(queue="nights"), "0 2 * * *", arguments={"name": "b"})
    app.queue("held").pause()
    assert [queue.name for queue in app.all_queues()] == ["held", "mail", "nights", "slow"]
