"""Retry policies and timeouts of single jobs: they replace those of the handler, and are not inherited."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import Mainspring, Retry, current_job
from mainspring.jobs.job_policies import (
    PREDECESSOR,
    RETRY,
    TIMEOUT,
    inheritable,
    policy_headers,
    retry_of,
    timeout_of,
)
from mainspring.jobs.status import JobStatus
from mainspring.testing import time_travel
from tests.support import PATIENCE

START = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Iterator[Mainspring]:
    with Mainspring("memory://", grace=0) as app:
        yield app


def test_a_job_has_the_attempts_and_delays_of_its_own_policy(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=9, base=1000, max_delay=1000, jitter=0))
    def fail() -> None:
        raise RuntimeError("no")

    with time_travel(app, start=START) as travel:
        own = fail.options(retry=Retry(max_attempts=3, base=10, factor=3, max_delay=60, jitter=0)).submit()
        usual = fail.submit()
        travel.fast_forward(seconds=60)
        assert own.info().status is JobStatus.FAILED
        waits = [attempt.ended - START for attempt in own.info().history]
        assert waits == [timedelta(0), timedelta(seconds=10), timedelta(seconds=40)]
        assert (usual.info().status, usual.info().failures) == (JobStatus.PENDING, 1)


def test_the_exceptions_of_the_handler_apply_to_the_policy_of_a_job(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=1, give_up_on=(ValueError,)))
    def fail(error: str) -> None:
        raise ValueError(error) if error == "value" else RuntimeError(error)

    with time_travel(app, start=START) as travel:
        retry = Retry(max_attempts=2, base=1, jitter=0)
        given_up = fail.options(retry=retry).submit("value")
        retried = fail.options(retry=retry).submit("other")
        travel.fast_forward(seconds=10)
        assert (given_up.info().failures, retried.info().failures) == (1, 2)


def test_a_job_has_its_own_timeout(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def wait_for_stop() -> None:
        import asyncio  # noqa: PLC0415

        await asyncio.Event().wait()

    with app.running():
        handle = wait_for_stop.options(timeout=0.05).submit()
        assert handle.wait(PATIENCE) is JobStatus.FAILED
    assert "timeout after 0.05 s" in str(handle.info().error)
    assert handle.info().timeouts == 1


def test_a_thread_handler_without_a_timeout_sees_that_of_its_job(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def loop() -> str:
        job = current_job()
        while not job.cancelled:
            pass
        return "stopped"

    with app.running():
        assert loop.options(timeout=0.05).submit().result(PATIENCE) == "stopped"


def test_the_policies_are_not_inherited(app: Mainspring) -> None:
    @app.job(name="child")
    def child() -> None: ...

    @app.job(name="after")
    def after(result: None = None) -> None: ...

    @app.job(name="parent", then=after)
    def parent() -> None:
        child.after(3600).submit()

    with time_travel(app, start=START) as travel:
        parent.options(retry=Retry(max_attempts=2, jitter=0), timeout=60, headers={"user": "7"}).submit()
        travel.fast_forward(seconds=1)
        found = {job.type: dict(job.headers) for job in app.jobs()}
        assert found["parent"].keys() == {"user", RETRY, TIMEOUT}
        assert found["child"] == {"user": "7"}
        assert found["after"].keys() == {"user", PREDECESSOR}


def test_a_replay_keeps_the_policies(app: Mainspring) -> None:
    @app.job
    def fail() -> None:
        raise RuntimeError("no")

    with time_travel(app, start=START) as travel:
        fail.options(retry=Retry(max_attempts=1)).submit()
        travel.fast_forward(seconds=1)
        app.dead_letters.replay(all=True)
        travel.fast_forward(seconds=1)
        assert [job.failures for job in app.jobs()] == [1, 1]


def test_impossible_policies_are_refused(app: Mainspring) -> None:
    @app.job(batch=10)
    def many(items: list[int]) -> None: ...

    @app.job(at_most_once=True)
    def once() -> None: ...

    @app.job(soft_timeout=10)
    def soft() -> None: ...

    with pytest.raises(ValueError, match="many jobs at once"):
        many.options(timeout=5).submit(1)
    with pytest.raises(ValueError, match="at most once"):
        once.options(retry=Retry(max_attempts=2, jitter=0)).submit()
    with pytest.raises(ValueError, match="longer than the soft_timeout"):
        soft.options(timeout=10).submit()
    with pytest.raises(ValueError, match="greater than zero"):
        soft.options(timeout=0)
    with pytest.raises(TypeError, match="Retry"):
        soft.options(retry=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is reserved"):
        soft.options(headers={TIMEOUT: "1"})
    first = app.job(name="first", then=soft.options(timeout=60))(lambda: None)
    with pytest.raises(ValueError, match=r"timeout=.* cannot have"):
        first.submit()


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "٣", "9" * 30, '{"max_attempts": 0}', "[" * 5_000])
def test_headers_that_another_program_wrote_change_nothing(text: str) -> None:
    default = Retry(max_attempts=4, jitter=0)
    assert retry_of({RETRY: text}, default) is default
    assert timeout_of({TIMEOUT: text}, 7) == 7


def test_the_headers_are_read_as_they_were_written() -> None:
    retry = Retry(max_attempts=3, base=0.25, factor=1.5, max_delay=timedelta(minutes=2), jitter=0.5)
    headers = policy_headers(retry, 1_500_000)
    read = retry_of(headers, Retry(give_up_on=(KeyError,)))
    assert (read.max_attempts, read.base, read.factor, read.max_delay, read.jitter) == (3, 0.25, 1.5, 120, 0.5)
    assert read.give_up_on == (KeyError,)
    assert timeout_of(headers, None) == 1_500_000
    assert inheritable(headers) == inheritable(None) == {}
    assert retry_of(None, retry) is retry
