"""Outcomes that a store refuses although it works: the worker keeps them and tries again."""

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest

from mainspring import JobStatus, LimitExceeded, RefusedByStore, current_job
from mainspring.testing import ManualClock
from mainspring.worker_health import WorkerHealth
from tests.unit.jobs.manager_fixture import ManagerFixture, running_manager

REFUSE_COMPLETED = """
CREATE TRIGGER refuse BEFORE UPDATE OF status ON jobs WHEN new.status = 2 AND new.id = 'refused'
BEGIN SELECT raise(ABORT, 'the trigger refuses'); END
"""
REFUSED = RefusedByStore(engine="test", reason="a trigger refuses")
TOO_LARGE = LimitExceeded(what="the message", size=2, limit=1, remedy="store less")


@pytest.fixture
def ran() -> list[str]:
    """The ids of the jobs that handler `ping` has run."""
    return []


@pytest.fixture
def reports() -> list[WorkerHealth]:
    """The health reports of the worker, in order."""
    return []


@pytest.fixture
def shop(clock: ManualClock, ran: list[str], reports: list[WorkerHealth]) -> Iterator[ManagerFixture]:
    with running_manager(clock, has_maintenance=True) as shop:
        shop.manager.on_turn = reports.append
        shop.manager.register("ping", lambda: ran.append(current_job().id))
        shop.manager.start()
        yield shop


def execute(shop: ManagerFixture, statement: str) -> None:
    """Execute a statement in the store, as another program could."""
    with shop.engine.unit(durable=True):
        shop.engine._store.database.write(statement)


def test_an_outcome_that_a_trigger_refuses_is_stored_when_the_trigger_is_gone(
    shop: ManagerFixture, ran: list[str], reports: list[WorkerHealth]
) -> None:
    execute(shop, REFUSE_COMPLETED)
    shop.manager.submit("ping", id="refused")
    others = [shop.manager.submit("ping") for _ in range(3)]
    shop.clock.advance(75)
    assert shop.manager.get("refused").status is JobStatus.RUNNING
    assert [shop.manager.get(other).status for other in others] == [JobStatus.COMPLETED] * 3
    assert "1 outcome cannot be stored: " in (reports[-1].trouble or "")
    assert "the trigger refuses" in (reports[-1].trouble or "")
    execute(shop, "DROP TRIGGER refuse")
    shop.clock.advance(61)
    assert shop.manager.get("refused").status is JobStatus.COMPLETED
    assert reports[-1].trouble is None
    assert sorted(ran) == sorted(["refused", *others])  # each ran once


def test_a_refused_outcome_is_tried_again_after_growing_times_up_to_a_minute(
    shop: ManagerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shop.engine.fail("settle", times=1_000, error=REFUSED)
    shop.manager.submit("ping")
    shop.clock.settle()
    tries = [0]
    for second in range(1, 300):
        left = shop.engine.failures_left("settle")
        shop.clock.advance(1)
        if shop.engine.failures_left("settle") < left:
            tries.append(second)
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 32]
    assert set(gaps[6:]) == {60}
    told = [text for text in caplog.messages if "could not store" in text]
    assert told[0].startswith(
        "the worker could not store 1 outcome and tries again in a second: test refused this"
    )
    assert [text.partition(" and tries again at least every minute")[0] for text in told[1:]] == [
        f"the worker could not store 1 outcome for {seconds} s" for seconds in (63, 123, 183, 243)
    ]


@pytest.mark.parametrize("error", [REFUSED, RuntimeError("a bug"), KeyError("status"), TypeError("no")])
def test_no_error_but_those_of_the_list_makes_a_completed_job_fail(
    shop: ManagerFixture, error: Exception, ran: list[str]
) -> None:
    shop.engine.fail("settle", times=5, error=error)
    job = shop.manager.submit("ping")
    shop.clock.advance(100)
    assert (shop.manager.get(job).status, ran) == (JobStatus.COMPLETED, [job])


@pytest.mark.parametrize(
    "error",
    [
        TOO_LARGE,
        RefusedByStore(engine="test", reason="TooBigError", is_too_large=True),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
        OverflowError("int too big to convert"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_outcome_that_is_too_large_or_cannot_be_encoded_becomes_a_dead_letter(
    shop: ManagerFixture, error: Exception, reports: list[WorkerHealth], caplog: pytest.LogCaptureFixture
) -> None:
    shop.engine.fail("settle", error=error)
    job = shop.manager.submit("ping")
    shop.clock.advance(1)
    info = shop.manager.get(job)
    assert (info.status, info.error) == (
        JobStatus.FAILED,
        f"its outcome could not be stored: {type(error).__name__}",
    )
    assert f"the store refused the outcome of job {job}, so that it becomes a dead letter" in caplog.text
    assert reports[-1].trouble is None


def test_the_failure_that_replaces_an_outcome_is_kept_if_it_is_refused_too(
    shop: ManagerFixture, reports: list[WorkerHealth]
) -> None:
    shop.engine.fail("settle", times=1_000, error=TOO_LARGE)
    job = shop.manager.submit("ping")
    shop.clock.advance(30)
    assert shop.manager.get(job).status is JobStatus.RUNNING
    assert reports[-1].trouble == f"1 outcome cannot be stored: {TOO_LARGE}"
    shop.engine.fail("settle", times=0)
    shop.clock.advance(60)
    assert shop.manager.get(job).status is JobStatus.FAILED
    assert reports[-1].trouble is None


def test_a_shutdown_tries_a_refused_outcome_at_once(
    shop: ManagerFixture, ran: list[str], reports: list[WorkerHealth]
) -> None:
    shop.engine.fail("settle", times=1_000, error=REFUSED)
    job = shop.manager.submit("ping")
    shop.clock.advance(200)  # the next try would be in up to a minute
    assert reports[-1].trouble is not None
    shop.engine.fail("settle", times=0)
    report = shop.manager.shutdown(5)
    assert (report.left, report.interrupted) == ((), 0)
    assert (shop.manager.get(job).status, ran) == (JobStatus.COMPLETED, [job])
