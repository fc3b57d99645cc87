"""A cancel waits until the store has committed it: how long, and without blocking an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mainspring import EngineUnavailable, JobNotFound, JobStatus, Mainspring, ThreadPool
from mainspring.jobs import JobManager
from tests.support import PATIENCE, Gate
from tests.unit.jobs.scripted_engines import (
    ENGINES,
    GatedEngine,
    blocked_store,
    make_engine,
    manager_on_one_pool,
)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> GatedEngine:
    return make_engine(request.param, tmp_path)


@pytest.fixture
def manager(engine: GatedEngine) -> Iterator[JobManager]:
    pool = ThreadPool(4)
    manager = manager_on_one_pool(pool, engine)
    manager.register("ping", lambda: None)
    manager.start()
    yield manager
    manager.close(0)
    pool.shutdown(timeout=0)


@pytest.mark.parametrize("timeout", [0, 0.01, timedelta(milliseconds=1)], ids=str)
def test_a_cancel_that_times_out_is_queued_and_takes_effect(
    engine: GatedEngine, manager: JobManager, timeout: float | timedelta
) -> None:
    job = manager.submit("ping", delay=3600)
    with blocked_store(engine, manager):
        with pytest.raises(TimeoutError, match=rf"job '{job}' is canceled; the request is queued and may still"):
            manager.cancel(job, timeout=timeout)
        assert manager.get(job).status is JobStatus.PENDING
    assert manager.cancel(job, timeout=PATIENCE) is False  # the first one has canceled it
    assert manager.get(job).status is JobStatus.CANCELED


def test_a_cancel_that_the_store_answers_in_time_has_its_answer(manager: JobManager) -> None:
    job = manager.submit("ping", delay=3600)
    assert manager.cancel(job, timeout=PATIENCE) is True
    assert manager.cancel(job, timeout=timedelta.max) is False
    with pytest.raises(JobNotFound):
        manager.cancel("order-42", timeout=PATIENCE)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), ("soon", TypeError)])
def test_a_timeout_that_is_none_is_refused_before_anything_is_queued(
    manager: JobManager, timeout: float, error: type[Exception]
) -> None:
    job = manager.submit("ping", delay=3600)
    with pytest.raises(error, match="timeout"):
        manager.cancel(job, timeout=timeout)
    assert manager.get(job).status is JobStatus.PENDING


def test_an_awaited_cancel_has_the_same_answers(manager: JobManager) -> None:
    async def cancel() -> list[bool]:
        return [await manager.cancel_async(job), await manager.cancel_async(job)]

    job = manager.submit("ping", delay=3600)
    assert asyncio.run(cancel()) == [True, False]
    with pytest.raises(JobNotFound):
        asyncio.run(manager.cancel_async("order-42"))


def test_an_awaited_cancel_leaves_the_event_loop_free(engine: GatedEngine, manager: JobManager) -> None:
    async def cancel(gate: Gate) -> bool:
        waiting = asyncio.create_task(manager.cancel_async(job))
        await asyncio.sleep(0)  # the task has begun, and the loop goes on
        assert not waiting.done()
        gate.open()
        return await waiting

    job = manager.submit("ping", delay=3600)
    with blocked_store(engine, manager) as gate:
        assert asyncio.run(cancel(gate)) is True


def test_an_awaited_cancel_that_is_given_up_is_queued_and_takes_effect(
    engine: GatedEngine, manager: JobManager
) -> None:
    async def cancel() -> None:
        async with asyncio.timeout(0):
            await manager.cancel_async(job)

    job = manager.submit("ping", delay=3600)
    with blocked_store(engine, manager), pytest.raises(TimeoutError):
        asyncio.run(cancel())
    assert manager.cancel(job) is False
    assert manager.get(job).status is JobStatus.CANCELED


@pytest.mark.parametrize("url", ["memory://", "sqlite:///jobs.db"])
def test_applications_and_handles_cancel_likewise(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Mainspring(url) as app:

        @app.job
        def ping() -> None: ...

        jobs = [ping.after(3600).submit() for _ in range(4)]
        answers = [
            app.cancel(jobs[0].id, timeout=PATIENCE),
            jobs[1].cancel(timeout=PATIENCE),
            asyncio.run(app.cancel_async(jobs[2].id)),
            asyncio.run(jobs[3].cancel_async()),
        ]
        assert answers == [True] * 4
        assert app.counts() == app.counts() | {"CANCELED": 4}


def test_an_awaited_cancel_opens_the_store_without_blocking_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Mainspring("sqlite:///jobs.db")
    opening = Gate()
    make_engine = app.make_engine

    def wait_and_make(*arguments: object, **options: object) -> object:
        opening()
        return make_engine(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(app, "make_engine", wait_and_make)

    async def cancel() -> None:
        waiting = asyncio.create_task(app.cancel_async("order-42"))
        await asyncio.to_thread(opening.wait_until_entered)
        opening.open()  # by the loop, which is free
        await waiting

    with app, pytest.raises(JobNotFound):
        asyncio.run(cancel())


def test_an_awaited_cancel_of_a_closed_manager_is_refused(manager: JobManager) -> None:
    manager.close()
    with pytest.raises(EngineUnavailable, match="the job manager is closed"):
        asyncio.run(manager.cancel_async("order-42"))
