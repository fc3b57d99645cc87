"""Unique jobs: at most one for each key, for as long as the policy says, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mainspring import (
    Concurrency,
    DuplicateJob,
    InvalidTransition,
    JobFunction,
    JobStatus,
    Mainspring,
    PartialSubmit,
    Retry,
    Snooze,
    Unique,
)
from mainspring.jobs.limits import bucket_of
from mainspring.testing import TimeTravel, time_travel
from tests.unit.jobs.call_log import START, CallLog


@pytest.fixture
def call_log(app: Mainspring) -> CallLog:
    return CallLog(app)


@pytest.fixture
def report(app: Mainspring, call_log: CallLog) -> JobFunction[..., None]:
    @app.job(name="shop.report", retry=Retry(max_attempts=1))
    def report(tenant: str, *, fails: bool = False) -> None:
        call_log.record(tenant)
        if fails:
            raise ValueError("no")

    return report


@pytest.fixture
def travel(app: Mainspring, report: JobFunction[..., None]) -> Iterator[TimeTravel]:
    with time_travel(app, start=START) as travel:
        yield travel


def total(app: Mainspring) -> int:
    return sum(app.counts().values())


# -- the one that is there


def test_a_second_submit_gets_the_job_that_is_there(
    app: Mainspring, travel: TimeTravel, report: JobFunction[..., None], call_log: CallLog
) -> None:
    nightly = report.options(unique="nightly", delay=60)
    first, second = nightly.submit("a"), nightly.submit("b")
    assert first.id == second.id
    assert total(app) == 1
    travel.fast_forward(60)
    assert call_log.entries == [("a", 60)]


def test_a_job_that_has_ended_is_not_in_the_way(
    travel: TimeTravel, report: JobFunction[..., None], call_log: CallLog
) -> None:
    nightly = report.options(unique="nightly")
    first = nightly.submit("a")
    travel.settle()
    second = nightly.submit("b")
    travel.settle()
    assert first.id != second.id
    assert call_log.names == ["a", "b"]


def test_a_job_that_runs_is_in_the_way(app: Mainspring) -> None:
    ids: list[str] = []

    @app.job(unique="again")
    def again() -> None:
        ids.append(again.submit().id)

    with time_travel(app, start=START) as travel:
        ids.append(again.submit().id)
        travel.settle()
        assert total(app) == 1
    assert ids[0] == ids[1]


def test_a_job_that_waits_for_its_retry_is_in_the_way(app: Mainspring) -> None:
    @app.job(unique=Unique(by="number"), retry=Retry(base=60, jitter=0))
    def flaky(number: int) -> None:
        raise ValueError("no")

    with time_travel(app, start=START) as travel:
        first = flaky.submit(1)
        travel.settle()
        assert flaky.submit(1).id == first.id
        assert flaky.submit(2).id != first.id


def test_a_canceled_job_is_not_in_the_way(travel: TimeTravel, report: JobFunction[..., None]) -> None:
    nightly = report.options(unique="nightly", delay=60)
    first = nightly.submit("a")
    assert first.cancel()
    assert nightly.submit("b").id != first.id


def test_keys_by_argument_are_apart_and_without_a_key_all_arguments_count(
    app: Mainspring, travel: TimeTravel, report: JobFunction[..., None]
) -> None:
    by_tenant, by_all = (report.options(unique=Unique(by=by), delay=60) for by in ("tenant", None))
    a, b = by_tenant.submit("a"), by_tenant.submit("b")
    assert a.id != b.id
    assert by_tenant.submit("a", fails=True).id == a.id
    first = by_all.submit("a")
    assert by_all.submit("a", fails=True).id != first.id
    assert by_all.submit(tenant="a", fails=False).id == first.id
    assert total(app) == 4


def test_an_id_that_is_taken_is_an_error_however_unique_the_job(
    app: Mainspring, report: JobFunction[..., None]
) -> None:
    first = report.options(id="x").submit("a")
    with pytest.raises(DuplicateJob, match="'x' exists already") as caught:
        report.options(id="x", unique="nightly").submit("b")
    assert caught.value.existing_id == first.id
    assert total(app) == 1


def test_a_coroutine_gets_the_job_that_is_there_too(app: Mainspring, report: JobFunction[..., None]) -> None:
    nightly = report.options(unique="nightly", delay=60)

    async def submit() -> list[str]:
        return [(await nightly.submit_async(tenant)).id for tenant in "ab"]

    first, second = asyncio.run(submit())
    assert first == second
    with pytest.raises(DuplicateJob):
        asyncio.run(report.options(unique=Unique("nightly", on_conflict="raise")).submit_async("c"))
    assert total(app) == 1


# -- raise


def test_a_job_in_the_way_is_an_error_if_the_policy_says_so(
    app: Mainspring, report: JobFunction[..., None]
) -> None:
    strict = report.options(unique=Unique("nightly", on_conflict="raise"))
    first = strict.submit("a")
    with pytest.raises(DuplicateJob, match=r"has the unique key .* and nothing was stored") as e:
        strict.submit("b")
    assert (e.value.existing_id, e.value.key) == (first.id, "shop.report: nightly")
    assert [info.arguments for info in app.jobs()] == [{"tenant": "a"}]


# -- replace


def test_a_debounce_runs_once_with_the_last_arguments_after_the_last_delay(
    app: Mainspring, travel: TimeTravel, report: JobFunction[..., None], call_log: CallLog
) -> None:
    debounced = report.options(unique=Unique("save", on_conflict="replace"), delay=10, headers={"user": "1"})
    ids = set()
    for tenant in "abc":
        ids.add(debounced.submit(tenant).id)
        travel.fast_forward(4)
    travel.fast_forward(60)
    assert len(ids) == 1
    assert call_log.entries == [("c", 18)]
    assert total(app) == 1


def test_a_replacement_reaches_a_job_that_a_worker_holds_already(
    travel: TimeTravel, report: JobFunction[..., None], call_log: CallLog
) -> None:
    debounced = report.options(unique=Unique("save", on_conflict="replace"))
    debounced.after(0.5).submit("a")
    travel.settle()  # a worker takes jobs that are due within a second
    debounced.after(5).submit("b")
    travel.fast_forward(60)
    assert call_log.entries == [("b", 5)]


def test_a_job_that_runs_is_not_replaced(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job(unique=Unique("save", on_conflict="replace"))
    def save(number: int) -> None:
        seen.append(number)
        if number < 3:
            save.submit(number + 1)

    with time_travel(app, start=START) as travel:
        save.submit(1)
        travel.settle()
        assert app.counts()[JobStatus.COMPLETED] == 3
    assert seen == [1, 2, 3]


def test_a_snoozed_job_that_has_run_is_not_replaced(app: Mainspring) -> None:
    runs: list[str] = []

    @app.job(unique=Unique("save", on_conflict="replace"))
    def save(text: str) -> None:
        runs.append(text)
        if len(runs) == 1:
            raise Snooze(60)

    with time_travel(app, start=START) as travel:
        first = save.submit("first")
        travel.settle()
        second, third = save.after(5).submit("second"), save.after(5).submit("third")
        travel.fast_forward(60)
        assert (first.id == second.id, second.id == third.id) == (False, True)
    assert runs == ["first", "third", "first"]  # each job has run with the arguments with which it began


def test_a_replacement_takes_headers_and_expiry_along(travel: TimeTravel, app: Mainspring) -> None:
    @app.job(unique=Unique("save", on_conflict="replace"))
    def save() -> None: ...

    first = save.options(delay=60, headers={"user": "1"}, expires=5).submit()
    save.options(delay=30, headers={"user": "2"}).submit()
    record = app.manager().record(first.id)
    assert (record.headers, record.expires) == ({"user": "2"}, None)
    travel.fast_forward(30)
    assert first.status() is JobStatus.COMPLETED


def test_a_replacement_comes_under_the_limits_of_its_new_arguments(app: Mainspring) -> None:
    @app.job(
        name="shop.save", unique=Unique("save", on_conflict="replace"), concurrency=Concurrency(1, by="tenant")
    )
    def save(tenant: str) -> None: ...

    with time_travel(app, start=START):
        handle = save.after(60).submit("a")
        save.after(60).submit("b")
        limits = app.manager().record(handle.id).limits
    assert limits == (bucket_of("concurrency of handler shop.save", 'tenant="b"'),)


# -- windows and states


def test_a_window_keeps_the_key_for_a_time_after_the_submit(
    travel: TimeTravel, report: JobFunction[..., None], call_log: CallLog
) -> None:
    hourly = report.options(unique=Unique("hourly", window=3_600))
    first = hourly.submit("a")
    travel.fast_forward(minutes=59, seconds=59)
    assert first.status() is JobStatus.COMPLETED
    assert hourly.submit("b").id == first.id
    travel.fast_forward(1)
    assert hourly.submit("c").id != first.id
    travel.settle()
    assert call_log.entries == [("a", 0), ("c", 3_600)]


def test_a_window_lets_go_of_a_job_that_still_waits(travel: TimeTravel, report: JobFunction[..., None]) -> None:
    job = report.options(unique=Unique("k", window=10), delay=60)
    first = job.submit("a")
    travel.fast_forward(10)
    assert job.submit("b").id != first.id


def test_a_failed_job_is_in_the_way_only_if_its_state_is_named(
    travel: TimeTravel, report: JobFunction[..., None]
) -> None:
    careful = report.options(unique=Unique("k", states=(JobStatus.PENDING, JobStatus.FAILED)))
    first = careful.submit("a", fails=True)
    travel.settle()
    assert first.status() is JobStatus.FAILED
    assert careful.submit("b").id == first.id
    assert report.options(unique="k").submit("c").id != first.id


# -- many at once


def test_many_with_equal_keys_are_one_job_and_their_ids_say_which(
    app: Mainspring, report: JobFunction[..., None], travel: TimeTravel
) -> None:
    by_tenant = report.options(unique=Unique(by="tenant"), delay=60)
    first = by_tenant.submit("a").id
    ids = by_tenant.submit_many([("a",), ("b",), {"tenant": "b"}, {"tenant": "c"}])
    assert ids[0] == first
    assert ids[1] == ids[2]
    assert len(set(ids)) == 3
    assert total(app) == 3


def test_many_all_or_none_may_find_some_of_them_there(app: Mainspring, report: JobFunction[..., None]) -> None:
    by_tenant = report.options(unique=Unique(by="tenant"), delay=60)
    first = by_tenant.submit("a").id
    assert by_tenant.submit_many([("a",), ("b",)], atomic=True)[0] == first
    assert total(app) == 2


def test_a_strict_policy_tells_which_of_many_jobs_are_there(
    app: Mainspring, report: JobFunction[..., None]
) -> None:
    strict = report.options(unique=Unique(by="tenant", on_conflict="raise"), delay=60)
    strict.submit("a")
    with pytest.raises(PartialSubmit, match=r"unique keys exist already; on_conflict='return' returns") as caught:
        strict.submit_many([("a",), ("b",)])
    assert (len(caught.value.done), len(caught.value.failed)) == (1, 1)
    assert app.get(caught.value.done[0]).arguments == {"tenant": "b"}
    assert total(app) == 2


def test_all_or_none_and_a_strict_policy_contradict_each_other(
    app: Mainspring, report: JobFunction[..., None]
) -> None:
    strict = report.options(unique=Unique(by="tenant", on_conflict="raise"))
    with pytest.raises(ValueError, match="contradict each other; use on_conflict='return'"):
        strict.submit_many([("a",)], atomic=True)
    assert total(app) == 0


# -- dead letters


def test_a_dead_letter_is_not_retried_beside_the_job_that_has_its_key_now(
    app: Mainspring, travel: TimeTravel, report: JobFunction[..., None]
) -> None:
    nightly: Any = report.options(unique="nightly")
    letter = nightly.submit("a", fails=True)
    travel.settle()
    other = nightly.after(60).submit("b")
    problem = (
        f"job {other.id} has its unique key; only a job that .*, and whose unique key no other job has, allows"
    )
    with pytest.raises(InvalidTransition, match=problem):
        app.retry(letter.id)
    assert letter.status() is JobStatus.FAILED
    assert other.cancel()
    app.retry(letter.id)
    travel.settle()
    assert letter.info().starts == 2
