"""`@app.on_dead_letter`: a handler gets each dead letter as a job, stored when the other job is given up."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import (
    Concurrency,
    DeadLetter,
    JobInfo,
    JobStatus,
    Mainspring,
    Priority,
    Rate,
    Retry,
    current_job,
)
from mainspring.jobs.commands import DropDeadLetterHandler, PutDeadLetterHandler
from mainspring.jobs.records import NewJob
from mainspring.testing import TimeTravel, every_crash, inline, time_travel
from tests.support import PATIENCE, eventually
from tests.unit.jobs.call_log import START

pytestmark = pytest.mark.long

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE = Retry(max_attempts=1)


def fail(order: int) -> None:
    raise ValueError(f"no order {order}")


# -- causes


def test_a_handler_gets_a_snapshot_of_each_dead_letter(app: Mainspring) -> None:
    seen: list[DeadLetter] = []

    @app.on_dead_letter
    def alert(letter: DeadLetter) -> None:
        seen.append(letter)

    failing = app.job(name="shop.fail", queue="orders", retry=Retry(max_attempts=2, base=60, jitter=0))(fail)
    with time_travel(app, start=START) as travel:
        handle = failing.options(headers={"user": "7"}).submit(42)
        travel.settle()
        assert seen == []
        travel.fast_forward(60)
        info = app.get(handle.id)
    (letter,) = seen
    assert (letter.id, letter.type, letter.queue) == (handle.id, "shop.fail", "orders")
    assert letter.reason == "ValueError: no order 42"
    assert letter.error == info.error
    assert "Traceback" in letter.error or "line" in letter.error
    assert (letter.starts, letter.failures, letter.timeouts, letter.crashes) == (2, 2, 0, 0)
    assert (letter.created, letter.due, letter.finished) == (info.created, info.due, info.finished)
    assert letter.headers == {"user": "7"}


def test_expired_jobs_and_arguments_that_do_not_fit_reach_the_handler_too(app: Mainspring) -> None:
    reasons: list[str] = []

    @app.on_dead_letter
    def alert(letter: DeadLetter) -> None:
        reasons.append(letter.reason.partition(":")[0])

    @app.job(expires=5)
    def late() -> None: ...

    @app.job(name="changed")
    def changed(order: int) -> None: ...

    with time_travel(app, start=START) as travel:
        app.queue("default").pause()
        late.submit()
        engine = app.manager().engine
        engine.submit([NewJob("old", changed.name, "default", 1, engine.now(), b'{"number": 1}', "json")])
        travel.fast_forward(10)
        app.queue("default").resume()
        travel.settle()
        assert app.counts()["FAILED"] == 2
    assert sorted(reasons) == ["InvalidArguments", "expired"]


def test_canceled_and_retried_jobs_do_not_reach_the_handler(app: Mainspring) -> None:
    seen: list[DeadLetter] = []
    app.on_dead_letter(_appender(seen))
    failing = app.job(name="fail", retry=Retry(max_attempts=3, base=60, jitter=0))(fail)
    with time_travel(app, start=START) as travel:
        handle = failing.submit(1)
        travel.settle()
        assert handle.cancel()
        travel.fast_forward(days=1)
    assert seen == []


def _appender(seen: list[DeadLetter]) -> Any:
    def alert(letter: DeadLetter) -> None:
        seen.append(letter)

    return alert


# -- how it is declared


def test_an_unannotated_parameter_is_a_dead_letter_and_a_string_is_its_id(app: Mainspring) -> None:
    seen: list[Any] = []

    @app.on_dead_letter
    def with_letter(letter):  # type: ignore[no-untyped-def]
        seen.append((type(letter), letter.id))

    @app.on_dead_letter
    def with_id(job_id: str, note: str = "") -> None:
        seen.append((str, job_id))

    @app.on_dead_letter
    def with_nothing() -> None:
        seen.append((None, current_job().headers["mainspring-dead-letter"]))

    @app.on_dead_letter
    async def with_coroutine(letter: DeadLetter) -> None:
        seen.append((type(letter), letter.id))

    failing = app.job(name="fail", retry=ONE)(fail)
    with time_travel(app, start=START) as travel:
        handle = failing.submit(1)
        travel.settle()
        assert app.dead_letters.handlers() == sorted(
            job.name for job in (with_letter, with_id, with_nothing, with_coroutine)
        )
    expected = [(DeadLetter, handle.id), (str, handle.id), (None, handle.id), (DeadLetter, handle.id)]
    assert sorted(seen, key=repr) == sorted(expected, key=repr)


def test_a_handler_has_options_of_its_own(app: Mainspring, travel: TimeTravel) -> None:
    runs: list[int] = []

    @app.on_dead_letter
    @app.job(
        queue="alerts",
        priority=Priority.USER_BLOCKING,
        retry=Retry(max_attempts=3, base=60, jitter=0),
        rate=Rate(1),
    )
    def alert(letter: DeadLetter) -> None:
        runs.append(current_job().attempt)
        if len(runs) == 1:
            raise ConnectionError("no network")

    app.on_dead_letter(app.job(name="late")(_appender([])).options(delay=3600))
    app.job(name="fail", retry=ONE)(fail).submit(1)
    travel.settle()
    (job,) = app.jobs(type=alert.name)
    assert (job.queue, job.priority, job.status) == ("alerts", Priority.USER_BLOCKING, JobStatus.PENDING)
    (late,) = app.jobs(type="late")
    assert late.due - late.created == timedelta(hours=1)
    travel.fast_forward(60)
    assert runs == [1, 2]
    assert app.get(job.id).status is JobStatus.COMPLETED


def test_a_decorated_handler_can_be_called_and_submitted(app: Mainspring) -> None:
    seen: list[str] = []

    @app.on_dead_letter
    def alert(job_id: str) -> None:
        seen.append(job_id)

    alert("called")
    with inline(app):
        alert.submit("submitted")
    assert seen == ["called", "submitted"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda letter, channel: None, "its other parameters need defaults"),
        (eval("lambda *, letter: None"), "annotate its first parameter"),
    ],
    ids=["two parameters", "no annotation"],
)
def test_a_handler_that_cannot_take_a_dead_letter_is_refused(app: Mainspring, function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        app.on_dead_letter(function)
    assert app.dead_letters.handlers() == []


def test_a_handler_of_another_type_is_refused(app: Mainspring) -> None:
    def with_info(letter: JobInfo) -> None: ...

    def with_number(letter: int) -> None: ...

    def unannotated(letter):  # type: ignore[no-untyped-def]
        ...

    for function in (with_info, with_number):
        with pytest.raises(TypeError, match=r"mainspring\.DeadLetter, or with str.*app\.get\(letter\.id\)"):
            app.on_dead_letter(function)
    with pytest.raises(TypeError, match=r"mainspring\.DeadLetter"):  # @app.job has decided that it takes anything
        app.on_dead_letter(app.job(name="unannotated")(unannotated))

    def many(letters: list[DeadLetter]) -> None: ...

    with pytest.raises(TypeError, match="leave batch= out"):
        app.on_dead_letter(app.job(name="many", batch=10)(many))

    def limited(letter: DeadLetter) -> None: ...

    with pytest.raises(ValueError, match=r"is by letter.*leave by= out"):
        app.on_dead_letter(app.job(name="limited", concurrency=Concurrency(1, by="letter"))(limited))


def test_a_handler_that_is_declared_while_a_worker_runs_gets_dead_letters(
    app: Mainspring, travel: TimeTravel
) -> None:
    seen: list[DeadLetter] = []
    app.on_dead_letter(_appender(seen))
    handle = app.job(name="fail", retry=ONE)(fail).submit(1)
    travel.settle()
    assert [letter.id for letter in seen] == [handle.id]


# -- loops


def test_a_handler_that_fails_makes_no_loop(app: Mainspring, travel: TimeTravel) -> None:
    runs: list[str] = []

    @app.on_dead_letter
    @app.job(retry=ONE)
    def alert(letter: DeadLetter) -> None:
        runs.append(letter.id)
        raise ConnectionError("no network")

    handle = app.job(name="fail", retry=ONE)(fail).submit(1)
    travel.fast_forward(days=1)
    assert runs == [handle.id]
    assert sorted(info.type for info in app.dead_letters.list()) == sorted(["fail", alert.name])


def test_two_handlers_that_fail_make_no_loop(app: Mainspring, travel: TimeTravel) -> None:
    runs: list[str] = []
    for name in ("one", "two"):

        @app.on_dead_letter
        @app.job(name=name, retry=ONE)
        def alert(letter: DeadLetter) -> None:
            runs.append(current_job().type)
            raise ConnectionError("no network")

    app.job(name="fail", retry=ONE)(fail).submit(1)
    travel.fast_forward(days=1)
    assert sorted(runs) == ["one", "two"]


def test_what_a_handler_submits_and_what_follows_it_makes_no_loop(app: Mainspring, travel: TimeTravel) -> None:
    failing = app.job(name="fail", retry=ONE)(fail)
    runs: list[str] = []

    @app.on_dead_letter
    @app.job(then=failing)
    def alert(letter: DeadLetter) -> int:
        runs.append(letter.id)
        failing.submit(2)
        return 3

    handle = failing.submit(1)
    travel.fast_forward(days=1)
    assert runs == [handle.id]
    assert len(app.dead_letters.list(type="fail")) == 3


# -- the store


def test_any_worker_of_the_store_makes_the_jobs(app: Mainspring, url: str) -> None:
    """A worker whose code does not have the handler gives a job up."""
    app.on_dead_letter(app.job(name="alert")(_appender([])))
    with app.running():
        pass
    app.registry._handlers.pop("alert")
    app.dead_letter_handlers._declared.clear()
    failing = app.job(name="fail", retry=ONE)(fail)
    with app.running():
        assert failing.submit(1).wait(PATIENCE) is JobStatus.FAILED
    (alert,) = app.jobs(type="alert")
    assert alert.status is JobStatus.PENDING


def test_a_handler_whose_function_is_gone_is_named_in_the_log_with_the_remedy(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    app.on_dead_letter(app.job(name="alert")(_appender([])))
    with app.running():
        pass
    app.registry._handlers.pop("alert")
    app.dead_letter_handlers._declared.clear()
    with caplog.at_level(logging.WARNING, "mainspring.worker"), app.running():
        pass
    (message,) = (message for message in caplog.messages if "dead letter" in message)
    assert message.endswith("call app.dead_letters.remove_handler('alert')")
    assert app.dead_letters.remove_handler("alert")
    assert not app.dead_letters.remove_handler("alert")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "mainspring.worker"), app.running():
        pass
    assert caplog.messages == []


def test_a_function_that_is_no_dead_letter_handler_any_more_gets_no_more(app: Mainspring) -> None:
    app.on_dead_letter(app.job(name="alert")(_appender([])))
    with app.running():
        assert app.dead_letters.handlers() == ["alert"]
    app.dead_letter_handlers._declared.clear()  # the decorator was removed, and the job stays
    with app.running():
        assert app.dead_letters.handlers() == []


def test_storing_handlers_again_writes_nothing(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    app.on_dead_letter(app.job(name="alert")(_appender([])))
    with app.running():
        pass
    arranged: list[Any] = []
    engine = app.manager().engine
    arrange = engine.arrange

    def record(changes: Any) -> list[bool]:
        arranged.extend(changes)
        return arrange(changes)

    monkeypatch.setattr(engine, "arrange", record)
    with app.running():
        pass
    assert not any(isinstance(change, PutDeadLetterHandler | DropDeadLetterHandler) for change in arranged)


# -- crashes


def test_no_crash_misses_a_dead_letter_or_tells_of_one_that_is_none(app: Mainspring) -> None:
    told: list[str] = []

    @app.on_dead_letter
    def alert(job_id: str) -> None:
        told.append(job_id)

    failing = app.job(name="fail", retry=ONE)(fail)
    number = 0
    for crash in every_crash(app, lambda: failing.submit(1), prepare=told.clear, start=NOON):
        with crash.recovered():
            letters = [info.id for info in app.dead_letters.list(type="fail")]
            jobs = list(app.jobs(type=alert.name))
            assert len(jobs) == len(letters), "a dead letter without its job, or a job without its dead letter"
            assert set(told) <= set(letters)
            assert all(info.status is JobStatus.COMPLETED for info in jobs)
            assert set(letters) <= set(told)
        number += 1
    assert number > 10


def test_no_crash_of_a_job_that_runs_at_most_once_goes_untold(tmp_path: Any) -> None:
    told: list[str] = []
    with Mainspring(f"sqlite:///{tmp_path / 'jobs.db'}") as app:

        @app.on_dead_letter
        def alert(job_id: str) -> None:
            told.append(job_id)

        @app.job(at_most_once=True)
        def charge() -> None: ...

        given_up = 0
        for crash in every_crash(app, charge.submit, prepare=told.clear, start=NOON):
            with crash.recovered():
                letters = [info.id for info in app.dead_letters.list(type=charge.name)]
                assert set(told) == set(letters)
                given_up += len(letters)
        assert given_up > 0


def test_dead_letters_reach_the_handler_on_real_time(app: Mainspring) -> None:
    seen: list[DeadLetter] = []
    app.on_dead_letter(_appender(seen))
    failing = app.job(name="fail", retry=ONE)(fail)
    with app.running():
        ids = failing.submit_many([(number,) for number in range(50)])
        assert eventually(lambda: len(seen) == 50)
    assert {letter.id for letter in seen} == set(ids)
