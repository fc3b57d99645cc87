"""Bulk submits: checked as a whole, stored in chunks, honest about what was not stored."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mainspring import (
    ArgumentsTooLarge,
    EngineUnavailable,
    InvalidArguments,
    JobFunction,
    JobStatus,
    Mainspring,
    PartialSubmit,
    Priority,
)
from mainspring.jobs import JobManager
from mainspring.jobs.records import NewJob
from mainspring.jobs.submission import CHUNK
from mainspring.jobs.submit_options import SubmitOptions
from mainspring.runners import ThreadPool
from mainspring.testing import ManualClock
from tests.unit.jobs.scripted_engines import ScriptedEngine

NOON = datetime(2030, 3, 1, 12, tzinfo=UTC)


def test_one_of_many_that_is_too_large_stores_none(url: str) -> None:
    with Mainspring(url, max_payload=100) as app:

        @app.job
        def handler(text: str) -> None: ...

        with pytest.raises(ArgumentsTooLarge):
            handler.submit_many([("x",), ("x" * 200,)])
        assert app.counts()[JobStatus.PENDING] == 0


def test_many_jobs_are_stored_in_order(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    ids = cancel_order.submit_many([{"order_id": 1}, (2,), (3, "late"), {"order_id": 4, "reason": "x"}])
    assert [app.get(job_id).arguments for job_id in ids] == [
        {"order_id": 1},
        {"order_id": 2},
        {"order_id": 3, "reason": "late"},
        {"order_id": 4, "reason": "x"},
    ]
    assert [info.id for info in app.jobs()] == ids == sorted(ids)


def test_many_jobs_may_come_from_a_generator(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    cancel_order.submit_many((number,) for number in range(12_001))
    assert app.counts()[JobStatus.PENDING] == 12_001


@pytest.mark.parametrize("atomic", [False, True])
def test_no_jobs_are_fine(cancel_order: JobFunction[..., None], *, atomic: bool) -> None:
    assert cancel_order.submit_many([], atomic=atomic) == []


def test_many_jobs_take_the_options_of_their_variant(
    app: Mainspring, cancel_order: JobFunction[..., None]
) -> None:
    variant = cancel_order.options(at=NOON, queue="slow", priority=Priority.BEST_EFFORT)
    found = [app.get(job_id) for job_id in variant.submit_many([(1,), (2,)])]
    assert {(info.due, info.queue, info.priority) for info in found} == {(NOON, "slow", Priority.BEST_EFFORT)}


def test_many_jobs_cannot_have_one_id(cancel_order: JobFunction[..., None]) -> None:
    with pytest.raises(ValueError, match=r"submit_many\(\) makes the ids itself"):
        cancel_order.options(id="order-42").submit_many([(1,), (2,)])


@pytest.mark.parametrize("bad", [("x",), {"order_id": None}, {"oder_id": 1}, 7], ids=repr)
def test_all_are_checked_before_the_first_is_stored(
    app: Mainspring, cancel_order: JobFunction[..., None], bad: Any
) -> None:
    with pytest.raises(InvalidArguments):
        cancel_order.submit_many([(number,) for number in range(CHUNK + 1)] + [bad])
    assert app.counts()[JobStatus.PENDING] == 0


def test_all_or_none_are_stored_atomically(app: Mainspring, cancel_order: JobFunction[..., None]) -> None:
    cancel_order.submit_many([(number,) for number in range(CHUNK + 1)], atomic=True)
    assert app.counts()[JobStatus.PENDING] == CHUNK + 1


class FailingManager:
    """A manager whose store refuses chosen chunks of a bulk submit."""

    def __init__(self, bad: set[int]) -> None:
        self._calls = 0
        self._bad = bad
        self.stored: list[str] = []
        engine = ScriptedEngine(clock=ManualClock())
        original = engine.submit

        def submit(jobs: list[NewJob]) -> Any:
            call, self._calls = self._calls, self._calls + 1
            if call in self._bad:
                raise EngineUnavailable(engine="test", reason="the disk is full", remedy="make room")
            self.stored += [job.id for job in jobs]
            return original(jobs)

        engine.submit = submit  # type: ignore[method-assign]
        self.pool = ThreadPool(2)
        self.manager = JobManager(
            control=self.pool.sequenced(), io=self.pool.sequenced(), execution=self.pool, engine=engine
        )
        self.handler = self.manager.register("ping", _ping)

    def submit_many(self, count: int, *, atomic: bool = False) -> list[str]:
        arguments = ((number,) for number in range(count))
        return self.manager.submission.submit_many(self.handler, SubmitOptions(), arguments, atomic=atomic)


def _ping(number: int) -> None: ...


@pytest.fixture
def failing() -> Iterator[Any]:
    made: list[FailingManager] = []

    def make(*bad: int) -> FailingManager:
        made.append(FailingManager(set(bad)))
        return made[-1]

    yield make
    for manager in made:
        manager.pool.shutdown()


def test_a_store_that_fails_on_the_way_tells_what_was_stored(failing: Any) -> None:
    manager = failing(2)
    with pytest.raises(PartialSubmit, match="the disk is full") as caught:
        manager.submit_many(5 * CHUNK)
    assert sorted(caught.value.done) == sorted(manager.stored)
    assert set(caught.value.done).isdisjoint(caught.value.failed)
    assert len(caught.value.done) + len(caught.value.failed) == 5 * CHUNK


def test_a_store_that_fails_at_the_first_chunk_may_have_stored_a_later_one(failing: Any) -> None:
    manager = failing(0)
    with pytest.raises(PartialSubmit) as caught:
        manager.submit_many(3 * CHUNK)
    assert sorted(caught.value.done) == sorted(manager.stored)
    assert len(caught.value.failed) >= CHUNK


def test_what_failed_is_in_the_order_of_the_arguments(failing: Any) -> None:
    with pytest.raises(PartialSubmit) as caught:
        failing(0, 1, 2, 3, 4).submit_many(3 * CHUNK)
    assert caught.value.done == []
    assert caught.value.failed == sorted(caught.value.failed)


def test_a_single_chunk_that_fails_is_the_error_of_the_store(failing: Any) -> None:
    with pytest.raises(EngineUnavailable, match="the disk is full"):
        failing(0).submit_many(10)


def test_an_atomic_submit_that_fails_stored_nothing(failing: Any) -> None:
    manager = failing(0)
    with pytest.raises(EngineUnavailable, match="the disk is full"):
        manager.submit_many(3 * CHUNK, atomic=True)
    assert manager.stored == []


def test_a_submit_that_fails_says_so_to_its_caller(failing: Any) -> None:
    with pytest.raises(EngineUnavailable, match="the disk is full"):
        failing(0).manager.submit("ping", (1,))
