"""The decorators: what they leave of a function, and what options and headers do from the submit to the run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import (
    Cron,
    Every,
    JobFunction,
    JobStatus,
    Mainspring,
    Middleware,
    ScheduleInvalid,
    Submit,
    current_job,
)
from mainspring.jobs.job_function import AsyncJobFunction
from mainspring.testing import time_travel
from tests.unit.jobs.call_log import START, CallLog


@pytest.fixture
def call_log(app: Mainspring) -> CallLog:
    return CallLog(app)


def sync(region: str = "eu") -> str:
    """Get what is new."""
    return region


# -- what is left of a function


def test_a_function_that_recurs_is_still_a_function_and_a_job(app: Mainspring) -> None:
    for job in (app.every(60, name="a")(sync), app.cron("0 2 * * *", name="b")(sync), app.job(sync)):
        assert isinstance(job, JobFunction)
        assert job("us") == "us"
        assert (job.__name__, job.__doc__) == ("sync", "Get what is new.")  # type: ignore[attr-defined]
        assert inspect.signature(job) == inspect.signature(sync)


def test_a_coroutine_that_recurs_is_one_still(app: Mainspring) -> None:
    @app.every(60)
    async def fetch() -> int:
        return 42

    assert isinstance(fetch, AsyncJobFunction)
    coroutine = fetch()
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    assert end.value.value == 42


def test_a_decorator_above_a_job_keeps_its_options_and_makes_no_second_handler(app: Mainspring) -> None:
    job = app.job(name="shop.sync", queue="slow")(sync)
    assert app.every(60)(job) is job
    assert [handler.name for handler in app.registry.all()] == ["shop.sync"]


def test_a_schedule_has_the_name_of_its_job_unless_it_has_one_of_its_own(app: Mainspring) -> None:
    job = app.job(name="shop.sync")(sync)
    app.every(60)(job)
    app.cron("0 2 * * *", name="nightly")(job)
    with time_travel(app, start=START):
        rules = {schedule.name: schedule.rule for schedule in app.schedules.list()}
    assert rules.keys() == {"shop.sync", "nightly"}
    assert isinstance(rules["nightly"], Cron)
    assert isinstance(rules["shop.sync"], Every)


@pytest.mark.parametrize(
    ("decorate", "kind", "message"),
    [
        (lambda app: app.cron("61 * * * *"), ScheduleInvalid, "61"),
        (lambda app: app.cron("0 2 * * *", tz="Mars/Olympus"), ScheduleInvalid, "Mars/Olympus"),
        (lambda app: app.cron("0 2 * * *", dst_gap="jump"), ScheduleInvalid, "dst_gap is 'jump'; give 'auto'"),
        (lambda app: app.cron("0 2 * * *", dst_fold="none"), ScheduleInvalid, "dst_fold is 'none'; give 'auto'"),
        (lambda app: app.every(0), ScheduleInvalid, "the interval is 0, .*; give a timedelta"),
        (lambda app: app.every("hourly"), ScheduleInvalid, "every 'hourly': interval must be a timedelta"),
        (lambda app: app.every(60, misfire="never")(sync), ValueError, "misfire must .*'never'"),
        (lambda app: app.every(60, overlap="maybe")(sync), ValueError, "overlap must .*'maybe'"),
        (lambda app: app.every(60, jitter=-1)(sync), ValueError, "jitter must not be negative, got -1"),
        (lambda app: app.every(60, start=datetime(2026, 1, 1))(sync), ValueError, "start must be an aware"),  # noqa: DTZ001
        (lambda app: app.every(60, name="")(sync), ValueError, "name must be a non-empty printable string"),
        (lambda app: app.every(60)(7), TypeError, "decorates a function, got 7"),
        (lambda app: app.job("orders"), TypeError, "got .orders.; options are given by keyword"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_said(
    decorate: Any, kind: type[Exception], message: str
) -> None:
    app = Mainspring("memory://")
    with pytest.raises(kind, match=message):
        decorate(app)


def test_a_handler_that_needs_arguments_cannot_recur(app: Mainspring) -> None:
    def needy(region: str) -> None: ...

    with pytest.raises((TypeError, ValueError), match="region"):
        app.every(60)(needy)


def test_a_handler_whose_jobs_make_sequences_cannot_recur_without_them(app: Mainspring) -> None:
    job = app.job(name="shop.sync", sequence_by="region")(sync)
    with pytest.raises(ValueError, match="sequence_by"):
        app.every(60)(job)


# -- a batch


def test_a_batch_handler_gets_a_list_and_its_jobs_carry_one_element_each(app: Mainspring) -> None:
    @app.job(batch=3)
    def index(documents: list[int]) -> list[int]:
        return [document * 2 for document in documents]

    with time_travel(app, start=START) as travel:
        ids = index.submit_many([(number,) for number in range(7)])
        travel.settle()
        assert [app.get(job_id).result for job_id in ids] == [number * 2 for number in range(7)]
    assert index([1, 2]) == [2, 4]


def test_a_batch_handler_needs_exactly_one_list() -> None:
    app = Mainspring("memory://")

    def two(documents: list[int], other: int) -> None: ...

    decorate: Any = app.job(batch=3)
    with pytest.raises(TypeError, match="list"):
        decorate(two)


# -- headers


def test_headers_reach_the_handler_and_the_jobs_that_it_submits(app: Mainspring) -> None:
    seen: list[tuple[str, dict[str, str]]] = []

    @app.job
    def child(name: str) -> None:
        seen.append((name, dict(current_job().headers)))

    @app.job
    def parent() -> None:
        child.submit("plain")
        child.options(headers={"user": "7", "step": "2"}).submit("changed")
        child.submit_many([("many",)])

    with time_travel(app, start=START) as travel:
        parent.options(headers={"user": "42", "trace": "abc"}).submit()
        travel.settle()
    inherited = {"user": "42", "trace": "abc"}
    assert sorted(seen, key=lambda entry: entry[0]) == [
        ("changed", {"user": "7", "trace": "abc", "step": "2"}),
        ("many", inherited),
        ("plain", inherited),
    ]


def test_headers_reach_what_follows_and_what_a_coroutine_submits(app: Mainspring) -> None:
    seen: dict[str, str] = {}

    @app.job
    async def last() -> None:
        seen["last"] = current_job().headers["user"]

    @app.job(then=last)
    async def middle() -> None:
        seen["middle"] = current_job().headers["user"]

    @app.job
    async def first() -> None:
        await middle.submit_async()

    with time_travel(app, start=START) as travel:
        first.options(headers={"user": "42"}).submit()
        travel.settle()
    assert seen == {"middle": "42", "last": "42"}


def test_without_headers_a_job_has_none_and_they_cannot_be_changed_from_inside(app: Mainspring) -> None:
    seen: list[dict[str, str]] = []

    @app.job
    def plain() -> None:
        headers: Any = current_job().headers
        seen.append(dict(headers))
        headers["user"] = "42"

    with time_travel(app, start=START) as travel:
        handle = plain.submit()
        travel.settle()
        assert "TypeError" in (handle.info().error or "")
    assert seen == [{}]


def test_middleware_adds_headers_at_the_submit(app: Mainspring) -> None:
    counted: list[tuple[str, str, int]] = []

    class Tracing(Middleware):
        @contextmanager
        def submitting(self, submit: Submit) -> Iterator[None]:
            counted.append((submit.type, submit.queue, submit.count))
            submit.headers["trace"] = "abc"
            yield

    app.middleware(Tracing())
    job = app.job(name="shop.sync", queue="slow")(sync)
    with time_travel(app, start=START):
        handle = job.options(headers={"user": "42"}).submit()
        (other,) = job.submit_many([("us",)])
        record = app.manager().record
        assert record(handle.id).headers == {"user": "42", "trace": "abc"}
        assert record(other).headers == {"trace": "abc"}
    assert counted == [("shop.sync", "slow", 1), ("shop.sync", "slow", 1)]


def test_middleware_that_raises_at_the_submit_stores_nothing(app: Mainspring) -> None:
    class Refusing(Middleware):
        @contextmanager
        def submitting(self, submit: Submit) -> Iterator[None]:
            raise PermissionError(f"no {submit.type}")
            yield

    app.middleware(Refusing())
    job = app.job(name="shop.sync")(sync)
    with pytest.raises(PermissionError, match=r"no shop\.sync"):
        job.submit()
    with pytest.raises(PermissionError):
        job.submit_many([()])
    assert sum(app.counts().values()) == 0


# -- what follows


def test_three_jobs_follow_one_another(app: Mainspring, call_log: CallLog) -> None:
    @app.job
    def third(number: int) -> None:
        call_log.record(("third", number))

    @app.job(then=third.options(delay=10))
    def second(number: int) -> int:
        call_log.record(("second", number))
        return number + 1

    @app.job(then=second)
    def first(number: int) -> int:
        call_log.record(("first", number))
        return number + 1

    with time_travel(app, start=START) as travel:
        first.submit(1)
        travel.fast_forward(60)
        assert app.counts()[JobStatus.COMPLETED] == 3
    assert call_log.entries == [(("first", 1), 0), (("second", 2), 0), (("third", 3), 10)]


def test_a_submit_chooses_what_follows(app: Mainspring, call_log: CallLog) -> None:
    @app.job
    def usual() -> None:
        call_log.record("usual")

    @app.job
    def special() -> None:
        call_log.record("special")

    @app.job(then=usual)
    def work() -> None: ...

    with time_travel(app, start=START) as travel:
        work.options(then=special).submit()
        travel.settle()
        work.submit()
        travel.settle()
    assert call_log.names == ["special", "usual"]


def test_nothing_follows_a_job_that_fails_or_is_called_off(app: Mainspring, call_log: CallLog) -> None:
    @app.job
    def after() -> None:
        call_log.record("after")

    @app.job(then=after)
    def fails() -> None:
        raise ValueError("no")

    with time_travel(app, start=START) as travel:
        fails.submit()
        fails.after(3_600).submit().cancel()
        travel.fast_forward(hours=2)
        assert app.counts()[JobStatus.FAILED] == 1
    assert call_log.names == []


# -- instants


def test_an_instant_is_one_in_every_zone(app: Mainspring) -> None:
    job = app.job(sync)
    assert job.at(datetime(2027, 1, 1, tzinfo=UTC)).submit().info().due == datetime(2027, 1, 1, tzinfo=UTC)
