"""Functions that run when a worker starts and stops."""

import logging
from functools import partial
from threading import Event, get_ident

import pytest

from mainspring import JobStatus, Mainspring
from mainspring.testing import time_travel
from tests.support import PATIENCE
from tests.unit.jobs.call_log import START


def test_start_functions_run_before_the_first_job_and_stop_functions_after_the_last(app: Mainspring) -> None:
    seen: list[str] = []
    began = Event()

    @app.on_worker_start
    def connect() -> None:
        seen.append("connect")

    @app.on_worker_stop
    def disconnect() -> None:
        seen.append("disconnect")

    @app.job
    def work() -> None:
        began.set()
        seen.append("work")

    app.on_worker_start(partial(seen.append, "second"))
    app.grace = PATIENCE
    job = work.submit()
    with app.running():
        assert began.wait(PATIENCE)
    assert seen == ["connect", "second", "work", "disconnect"]
    assert job.status() is JobStatus.COMPLETED
    with app.running():
        pass
    assert seen[4:] == ["connect", "second", "disconnect"]


def test_they_run_on_the_thread_that_starts_and_stops_the_worker(app: Mainspring) -> None:
    threads: list[int] = []
    app.on_worker_start(lambda: threads.append(get_ident()))
    app.on_worker_stop(lambda: threads.append(get_ident()))
    with app.running():
        pass
    assert threads == [get_ident()] * 2


def test_a_decorated_function_stays_a_plain_function(app: Mainspring) -> None:
    @app.on_worker_start
    @app.on_worker_stop
    def answer() -> int:
        return 42

    assert answer() == 42


def test_a_process_that_only_submits_runs_none_of_them(app: Mainspring) -> None:
    seen: list[str] = []
    app.on_worker_start(lambda: seen.append("start"))
    app.on_worker_stop(lambda: seen.append("stop"))
    app.job(name="work")(lambda: None).submit()
    app.close()
    assert seen == []


def test_an_exception_of_a_start_function_keeps_the_worker_from_starting(app: Mainspring) -> None:
    seen: list[str] = []
    job = app.job(name="work")(lambda: None).submit()

    @app.on_worker_start
    def fail() -> None:
        raise OSError("no database")

    app.on_worker_start(lambda: seen.append("later"))
    app.on_worker_stop(lambda: seen.append("stop"))
    with pytest.raises(OSError, match="no database"), app.running():
        pass
    assert seen == []
    assert app.manager().engine.workers() == []
    assert job.status() is JobStatus.PENDING


def test_stop_functions_also_run_if_the_worker_fails_to_start_after_its_start_functions(
    app: Mainspring, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    app.on_worker_start(lambda: seen.append("start"))
    app.on_worker_stop(lambda: seen.append("stop"))

    def fail(_worker: object) -> int:
        raise RuntimeError("no room")

    monkeypatch.setattr(app.manager().engine, "enroll", fail)
    with pytest.raises(RuntimeError, match="no room"), app.running():
        pass
    assert seen == ["start", "stop"]


def test_an_exception_of_a_stop_function_is_logged_and_the_others_run(
    app: Mainspring, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    @app.on_worker_stop
    def flush() -> None:
        raise OSError("gone")

    app.on_worker_stop(lambda: seen.append("after"))
    with caplog.at_level(logging.ERROR, "mainspring.worker"), app.running():
        pass
    assert seen == ["after"]
    (record,) = caplog.records
    assert "flush, which runs when the worker stops, has failed; the worker stops" in record.getMessage()
    assert record.exc_info is not None


def test_they_run_in_time_travel(app: Mainspring) -> None:
    seen: list[str] = []
    app.on_worker_start(lambda: seen.append("start"))
    app.on_worker_stop(lambda: seen.append("stop"))
    with time_travel(app, start=START):
        assert seen == ["start"]
    assert seen == ["start", "stop"]


def test_what_cannot_be_called_without_arguments_is_refused(app: Mainspring) -> None:
    async def connect() -> None: ...

    def needs_more(url: str) -> None: ...

    with pytest.raises(TypeError, match=r"connect is a coroutine function; call asyncio\.run"):
        app.on_worker_start(connect)
    with pytest.raises(TypeError, match=r"needs_more is called without arguments.*url"):
        app.on_worker_stop(needs_more)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="decorates a function and has no options, got 5"):
        app.on_worker_start(5)  # type: ignore[type-var]
