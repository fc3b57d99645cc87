"""What a handler learns about its own job."""

import asyncio
import logging
from datetime import timedelta

import pytest

from mainspring import Cancel, JobContext, Mainspring, Retry, Snooze, current_job
from mainspring.jobs.timestamps import to_datetime
from mainspring.testing import time_travel
from tests.unit.jobs.call_log import START
from tests.unit.jobs.leases import DUE, make_lease


def test_outside_of_a_handler_there_is_no_current_job() -> None:
    with pytest.raises(RuntimeError, match=r"no job runs here; call current_job\(\) inside of a handler"):
        current_job()


def test_a_context_shows_the_lease() -> None:
    context = JobContext(make_lease())
    assert (context.id, context.queue, context.fencing_token) == ("order-42", "orders", 3)
    assert context.due == to_datetime(DUE)


@pytest.mark.parametrize(
    ("failures", "timeouts", "crashes", "attempt"), [(0, 0, 0, 1), (2, 0, 0, 3), (1, 1, 0, 3), (0, 0, 1, 2)]
)
def test_attempts_count_what_was_used_up_and_not_deploys(
    failures: int, timeouts: int, crashes: int, attempt: int
) -> None:
    lease = make_lease(failures=failures, timeouts=timeouts, crashes=crashes)
    assert lease.interruptions == 1
    assert JobContext(lease).attempt == attempt


def test_a_job_is_canceled_when_a_stop_was_requested() -> None:
    context = JobContext(make_lease())
    before = context.cancelled
    context.request_stop()
    assert (before, context.cancelled) == (False, True)


def test_the_log_says_which_job_and_attempt_speaks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mainspring.job"):
        JobContext(make_lease(failures=1)).log.info("paid %d", 7)
    assert caplog.messages == ["[order-42 #2] paid 7"]


def test_a_handler_sees_its_own_job(app: Mainspring) -> None:
    seen: list[JobContext] = []

    @app.job(queue="orders")
    def handler() -> None:
        seen.append(current_job())

    with time_travel(app, start=START) as travel:
        handle = handler.after(60).submit()
        due = travel.now + timedelta(seconds=60)
        travel.fast_forward(60)
        token = handle.info().fencing_token
    assert [(job.id, job.attempt, job.due, job.queue, job.cancelled) for job in seen] == [
        (handle.id, 1, due, "orders", False)
    ]
    assert seen[0].fencing_token == token


def test_the_fencing_token_grows_with_every_attempt(app: Mainspring) -> None:
    tokens: list[int] = []

    @app.job(retry=Retry(max_attempts=3, base=1, jitter=0))
    def handler() -> None:
        tokens.append(current_job().fencing_token)
        raise ValueError("again")

    with time_travel(app, start=START) as travel:
        handler.submit()
        travel.fast_forward(minutes=1)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3


def test_an_async_handler_sees_its_own_job_after_it_has_waited(app: Mainspring) -> None:
    seen: list[str] = []

    @app.job
    async def handler(number: int) -> None:
        before = current_job().id
        await asyncio.sleep(0)
        assert current_job().id == before
        seen.append(before)

    with time_travel(app, start=START) as travel:
        ids = [handler.submit(number).id for number in range(5)]
        travel.settle()
    assert sorted(seen) == sorted(ids)


def test_a_plain_call_of_a_handler_is_no_job(app: Mainspring) -> None:
    @app.job
    def handler() -> str:
        return current_job().id

    with time_travel(app, start=START) as travel:
        handler.submit()
        travel.settle()
        with pytest.raises(RuntimeError, match="no job runs here"):
            handler()


@pytest.mark.parametrize("delay", [-1, float("nan")])
def test_a_snooze_refuses_an_impossible_delay_where_it_is_raised(delay: float) -> None:
    with pytest.raises(ValueError, match="delay must"):
        Snooze(delay)


def test_signals_say_what_they_ask_for() -> None:
    assert (str(Snooze(5)), Snooze(5).delay) == ("snooze for 5", 5)
    assert (str(Cancel("sold out")), Cancel("sold out").reason) == ("sold out", "sold out")
    assert Cancel().reason == "canceled by its handler"
