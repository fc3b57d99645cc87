"""Limits that change with a deploy: jobs that wait already are put under what holds now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mainspring import Concurrency, JobFunction, JobStatus, Mainspring, Rate
from mainspring.jobs import JobManager, limit_registry
from mainspring.jobs.limits import bucket_of
from mainspring.testing import time_travel
from tests.unit.jobs.call_log import START


class Deploys:
    """Starts the same application again and again, on one file, with other limits each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: list[float] = []

    @contextmanager
    def release(
        self, prepare: Callable[[Mainspring], Any] | None = None, **options: Any
    ) -> Iterator[tuple[Mainspring, JobFunction[..., None]]]:
        """Lend a release of the application, without a worker."""
        with Mainspring(f"sqlite:///{self._path}", durability="normal") as app:
            if prepare is not None:
                prepare(app)
            decorate: Any = app.job(name="shop.mail", queue="mail", **options)

            def mail(tenant: str) -> None:
                self.seconds.append((app.manager().clock.now() - START).total_seconds())

            yield app, decorate(mail)

    def run(self, app: Mainspring, seconds: float) -> list[float]:
        """Let a worker of a release run for a time, from the same start; return when jobs ran."""
        self.seconds.clear()
        with self.travel(app) as travel:
            travel.fast_forward(seconds)
        return sorted(self.seconds)

    def travel(self, app: Mainspring) -> Any:
        return time_travel(app, start=START, isolated=False)


@pytest.fixture
def deploys(tmp_path: Path) -> Deploys:
    return Deploys(tmp_path / "jobs.db")


def limits(app: Mainspring) -> set[tuple[str, ...]]:
    manager = app.manager()
    return {manager.record(info.id).limits for info in app.jobs(limit=5_000)}


def submit(deploys: Deploys, count: int = 3, **options: Any) -> None:
    with deploys.release(**options) as (_, mail):
        mail.at(START).submit_many([("acme",)] * count)


def test_jobs_that_wait_come_under_a_new_limit(deploys: Deploys) -> None:
    submit(deploys)
    with deploys.release(rate=Rate(1, per=10)) as (app, _):
        assert deploys.run(app, 60) == [0, 10, 20]
        assert limits(app) == {(bucket_of("rate of handler shop.mail"),)}


def test_jobs_that_wait_are_freed_of_a_limit_that_is_gone(deploys: Deploys) -> None:
    submit(deploys, rate=Rate(1, per=10))
    with deploys.release() as (app, _):
        assert deploys.run(app, 5) == [0, 0, 0]


def test_jobs_that_wait_come_under_a_limit_by_another_key(deploys: Deploys) -> None:
    submit(deploys, rate=Rate(1, per=10))
    with deploys.release(rate=Rate(1, per=10, by="tenant")) as (app, _):
        deploys.run(app, 0)
        assert limits(app) == {(bucket_of("rate of handler shop.mail", 'tenant="acme"'),)}


def test_jobs_that_wait_come_under_the_new_limit_of_their_queue(deploys: Deploys) -> None:
    submit(deploys)
    with deploys.release(lambda app: app.queue("mail", rate=Rate(1, per=10))) as (app, _):
        assert deploys.run(app, 60) == [0, 10, 20]


def test_a_limit_that_only_changes_its_number_holds_at_once(deploys: Deploys) -> None:
    submit(deploys, count=4, rate=Rate(1, per=10))
    with deploys.release(rate=Rate(2, per=10)) as (app, _):
        assert deploys.run(app, 60) == [0, 0, 5, 10]


def test_a_limit_of_a_queue_that_is_no_longer_declared_holds_no_more(deploys: Deploys) -> None:
    def declare(app: Mainspring) -> None:
        app.queue("mail", rate=Rate(1, per=10), concurrency=Concurrency(1))

    submit(deploys, prepare=declare)
    with deploys.release(declare) as (app, _):
        assert deploys.run(app, 0) == [0]
    with deploys.release(lambda app: app.queue("mail", concurrency=Concurrency(5))) as (app, _):
        assert deploys.run(app, 0) == [0, 0]


def test_a_start_without_changes_moves_no_job(deploys: Deploys, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(deploys)
    with deploys.release(rate=Rate(1, per=10)) as (app, _):
        deploys.run(app, 0)
    with deploys.release(rate=Rate(1, per=10)) as (app, _):
        monkeypatch.setattr(JobManager, "change_all", lambda *_: pytest.fail("there is nothing to do"))
        deploys.run(app, 0)


def test_a_job_of_code_that_does_not_know_the_limit_is_put_under_it(deploys: Deploys) -> None:
    with deploys.release(rate=Rate(1, per=10)) as (app, _):
        deploys.run(app, 0)
    submit(deploys)
    with deploys.release(rate=Rate(1, per=10)) as (app, _):
        assert deploys.run(app, 0) == [0]


def test_many_jobs_are_moved_page_by_page(
    deploys: Deploys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limit_registry, "PAGE", 7)
    submit(deploys, count=50)
    with deploys.release(concurrency=Concurrency(2)) as (app, _), caplog.at_level("INFO", "mainspring.worker"):
        app.queue("mail").pause()
        deploys.run(app, 0)
        assert limits(app) == {(bucket_of("concurrency of handler shop.mail"),)}
        assert app.counts()[JobStatus.PENDING] == 50
    assert "50 waiting jobs had other limits than the code declares; the declared limits apply now" in caplog.text


@pytest.mark.parametrize(("count", "text"), [(1, "1 waiting job had"), (3, "3 waiting jobs had")])
def test_a_job_that_its_handler_and_its_queue_limit_is_counted_once(
    deploys: Deploys, caplog: pytest.LogCaptureFixture, count: int, text: str
) -> None:
    submit(deploys, count=count)
    with (
        deploys.release(lambda app: app.queue("mail", concurrency=Concurrency(2)), rate=Rate(1, per=10)) as (
            app,
            _,
        ),
        caplog.at_level("INFO", "mainspring.worker"),
    ):
        deploys.run(app, 0)
    assert f"{text} other limits than the code declares" in caplog.text


def test_jobs_of_handlers_that_are_unknown_here_are_left_alone(deploys: Deploys) -> None:
    with deploys.release() as (app, _):
        other: Any = app.job(name="shop.other", queue="mail")(lambda: None)
        other.at(START).submit()
    with deploys.release(lambda app: app.queue("mail", rate=Rate(1, per=10))) as (app, _):
        deploys.run(app, 0)
        assert limits(app) == {()}


def test_jobs_that_have_run_keep_the_limits_under_which_they_ran(deploys: Deploys) -> None:
    submit(deploys)
    with deploys.release() as (app, _):
        deploys.run(app, 0)
    with deploys.release(rate=Rate(1, per=10)) as (app, _):
        deploys.run(app, 0)
        assert limits(app) == {()}


def test_jobs_submitted_by_an_old_release_during_a_deploy_are_moved_by_the_next_start(deploys: Deploys) -> None:
    submit(deploys, count=1)
    with deploys.release(rate=Rate(1, per=10)) as (app, _):
        assert deploys.run(app, 0) == [0]
        with deploys.release() as (_, old_mail):
            old_mail.at(START).submit("late")
        with deploys.release(rate=Rate(1, per=20)) as (again, _):
            deploys.run(again, 0)
            waiting = [again.manager().record(info.id).limits for info in again.jobs(status="PENDING")]
            assert waiting == [(bucket_of("rate of handler shop.mail"),)]
