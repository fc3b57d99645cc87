"""Inline mode: a job, and all that follows from it, has run when its submit returns."""

import asyncio
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest

from mainspring import (
    Cancel,
    JobFailed,
    JobStatus,
    Mainspring,
    Middleware,
    PartialSubmit,
    Rate,
    Retry,
    Snooze,
    Unique,
    current_job,
)
from mainspring.testing import inline

# -- running


def test_a_job_has_run_when_its_submit_returns_whatever_its_delay(app: Mainspring) -> None:
    @app.job
    def double(number: int) -> int:
        return 2 * number

    with inline(app) as travel:
        start = travel.now
        handle = double.after(timedelta(days=30)).submit(21)
        assert handle.result() == 42
        assert travel.now - start == timedelta(days=30)


def test_the_clock_moves_no_further_than_it_has_to(app: Mainspring) -> None:
    job = app.job(name="ping")(lambda: None)
    with inline(app) as travel:
        start = travel.now
        job.submit()
        assert travel.now == start


def test_jobs_run_in_the_order_of_their_due_times(app: Mainspring) -> None:
    seen: list[tuple[str, float]] = []

    with inline(app) as travel:
        start = travel.now

        @app.job
        def note(name: str) -> None:
            seen.append((name, (travel.now - start).total_seconds()))

        @app.job
        def begin() -> None:
            note.after(3_600).submit("last")
            note.after(60).submit("second")
            note.submit("first")

        begin.submit()
    assert seen == [("first", 0), ("second", 60), ("last", 3_600)]


def test_what_a_job_submits_has_run_too(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job
    def count_down(number: int) -> None:
        seen.append(number)
        if number:
            count_down.after(86_400).submit(number - 1)

    with inline(app):
        count_down.submit(5)
        assert seen == [5, 4, 3, 2, 1, 0]


def test_follow_ups_have_run_too(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job
    def store(number: int) -> None:
        seen.append(number)

    @app.job(then=store.after(60))
    def compute() -> int:
        return 42

    with inline(app):
        compute.submit()
        assert seen == [42]


def test_retries_and_snoozes_are_over(app: Mainspring) -> None:
    attempts: list[int] = []

    @app.job(retry=Retry(max_attempts=3, base=60, jitter=0))
    def third_time_lucky() -> str:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise Snooze(3_600)
        if len(attempts) < 4:
            raise ConnectionError("away")
        return "done"

    with inline(app):
        assert third_time_lucky.submit().result() == "done"
    assert attempts == [1, 1, 2, 3]


def test_many_jobs_have_run_when_their_submit_returns(app: Mainspring) -> None:
    seen: list[int] = []
    job = app.job(name="note")(seen.append)
    with inline(app):
        job.after(60).submit_many([(number,) for number in range(100)])
        assert sorted(seen) == list(range(100))


def test_an_asynchronous_submit_is_inline_too(app: Mainspring) -> None:
    @app.job
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def code_under_test() -> int:
        handle = await double.after(60).submit_async(21)
        return handle.result()

    with inline(app):
        assert asyncio.run(code_under_test()) == 42


def test_submits_of_several_threads_are_each_inline(app: Mainspring) -> None:
    @app.job
    def double(number: int) -> int:
        return 2 * number

    results: dict[int, int] = {}

    def code_under_test(number: int) -> None:
        results[number] = double.after(number).submit(number).result()

    with inline(app):
        threads = [Thread(target=code_under_test, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {number: 2 * number for number in range(8)}


def test_jobs_under_a_rate_have_run_as_fast_as_it_allows(app: Mainspring) -> None:
    @app.job(rate=Rate(2, per=60))
    def limited(number: int) -> None: ...

    with inline(app) as travel:
        start = travel.now
        limited.submit_many([(number,) for number in range(6)])
        assert app.counts()[JobStatus.COMPLETED] == 6
        assert timedelta(seconds=60) <= travel.now - start <= timedelta(seconds=180)


def test_jobs_that_expire_have_run_on_time(app: Mainspring) -> None:
    @app.job(expires=1)
    def brief() -> None: ...

    with inline(app):
        assert brief.after(timedelta(days=1)).submit().status() is JobStatus.COMPLETED


def test_schedules_stand_still(app: Mainspring) -> None:
    seen: list[str] = []

    @app.every(1)
    def tick() -> None:
        seen.append("tick")

    job = app.job(name="note")(lambda: seen.append("job"))
    with inline(app):
        job.after(timedelta(days=365)).submit()
        app.schedules.put("another", tick, "* * * * * *")
        job.after(timedelta(days=365)).submit()
    assert seen == ["job", "job"]


def test_a_job_that_cannot_run_stays_as_it_is(app: Mainspring) -> None:
    job = app.job(name="ping", queue="orders")(lambda: None)
    with inline(app):
        app.queue("orders").pause()
        handle = job.after(60).submit()
        assert handle.status() is JobStatus.PENDING
        app.queue("orders").resume()
        assert job.submit().status() is JobStatus.COMPLETED
        assert handle.status() is JobStatus.COMPLETED


def test_the_store_of_the_application_is_not_touched(tmp_path: Path) -> None:
    app = Mainspring(f"sqlite:///{tmp_path / 'orders.db'}")
    job = app.job(name="ping")(lambda: None)
    with inline(app):
        job.submit()
    assert list(tmp_path.iterdir()) == []


# -- raising


def test_a_failure_stays_with_the_job_unless_asked_for(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def fail() -> None:
        raise ValueError("no")

    with inline(app):
        assert fail.submit().status() is JobStatus.FAILED


def test_the_submitter_gets_what_the_handler_raised(app: Mainspring) -> None:
    errors = [KeyError("first"), KeyError("second")]

    @app.job(retry=Retry(max_attempts=2, jitter=0))
    def fail() -> None:
        raise errors[current_job().attempt - 1]

    with inline(app, raises=True), pytest.raises(KeyError) as caught:
        fail.submit()
    assert caught.value is errors[0]


def test_the_submitter_gets_what_a_coroutine_raised(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def fail() -> None:
        raise LookupError("no")

    async def code_under_test() -> None:
        with pytest.raises(LookupError, match="no"):
            await fail.submit_async()

    with inline(app, raises=True):
        asyncio.run(code_under_test())


def test_the_first_failure_of_many_is_raised_after_all_have_run(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job(retry=Retry(max_attempts=1))
    def odd_only(number: int) -> None:
        seen.append(number)
        if number % 2 == 0:
            raise ValueError(f"{number} is even")

    with inline(app, raises=True), pytest.raises(ValueError, match="2 is even"):
        odd_only.submit_many([(1,), (2,), (3,), (4,)])
    assert sorted(seen) == [1, 2, 3, 4]


def test_each_job_of_a_batch_raises_what_its_call_raised(app: Mainspring) -> None:
    @app.job(batch=10, retry=Retry(max_attempts=1))
    def together(numbers: list[int]) -> None:
        raise ArithmeticError(f"{len(numbers)} of them")

    with inline(app, raises=True), pytest.raises(ArithmeticError):
        together.submit(1)


def test_a_job_that_a_retry_has_helped_has_not_failed(app: Mainspring) -> None:
    @app.job
    def second_time() -> str:
        if current_job().attempt == 1:
            raise ConnectionError("away")
        return "done"

    with inline(app, raises=True):
        assert second_time.submit().result() == "done"


def test_a_job_that_cancels_itself_has_not_failed(app: Mainspring) -> None:
    @app.job
    def never_mind() -> None:
        raise Cancel("paid meanwhile")

    with inline(app, raises=True):
        assert never_mind.submit().status() is JobStatus.CANCELED


def test_a_failure_without_an_exception_is_raised_in_words(app: Mainspring) -> None:
    @app.job
    def unstorable() -> object:
        return object()

    with inline(app, raises=True), pytest.raises(JobFailed, match="cannot be stored"):
        unstorable.submit()


def test_a_handler_is_not_told_of_the_failure_of_its_own_submits(app: Mainspring) -> None:
    @app.job(retry=Retry(max_attempts=1))
    def fail() -> None:
        raise ValueError("no")

    @app.job
    def parent() -> str:
        fail.submit()
        return "done"

    with inline(app, raises=True):
        assert parent.submit().result() == "done"
        assert app.counts()[JobStatus.FAILED] == 1


def test_middleware_of_the_application_is_around_the_attempts(app: Mainspring) -> None:
    class Forgiving(Middleware):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def attempting(self, job):  # type: ignore[no-untyped-def]
            self.seen.append(job.type)
            return pytest.raises(ValueError, match="no")

    middleware = app.middleware(Forgiving())

    @app.job(name="fail")
    def fail() -> None:
        raise ValueError("no")

    with inline(app, raises=True):
        assert fail.submit().status() is JobStatus.COMPLETED
    assert middleware.seen == ["fail"]


def test_what_a_bulk_submit_has_stored_runs_even_if_not_all_was(app: Mainspring) -> None:
    seen: list[int] = []

    @app.job(unique=Unique(on_conflict="raise"))
    def note(number: int) -> None:
        seen.append(number)

    with inline(app), pytest.raises(PartialSubmit):
        note.submit_many([(1,), (1,), (2,)])
    assert sorted(seen) == [1, 2]


# -- jobs without an end


def test_a_job_that_snoozes_for_ever_is_named(app: Mainspring) -> None:
    @app.job(name="shop.poll")
    def poll() -> None:
        raise Snooze(60)

    with inline(app, steps=20), pytest.raises(RuntimeError, match=r"20 steps.*shop\.poll.*time_travel"):
        poll.submit()


def test_a_job_that_submits_itself_with_a_delay_for_ever_is_named(app: Mainspring) -> None:
    @app.job(name="shop.again")
    def again() -> None:
        again.after(60).submit()

    with inline(app, steps=20), pytest.raises(RuntimeError, match=r"20 steps.*shop\.again"):
        again.submit()


def test_a_job_that_submits_itself_at_once_for_ever_is_named(app: Mainspring) -> None:
    @app.job(name="shop.again")
    def again() -> None:
        again.submit()

    with inline(app, steps=20), pytest.raises(RuntimeError, match=r"at one instant.*shop\.again"):
        again.submit()


def test_a_job_may_submit_more_jobs_than_there_are_steps(app: Mainspring) -> None:
    job = app.job(name="leaf")(lambda number: None)

    @app.job
    def parent() -> None:
        for number in range(200):
            job.submit(number)

    with inline(app, steps=5):
        parent.submit()
        assert app.counts()[JobStatus.COMPLETED] == 201


def test_as_many_steps_as_jobs_are_enough(app: Mainspring) -> None:
    @app.job
    def ship() -> None: ...

    with inline(app, steps=1):
        handle = ship.after(60).submit()
        assert handle.status() is JobStatus.COMPLETED


def test_steps_must_be_a_positive_number(app: Mainspring) -> None:
    with pytest.raises(ValueError, match="steps"), inline(app, steps=0):
        pass
